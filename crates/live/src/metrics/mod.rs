//! Prometheus metrics under the engines' own names: what dashboards, autoscalers and load balancers read.
//!
//! `registry` holds values and writes them as text; each engine has a set of metrics and an observer that fills it.

mod registry;
mod sglang;
mod sglang_set;
mod trtllm;
mod vllm;

pub use registry::{CONTENT_TYPE, Definition, Group, Kind, Labels, Listed, Registry, Style};
pub use sglang::{SglangInfo, SglangMetrics, add_engine as add_sglang_engine, registry as sglang_registry};
pub use trtllm::{TrtllmInfo, TrtllmMetrics, add_worker as add_trtllm_worker, registry as trtllm_registry};
pub use vllm::{
    CacheInfo, Choices, Connector, VllmMetrics, add_engines as add_vllm_engines, registry as vllm_registry,
};
