//! windtunnel-validate
