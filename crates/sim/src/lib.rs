//! windtunnel-sim
