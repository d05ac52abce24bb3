//! windtunnel-traffic
