//! Proof of fidelity: the schedulers against traces of the real ones, and times against measured runs.

pub mod calibrate;
pub mod compare;
//! Proof of fidelity: the schedulers against traces of the real ones, predictions against measurements.

pub mod accuracy;
pub mod conformance;
pub mod measured;
