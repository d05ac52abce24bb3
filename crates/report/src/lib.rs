//! windtunnel-report
