//! What the handlers of one server share.

use super::error::{ApiError, Dialect};
use super::faults::{FaultSettings, Faults};
use super::relay::Behind;
use super::texts::TextWork;
use crate::door::Place;
use crate::kv_events::hash::Adapter;
use crate::kv_transfer::Transfers;
use crate::metrics::Registry;
use crate::outlets::Outlets;
use crate::text::{ChatTemplate, Language, Replays, Reply, Tokenizer};
use crate::worker::Worker;
use axum::http::StatusCode;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;
use windtunnel_engine::RequestId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How a server looks from outside, and what it does of its own accord.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Whose server it is.
    pub dialect: Dialect,
    /// Version of the engine, as it says itself.
    pub version: String,
    /// Path or name of the model.
    pub model: String,
    /// Names that requests may use; the first is the one in answers.
    pub served_names: Vec<String>,
    /// Most tokens of prompt and output together.
    pub max_model_len: u32,
    /// Keys of which a request needs one, if there are any.
    pub api_keys: Vec<String>,
    /// Name requests' ids in the header `x-request-id` of answers.
    pub request_id_headers: bool,
    /// Say in `usage` how many prompt tokens were cached.
    pub cached_in_usage: bool,
    /// LoRA adapters that are there from the start: name and path.
    pub loras: Vec<(String, String)>,
    /// Replies that requests may ask for by their keys.
    pub replays: Option<Arc<Replays>>,
    /// Faults that are met on purpose.
    pub faults: FaultSettings,
    /// Requests served at a time; more are answered 429.
    pub most_requests: u64,
    /// Time after the start during which nothing is served.
    pub startup: Duration,
    /// Largest body that is read.
    pub max_body_bytes: usize,
    /// Longest time that a body may take to arrive.
    pub body_timeout: Duration,
}

/// One server.
pub struct App {
    /// What serves.
    pub worker: Worker,
    /// How it looks.
    pub settings: ServerSettings,
    /// Text to tokens and back.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Messages to a prompt.
    pub template: ChatTemplate,
    /// What it says.
    pub reply: Reply,
    /// How many texts are worked on at a time.
    pub texts: TextWork,
    /// Its metrics, if it serves them.
    pub metrics: Option<Registry>,
    /// Requests have spans.
    pub traces: bool,
    /// Where its ranks publish KV events, by rank.
    pub kv_event_sources: Map<String, Value>,
    /// Its part in transfers of KV, if it takes one.
    pub transfers: Option<Arc<Transfers>>,
    /// The workers that compute prompts, if its own only decode.
    pub behind: Option<Behind>,
    /// When it started, in Unix seconds.
    pub started: u64,
    /// Requests being served (vLLM `/load`).
    pub load: AtomicU64,
    /// Requests served at a time, at most.
    pub most_requests: AtomicU64,
    /// No request is taken any more.
    pub draining: AtomicBool,
    /// Faults that are met on purpose.
    pub faults: Faults,
    /// LoRA adapters by name.
    pub loras: RwLock<BTreeMap<String, Arc<Adapter>>>,
    adapters: AtomicU32,
    /// Sleep level; 0 is awake. Requests wait while it sleeps or is paused.
    pub rest: watch::Sender<Rest>,
    ready_at: Instant,
    names: AtomicU64,
    at_work: Mutex<HashMap<RequestId, (String, Place)>>,
}

/// Why requests have to wait, if they do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    /// Sleep level; 0 is awake.
    pub sleep: u32,
    /// It is paused.
    pub paused: bool,
}

impl App {
    /// A server around a worker.
    pub fn new(worker: Worker, settings: ServerSettings, language: Language, reply: Reply) -> App {
        let faults = Faults::new(settings.faults.clone(), reply.seed);
        let adapters = (1..).zip(&settings.loras).map(|(id, (name, path))| {
            (name.clone(), Arc::new(Adapter { name: name.clone(), path: path.clone(), id }))
        });
        let adapters: BTreeMap<_, _> = adapters.collect();
        App {
            worker,
            most_requests: AtomicU64::new(settings.most_requests),
            faults,
            adapters: AtomicU32::new(adapters.len() as u32),
            loras: RwLock::new(adapters),
            rest: watch::Sender::new(Rest::default()),
            ready_at: Instant::now() + settings.startup,
            at_work: Mutex::new(HashMap::new()),
            settings,
            tokenizer: language.tokenizer,
            template: language.template,
            reply,
            texts: TextWork::default(),
            metrics: None,
            traces: false,
            kv_event_sources: Map::new(),
            transfers: None,
            behind: None,
            started: unix_seconds(),
            load: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            names: AtomicU64::new(0),
        }
    }

    /// The same, telling what its outlets tell.
    pub fn with_outlets(mut self, outlets: &Outlets) -> App {
        self.metrics = outlets.serves_metrics().then(|| outlets.shown.registry.clone());
        self.traces = outlets.traces();
        self.kv_event_sources = outlets.shown.kv_event_sources.clone();
        self
    }

    /// The same, of a worker that takes part in transfers of KV.
    pub fn with_transfers(self, transfers: Option<Arc<Transfers>>) -> App {
        App { transfers, ..self }
    }

    /// The same, before workers that compute prompts. Its clients see one that does all.
    pub fn before(self, prefill: Arc<App>) -> App {
        App { transfers: None, behind: Some(Behind::new(prefill)), ..self }
    }

    /// Empties the prefix caches of all workers. False where a request is at work.
    pub async fn reset_cache(&self) -> bool {
        let others = match &self.behind {
            Some(behind) => behind.reset_cache().await,
            None => true,
        };
        self.worker.reset_cache().await && others
    }

    /// So many numbers in a row that it has not given before; the first of them.
    pub(crate) fn take_numbers(&self, count: u64) -> u64 {
        self.names.fetch_add(count, Ordering::Relaxed)
    }

    /// A new name: 32 hexadecimal digits.
    pub fn name(&self) -> String {
        let number = self.names.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let own = self.started ^ (u64::from(std::process::id()) << 32);
        format!("{:016x}{:016x}", xxh3_64_with_seed(&number, own), xxh3_64_with_seed(&number, !own))
    }

    /// The name in answers for the model that a request names; none is the one that is served.
    ///
    /// # Errors
    /// 404 for a model that is not served.
    pub fn model(&self, named: Option<&str>) -> Result<String, ApiError> {
        let names = &self.settings.served_names;
        match named.filter(|name| !name.is_empty()) {
            None => Ok(names[0].clone()),
            Some(name) if names.iter().any(|served| served == name) => Ok(name.to_owned()),
            Some(name) if self.lora(Some(name)).is_some() => Ok(name.to_owned()),
            Some(name) => Err(ApiError::model(name)),
        }
    }

    /// The LoRA adapter that a request names as its model, if it names one.
    pub fn lora(&self, named: Option<&str>) -> Option<Arc<Adapter>> {
        self.loras.read().unwrap_or_else(PoisonError::into_inner).get(named?).cloned()
    }

    /// An adapter that has just been loaded, with the next number.
    pub fn adapter(&self, name: &str, path: &str) -> Arc<Adapter> {
        let id = self.adapters.fetch_add(1, Ordering::Relaxed) + 1;
        Arc::new(Adapter { name: name.to_owned(), path: path.to_owned(), id })
    }

    /// Waits while it sleeps or is paused.
    pub async fn awake(&self) {
        // It ends only with the server.
        let _ = self.rest.subscribe().wait_for(|rest| *rest == Rest::default()).await;
    }

    /// A request is at work, under a name.
    pub(crate) fn note(&self, id: RequestId, name: &str, place: &Place) {
        self.at_work().insert(id, (name.to_owned(), place.clone()));
    }

    /// It no longer is.
    pub fn forget(&self, id: RequestId) {
        self.at_work().remove(&id);
    }

    /// Ends the requests whose names begin so.
    pub fn abort(&self, prefix: &str) {
        for (id, (name, place)) in self.at_work().iter() {
            if name.starts_with(prefix) {
                self.worker.cancel(place, *id);
            }
        }
    }

    fn at_work(&self) -> MutexGuard<'_, HashMap<RequestId, (String, Place)>> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests are taken.
    ///
    /// # Errors
    /// 503 while it starts or drains, 500 when the engine is dead.
    pub fn check_open(&self) -> Result<(), ApiError> {
        if let Some(words) = self.worker.dead() {
            return Err(ApiError::dead(words));
        }
        if Instant::now() < self.ready_at {
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is starting"));
        }
        if self.draining.load(Ordering::Relaxed) {
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down"));
        }
        Ok(())
    }
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl ServerSettings {
    /// The settings of a server of a model of which nothing else is said.
    pub fn new(dialect: Dialect, version: &str, model: &str, max_model_len: u32) -> ServerSettings {
        ServerSettings {
            dialect,
            version: version.to_owned(),
            model: model.to_owned(),
            served_names: vec![model.to_owned()],
            max_model_len,
            api_keys: Vec::new(),
            request_id_headers: false,
            cached_in_usage: true,
            loras: Vec::new(),
            replays: None,
            faults: FaultSettings::default(),
            most_requests: u64::MAX,
            startup: Duration::ZERO,
            max_body_bytes: 64 << 20,
            body_timeout: Duration::from_secs(60),
        }
    }
}
