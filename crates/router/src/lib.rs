//! windtunnel-router
