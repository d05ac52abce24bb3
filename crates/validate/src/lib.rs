//! Proof: the schedulers against traces of the real ones ([`conformance`]), times against measured runs
//! ([`calibrate`], [`compare`]), predictions against public measurements of many deployments ([`accuracy`]).

pub mod accuracy;
pub mod calibrate;
pub mod compare;
pub mod conformance;
pub mod measured;
