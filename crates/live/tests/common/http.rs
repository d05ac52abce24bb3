//! A server in this process, and a client that sees every byte.
#![allow(dead_code, reason = "each test file takes what it needs")]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use windtunnel_engine::RankConfig;
use windtunnel_engine::vllm::KvLoadFailurePolicy;
use windtunnel_live::http::{App, Dialect, ServerSettings, server};
use windtunnel_live::kv_transfer::{TransferSettings, Transfers};
use windtunnel_live::text::{Language, Reply, ReplySource, Thinking};

/// A running server. It stops when it is dropped.
pub struct Server {
    pub address: SocketAddr,
    pub app: Arc<App>,
    pub log: super::Log,
    stop: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// How a test's server differs from the usual one.
pub struct Options {
    pub yaml: &'static str,
    pub overrides: Vec<String>,
    pub no_delay: bool,
    pub language: Language,
    pub source: ReplySource,
    pub thinking: Option<Thinking>,
    pub transfers: Option<TransferSettings>,
    /// KV that does not come is computed.
    pub recompute: bool,
    pub settings: ServerSettings,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            yaml: super::FIXED,
            overrides: Vec::new(),
            no_delay: true,
            language: Language::default(),
            source: ReplySource::Random,
            thinking: None,
            transfers: None,
            recompute: false,
            settings: ServerSettings {
                max_body_bytes: 1 << 20,
                body_timeout: Duration::from_secs(5),
                ..ServerSettings::new(Dialect::Vllm, "0.33.0", "m", 4096)
            },
        }
    }
}

impl Options {
    /// A prefill or decode worker of an engine, in its own time.
    pub fn apart(backend: &str, transfers: TransferSettings) -> Options {
        Options {
            yaml: super::APART,
            overrides: vec![format!("engine.backend={backend}")],
            no_delay: false,
            transfers: Some(transfers),
            ..Options::default()
        }
    }

    pub fn with(mut self, overrides: impl IntoIterator<Item = String>) -> Options {
        self.overrides.extend(overrides);
        self
    }
}

impl Server {
    pub fn start(options: Options) -> Server {
        let overrides: Vec<&str> = options.overrides.iter().map(String::as_str).collect();
        let produces = options.transfers.as_ref().is_some_and(|transfers| transfers.role.produces());
        let mut deployment = super::side(options.yaml, &overrides, produces);
        if let (Some(transfers), RankConfig::Vllm(engine)) = (&options.transfers, &mut deployment.engine) {
            engine.kv_role = Some(transfers.role);
            if options.recompute {
                engine.kv_load_failure_policy = KvLoadFailurePolicy::Recompute;
            }
        }
        let mut settings = options.settings;
        settings.dialect = match deployment.engine {
            RankConfig::Vllm(_) => Dialect::Vllm,
            RankConfig::Sglang(_) => Dialect::Sglang,
            RankConfig::Trtllm(_) => Dialect::Trtllm,
        };
        let reply = Reply { source: options.source, mean_tokens: 8, seed: 0, thinking: options.thinking };
        let language = options.language;
        let (stop, stopped) = watch::channel(false);
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = server::listen("127.0.0.1:0".parse().expect("an address")).expect("a port");
                let transfers = match options.transfers {
                    Some(settings) => {
                        Some(Transfers::open(settings, None).await.expect("a port for transfers"))
                    }
                    None => None,
                };
                let (worker, log) = super::worker_with(&deployment, options.no_delay, transfers.clone());
                let app = App::new(worker, settings, language, reply).with_transfers(transfers);
                let app = Arc::new(app);
                let address = listener.local_addr().expect("an address");
                tell.send((address, app.clone(), log)).expect("the test waits");
                server::serve(listener, app, stopped).await;
            });
        });
        let (address, app, log) = told.recv().expect("it starts");
        Server { address, app, log, stop, thread: Some(thread) }
    }

    /// A deployment like the usual one.
    pub fn usual() -> Server {
        Server::start(Options::default())
    }

    /// Tells it to end.
    pub fn stop(&self) {
        let _ = self.stop.send(true);
    }

    /// Waits until it has ended.
    pub fn join(mut self) {
        self.stop();
        self.thread.take().expect("joined once").join().expect("it ends");
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, "", body)
    }

    pub fn post_with(&self, path: &str, headers: &str, body: &Value) -> Answer {
        self.post_text_with(path, headers, &body.to_string())
    }

    /// A body with its keys in their order.
    pub fn post_text(&self, path: &str, body: &str) -> Answer {
        self.post_text_with(path, "", body)
    }

    fn post_text_with(&self, path: &str, headers: &str, body: &str) -> Answer {
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{headers}\r\n{body}",
            body.len()
        ))
    }

    /// Sends bytes as they are and reads the answer.
    pub fn send(&self, request: &str) -> Answer {
        self.send_bytes(request.as_bytes())
    }

    pub fn send_bytes(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        stream.write_all(request).expect("the server reads");
        Answer::read(stream)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server accepts");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What a server answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn read(stream: TcpStream) -> Answer {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).expect("a status line");
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).expect("a header") == 0 || line.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':') {
                headers.push((name.to_lowercase(), value.trim().to_owned()));
            }
        }
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let mut body = Vec::new();
        if chunked {
            loop {
                let mut size = String::new();
                if reader.read_line(&mut size).unwrap_or(0) == 0 {
                    break;
                }
                let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
                if size == 0 {
                    break;
                }
                let mut piece = vec![0; size + 2];
                if reader.read_exact(&mut piece).is_err() {
                    break;
                }
                body.extend_from_slice(&piece[..size]);
            }
        } else {
            let _ = reader.read_to_end(&mut body);
        }
        Answer { status, headers, body: String::from_utf8(body).expect("UTF-8") }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The events of a stream; `[DONE]` is the text of that name.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("text/event-stream; charset=utf-8"));
        let events = self.body.split("\n\n").filter(|event| !event.is_empty());
        let data = events.map(|event| event.strip_prefix("data: ").expect("data"));
        data.map(|data| serde_json::from_str(data).unwrap_or_else(|_| data.into())).collect()
    }
}
