//! KV events over loopback: live workers publish, subscribers read. The subscribers are sockets of the crate that we
//! publish with, and pyzmq's where it is installed.

mod common;

use bytes::Bytes;
use common::{FIXED, deployment, request};
use std::process::Command;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use windtunnel_live::kv_events::hash::{BlockHasher, HashAlgorithm};
use windtunnel_live::kv_events::{Dialect, Identity, KvEventPublisher, KvEventsConfig, Naming};
use windtunnel_live::observer::{Observers, PassObserver};
use windtunnel_live::{ForwardPassPublisher, Worker, WorkerOptions};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const PATIENCE: Duration = Duration::from_secs(20);

fn naming() -> Naming {
    Naming::Vllm { hasher: BlockHasher::new(HashAlgorithm::Sha256, Some("0")), as_numbers: true }
}

async fn publisher(config: &str, dp_rank: u32) -> KvEventPublisher {
    let config = KvEventsConfig::parse(Dialect::Vllm, config).expect("good").expect("on");
    let identity =
        Identity { dp_rank, offset: dp_rank, host: "127.0.0.1".into(), port: 8000, model: "m".into() };
    KvEventPublisher::start(&config, naming(), 16, &identity).await.expect("sockets")
}

fn worker(publisher: KvEventPublisher) -> Worker {
    worker_of(Box::new(publisher))
}

fn worker_of(publisher: Box<dyn PassObserver>) -> Worker {
    let mut publisher = Some(publisher);
    let mut observers = |_| {
        let mut observers = Observers::default();
        observers.push(publisher.take().expect("one rank"));
        observers
    };
    let options = WorkerOptions {
        replicas: std::num::NonZeroU32::MIN,
        no_delay: true,
        kv_events: true,
        transfers: None,
        routed: false,
        observers: &mut observers,
    };
    Worker::start(&deployment(FIXED, &[]), options).expect("a worker")
}

/// Three requests of 40, 41 and 42 tokens, one after the other.
async fn serve(worker: &Worker) {
    for prompt in 40..43 {
        worker.submit(request(worker, prompt, 2), None).expect("taken").stream().ended().await;
    }
}

async fn receive(socket: &mut impl SocketRecv) -> Vec<Bytes> {
    timeout(PATIENCE, socket.recv()).await.expect("in time").expect("a message").into_vec()
}

fn number(frame: &Bytes) -> u64 {
    u64::from_be_bytes(frame.as_ref().try_into().expect("eight bytes"))
}

/// K4 (llmd#272): an event is filled. K5 (llmd#624): topics name worker and port. K9 (dynamo#7209): the messages have three
/// frames, numbers from 0 without gaps, and can be had again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k4_k5_k9_subscribers_get_numbered_batches_and_can_have_them_again() {
    let config = r#"{"enable_kv_cache_events":true,"endpoint":"tcp://127.0.0.1:0","bind":true,
        "replay_endpoint":"tcp://127.0.0.1:0","topic":"kv@{host}:{port}@{model}"}"#;
    let publisher = publisher(config, 0).await;
    let source = publisher.describe();
    assert_eq!(source["topic"], "kv@127.0.0.1:8000@m");
    let mut subscriber = SubSocket::new();
    subscriber.connect(source["endpoint"].as_str().expect("text")).await.expect("connected");
    subscriber.subscribe("kv@").await.expect("subscribed");
    sleep(Duration::from_millis(300)).await;
    let worker = worker(publisher);
    serve(&worker).await;
    let mut seen = Vec::new();
    for expected in 0..3 {
        let frames = receive(&mut subscriber).await;
        let [topic, at, payload] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!((&topic[..], number(at)), (&b"kv@127.0.0.1:8000@m"[..], expected));
        assert!(payload.windows(11).any(|bytes| bytes == b"BlockStored"));
        // K4: two whole blocks of 16 tokens.
        assert!(payload.windows(13).any(|bytes| bytes == b"\xa9token_ids\xdc\x00\x20"));
        seen.push(payload.clone());
    }

    let mut again = DealerSocket::new();
    again.connect(source["replay_endpoint"].as_str().expect("text")).await.expect("connected");
    let mut ask = ZmqMessage::from(Bytes::new());
    ask.push_back(Bytes::copy_from_slice(&1u64.to_be_bytes()));
    again.send(ask).await.expect("sent");
    for expected in 1..3 {
        let frames = receive(&mut again).await;
        let [empty, topic, at, payload] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!((empty.len(), &topic[..], number(at)), (0, &b"kv@127.0.0.1:8000@m"[..], expected));
        assert_eq!(payload, &seen[expected as usize]);
    }
    let end = receive(&mut again).await;
    assert_eq!(end, [&b""[..], b"", &[0xff; 8], b""]);
}

/// K7 (dynamo#5873): each rank counts its own messages, so that nobody sees gaps that are none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k7_each_rank_counts_for_itself() {
    let config = r#"{"enable_kv_cache_events":true,"endpoint":"tcp://127.0.0.1:0","bind":true}"#;
    let (first, second) = (publisher(config, 0).await, publisher(config, 1).await);
    let mut subscribers = Vec::new();
    for source in [first.describe(), second.describe()] {
        let mut subscriber = SubSocket::new();
        subscriber.connect(source["endpoint"].as_str().expect("text")).await.expect("connected");
        subscriber.subscribe("").await.expect("subscribed");
        subscribers.push(subscriber);
    }
    sleep(Duration::from_millis(300)).await;
    let (first, second) = (worker(first), worker(second));
    serve(&first).await;
    serve(&second).await;
    for subscriber in &mut subscribers {
        for expected in 0..3 {
            assert_eq!(number(&receive(subscriber).await[1]), expected);
        }
    }
}

/// The publisher can go to the subscriber, too (llm-d), even before that is there; each rank to a port of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_goes_to_its_subscriber() {
    let mut subscriber = SubSocket::new();
    let zeromq::Endpoint::Tcp(_, port) = subscriber.bind("tcp://127.0.0.1:0").await.expect("bound") else {
        panic!("tcp")
    };
    subscriber.subscribe("").await.expect("subscribed");
    // Rank 1 of a publisher whose rank 0 has the port before.
    let config = format!(r#"{{"enable_kv_cache_events":true,"endpoint":"tcp://127.0.0.1:{}"}}"#, port - 1);
    let publisher = publisher(&config, 1).await;
    assert_eq!(publisher.describe()["endpoint"], format!("tcp://127.0.0.1:{port}"));
    let worker = worker(publisher);
    // Until it is connected, messages are lost.
    let payload = loop {
        serve(&worker).await;
        if let Ok(message) = timeout(Duration::from_millis(200), subscriber.recv()).await {
            break message.expect("a message").into_vec().pop().expect("three frames");
        }
    };
    assert_eq!(payload.last(), Some(&1), "the rank is the last field of a batch");
}

/// One message a pass, and zeros while there is nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_passes_are_published_with_a_heartbeat() {
    let endpoint = windtunnel_live::Endpoint::parse("tcp://127.0.0.1:0").expect("good");
    let publisher = ForwardPassPublisher::start(&endpoint, 0, "w0", 0).await.expect("a socket");
    let mut subscriber = SubSocket::new();
    subscriber.connect(&publisher.endpoint().to_string()).await.expect("connected");
    subscriber.subscribe("").await.expect("subscribed");
    sleep(Duration::from_millis(300)).await;
    let worker = worker_of(Box::new(publisher));
    worker.submit(request(&worker, 40, 3), None).expect("taken").stream().ended().await;
    let field = |payload: &Bytes, name: &[u8]| {
        let at = payload.windows(name.len()).position(|bytes| bytes == name).expect("a field") + name.len();
        payload[at]
    };
    // 40 prompt tokens, then two decodes with contexts of 41 and 42 tokens, then a heartbeat.
    for (number, (prefill, decodes, context)) in
        [(40, 0, 0), (0, 1, 41), (0, 1, 42), (0, 0, 0)].into_iter().enumerate()
    {
        let frames = receive(&mut subscriber).await;
        let [topic, at, payload] = &frames[..] else { panic!("{frames:?}") };
        assert_eq!((topic.len(), self::number(at)), (0, number as u64));
        assert_eq!(field(payload, b"sum_prefill_tokens"), prefill);
        assert_eq!(field(payload, b"num_decode_requests"), decodes);
        assert_eq!(field(payload, b"sum_decode_kv_tokens"), context);
    }
}

#[tokio::test]
async fn a_socket_that_cannot_be_had_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let config =
        format!(r#"{{"enable_kv_cache_events":true,"bind":true,"endpoint":"tcp://127.0.0.1:{port}"}}"#);
    let config = KvEventsConfig::parse(Dialect::Vllm, &config).expect("good").expect("on");
    let identity = |offset| Identity { dp_rank: 0, offset, host: "h".into(), port: 1, model: "m".into() };
    let start = |offset| {
        let identity = identity(offset);
        let config = config.clone();
        async move { KvEventPublisher::start(&config, naming(), 16, &identity).await }
    };
    let error = start(0).await.expect_err("taken").to_string();
    assert!(error.starts_with(&format!("cannot open tcp://127.0.0.1:{port}: ")), "{error}");
    let error = start(65_535).await.expect_err("no such port").to_string();
    assert!(error.contains("is above 65535"), "{error}");
}

/// What vLLM's subscribers do: libzmq's SUB, and its REQ at the replay socket.
const SUBSCRIBER: &str = r#"
import sys, zmq
c = zmq.Context()
s = c.socket(zmq.SUB); s.connect(sys.argv[1]); s.setsockopt(zmq.SUBSCRIBE, b""); s.RCVTIMEO = 20000
print("ready", flush=True)
got = [s.recv_multipart() for _ in range(3)]
print([int.from_bytes(f[1], "big") for f in got], flush=True)
r = c.socket(zmq.REQ); r.connect(sys.argv[2]); r.RCVTIMEO = 20000
r.send((1).to_bytes(8, "big"))
first = r.recv_multipart()
print(first[1:] == got[1][1:], len(first))
d = c.socket(zmq.DEALER); d.connect(sys.argv[2]); d.RCVTIMEO = 20000
d.send_multipart([b"", (0).to_bytes(8, "big")])
again = []
while True:
    _, topic, seq, payload = d.recv_multipart()
    if seq == b"\xff" * 8:
        break
    again.append([topic, seq, payload])
print(again == got)
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pyzmq_reads_and_asks_again() {
    let python = std::env::var("WINDTUNNEL_PYTHON").unwrap_or_else(|_| "python3".into());
    if !Command::new(&python).args(["-c", "import zmq"]).output().is_ok_and(|done| done.status.success()) {
        eprintln!("skipped: {python} has no pyzmq (WINDTUNNEL_PYTHON names another)");
        return;
    }
    let config = r#"{"enable_kv_cache_events":true,"endpoint":"tcp://*:0","replay_endpoint":"tcp://*:0"}"#;
    let publisher = publisher(config, 0).await;
    let source = publisher.describe();
    let endpoint = |key: &str| source[key].as_str().expect("text").to_owned();
    let mut child = Command::new(&python)
        .args(["-c", SUBSCRIBER, &endpoint("endpoint"), &endpoint("replay_endpoint")])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python runs");
    let worker = worker(publisher);
    let output = tokio::task::spawn_blocking(move || {
        use std::io::{BufRead, BufReader};
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut ready = String::new();
        lines.read_line(&mut ready).expect("a line");
        // A subscription takes a moment to arrive.
        std::thread::sleep(Duration::from_millis(500));
        (ready, lines, child)
    });
    let (ready, mut lines, mut child) = output.await.expect("no panic");
    assert_eq!(ready, "ready\n");
    serve(&worker).await;
    let rest = tokio::task::spawn_blocking(move || {
        use std::io::Read;
        let mut rest = String::new();
        lines.read_to_string(&mut rest).expect("text");
        child.wait().expect("ends");
        rest
    });
    assert_eq!(rest.await.expect("no panic"), "[0, 1, 2]\nTrue 3\nTrue\n");
}
