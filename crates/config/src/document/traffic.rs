//! The keys below `traffic`: where requests come from, when they are sent, and when a run ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is asked.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Traffic {
    /// Where requests come from.
    #[serde(default)]
    pub source: Source,
    /// When they are sent.
    #[serde(default)]
    pub load: Load,
    /// When the run ends.
    #[serde(default)]
    pub stop: Stop,
}

impl Default for Traffic {
    fn default() -> Traffic {
        let stop = Stop { requests: Some(100), ..Stop::default() };
        Traffic { source: Source::default(), load: Load::default(), stop }
    }
}

/// Where requests come from.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Source {
    /// Made up, or read from a file.
    #[serde(rename = "type")]
    pub kind: SourceType,
    /// Prompt tokens of each request, 1024 if not given. Synthetic only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub input_tokens: Option<u32>,
    /// Output tokens of each request, 128 if not given. Synthetic only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub output_tokens: Option<u32>,
    /// Lengths are drawn evenly from this share of input_tokens and output_tokens to all of it; 1, all of one
    /// length, if not given. Synthetic only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub shortest_share: Option<f64>,
    /// Seed of the drawn lengths, 42 if not given. Synthetic with a shortest_share only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length_seed: Option<u64>,
    /// The file, one path, looked for beside the configuration file and then in the working directory.
    /// Plain or gzip. Trace only, and needed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<String>>,
    /// Layout of the file, mooncake if not given. Trace only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<TraceFormat>,
    /// Prompt tokens behind one hash id, 512 if not given. Mooncake only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub block_size: Option<u32>,
    /// Read this many requests at most. Trace only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub limit: Option<u64>,
}

/// Made up, or read from a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SourceType {
    /// Requests of one size that share no content.
    #[default]
    Synthetic,
    /// Requests of a file.
    Trace,
}

/// Layout of a trace file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TraceFormat {
    /// JSON lines with a time, two lengths and hash ids.
    #[default]
    Mooncake,
    /// JSON lines with the tokens of prompts and outputs.
    Requests,
}

/// When requests are sent.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Load {
    /// The rule.
    #[serde(rename = "type")]
    pub kind: LoadType,
    /// Requests in flight, 10 if not given. Concurrency only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub concurrency: Option<u32>,
    /// Requests that arrive in one second. Poisson and constant_rate only, and needed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub requests_per_second: Option<f64>,
    /// Seed of the gaps, 42 if not given. Poisson only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Divides the times of the trace, 1 if not given. Trace_timestamps only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub speedup: Option<f64>,
}

/// The rule by which requests are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LoadType {
    /// So many in flight, the next when one ends.
    #[default]
    Concurrency,
    /// At random times of a mean rate. Synthetic only.
    Poisson,
    /// At equal distances. Synthetic only.
    ConstantRate,
    /// At the times of the trace. Trace only.
    TraceTimestamps,
}

/// When the run ends.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Stop {
    /// After this many requests. Synthetic only; it or requests_per_load_unit is needed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub requests: Option<u64>,
    /// After max(1, round(this · load)) requests, load being the concurrency or the requests per second;
    /// a half rounds to the even number. Synthetic only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub requests_per_load_unit: Option<f64>,
    /// Before the first instant after this one. Trace only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub max_virtual_time_seconds: Option<f64>,
}
