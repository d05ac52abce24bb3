//! One address for many workers: what it tells of all of them, transfers that share interfaces, and what becomes of KV
//! that nobody goes on with.

mod common;
#[path = "common/exposition.rs"]
mod exposition;

use common::http::Answer;
use serde_json::{Value, json};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use windtunnel_config::KvTransfer;
use windtunnel_engine::RankConfig;
use windtunnel_engine::vllm::KvRole;
use windtunnel_live::Endpoint;
use windtunnel_live::http::{Dialect, ServerSettings};
use windtunnel_live::kv_events::{self, KvEventsConfig};
use windtunnel_live::kv_transfer::{PullSettings, RoomSettings, TransferSettings, Way};
use windtunnel_live::mocker::{self, MockerSettings, Pool};
use windtunnel_live::outlets::{ForwardPasses, OutletSettings};
use windtunnel_live::text::{Language, Reply, ReplySource};
use zeromq::{Socket, SocketRecv, SubSocket};

const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than any test waits.
const LEASE: Duration = Duration::from_secs(300);

/// A cluster behind one address. It stops when it is dropped.
struct Cluster {
    address: SocketAddr,
    stop: watch::Sender<bool>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
    }
}

impl Cluster {
    fn start(pools: Vec<Pool>, outlets: OutletSettings, no_delay: bool) -> Cluster {
        let dialect = match &pools[0].deployment.engine {
            RankConfig::Vllm(_) => Dialect::Vllm,
            RankConfig::Sglang(_) => Dialect::Sglang,
            RankConfig::Trtllm(_) => Dialect::Trtllm,
        };
        let settings = MockerSettings {
            pools,
            together: true,
            no_delay,
            host: "127.0.0.1".parse().expect("an address"),
            port: 0,
            server: ServerSettings::new(dialect, "1", "m", 4096),
            language: Language::default(),
            reply: Reply { source: ReplySource::Random, mean_tokens: 8, seed: 0, thinking: None },
            outlets,
            traces: None,
            stagger: Duration::ZERO,
            drain: PATIENCE,
        };
        let (stop, stopped) = watch::channel(false);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_io()
                .enable_time()
                .build()
                .expect("a runtime");
            runtime.block_on(async move {
                let mut started = mocker::start(Arc::new(settings), stopped).await.expect("it starts");
                tell.send(started.addresses[0]).expect("the test waits");
                while started.servers.join_next().await.is_some() {}
            });
            runtime.shutdown_background();
        });
        Cluster { address: told.recv().expect("it starts"), stop }
    }

    /// A request whose answer has not been read.
    fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("the server reads");
        stream
    }

    fn get(&self, path: &str) -> String {
        Answer::read(self.send("GET", path, "")).body
    }

    fn complete(&self, body: &Value) -> Answer {
        Answer::read(self.send("POST", "/v1/completions", &body.to_string()))
    }

    /// The sum of the values of the series that begin so and have these labels.
    fn metric(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let text = self.get("/metrics");
        let has = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
        let values = text.lines().filter(has).map(|line| line.rsplit_once(' ').expect("a value").1);
        values.map(|value| value.parse::<f64>().expect("a number")).reduce(|sum, value| sum + value)
    }

    /// Waits until the series is so.
    fn wait_for(&self, name: &str, labels: &[&str], expected: f64) {
        let end = std::time::Instant::now() + PATIENCE;
        while self.metric(name, labels) != Some(expected) {
            assert!(std::time::Instant::now() < end, "{name} {labels:?}: {}", self.get("/metrics"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Two prefill workers and one that decodes, a millisecond a token for transfers unless `law` says otherwise.
fn apart(backend: &str, overrides: &[&str], law: Option<KvTransfer>) -> Vec<Pool> {
    let mut all = vec![format!("engine.backend={backend}")];
    all.extend(overrides.iter().map(|text| (*text).to_owned()));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let law = law.unwrap_or(KvTransfer {
        bytes_per_token: 1_000_000,
        bandwidth: Some(1.0),
        ..KvTransfer::default()
    });
    [KvRole::Producer, KvRole::Consumer]
        .map(|role| {
            let mut deployment = common::side(common::APART, &all, role == KvRole::Producer);
            if let RankConfig::Vllm(engine) = &mut deployment.engine {
                engine.kv_role = Some(role);
            }
            let way = match backend {
                "sglang" => Way::Rooms(RoomSettings {
                    host: "127.0.0.1".parse().expect("an address"),
                    ports: vec![0],
                    told_host: None,
                    http_port: None,
                    ranks: 1,
                    attempts: 15,
                    bootstrap_timeout: LEASE,
                    waiting_timeout: LEASE,
                }),
                _ => Way::Pull(PullSettings {
                    engine_id: format!("engine-{role:?}"),
                    host: "127.0.0.1".into(),
                    port: 0,
                    lease: LEASE,
                }),
            };
            let transfers = TransferSettings { role, way, law, tensor: 1, block_size: 16, no_delay: false };
            Pool { deployment, transfers: Some(transfers) }
        })
        .into()
}

fn prompt(first: u32) -> Vec<u32> {
    (first..first + 64).collect()
}

const TWO: &[&str] = &["engine.workers.prefill.parallelism.replicas=2"];

/// So many ports in a row that nobody has.
fn free_ports(count: u16) -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let Some(last) = first.checked_add(count - 1) else { continue };
        if (first..=last).map(|port| TcpListener::bind(("127.0.0.1", port))).all(|bound| bound.is_ok()) {
            return first;
        }
    }
}

/// Both roles' series as those of two engines: of vLLM `engine` counts on, of SGLang `engine_type` says which, TensorRT-LLM has
/// no label of its own for that.
#[test]
fn metrics_are_those_of_all_workers() {
    let ask = json!({"prompt": prompt(300), "max_tokens": 5, "ignore_eos": true});
    let settings = OutletSettings { sglang_metrics: true, ..OutletSettings::default() };
    let start = |backend| Cluster::start(apart(backend, TWO, None), settings.clone(), false);

    let cluster = start("vllm");
    assert_eq!(cluster.complete(&ask).status, 200);
    // The prompt and one token by the first worker; the third computes one token of the prompt, and all of the reply.
    for (engine, tokens) in [("0", 1.0), ("1", 0.0), ("2", 5.0)] {
        let label = format!("engine=\"{engine}\"");
        assert_eq!(cluster.metric("vllm:generation_tokens_total", &[&label]), Some(tokens), "{engine}");
        assert_eq!(cluster.metric("vllm:cache_config_info", &[&label]), Some(1.0), "{engine}");
        let read = f64::from(engine == "2");
        assert_eq!(cluster.metric("vllm:nixl_xfer_time_seconds_count", &[&label]), Some(read), "{engine}");
    }
    // 64 tokens, a millisecond each.
    assert_eq!(cluster.metric("vllm:nixl_xfer_time_seconds_sum", &[]), Some(0.064));
    assert_eq!(cluster.metric("vllm:nixl_bytes_transferred_sum", &[]), Some(64e6));
    exposition::read(&cluster.get("/metrics")).expect("an exposition");

    let cluster = start("sglang");
    assert_eq!(cluster.complete(&ask).status, 200);
    cluster.wait_for("sglang:num_requests_total", &["engine_type=\"prefill\""], 1.0);
    cluster.wait_for("sglang:num_requests_total", &["engine_type=\"decode\""], 1.0);
    for rank in ["dp_rank=\"0\"", "dp_rank=\"1\""] {
        assert!(cluster.metric("sglang:num_pages", &["engine_type=\"prefill\"", rank]).is_some());
    }
    assert_eq!(
        cluster.metric("sglang:kv_transfer_latency_ms_count", &["engine_type=\"prefill\""]),
        Some(1.0)
    );
    for metric in ["sglang:kv_transfer_bootstrap_ms_count", "sglang:kv_transfer_alloc_ms_count"] {
        assert_eq!(cluster.metric(metric, &["engine_type=\"prefill\""]), Some(1.0), "{metric}");
    }
    let stage = |name: &str| {
        cluster.metric("sglang:per_stage_req_latency_seconds_count", &[&format!("stage=\"{name}\"")])
    };
    for name in ["prefill_bootstrap", "prefill_transfer_kv_cache", "decode_bootstrap", "decode_transferred"] {
        assert_eq!(stage(name), Some(1.0), "{name}");
    }
    // 64 MB are 61.03515625 MiB.
    assert_eq!(cluster.metric("sglang:kv_transfer_total_mb_sum", &[]), Some(61.03515625));
    exposition::read(&cluster.get("/metrics")).expect("an exposition");

    let cluster = start("trtllm");
    assert_eq!(cluster.complete(&ask).status, 200);
    for (worker, tokens) in [("0", 1.0), ("1", 0.0), ("2", 5.0)] {
        let label = format!("worker=\"{worker}\"");
        assert_eq!(cluster.metric("trtllm_generation_tokens_total", &[&label]), Some(tokens), "{worker}");
    }
    exposition::read(&cluster.get("/metrics")).expect("an exposition");
}

async fn subscribe(endpoint: &str) -> SubSocket {
    let mut socket = SubSocket::new();
    socket.connect(endpoint).await.expect("connected");
    socket.subscribe("").await.expect("subscribed");
    socket
}

/// Every worker has ports of its own for KV events and forward passes, those that compute prompts first.
#[test]
fn every_worker_publishes() {
    let first = free_ports(3);
    let config =
        r#"{"enable_kv_cache_events":true,"endpoint":"tcp://127.0.0.1:0","bind":true,"topic":"kv{rank}"}"#;
    let outlets = OutletSettings {
        kv_events: KvEventsConfig::parse(kv_events::Dialect::Vllm, config).expect("good"),
        hash_seed: Some("0".into()),
        forward_passes: Some(ForwardPasses {
            endpoint: Endpoint::parse(&format!("tcp://127.0.0.1:{first}")).expect("good"),
            worker_id: "w".into(),
        }),
        ..OutletSettings::default()
    };
    let cluster = Cluster::start(apart("vllm", TWO, None), outlets, true);
    let sources: Value = serde_json::from_str(&cluster.get("/kv_event_sources")).expect("JSON");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut passes = Vec::new();
        let mut events = Vec::new();
        for rank in 0..3u16 {
            passes.push(subscribe(&format!("tcp://127.0.0.1:{}", first + rank)).await);
            let source = &sources[rank.to_string()];
            assert_eq!(source["topic"], format!("kv{rank}"));
            events.push(subscribe(source["endpoint"].as_str().expect("text")).await);
        }
        sleep(Duration::from_millis(300)).await;
        let ask = json!({"prompt": prompt(300), "max_tokens": 5, "ignore_eos": true}).to_string();
        let answer = tokio::task::spawn_blocking({
            let stream = cluster.send("POST", "/v1/completions", &ask);
            move || Answer::read(stream)
        });
        assert_eq!(answer.await.expect("no panic").status, 200);
        // The prompt's blocks are stored where it was computed, and where it was read.
        for rank in [0, 2] {
            let frames = timeout(PATIENCE, events[rank].recv()).await.expect("in time").expect("a message");
            let frames = frames.into_vec();
            assert_eq!(&frames[0][..], format!("kv{rank}").as_bytes());
            assert!(frames[2].windows(11).any(|bytes| bytes == b"BlockStored"), "{rank}");
        }
        for socket in &mut passes {
            timeout(PATIENCE, socket.recv()).await.expect("in time").expect("a message");
        }
    });
}

/// 64 tokens of 10 MB at 1 GB/s are 640 ms for a transfer alone, and 1280 ms for two of them together.
#[test]
fn transfers_share_interfaces() {
    let sharing = windtunnel_config::LinkSharing::FairShare { interface: 1.0 };
    let law = KvTransfer { bytes_per_token: 10_000_000, sharing, ..KvTransfer::default() };
    let cluster = Cluster::start(apart("vllm", &[], Some(law)), OutletSettings::default(), false);
    let ask = json!({"prompt": [prompt(300), prompt(500)], "max_tokens": 2, "ignore_eos": true});
    assert_eq!(cluster.complete(&ask).status, 200);
    let sum = cluster.metric("vllm:nixl_xfer_time_seconds_sum", &["engine=\"1\""]);
    // The second starts while the first is under way; the instants are those of the wall clock.
    assert!(sum.is_some_and(|sum| sum > 1.5 && sum < 2.6), "{sum:?}");
}

/// Blocks are held for five minutes for those who ask for them. A client that goes before that, at any time, and a
/// decode worker that takes no more, leave none.
#[test]
fn nobody_leaves_blocks_behind() {
    let limits: &[&str] = &["engine.workers.decode.scheduler.max_num_queued_reqs=1"];
    let cluster = Cluster::start(apart("vllm", limits, None), OutletSettings::default(), false);
    let ask =
        |first: u32, tokens: u32| json!({"prompt": prompt(first), "max_tokens": tokens, "ignore_eos": true});
    let long = cluster.send("POST", "/v1/completions", &ask(300, 4000).to_string());
    cluster.wait_for("vllm:num_requests_running", &["engine=\"1\""], 1.0);
    assert_eq!(cluster.complete(&ask(500, 4)).status, 503);
    cluster.wait_for("vllm:kv_cache_usage_perc", &["engine=\"0\""], 0.0);
    drop(long);

    // A pass of a prompt takes 100 ms.
    for wait in [10, 50, 90, 95, 99, 100, 101, 105, 110, 130] {
        let stream = cluster.send("POST", "/v1/completions", &ask(700 + 10 * wait as u32, 4).to_string());
        std::thread::sleep(Duration::from_millis(wait));
        drop(stream);
    }
    cluster.wait_for("vllm:num_requests_running", &["engine=\"0\""], 0.0);
    cluster.wait_for("vllm:kv_cache_usage_perc", &["engine=\"0\""], 0.0);
    cluster.wait_for("vllm:kv_cache_usage_perc", &["engine=\"1\""], 0.0);
}

/// A router that reads caches is told when they are emptied: it finds nothing then, and what comes later again.
#[test]
fn caches_are_emptied_under_a_router_that_reads_them() {
    let deployment = common::deployment(
        common::FIXED,
        &["engine.workers.aggregated.parallelism.replicas=3", "router={policy: kv_router}"],
    );
    let pool = Pool { deployment, transfers: None };
    let cluster = Cluster::start(vec![pool], OutletSettings::default(), true);
    let cached = || {
        let answer = cluster.complete(&json!({"prompt": prompt(300), "max_tokens": 2})).json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64()
    };
    assert_eq!((cached(), cached()), (Some(0), Some(48)));
    for _ in 0..2 {
        let reset = Answer::read(cluster.send("POST", "/reset_prefix_cache", "")).json();
        assert_eq!(reset, json!({"success": true}));
    }
    assert_eq!((cached(), cached()), (Some(0), Some(48)));
}
