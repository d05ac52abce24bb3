//! The windtunnel binary.
fn main() {}
