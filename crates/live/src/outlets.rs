//! What a worker tells the outside beside its answers: metrics, KV events, forward-pass metrics. Opened before the
//! worker starts, so that a port that is taken keeps it from starting.

use crate::error::LiveError;
use crate::forward_pass::ForwardPassPublisher;
use crate::kv_events::hash::{BlockHasher, HashAlgorithm};
use crate::kv_events::{Identity, KvEventPublisher, KvEventsConfig, Naming};
use crate::metrics::{
    CacheInfo, Choices, Connector, Registry, SglangInfo, SglangMetrics, TrtllmInfo, TrtllmMetrics,
    VllmMetrics, add_sglang_engine, add_trtllm_worker, add_vllm_engines, sglang_registry, trtllm_registry,
    vllm_registry,
};
use crate::observer::{Observers, PassObserver};
use crate::traces::{SpanForm, SpanObserver, Tracer};
use crate::zmq::Endpoint;
use serde_json::{Map, Value};
use windtunnel_config::Deployment;
use windtunnel_engine::RankConfig;
use windtunnel_engine::sglang::Disaggregation;

/// vLLM's `--gpu-memory-utilization` where nothing is said, as of 0.22.
const MEMORY: f64 = 0.92;

/// What is told, and where.
#[derive(Clone, Debug, Default)]
pub struct OutletSettings {
    /// `--kv-events-config`.
    pub kv_events: Option<KvEventsConfig>,
    /// Sockets of the first rank of each worker, in place of those of `kv_events`: events, and their repetition.
    pub kv_event_places: Vec<(Endpoint, Option<Endpoint>)>,
    /// `--prefix-caching-hash-algo` (vLLM).
    pub hash_algorithm: HashAlgorithm,
    /// `PYTHONHASHSEED`, if it is set (vLLM).
    pub hash_seed: Option<String>,
    /// `--decode-log-interval` (SGLang).
    pub decode_log_interval: Option<u64>,
    /// `--enable-metrics`: SGLang serves its metrics only if it is told to; the others always do.
    pub sglang_metrics: bool,
    /// Where forward-pass metrics go.
    pub forward_passes: Option<ForwardPasses>,
    /// What takes the spans of requests and passes.
    pub traces: Option<Tracer>,
}

/// Forward-pass metrics.
#[derive(Clone, Debug)]
pub struct ForwardPasses {
    /// PUB socket of the first rank of the first worker; those of the others are on the ports behind it.
    pub endpoint: Endpoint,
    /// What the worker is called in them.
    pub worker_id: String,
}

/// Which worker it is.
#[derive(Clone, Debug)]
pub struct WorkerIdentity {
    /// Its number in the process.
    pub number: u32,
    /// Its first rank among all of the process: sockets that each rank has are that far behind the first one's.
    pub first_rank: u32,
    /// How the server tells of its ranks.
    pub told: Told,
    /// Address of its server.
    pub host: String,
    /// Port of its server.
    pub port: u16,
    /// Name of the model in answers.
    pub model: String,
}

/// Ranks among those that one server tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The number of the worker's first rank.
    pub first: u32,
    /// All of them.
    pub ranks: u32,
}

impl Told {
    /// A server tells of one worker of so many ranks.
    pub fn alone(ranks: u32) -> Told {
        Told { first: 0, ranks }
    }
}

/// What a server shows of its workers.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Their metrics.
    pub registry: Registry,
    /// Where each rank publishes KV events, by rank, as vLLM's `GET /kv_event_sources` shows it.
    pub kv_event_sources: Map<String, Value>,
}

/// The open outlets of one worker, or of several that are alike behind one server.
pub struct Outlets {
    /// What its server shows.
    pub shown: Shown,
    ranks: Vec<Vec<Box<dyn PassObserver>>>,
    kv_events: bool,
    serves_metrics: bool,
    traces: bool,
}

impl Outlets {
    /// Opens the outlets of a worker of `deployment`. What the same server shows of others is in `beside`, and then
    /// in this. To be called on the runtime that is to serve them.
    ///
    /// # Errors
    /// What the engine has not, and sockets that cannot be had.
    pub async fn open(
        settings: &OutletSettings,
        deployment: &Deployment,
        worker: &WorkerIdentity,
        beside: Option<Shown>,
    ) -> Result<Outlets, LiveError> {
        let ranks = deployment.ranks.get();
        let (beside, mut sources) = match beside {
            Some(Shown { registry, kv_event_sources }) => (Some(registry), kv_event_sources),
            None => (None, Map::new()),
        };
        let (registry, mut observers) = metrics(settings, deployment, worker, beside);
        for (rank, observers) in (0..ranks).zip(&mut observers) {
            let (offset, rank) = (worker.first_rank + rank, worker.told.first + rank);
            if let Some(config) = &settings.kv_events {
                let mut config = config.clone();
                let place = settings.kv_event_places.get(worker.number as usize);
                if let Some((events, replay)) = place.cloned() {
                    (config.endpoint, config.replay_endpoint) = (events, replay);
                }
                let identity = Identity {
                    dp_rank: rank,
                    offset: if place.is_some() { rank } else { offset },
                    host: worker.host.clone(),
                    port: worker.port,
                    model: worker.model.clone(),
                };
                let (naming, block_size) = naming(settings, &config, &deployment.engine)?;
                let publisher = KvEventPublisher::start(&config, naming, block_size, &identity).await?;
                sources.insert(rank.to_string(), publisher.describe());
                observers.push(Box::new(publisher));
            }
            if let Some(tracer) = &settings.traces {
                let form = span_form(&deployment.engine);
                observers.push(Box::new(SpanObserver::new(tracer.clone(), form, &worker.model, rank)));
            }
            if let Some(ForwardPasses { endpoint, worker_id }) = &settings.forward_passes {
                let publisher = ForwardPassPublisher::start(endpoint, offset, worker_id, rank).await?;
                observers.push(Box::new(publisher));
            }
        }
        Ok(Outlets {
            shown: Shown { registry, kv_event_sources: sources },
            ranks: observers,
            kv_events: settings.kv_events.is_some(),
            serves_metrics: settings.sglang_metrics || !matches!(deployment.engine, RankConfig::Sglang(_)),
            traces: settings.traces.is_some(),
        })
    }

    /// Whether requests have spans.
    pub fn traces(&self) -> bool {
        self.traces
    }

    /// Whether the ranks have to keep events.
    pub fn keeps_kv_events(&self) -> bool {
        self.kv_events
    }

    /// Whether the server has `/metrics`.
    pub fn serves_metrics(&self) -> bool {
        self.serves_metrics
    }

    /// The observers of a rank, once.
    pub fn take_observers(&mut self, rank: u32) -> Observers {
        let mut observers = Observers::default();
        if let Some(of_rank) = self.ranks.get_mut(rank as usize) {
            of_rank.drain(..).for_each(|observer| observers.push(observer));
        }
        observers
    }
}

/// Whose spans requests have.
fn span_form(engine: &RankConfig) -> SpanForm {
    match engine {
        RankConfig::Vllm(_) | RankConfig::Trtllm(_) => SpanForm::Vllm,
        RankConfig::Sglang(engine) => SpanForm::Sglang {
            role: match engine.disaggregation {
                Disaggregation::Off => "",
                Disaggregation::Prefill => "prefill",
                Disaggregation::Decode { .. } => "decode",
            },
        },
    }
}

/// How blocks are named, and how large they are.
fn naming(
    settings: &OutletSettings,
    config: &KvEventsConfig,
    engine: &RankConfig,
) -> Result<(Naming, u32), LiveError> {
    match engine {
        RankConfig::Vllm(engine) => {
            let hasher = BlockHasher::new(settings.hash_algorithm, settings.hash_seed.as_deref());
            Ok((Naming::Vllm { hasher, as_numbers: config.as_numbers }, engine.block_size))
        }
        RankConfig::Sglang(engine) => {
            let decode_log_interval = settings.decode_log_interval.unwrap_or(40);
            Ok((Naming::Sglang { dynamo: config.dynamo, decode_log_interval }, engine.page_size))
        }
        RankConfig::Trtllm(_) => {
            let message = "--kv-events-config: TensorRT-LLM publishes no KV events over ZeroMQ";
            Err(LiveError::Settings(message.to_owned()))
        }
    }
}

type RankObservers = Vec<Box<dyn PassObserver>>;

/// The metrics of a worker, among those of `beside` if there are any, and what fills them for each rank.
fn metrics(
    settings: &OutletSettings,
    deployment: &Deployment,
    worker: &WorkerIdentity,
    beside: Option<Registry>,
) -> (Registry, Vec<RankObservers>) {
    let (ranks, model) = (deployment.ranks.get(), worker.model.as_str());
    match &deployment.engine {
        RankConfig::Vllm(engine) => {
            let cache = CacheInfo {
                block_size: engine.block_size,
                num_gpu_blocks: engine.num_blocks,
                prefix_caching: engine.prefix_caching,
                hash_algorithm: settings.hash_algorithm.name(),
                gpu_memory_utilization: deployment
                    .capacity
                    .as_ref()
                    .map_or(MEMORY, |budget| budget.memory_fraction),
            };
            let tensor = deployment.parallelism.tensor;
            let connector = engine.kv_role.map(|_| Connector { tensor });
            let engines = worker.told.first..worker.told.first + ranks;
            let registry = beside.unwrap_or_else(|| vllm_registry(engine.max_model_len));
            add_vllm_engines(&registry, model, engines.clone(), &cache, connector.is_some());
            let choices = Choices::default();
            let of = |rank| VllmMetrics::new(registry.clone(), choices.clone(), model, (rank, connector));
            let observers = engines.map(|rank| vec![Box::new(of(rank)) as Box<dyn PassObserver>]).collect();
            (registry, observers)
        }
        RankConfig::Sglang(engine) => {
            let info = SglangInfo {
                model: model.to_owned(),
                engine_type: match engine.disaggregation {
                    Disaggregation::Off => "unified",
                    Disaggregation::Prefill => "prefill",
                    Disaggregation::Decode { .. } => "decode",
                },
                ranks,
                tensor: deployment.parallelism.tensor,
                page_size: engine.page_size,
                pages: engine.usable_pages(),
                context_length: engine.context_length,
            };
            let registry = beside.unwrap_or_else(|| sglang_registry(engine.context_length));
            add_sglang_engine(&registry, &info);
            let of = |rank| SglangMetrics::new(registry.clone(), &info, rank);
            let observers =
                (0..ranks).map(|rank| vec![Box::new(of(rank)) as Box<dyn PassObserver>]).collect();
            (registry, observers)
        }
        RankConfig::Trtllm(engine) => {
            let info = |rank| TrtllmInfo {
                model: model.to_owned(),
                worker: (worker.told.ranks > 1).then_some(rank),
                tokens_per_block: engine.block_size,
                blocks: engine.usable_blocks(),
                max_num_active_requests: engine.max_batch_size,
            };
            let registry = beside.unwrap_or_else(trtllm_registry);
            let of = |rank| {
                let info = info(worker.told.first + rank);
                add_trtllm_worker(&registry, &info);
                vec![Box::new(TrtllmMetrics::new(registry.clone(), &info)) as Box<dyn PassObserver>]
            };
            let observers = (0..ranks).map(of).collect();
            (registry, observers)
        }
    }
}
