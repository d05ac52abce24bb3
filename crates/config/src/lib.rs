//! windtunnel-config
