//! windtunnel-perf
