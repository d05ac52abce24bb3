//! A scenario: an oracle's config file and request file (shared formats of the scheduler oracles).

use super::error::ConformanceError;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use windtunnel_engine::vllm::{Config, Policy, PreemptionMode, ResumedWork};
use windtunnel_traffic::{RequestLine, RequestLines};

/// The oracle's config. Defaults are the oracle's own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `num_gpu_blocks`, the null block included.
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Prefix caching.
    pub enable_prefix_caching: bool,
    /// Chunked prefill.
    pub enable_chunked_prefill: bool,
    /// Token budget of a pass.
    pub max_num_batched_tokens: u32,
    /// Seats.
    pub max_num_seqs: u32,
    /// Seats for admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_num_active_seqs: Option<u32>,
    /// Context length.
    pub max_model_len: u32,
    /// `fcfs` or `priority`.
    pub policy: PolicyName,
    /// Longest chunk, 0 for none.
    pub long_prefill_token_threshold: u32,
    /// Adaptive threshold.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub long_prefill_token_threshold_adaptive: bool,
    /// Asynchronous scheduling.
    pub async_scheduling: bool,
    /// Fraction of blocks kept free at admission.
    pub watermark: f64,
    /// The whole prompt must fit at admission.
    pub scheduler_reserve_full_isl: bool,
    /// Prefill cadence.
    pub prefill_schedule_interval: u32,
    /// Record KV events.
    pub kv_events: bool,
    /// Record block ids and the free queue.
    pub dump_free_queue: bool,
    /// Duration of a non-empty pass.
    pub step_ms_base: f64,
    /// Duration per token.
    pub step_ms_per_token: f64,
    /// Passes after which the replay stops.
    pub max_steps: u64,
    /// The scenario's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// vLLM's scheduling policy, as written in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyName {
    /// First come, first served.
    Fcfs,
    /// By priority.
    Priority,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            num_blocks: 101,
            block_size: 16,
            enable_prefix_caching: true,
            enable_chunked_prefill: true,
            max_num_batched_tokens: 2048,
            max_num_seqs: 128,
            max_num_active_seqs: None,
            max_model_len: 8192,
            policy: PolicyName::Fcfs,
            long_prefill_token_threshold: 0,
            long_prefill_token_threshold_adaptive: false,
            async_scheduling: false,
            watermark: 0.0,
            scheduler_reserve_full_isl: true,
            prefill_schedule_interval: 1,
            kv_events: true,
            dump_free_queue: false,
            step_ms_base: 10.0,
            step_ms_per_token: 0.05,
            max_steps: 2000,
            name: None,
            comment: None,
        }
    }
}

impl Settings {
    /// The rank's settings.
    pub fn config(&self) -> Config {
        Config {
            num_blocks: self.num_blocks,
            block_size: self.block_size,
            prefix_caching: self.enable_prefix_caching,
            chunked_prefill: self.enable_chunked_prefill,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_num_seqs: self.max_num_seqs,
            max_num_active_seqs: self.max_num_active_seqs,
            max_model_len: self.max_model_len,
            policy: match self.policy {
                PolicyName::Fcfs => Policy::Fcfs,
                PolicyName::Priority => Policy::Priority,
            },
            preemption_mode: PreemptionMode::Lifo,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive: self.long_prefill_token_threshold_adaptive,
            async_scheduling: self.async_scheduling,
            watermark: self.watermark,
            reserve_full_isl: self.scheduler_reserve_full_isl,
            prefill_schedule_interval: self.prefill_schedule_interval,
            max_num_queued_reqs: None,
            max_num_queued_tokens: None,
            kv_events: self.kv_events,
            resumed_work: ResumedWork::Prefill,
        }
    }
}

/// A scenario, read.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The config.
    pub settings: Settings,
    /// The requests, in file order.
    pub requests: Vec<RequestLine>,
    /// The config's file.
    pub config_file: PathBuf,
    /// The requests' file.
    pub requests_file: PathBuf,
}

impl Scenario {
    /// Reads both files; the requests may be gzipped.
    pub fn read(config: &Path, requests: &Path) -> Result<Scenario, ConformanceError> {
        Ok(Scenario {
            settings: read_settings(config)?,
            requests: read_requests(requests)?,
            config_file: config.into(),
            requests_file: requests.into(),
        })
    }
}

fn read_settings(path: &Path) -> Result<Settings, ConformanceError> {
    let problem = |line, reason| ConformanceError::Format { path: path.into(), line, reason };
    let mut text = String::new();
    open(path)?
        .read_to_string(&mut text)
        .map_err(|source| ConformanceError::Io { path: path.into(), source })?;
    // serde would take a list for the values of the keys in order.
    if !text.trim_start().starts_with('{') {
        let line = text.chars().take_while(|c| c.is_whitespace()).filter(|&c| c == '\n').count() + 1;
        return Err(problem(line, "must be one JSON object".into()));
    }
    let settings: Settings =
        serde_json::from_str(&text).map_err(|e| problem(e.line(), ConformanceError::json_reason(&e)))?;
    for (key, value) in
        [("step_ms_base", settings.step_ms_base), ("step_ms_per_token", settings.step_ms_per_token)]
    {
        if !(0.0..=1e9).contains(&value) {
            let line = text.lines().position(|line| line.contains(key)).map_or(1, |i| i + 1);
            return Err(problem(line, format!("{key}: {value} must be from 0 to 1e9")));
        }
    }
    Ok(settings)
}

fn read_requests(path: &Path) -> Result<Vec<RequestLine>, ConformanceError> {
    let requests: Vec<RequestLine> = RequestLines::open(path)?.collect::<Result<_, _>>()?;
    let mut names = HashSet::new();
    for (i, request) in requests.iter().enumerate() {
        let reason = if !names.insert(&request.id) {
            format!("id: \"{}\" stands twice", request.id)
        } else if request.abort_ms.is_some() {
            "abort_ms: a scenario aborts by abort_step".into()
        } else if request.arrival_ms.is_some() && request.arrival_step.is_some() {
            "arrival_step: arrival_ms is given too; a request has one of them".into()
        } else {
            continue;
        };
        let line = lines(path)?.nth(i).transpose()?.map_or(1, |(line, _)| line);
        return Err(ConformanceError::Format { path: path.into(), line, reason });
    }
    Ok(requests)
}

/// Opens a file, unpacking it if it is gzipped.
pub(super) fn open(path: &Path) -> Result<Box<dyn Read>, ConformanceError> {
    let wrap = |source| ConformanceError::Io { path: path.into(), source };
    let mut file = BufReader::new(File::open(path).map_err(wrap)?);
    let gzipped = file.fill_buf().map_err(wrap)?.starts_with(&[0x1f, 0x8b]);
    Ok(if gzipped { Box::new(flate2::read::MultiGzDecoder::new(file)) } else { Box::new(file) })
}

/// The non-blank lines of a file, numbered from 1.
pub(super) fn lines(
    path: &Path,
) -> Result<impl Iterator<Item = Result<(usize, String), ConformanceError>> + use<>, ConformanceError> {
    let owned = path.to_path_buf();
    Ok(BufReader::new(open(path)?)
        .lines()
        .enumerate()
        .map(move |(i, line)| match line {
            Ok(text) => Ok((i + 1, text)),
            Err(source) => Err(ConformanceError::Io { path: owned.clone(), source }),
        })
        .filter(|line| !matches!(line, Ok((_, text)) if text.trim().is_empty())))
}
