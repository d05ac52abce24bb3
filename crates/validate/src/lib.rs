//! Proof of fidelity: the schedulers against traces of the real ones.

pub mod conformance;
