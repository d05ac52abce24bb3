//! The layout of a configuration file: every key that exists, with its type, default and bounds.
//!
//! These types are the only place where a key is declared. The JSON Schema is made from them, the checks
//! run on that schema, and the values in effect are these types written out again. Their comments are
//! the descriptions that a person reads. What keys mean together is not known here (see `resolve`).

mod engine;
mod traffic;

pub(crate) use engine::{
    Backend, BytesPerToken, CapacityPolicy, CapacityType, ChunkedPrefillSize, Composition, ContextLength,
    Defaults, Engine, GemmQuantMode, KvCacheQuantMode, KvTransfer, LinkSharing, Mode, MoeQuantMode, Off,
    PreemptionMode, PreemptionThreshold, QueuePolicy, RankPlacement, SchedulePolicy, Scheduler, Semantics,
    Timing, TimingType, TransferTiming, Worker,
};
pub(crate) use traffic::{LoadType, SourceType, TraceFormat, Traffic};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::{Deserialize, Serialize};

/// One prediction: what serves, and what is asked of it.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Windtunnel prediction")]
pub(crate) struct Document {
    /// What is asked. Left out: 100 synthetic requests of 1024 input and 128 output tokens, 10 at a
    /// time. Given: nothing of that default is merged in.
    #[serde(default)]
    pub traffic: Traffic,
    /// What serves.
    pub engine: Engine,
    /// Who takes the next request.
    #[serde(default)]
    pub router: Router,
    /// What a good request is.
    #[serde(default)]
    pub evaluation: Evaluation,
}

/// Who takes the next request.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Router {
    /// How a worker is chosen.
    pub policy: RouterPolicy,
}

/// How a worker is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RouterPolicy {
    /// Every worker in turn.
    #[default]
    RoundRobin,
}

/// What a good request is.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Evaluation {
    /// Bounds that make a request count as good: ttft_ms and itl_ms, or e2e_ms.
    pub sla: Sla,
}

/// Bounds that make a request count as good.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Sla {
    /// Longest time from arrival to the first token.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub ttft_ms: Option<f64>,
    /// Longest mean time between tokens.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub itl_ms: Option<f64>,
    /// Longest time from arrival to the last token. Not together with the other two.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub e2e_ms: Option<f64>,
}

/// The JSON Schema of a file, without references, so that it can be walked key by key.
pub(crate) fn json_schema() -> serde_json::Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<Document>().into();
    join_lines(&mut schema);
    schema
}

/// Descriptions are comments, broken into lines; here they are texts again.
fn join_lines(schema: &mut serde_json::Value) {
    match schema {
        serde_json::Value::Object(entries) => {
            for (key, value) in entries {
                match value {
                    serde_json::Value::String(text) if key == "description" => {
                        *text = text.replace('\n', " ")
                    }
                    value => join_lines(value),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(join_lines),
        _ => {}
    }
}
