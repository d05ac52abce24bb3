//! `--kv-transfer-config`: vLLM's own JSON (vllm/config/kv_transfer.py, 0.33.0).

use serde::Deserialize;
use serde_json::{Map, Value};
use std::time::Duration;
use windtunnel_engine::vllm::{KvLoadFailurePolicy, KvRole};

/// Longest lease, so that no sum of times overflows.
const MOST_SECONDS: f64 = 3e9;

/// What it says.
#[derive(Clone, Debug, PartialEq)]
pub struct KvTransferConfig {
    /// The worker's part.
    pub role: KvRole,
    /// What it calls itself, if that is said.
    pub engine_id: Option<String>,
    /// What becomes of a request whose KV does not come.
    pub failure_policy: KvLoadFailurePolicy,
    /// How long blocks are held that nobody asks for (`kv_lease_duration`).
    pub lease: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    kv_connector: Option<String>,
    kv_role: Option<String>,
    engine_id: Option<String>,
    kv_load_failure_policy: Option<String>,
    #[serde(default)]
    kv_connector_extra_config: Map<String, Value>,
    /// Where KV is copied through, which is not simulated.
    #[serde(rename = "kv_buffer_device")]
    _kv_buffer_device: Option<String>,
    /// Of other connectors.
    #[serde(rename = "kv_port")]
    _kv_port: Option<u16>,
}

impl Default for KvTransferConfig {
    fn default() -> Self {
        KvTransferConfig {
            role: KvRole::Both,
            engine_id: None,
            failure_policy: KvLoadFailurePolicy::Fail,
            lease: Duration::from_secs(30),
        }
    }
}

impl KvTransferConfig {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(json: &str) -> Result<KvTransferConfig, String> {
        let wrong = |message: String| format!("--kv-transfer-config: {message}");
        if json.trim_start().starts_with('[') {
            return Err(wrong(format!("got {json}, allowed is an object")));
        }
        let keys: Keys = serde_json::from_str(json).map_err(|error| wrong(error.to_string()))?;
        match keys.kv_connector.as_deref() {
            Some("NixlConnector" | "NixlPullConnector") => {}
            Some(other) => {
                let message =
                    format!("kv_connector: got \"{other}\", allowed are NixlConnector and NixlPullConnector");
                return Err(wrong(message));
            }
            None => return Err(wrong("kv_connector: missing; allowed is NixlConnector".into())),
        }
        let role = match keys.kv_role.as_deref() {
            Some("kv_producer") => KvRole::Producer,
            Some("kv_consumer") => KvRole::Consumer,
            Some("kv_both") => KvRole::Both,
            other => {
                let got = other.map_or("missing".into(), |other| format!("got \"{other}\""));
                return Err(wrong(format!("kv_role: {got}; allowed are kv_producer, kv_consumer, kv_both")));
            }
        };
        let failure_policy = match keys.kv_load_failure_policy.as_deref() {
            None | Some("fail") => KvLoadFailurePolicy::Fail,
            Some("recompute") => KvLoadFailurePolicy::Recompute,
            Some(other) => {
                let message =
                    format!("kv_load_failure_policy: got \"{other}\", allowed are fail and recompute");
                return Err(wrong(message));
            }
        };
        let mut lease = KvTransferConfig::default().lease;
        for (key, value) in &keys.kv_connector_extra_config {
            match (key.as_str(), value.as_f64()) {
                ("kv_lease_duration", Some(seconds)) if seconds > 0.0 && seconds < MOST_SECONDS => {
                    lease = Duration::from_secs_f64(seconds);
                }
                ("kv_lease_duration", _) => {
                    let message =
                        format!("kv_lease_duration: got {value}, allowed is a number of seconds above 0");
                    return Err(wrong(format!("kv_connector_extra_config.{message}")));
                }
                // How bytes travel, which is not simulated.
                ("backends" | "enforce_handshake_compat" | "num_threads", _) => {}
                _ => {
                    let message = "is not served; allowed are kv_lease_duration, and, without an effect, backends, \
                                   enforce_handshake_compat and num_threads";
                    return Err(wrong(format!("kv_connector_extra_config.{key}: {message}")));
                }
            }
        }
        Ok(KvTransferConfig { role, engine_id: keys.engine_id, failure_policy, lease })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllms_json_is_read() {
        let read = KvTransferConfig::parse(
            r#"{"kv_connector": "NixlConnector", "kv_role": "kv_consumer", "engine_id": "e",
                "kv_load_failure_policy": "recompute", "kv_buffer_device": "cuda",
                "kv_connector_extra_config": {"kv_lease_duration": 2.5, "backends": ["UCX"]}}"#,
        );
        let expected = KvTransferConfig {
            role: KvRole::Consumer,
            engine_id: Some("e".into()),
            failure_policy: KvLoadFailurePolicy::Recompute,
            lease: Duration::from_millis(2500),
        };
        assert_eq!(read, Ok(expected));
    }

    #[test]
    fn what_is_not_served_is_refused_by_name() {
        let cases = [
            ("{", "EOF"),
            (r#"{"kv_role": "kv_both"}"#, "kv_connector: missing"),
            (r#"{"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}"#, "got \"MooncakeConnector\""),
            (r#"{"kv_connector": "NixlConnector"}"#, "kv_role: missing"),
            (r#"{"kv_connector": "NixlConnector", "kv_role": "both"}"#, "kv_role: got \"both\""),
            (r#"{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_rank": 0}"#, "kv_rank"),
            (
                r#"{"kv_connector": "NixlConnector", "kv_role": "kv_both",
                    "kv_connector_extra_config": {"kv_lease_duration": 0}}"#,
                "kv_lease_duration: got 0",
            ),
            (
                r#"{"kv_connector": "NixlConnector", "kv_role": "kv_both",
                    "kv_connector_extra_config": {"enable_bidirectional_kv_xfer": true}}"#,
                "enable_bidirectional_kv_xfer: is not served",
            ),
        ];
        for (json, words) in cases {
            let error = KvTransferConfig::parse(json).unwrap_err();
            assert!(error.starts_with("--kv-transfer-config: ") && error.contains(words), "{json}: {error}");
        }
    }
}
