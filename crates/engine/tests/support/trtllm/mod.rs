//! Random workloads against a TensorRT-LLM rank: `case` says what is asked of it, `world` drives three ranks
//! of different steppers through it, `checks` holds what must be true after every step, worked out from the
//! plans, the events and the rules, not from the code under test.

pub mod case;
pub mod checks;
pub mod world;
