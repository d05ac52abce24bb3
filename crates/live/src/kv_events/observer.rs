//! What watches a rank and publishes its KV events.

use super::config::KvEventsConfig;
use super::stream::{EventStream, Naming, Source};
use crate::error::LiveError;
use crate::observer::{Ended, PassObserver, PassReport, RequestInfo};
use crate::publisher::{Publisher, PublisherSettings};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use windtunnel_engine::{KvEvents, Nanos, RankStats};

/// Which rank it is that publishes, and what it says of itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its number among the ranks of its worker.
    pub dp_rank: u32,
    /// Its number among the ranks of all workers of the process: its ports are so many behind the first.
    pub offset: u32,
    /// Address of its worker's HTTP server.
    pub host: String,
    /// Port of its worker's HTTP server.
    pub port: u16,
    /// Name of the model.
    pub model: String,
}

/// Publishes the KV events of one rank.
#[derive(Debug)]
pub struct KvEventPublisher {
    stream: EventStream,
    publisher: Publisher,
}

impl KvEventPublisher {
    /// Opens the sockets of a rank. To be called on the runtime that is to serve them.
    ///
    /// # Errors
    /// A socket that cannot be had.
    pub async fn start(
        config: &KvEventsConfig,
        naming: Naming,
        block_size: u32,
        identity: &Identity,
    ) -> Result<KvEventPublisher, LiveError> {
        let place = |key: &str, endpoint: &crate::zmq::Endpoint| {
            let refused = |e| LiveError::Settings(format!("--kv-events-config: {key}: {e}"));
            endpoint.offset(identity.offset).map_err(refused)
        };
        let replay = config.replay_endpoint.as_ref();
        let settings = PublisherSettings {
            endpoint: place("endpoint", &config.endpoint)?,
            binds: config.binds,
            replay_endpoint: replay.map(|endpoint| place("replay_endpoint", endpoint)).transpose()?,
            topic: topic(&config.topic, identity),
            buffer_steps: config.buffer_steps,
            max_queue_size: config.max_queue_size,
        };
        Ok(KvEventPublisher {
            stream: EventStream::new(naming, config.encoding, block_size, identity.dp_rank),
            publisher: Publisher::start(settings).await?,
        })
    }

    /// The publisher as vLLM's `GET /kv_event_sources` shows it.
    pub fn describe(&self) -> Value {
        let PublisherSettings { endpoint, replay_endpoint, topic, buffer_steps, max_queue_size, .. } =
            self.publisher.settings();
        json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": endpoint.to_string(),
            "replay_endpoint": replay_endpoint.as_ref().map(ToString::to_string),
            "buffer_steps": buffer_steps,
            "hwm": super::config::HWM,
            "max_queue_size": max_queue_size,
            "topic": topic,
        })
    }

    fn send(&mut self, payload: Option<Vec<u8>>) {
        if let Some(payload) = payload {
            self.publisher.publish(payload);
        }
    }
}

impl PassObserver for KvEventPublisher {
    fn submitted(&mut self, info: &Arc<RequestInfo>, _at: Nanos, _stats: &RankStats) {
        self.stream.submitted(info.id, Source::of(info));
    }

    fn pass(&mut self, pass: &PassReport<'_>) {
        // A request that a stop string ended is gone for its client; the engine may still store its blocks.
        for finished in &pass.outcome.finished {
            self.stream.ended(finished.id);
        }
        for ended in pass.ended {
            self.stream.ended(ended.info.id);
        }
        let prefill = !pass.scheduled.prefill.is_empty();
        let decode = pass.scheduled.decode.count > 0;
        let idle = pass.stats.running == 0 && pass.stats.waiting == 0;
        let payload = self.stream.pass(pass.events, prefill, decode, idle, now());
        self.send(payload);
    }

    fn ended(&mut self, ended: &Ended<'_>, _stats: &RankStats) {
        self.stream.ended(ended.info.id);
    }

    fn cache_reset(&mut self, events: &KvEvents, _at: Nanos) {
        self.stream.reset(events);
    }

    fn idle(&mut self, _at: Nanos) {
        let payload = self.stream.publish_idle(now());
        self.send(payload);
    }
}

/// The topic with its places filled in.
fn topic(template: &str, identity: &Identity) -> String {
    template
        .replace("{host}", &identity.host)
        .replace("{port}", &identity.port.to_string())
        .replace("{model}", &identity.model)
        .replace("{rank}", &identity.dp_rank.to_string())
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// llm-d takes `kv@<pod>:<port>@<model>` (K5: two ranks on two ports must not have one topic).
    #[test]
    fn topics_name_worker_and_rank() {
        let identity = |dp_rank| Identity {
            dp_rank,
            offset: dp_rank,
            host: "10.0.0.7".into(),
            port: 8000,
            model: "meta/llama".into(),
        };
        assert_eq!(topic("kv@{host}:{port}@{model}", &identity(0)), "kv@10.0.0.7:8000@meta/llama");
        assert_ne!(topic("kv@{host}:{rank}", &identity(0)), topic("kv@{host}:{rank}", &identity(1)));
        assert_eq!(topic("", &identity(0)), "");
    }
}
