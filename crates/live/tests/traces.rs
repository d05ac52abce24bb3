//! Spans at a collector: what OTLP carries is what clients saw, over both of its ways; and a collector that is not there
//! costs spans, nothing else.

mod common;

use axum::http::{Request, Response};
use bytes::Bytes;
use common::deployment;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use windtunnel_live::http::{App, Dialect, ServerSettings, server};
use windtunnel_live::outlets::{OutletSettings, Outlets, Told, WorkerIdentity};
use windtunnel_live::text::{Language, Reply, ReplySource};
use windtunnel_live::traces::{Collector, Protocol, TraceSettings, Tracer};
use windtunnel_live::{Worker, WorkerOptions};

const OURS: &str = "
engine:
  model: m
  hardware: h
  context_length: 4096
  workers:
    aggregated:
      kv_cache: {block_size: 16, capacity: {type: fixed, blocks: 1024}}
      timing: {type: fixed, prefill_ms: 10, decode_ms: 2}
";

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

type Received = mpsc::UnboundedReceiver<ExportTraceServiceRequest>;

/// A collector of one protocol, and what it is sent.
async fn collector(protocol: Protocol) -> (SocketAddr, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tell = tell.clone();
            let service =
                service_fn(move |request: Request<Incoming>| answer(request, protocol, tell.clone()));
            let io = TokioIo::new(stream);
            tokio::spawn(async move {
                match protocol {
                    Protocol::Http => {
                        hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
                    }
                    Protocol::Grpc => {
                        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        http.serve_connection(io, service).await
                    }
                }
            });
        }
    });
    (address, told)
}

/// Reads a batch as the protocol has it.
async fn answer(
    request: Request<Incoming>,
    protocol: Protocol,
    tell: mpsc::UnboundedSender<ExportTraceServiceRequest>,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible> {
    let kind = request.headers()["content-type"].clone();
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    let sent = |message: &[u8]| {
        tell.send(ExportTraceServiceRequest::decode(message).expect("a batch")).expect("the test listens");
    };
    Ok(match protocol {
        Protocol::Http => {
            assert_eq!((&*path, kind.as_bytes()), ("/v1/traces", &b"application/x-protobuf"[..]));
            sent(&body);
            Response::new(Full::new(Bytes::new()).boxed_unsync())
        }
        Protocol::Grpc => {
            assert_eq!(path, "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
            assert_eq!(kind, "application/grpc");
            let length = u32::from_be_bytes(body[1..5].try_into().expect("four bytes"));
            assert_eq!((body[0], length as usize), (0, body.len() - 5));
            sent(&body[5..]);
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().expect("a number"));
            let body =
                Full::new(Bytes::from_static(&[0; 5])).with_trailers(async move { Some(Ok(trailers)) });
            let mut response = Response::new(body.boxed_unsync());
            response.headers_mut().insert("content-type", kind);
            response
        }
    })
}

/// A server whose spans go there.
async fn serve(dialect: Dialect, at: SocketAddr, protocol: Protocol, passes: bool) -> (SocketAddr, Tracer) {
    let backend = match dialect {
        Dialect::Vllm => "vllm",
        Dialect::Sglang => "sglang",
        Dialect::Trtllm => "trtllm",
    };
    let deployment = deployment(OURS, &[&format!("engine.backend={backend}")]);
    let collector = Collector::parse(&format!("http://{at}"), protocol).expect("an endpoint");
    let tracer = Tracer::start(TraceSettings {
        collector,
        passes,
        resource: vec![("service.name".into(), "s".into())],
        scope: "of the test".into(),
        // Nobody waits for that: the tests flush.
        delay: Duration::from_secs(3600),
    });
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
    let settings = OutletSettings { traces: Some(tracer.clone()), ..OutletSettings::default() };
    let mut outlets = Outlets::open(&settings, &deployment, &identity, None).await.expect("no sockets");
    let mut observers = |rank| outlets.take_observers(rank);
    let options = WorkerOptions {
        replicas: std::num::NonZeroU32::MIN,
        no_delay: false,
        kv_events: false,
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
    (address, tracer)
}

/// The body of the answer to a POST.
async fn post(
    address: SocketAddr,
    path: &'static str,
    headers: String,
    body: &'static str,
) -> serde_json::Value {
    let exchange = move || {
        let mut stream = TcpStream::connect(address).expect("connected");
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{headers}");
        let request = format!("{head}content-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(body).expect("JSON")
    };
    tokio::task::spawn_blocking(exchange).await.expect("no panic")
}

fn parent(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{PARENT}-{flags}\r\ntracestate: a=b\r\n")
}

/// The spans of the next batch, with those that they are of.
async fn spans(received: &mut Received) -> Vec<Span> {
    let batch = timeout(Duration::from_secs(20), received.recv()).await.expect("in time").expect("a batch");
    let [of_resource] = <[_; 1]>::try_from(batch.resource_spans).expect("one resource");
    let resource = of_resource.resource.expect("a resource");
    assert_eq!(text(&resource.attributes, "service.name"), "s");
    let [of_scope] = <[_; 1]>::try_from(of_resource.scope_spans).expect("one scope");
    assert_eq!(of_scope.scope.expect("a scope").name, "of the test");
    of_scope.spans
}

type Attributes = [opentelemetry_proto::tonic::common::v1::KeyValue];

fn value<'a>(attributes: &'a Attributes, key: &str) -> Option<&'a Value> {
    attributes.iter().find(|of| of.key == key)?.value.as_ref()?.value.as_ref()
}

fn text<'a>(attributes: &'a Attributes, key: &str) -> &'a str {
    match value(attributes, key) {
        Some(Value::StringValue(text)) => text,
        other => panic!("{key}: {other:?}"),
    }
}

fn whole(attributes: &Attributes, key: &str) -> i64 {
    match value(attributes, key) {
        Some(Value::IntValue(number)) => *number,
        other => panic!("{key}: {other:?}"),
    }
}

fn number(attributes: &Attributes, key: &str) -> f64 {
    match value(attributes, key) {
        Some(Value::DoubleValue(number)) => *number,
        other => panic!("{key}: {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64
}

const BODY: &str = r#"{"model":"m","prompt":[1,2,3,4,5],"max_tokens":3,"ignore_eos":true,"temperature":0.5}"#;

/// vLLM's span (tracing/utils.py and v1/engine/output_processor.py `do_tracing` 0.33.0), as a child of the client's. The
/// law of the deployment has 10 ms for a pass with prefill work and 2 ms for one with decode work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_vllm_has_its_span_over_http() {
    let (at, mut received) = collector(Protocol::Http).await;
    let (address, tracer) = serve(Dialect::Vllm, at, Protocol::Http, false).await;
    let before = unix_nanos();
    let answer = post(address, "/v1/completions", parent("01"), BODY).await;
    let after = unix_nanos();
    // What its client does not want recorded is not.
    post(address, "/v1/completions", parent("00"), BODY).await;
    tracer.flush().await;
    let spans = spans(&mut received).await;
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((&*span.name, span.kind), ("llm_request", SpanKind::Server as i32));
    assert_eq!((hex(&span.trace_id), hex(&span.parent_span_id)), (TRACE.into(), PARENT.into()));
    assert_eq!((span.span_id.len(), &*span.trace_state), (8, "a=b"));
    let of = &span.attributes;
    let latency = |name: &str| number(of, &format!("gen_ai.latency.{name}"));
    let near = |seconds: f64, expected: f64| (seconds - expected).abs() < 1e-9;
    assert!(near(latency("time_to_first_token"), 0.010), "{of:?}");
    assert!(near(latency("time_in_queue"), 0.0));
    assert!(near(latency("time_in_model_prefill"), 0.010));
    assert!(near(latency("time_in_model_decode"), 0.004));
    assert!(near(latency("time_in_model_inference"), 0.014));
    // To its end, in the times that the client saw.
    // The clock of the system may be corrected meanwhile, by less than this.
    let slack = 50_000_000;
    let (start, end) = (span.start_time_unix_nano, span.end_time_unix_nano);
    assert!(before <= start + slack && end <= after + slack, "{before} {span:?} {after}");
    let took = (span.end_time_unix_nano - span.start_time_unix_nano) as f64 / 1e9;
    assert!(near(took, latency("e2e")) && latency("e2e") >= 0.014, "{took}");
    assert_eq!(whole(of, "gen_ai.usage.prompt_tokens"), answer["usage"]["prompt_tokens"]);
    assert_eq!(whole(of, "gen_ai.usage.completion_tokens"), answer["usage"]["completion_tokens"]);
    assert_eq!(text(of, "gen_ai.request.id"), format!("{}-0", answer["id"].as_str().expect("a name")));
    assert_eq!((whole(of, "gen_ai.request.max_tokens"), whole(of, "gen_ai.request.n")), (3, 1));
    assert!(
        near(number(of, "gen_ai.request.temperature"), 0.5) && near(number(of, "gen_ai.request.top_p"), 1.0)
    );
    assert_eq!((of.len(), tracer.lost()), (13, 0));
}

/// SGLang's (srt/observability/trace.py, managers/tokenizer_manager.py 0.5.23), without a parent, over gRPC.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_sglang_has_its_span_over_grpc() {
    let (at, mut received) = collector(Protocol::Grpc).await;
    let (address, tracer) = serve(Dialect::Sglang, at, Protocol::Grpc, false).await;
    let body = r#"{"rid":"0123456789","input_ids":[1,2,3,4,5],"sampling_params":{"max_new_tokens":3,"ignore_eos":true}}"#;
    post(address, "/generate", String::new(), body).await;
    tracer.flush().await;
    let spans = spans(&mut received).await;
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!((&*span.name, span.parent_span_id.len(), span.trace_id.len()), (" Req 01234567", 0, 16));
    let of = &span.attributes;
    assert_eq!((text(of, "rid"), text(of, "module")), ("0123456789", "sglang::request"));
    assert_eq!(text(of, "gen_ai.response.model"), "m");
    assert_eq!(text(of, "gen_ai.response.finish_reasons"), "[\"length\"]");
    assert_eq!(whole(of, "gen_ai.usage.prompt_tokens"), 5);
    assert_eq!(whole(of, "gen_ai.usage.completion_tokens"), 3);
    assert_eq!(whole(of, "gen_ai.usage.cached_tokens"), 0);
    let [first, whole_time] =
        ["time_to_first_token", "e2e"].map(|name| number(of, &format!("gen_ai.latency.{name}")));
    assert!(first >= 0.010 && whole_time >= first + 0.004, "{of:?}");
    // Nobody said a temperature.
    assert_eq!(value(of, "gen_ai.request.temperature"), None);
    assert_eq!(tracer.lost(), 0);
}

/// Each pass once, with what it computed; one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passes_have_spans_if_asked_for() {
    let (at, mut received) = collector(Protocol::Http).await;
    let (address, tracer) = serve(Dialect::Vllm, at, Protocol::Http, true).await;
    post(address, "/v1/completions", String::new(), BODY).await;
    tracer.flush().await;
    let spans = spans(&mut received).await;
    let passes: Vec<&Span> = spans.iter().filter(|span| span.name == "engine_pass").collect();
    assert_eq!(spans.len(), passes.len() + 1);
    let sum = |key: &str| -> i64 {
        passes.iter().map(|pass| whole(&pass.attributes, &format!("windtunnel.pass.{key}"))).sum()
    };
    assert_eq!((sum("prefill_tokens"), sum("decode_tokens"), sum("output_tokens")), (5, 2, 3));
    assert_eq!((sum("admitted"), sum("ended"), sum("preempted")), (1, 1, 0));
    let took = |span: &Span| span.end_time_unix_nano - span.start_time_unix_nano;
    let times: Vec<u64> = passes.iter().map(|pass| took(pass)).collect();
    assert_eq!(times, [10_000_000, 2_000_000, 2_000_000]);
    for pair in passes.windows(2) {
        assert_eq!(pair[0].end_time_unix_nano, pair[1].start_time_unix_nano);
    }
}

/// A port that nobody listens at.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_not_there_costs_spans_and_nothing_else() {
    let at = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let (address, tracer) = serve(Dialect::Vllm, at, Protocol::Grpc, false).await;
    for _ in 0..3 {
        let answer = post(address, "/v1/completions", String::new(), BODY).await;
        assert_eq!(answer["usage"]["completion_tokens"], 3);
    }
    tracer.flush().await;
    assert_eq!(tracer.lost(), 3);
}
