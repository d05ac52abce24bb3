//! Proof of fidelity: the schedulers against traces of the real ones, times against measured runs, and predictions
//! against measured deployments.

pub mod accuracy;
pub mod calibrate;
pub mod compare;
pub mod conformance;
pub mod measured;
