//! Engine cores: scheduler and KV cache of LLM serving engines as pure state machines.
//!
//! A core has no clock, does no I/O, starts no thread and draws no random number. A driver submits
//! requests, asks for passes, decides how long they take, and completes them; the same calls serve
//! virtual and wall-clock time.

mod calendar;
mod decode_set;
mod error;
mod event;
mod flight;
mod growth;
mod identity;
mod kv;
mod nanos;
mod pass;
mod rank;
mod request;
pub mod sglang;
mod token_pass;
pub mod trtllm;
pub mod vllm;

pub use error::ConfigError;
pub use event::{KvEvent, KvEventScope, KvEvents, Tier};
pub use identity::{BlockKey, KeyRun, KeySpace, Keys, shared_prompt_keys};
pub use kv::KeyTable;
pub use nanos::{MAX_NANOS, Nanos};
pub use pass::{
    Admission, Chunk, DecodeSet, DiskJob, DiskWork, Finished, HostJob, KvLoad, Outcome, Scheduled, Shape,
    Slot, Token,
};
pub use rank::{HandOffQueues, Rank, RankConfig, RankStats, Steady, Stepper};
pub use request::{Content, FinishReason, HandOff, OutputPlan, Rejection, Request, RequestId};
pub use token_pass::LoadFailure;
