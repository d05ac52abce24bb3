//! A worker's server with all its outlets: a client asks, a subscriber and a scrape see it.

mod common;

use common::{FIXED, deployment};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use windtunnel_live::http::{App, Dialect, ServerSettings, server};
use windtunnel_live::kv_events::{self, KvEventsConfig};
use windtunnel_live::outlets::{OutletSettings, Outlets, Told, WorkerIdentity};
use windtunnel_live::text::{Language, Reply, ReplySource};
use windtunnel_live::{Worker, WorkerOptions};
use zeromq::{Socket, SocketRecv, SubSocket};

const SGLANG: &str = "
engine:
  model: m
  hardware: h
  backend: sglang
  context_length: 4096
  workers:
    aggregated:
      scheduler: {max_sequences: 256}
      kv_cache: {block_size: 16, capacity: {type: fixed, blocks: 1024}}
      timing: {type: fixed, prefill_ms: 1, decode_ms: 1}
";

async fn serve(yaml: &str, dialect: Dialect, settings: OutletSettings) -> SocketAddr {
    let deployment = deployment(yaml, &[]);
    let listener = server::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = listener.local_addr().expect("an address");
    let identity = WorkerIdentity {
        number: 0,
        first_rank: 0,
        told: Told::alone(1),
        host: "127.0.0.1".into(),
        port: address.port(),
        model: "m".into(),
    };
    let mut outlets = Outlets::open(&settings, &deployment, &identity, None).await.expect("sockets");
    let kv_events = outlets.keeps_kv_events();
    let mut observers = |rank| outlets.take_observers(rank);
    let options = WorkerOptions {
        replicas: std::num::NonZeroU32::MIN,
        no_delay: true,
        kv_events,
        transfers: None,
        routed: false,
        observers: &mut observers,
    };
    let worker = Worker::start(&deployment, options).expect("a worker");
    let reply = Reply { source: ReplySource::Random, mean_tokens: 8, seed: 0, thinking: None };
    let settings = ServerSettings::new(dialect, "1", "m", 4096);
    let app = App::new(worker, settings, Language::default(), reply).with_outlets(&outlets);
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        let _stop = stop;
        server::serve(listener, Arc::new(app), stopped).await;
    });
    address
}

/// Head and body of an answer.
async fn ask(
    address: SocketAddr,
    method: &'static str,
    path: &'static str,
    body: &'static str,
) -> (String, String) {
    let exchange = move || {
        let mut stream = TcpStream::connect(address).expect("connected");
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_owned(), body.to_owned())
    };
    tokio::task::spawn_blocking(exchange).await.expect("no panic")
}

fn events(dialect: kv_events::Dialect, config: &str) -> OutletSettings {
    let kv_events = KvEventsConfig::parse(dialect, config).expect("good");
    OutletSettings {
        kv_events,
        hash_seed: Some("0".into()),
        sglang_metrics: true,
        ..OutletSettings::default()
    }
}

const REQUEST: &str =
    r#"{"model":"m","prompt":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17],"max_tokens":3,"ignore_eos":true}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vllm_server_tells_dashboards_and_routers() {
    let config = r#"{"enable_kv_cache_events":true,"endpoint":"tcp://*:0"}"#;
    let address = serve(FIXED, Dialect::Vllm, events(kv_events::Dialect::Vllm, config)).await;
    let (_, body) = ask(address, "GET", "/kv_event_sources", "").await;
    let sources: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let mut subscriber = SubSocket::new();
    subscriber.connect(sources["0"]["endpoint"].as_str().expect("text")).await.expect("connected");
    subscriber.subscribe("").await.expect("subscribed");
    sleep(Duration::from_millis(300)).await;

    let (head, _) = ask(address, "POST", "/v1/completions", REQUEST).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let message =
        timeout(Duration::from_secs(20), subscriber.recv()).await.expect("in time").expect("a message");
    let payload = message.into_vec().pop().expect("three frames");
    // The one whole block, with the hash that vLLM gives it under PYTHONHASHSEED=0.
    assert!(payload.windows(9).any(|bytes| bytes == b"token_ids"));
    assert!(payload.windows(8).any(|bytes| bytes == HASH_OF_THE_FIRST_SIXTEEN.to_be_bytes()));

    let (head, text) = ask(address, "GET", "/metrics", "").await;
    assert!(head.to_lowercase().contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(text.contains("vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 3.0\n"));
    assert!(text.contains("vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 17.0\n"));
}

/// `maybe_convert_block_hash(hash_block_tokens(sha256, None, range(1, 17)))` of vLLM 0.33.0, PYTHONHASHSEED=0.
const HASH_OF_THE_FIRST_SIXTEEN: u64 = 0x6896_072a_e8b3_1325;

/// SGLang's `/server_info` says where the events are, and the event comes when the engine idles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_sglang_server_tells_dashboards_and_routers() {
    let config = r#"{"publisher":"zmq","endpoint":"tcp://127.0.0.1:0","bind":true}"#;
    let address = serve(SGLANG, Dialect::Sglang, events(kv_events::Dialect::Sglang, config)).await;
    let (_, body) = ask(address, "GET", "/server_info", "").await;
    let info: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let kv = &info["kv_events"];
    assert_eq!((&kv["publisher"], &kv["block_size"]), (&"zmq".into(), &16.into()));
    let endpoint =
        format!("tcp://{}:{}", kv["endpoint_host"].as_str().expect("text"), kv["endpoint_port_base"]);
    let mut subscriber = SubSocket::new();
    subscriber.connect(&endpoint).await.expect("connected");
    subscriber.subscribe("").await.expect("subscribed");
    sleep(Duration::from_millis(300)).await;
    let (head, _) = ask(address, "POST", "/v1/completions", REQUEST).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let message =
        timeout(Duration::from_secs(20), subscriber.recv()).await.expect("in time").expect("a message");
    let payload = message.into_vec().pop().expect("three frames");
    assert!(payload.windows(11).any(|bytes| bytes == b"BlockStored" || bytes == b"AllBlocksCl"));
    let (_, text) = ask(address, "GET", "/metrics", "").await;
    let count =
        "sglang:num_requests_total{engine_type=\"unified\",is_streaming=\"false\",model_name=\"m\"} 1.0\n";
    assert!(text.contains(count), "{text}");
}

/// SGLang without `--enable-metrics` has no metrics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sglang_serves_metrics_only_if_told_to() {
    let address = serve(SGLANG, Dialect::Sglang, OutletSettings::default()).await;
    let (head, _) = ask(address, "GET", "/metrics", "").await;
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
}
