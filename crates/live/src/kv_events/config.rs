//! `--kv-events-config`: the engines' own JSON (vllm/config/kv_events.py 0.33.0, sglang/srt/disaggregation/kv_events.py
//! 0.5.23) with three keys more: `bind` also for vLLM, `event_format` and `block_hash_format`.

use super::event::{Dialect, Encoding};
use crate::error::LiveError;
use crate::zmq::Endpoint;
use serde::Deserialize;

/// What the sockets' library queues for a subscriber before it drops messages. It cannot be changed, and it is the
/// engines' default.
pub(super) const HWM: u64 = 100_000;

/// Where and how KV events go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// PUB socket of the first rank of the first worker; those of the others are on the ports behind it.
    pub endpoint: Endpoint,
    /// Whether that socket waits for subscribers, or goes to one.
    pub binds: bool,
    /// ROUTER socket that repeats batches, likewise.
    pub replay_endpoint: Option<Endpoint>,
    /// Batches that it can repeat.
    pub buffer_steps: usize,
    /// Batches that may wait for the sockets.
    pub max_queue_size: usize,
    /// Topic, with places for `{host}`, `{port}`, `{model}` and `{rank}`.
    pub topic: String,
    /// Layout of an event.
    pub encoding: Encoding,
    /// vLLM: hashes as numbers, not as bytes.
    pub as_numbers: bool,
    /// SGLang: `format: dynamo`.
    pub dynamo: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    enable_kv_cache_events: Option<bool>,
    publisher: Option<String>,
    endpoint: Option<String>,
    bind: Option<bool>,
    replay_endpoint: Option<String>,
    buffer_steps: Option<u64>,
    hwm: Option<u64>,
    max_queue_size: Option<u64>,
    topic: Option<String>,
    format: Option<String>,
    event_format: Option<String>,
    block_hash_format: Option<String>,
}

impl KvEventsConfig {
    /// Reads the value of the option. `None` if it turns events off.
    ///
    /// # Errors
    /// What is wrong with which key.
    pub fn parse(dialect: Dialect, json: &str) -> Result<Option<KvEventsConfig>, LiveError> {
        let raw: Raw = serde_json::from_str(json).map_err(|e| refused(&format!("{e}")))?;
        let vllm = dialect == Dialect::Vllm;
        if !vllm && raw.enable_kv_cache_events.is_some() {
            return Err(refused("enable_kv_cache_events is a key of vLLM; SGLang has publisher"));
        }
        let enabled = !vllm || raw.enable_kv_cache_events == Some(true);
        let by_default = if vllm && enabled { "zmq" } else { "null" };
        match raw.publisher.as_deref().unwrap_or(by_default) {
            "zmq" => {}
            "null" => return Ok(None),
            other => {
                return Err(refused(&format!("publisher is {other:?}, allowed are \"zmq\" and \"null\"")));
            }
        }
        if raw.hwm.is_some_and(|hwm| hwm != HWM) {
            return Err(refused(&format!("hwm can only be {HWM}, the engines' default")));
        }
        let endpoint = raw.endpoint.as_deref().unwrap_or("tcp://*:5557");
        let wildcard = if vllm { &["*", "::"][..] } else { &["*", "::", "0.0.0.0"] };
        let binds = raw.bind.unwrap_or_else(|| wildcard.iter().any(|any| endpoint.contains(any)));
        let config = KvEventsConfig {
            endpoint: Endpoint::parse(endpoint).map_err(|e| refused(&format!("endpoint: {e}")))?,
            binds,
            replay_endpoint: raw
                .replay_endpoint
                .as_deref()
                .map(Endpoint::parse)
                .transpose()
                .map_err(|e| refused(&format!("replay_endpoint: {e}")))?,
            buffer_steps: at_least_one("buffer_steps", raw.buffer_steps.unwrap_or(10_000))?,
            max_queue_size: at_least_one("max_queue_size", raw.max_queue_size.unwrap_or(100_000))?,
            topic: raw.topic.unwrap_or_default(),
            encoding: choice(
                "event_format",
                raw.event_format,
                [("map", Encoding::Map), ("array", Encoding::Array)],
            )?,
            as_numbers: choice(
                "block_hash_format",
                raw.block_hash_format.clone(),
                [("int", true), ("bytes", false)],
            )?,
            dynamo: choice("format", raw.format.clone(), [("default", false), ("dynamo", true)])?,
        };
        if vllm && raw.format.is_some() {
            return Err(refused("format is a key of SGLang"));
        }
        if !vllm && raw.block_hash_format.is_some() {
            return Err(refused("block_hash_format goes with vLLM; SGLang's hashes are numbers"));
        }
        Ok(enabled.then_some(config))
    }
}

fn refused(problem: &str) -> LiveError {
    LiveError::Settings(format!("--kv-events-config: {problem}"))
}

fn at_least_one(key: &str, value: u64) -> Result<usize, LiveError> {
    match usize::try_from(value) {
        Ok(value @ 1..=100_000_000) => Ok(value),
        _ => Err(refused(&format!("{key} is {value}, allowed is 1 to 100000000"))),
    }
}

/// The first choice is the default.
fn choice<T: Copy>(key: &str, value: Option<String>, choices: [(&str, T); 2]) -> Result<T, LiveError> {
    let Some(value) = value else { return Ok(choices[0].1) };
    let found = choices.iter().find(|(name, _)| *name == value);
    found.map(|&(_, it)| it).ok_or_else(|| {
        refused(&format!("{key} is {value:?}, allowed are {:?} and {:?}", choices[0].0, choices[1].0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(dialect: Dialect, json: &str) -> Result<Option<KvEventsConfig>, String> {
        KvEventsConfig::parse(dialect, json).map_err(|e| e.to_string())
    }

    /// vLLM: `zmq` if events are on and nothing else is said. SGLang: off unless `publisher` says `zmq`.
    #[test]
    fn events_are_on_when_the_engine_would_have_them_on() {
        let on = |dialect, json| parsed(dialect, json).unwrap().is_some();
        assert!(on(Dialect::Vllm, r#"{"enable_kv_cache_events": true}"#));
        assert!(!on(Dialect::Vllm, r#"{"enable_kv_cache_events": true, "publisher": "null"}"#));
        assert!(!on(Dialect::Vllm, r#"{"publisher": "zmq"}"#));
        assert!(!on(Dialect::Vllm, "{}"));
        assert!(on(Dialect::Sglang, r#"{"publisher": "zmq"}"#));
        assert!(!on(Dialect::Sglang, "{}"));
    }

    /// vLLM connects to 0.0.0.0, SGLang binds there; `bind` decides in both.
    #[test]
    fn wildcards_bind_and_hosts_connect() {
        let binds = |dialect, endpoint: &str, more: &str| {
            let on = if dialect == Dialect::Vllm {
                r#""enable_kv_cache_events":true"#
            } else {
                r#""publisher":"zmq""#
            };
            parsed(dialect, &format!(r#"{{{on},"endpoint":"{endpoint}"{more}}}"#)).unwrap().unwrap().binds
        };
        assert!(binds(Dialect::Vllm, "tcp://*:5557", ""));
        assert!(binds(Dialect::Vllm, "tcp://[::]:5557", ""));
        assert!(!binds(Dialect::Vllm, "tcp://0.0.0.0:5557", ""));
        assert!(binds(Dialect::Sglang, "tcp://0.0.0.0:5557", ""));
        assert!(!binds(Dialect::Sglang, "tcp://127.0.0.1:5557", ""));
        assert!(binds(Dialect::Vllm, "tcp://127.0.0.1:5557", r#","bind":true"#));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let vllm = |more: &str| {
            parsed(Dialect::Vllm, &format!(r#"{{"enable_kv_cache_events":true{more}}}"#)).unwrap_err()
        };
        assert_eq!(vllm(r#","hwm":5"#), "--kv-events-config: hwm can only be 100000, the engines' default");
        assert_eq!(
            vllm(r#","max_queue_size":0"#),
            "--kv-events-config: max_queue_size is 0, allowed is 1 to 100000000"
        );
        assert_eq!(
            vllm(r#","event_format":"xml""#),
            r#"--kv-events-config: event_format is "xml", allowed are "map" and "array""#
        );
        assert!(vllm(r#","endpoint":"ipc:///x""#).contains("tcp://HOST:PORT"));
        assert!(vllm(r#","endpoints":1"#).contains("unknown field `endpoints`"));
        assert!(vllm(r#","format":"dynamo""#).contains("format is a key of SGLang"));
        let publisher = parsed(Dialect::Sglang, r#"{"publisher":"nats"}"#).unwrap_err();
        assert!(publisher.contains(r#"publisher is "nats", allowed are "zmq" and "null""#));
    }
}
