//! The bootstrap server: where the ranks of a prefill worker are, and which rank has which room
//! (srt/disaggregation/common/conn.py `CommonKVBootstrapServer`, 0.5.23).

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{RawQuery, State};
use axum::http::{Response, StatusCode};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::http::json_response;

/// How long it is known which rank has a room (`SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL`).
const KEPT: Duration = Duration::from_secs(120);
/// Largest body that is read, and longest time that it may take.
const MOST_BYTES: usize = 1 << 20;
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// A rank of a prefill worker, as it registers.
#[derive(Clone, Debug, Deserialize)]
struct RankRow {
    attn_tp_size: u32,
    attn_tp_rank: u32,
    attn_cp_size: u32,
    attn_cp_rank: u32,
    attn_dp_size: u32,
    attn_dp_rank: u32,
    pp_size: u32,
    pp_rank: u32,
    system_dp_size: u32,
    system_dp_rank: u32,
    rank_ip: String,
    rank_port: u16,
    page_size: u32,
    kv_cache_dtype: Option<String>,
    #[serde(default)]
    prefill_http_port: Option<u16>,
    #[serde(default = "follow_bootstrap_room")]
    load_balance_method: String,
    #[serde(default = "early")]
    decode_allocation_policy: String,
}

fn follow_bootstrap_room() -> String {
    "follow_bootstrap_room".to_owned()
}

fn early() -> String {
    "early".to_owned()
}

impl Default for RankRow {
    fn default() -> Self {
        RankRow {
            attn_tp_size: 1,
            attn_tp_rank: 0,
            attn_cp_size: 1,
            attn_cp_rank: 0,
            attn_dp_size: 1,
            attn_dp_rank: 0,
            pp_size: 1,
            pp_rank: 0,
            system_dp_size: 1,
            system_dp_rank: 0,
            rank_ip: String::new(),
            rank_port: 0,
            page_size: 1,
            kv_cache_dtype: None,
            prefill_http_port: None,
            load_balance_method: follow_bootstrap_room(),
            decode_allocation_policy: early(),
        }
    }
}

impl RankRow {
    /// Data-parallel ranks of the worker: of its attention, or of the whole.
    fn ranks(&self) -> u32 {
        if self.system_dp_size == 1 { self.attn_dp_size } else { self.system_dp_size }
    }

    fn rank(&self) -> u32 {
        if self.system_dp_size == 1 { self.attn_dp_rank } else { self.system_dp_rank }
    }
}

/// What is registered.
#[derive(Clone, Debug, Default)]
pub(super) struct Registry(Arc<Mutex<Registered>>);

#[derive(Debug, Default)]
struct Registered {
    /// What the first one said of the worker.
    worker: Option<RankRow>,
    /// By rank, context rank, tensor rank and pipeline rank.
    places: BTreeMap<[u32; 4], (String, u16)>,
    registrations: u64,
    rooms: HashMap<u64, (u32, Instant)>,
    cleaned: Option<Instant>,
}

impl Registered {
    fn is_ready(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| {
            let sizes = [worker.ranks(), worker.attn_cp_size, worker.attn_tp_size, worker.pp_size];
            u128::from(self.registrations) >= sizes.map(u128::from).iter().product()
        })
    }

    /// Forgets rooms that nobody will ask for.
    fn clean(&mut self, now: Instant) {
        if self.cleaned.is_none_or(|last| now.duration_since(last) > KEPT) {
            self.rooms.retain(|_, (_, since)| now.duration_since(*since) <= KEPT);
            self.cleaned = Some(now);
        }
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters all ranks of a worker, with so many data-parallel and tensor-parallel ones, which are at one place.
    pub(super) fn register_all(
        &self,
        (ranks, tensor, page_size): (u32, u32, u32),
        http_port: Option<u16>,
        host: &str,
        port: u16,
    ) {
        for rank in 0..ranks {
            for tensor_rank in 0..tensor {
                // Rows that are alike go together.
                self.register(RankRow {
                    attn_tp_size: tensor,
                    attn_tp_rank: tensor_rank,
                    attn_dp_size: ranks,
                    attn_dp_rank: rank,
                    rank_ip: host.to_owned(),
                    rank_port: port,
                    page_size,
                    prefill_http_port: http_port,
                    ..RankRow::default()
                });
            }
        }
    }

    /// Enters a rank. False if it does not go with those before.
    fn register(&self, row: RankRow) -> bool {
        let mut all = self.lock();
        let place = [row.rank(), row.attn_cp_rank, row.attn_tp_rank, row.pp_rank];
        let worker = all.worker.get_or_insert_with(|| row.clone());
        if worker.decode_allocation_policy != row.decode_allocation_policy {
            return false;
        }
        if worker.prefill_http_port.is_none() {
            worker.prefill_http_port = row.prefill_http_port;
        }
        all.places.insert(place, (row.rank_ip, row.rank_port));
        all.registrations += 1;
        true
    }
}

/// The routes of the server.
pub(super) fn router(registry: Registry) -> Router {
    Router::new()
        .route("/route", get(tell).put(enter).fallback(not_allowed))
        .route("/register_dp_rank", post(enter_room))
        .route("/query_dp_ranks", post(tell_rooms))
        .route("/health", get(|| async { text(StatusCode::OK, "OK") }))
        .with_state(registry)
}

fn text(status: StatusCode, words: impl Into<String>) -> Response<Body> {
    let mut response = Response::new(Body::from(words.into()));
    *response.status_mut() = status;
    response
}

async fn not_allowed() -> Response<Body> {
    text(StatusCode::METHOD_NOT_ALLOWED, "Method not allowed")
}

async fn read<T: for<'de> Deserialize<'de>>(body: Body) -> Result<T, Response<Body>> {
    let wrong = |words: String| text(StatusCode::BAD_REQUEST, words);
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, MOST_BYTES)).await {
        Ok(Ok(bytes)) => serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string())),
        Ok(Err(error)) => Err(wrong(error.to_string())),
        Err(_) => Err(text(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    }
}

/// `PUT /route`: a rank registers.
async fn enter(State(registry): State<Registry>, body: Body) -> Response<Body> {
    match read(body).await {
        Ok(row) => match registry.register(row) {
            true => text(StatusCode::OK, "OK"),
            false => text(StatusCode::BAD_REQUEST, "Inconsistent prefill allocation policies"),
        },
        Err(answer) => answer,
    }
}

/// `GET /route`: with -1 for all four, what the worker is; else where one of its ranks is.
async fn tell(State(registry): State<Registry>, RawQuery(asked): RawQuery) -> Response<Body> {
    let asked = asked.unwrap_or_default();
    let names = ["prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"];
    let numbers = names.map(|name| {
        let mut pairs = asked.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(other, _)| *other == name).map(|(_, number)| number).filter(|number| !number.is_empty())
    });
    if numbers.iter().any(Option::is_none) {
        return text(StatusCode::BAD_REQUEST, "Missing inputs for bootstrap server.");
    }
    let numbers = numbers.map(|number| number.and_then(|number| number.parse::<i64>().ok()));
    let [Some(rank), Some(context), Some(tensor), Some(pipeline)] = numbers else {
        return text(StatusCode::BAD_REQUEST, "Inputs for bootstrap server are not numbers.");
    };
    let all = registry.lock();
    let Some(worker) = all.worker.as_ref().filter(|_| all.is_ready()) else {
        let words =
            format!("Prefill server not fully registered yet ({} workers registered).", all.registrations);
        return text(StatusCode::SERVICE_UNAVAILABLE, words);
    };
    if [rank, context, tensor, pipeline] == [-1; 4] {
        return json_response(StatusCode::OK, &described(worker));
    }
    let place = [rank, context, tensor, pipeline].map(|number| u32::try_from(number).ok());
    let place = match place {
        [Some(rank), Some(context), Some(tensor), Some(pipeline)] => {
            all.places.get(&[rank, context, tensor, pipeline])
        }
        _ => None,
    };
    match place {
        Some((ip, port)) => json_response(StatusCode::OK, &json!({"rank_ip": ip, "rank_port": port})),
        None => text(
            StatusCode::NOT_FOUND,
            format!(
                "Bootstrap info not found for dp_rank={rank} cp_rank={context} tp_rank={tensor} pp_rank={pipeline}"
            ),
        ),
    }
}

/// `PrefillServerInfo`; what the deciding side works out for itself is null.
fn described(worker: &RankRow) -> Value {
    json!({
        "attn_tp_size": worker.attn_tp_size,
        "attn_cp_size": worker.attn_cp_size,
        "dp_size": worker.ranks(),
        "pp_size": worker.pp_size,
        "page_size": worker.page_size,
        "kv_cache_dtype": worker.kv_cache_dtype,
        "follow_bootstrap_room": worker.load_balance_method == "follow_bootstrap_room",
        "enable_dsa_cache_layer_split": false,
        "decode_allocation_policy": worker.decode_allocation_policy,
        "enable_kv_cache_sharding": false,
        "prefill_http_port": worker.prefill_http_port,
        "target_tp_rank": null,
        "target_tp_ranks": null,
        "target_cp_ranks": null,
        "target_pp_ranks": null,
        "required_dst_info_num": null,
        "required_prefill_response_num": null,
    })
}

#[derive(Deserialize)]
struct RoomRow {
    bootstrap_room: u64,
    dp_rank: u32,
}

/// `POST /register_dp_rank`: which rank has a room.
async fn enter_room(State(registry): State<Registry>, body: Body) -> Response<Body> {
    let row: RoomRow = match read(body).await {
        Ok(row) => row,
        Err(answer) => return answer,
    };
    let (mut all, now) = (registry.lock(), Instant::now());
    all.clean(now);
    all.rooms.insert(row.bootstrap_room, (row.dp_rank, now));
    text(StatusCode::OK, "OK")
}

#[derive(Deserialize)]
struct RoomsAsked {
    bootstrap_rooms: Vec<u64>,
}

/// `POST /query_dp_ranks`: the ranks of rooms, as far as they are known.
async fn tell_rooms(State(registry): State<Registry>, body: Body) -> Response<Body> {
    let asked: RoomsAsked = match read(body).await {
        Ok(asked) => asked,
        Err(answer) => return answer,
    };
    let mut all = registry.lock();
    all.clean(Instant::now());
    let known = asked.bootstrap_rooms.iter().filter_map(|room| Some((room, all.rooms.get(room)?.0)));
    let ranks: Map<String, Value> = known.map(|(room, rank)| (room.to_string(), rank.into())).collect();
    json_response(StatusCode::OK, &ranks.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use tokio::sync::watch;

    #[derive(Deserialize)]
    struct Exchange {
        method: String,
        path: String,
        body: Value,
        status: u16,
        answer: Value,
    }

    fn ask(port: u16, exchange: &Exchange) -> (u16, String) {
        let body = if exchange.body.is_null() { String::new() } else { exchange.body.to_string() };
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (method, path, length) = (&exchange.method, &exchange.path, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// `tools/wire/sglang_bootstrap.py` asked SGLang's own server.
    #[test]
    fn it_answers_as_sglangs_does() {
        let golden = include_str!("../../../../../tests/wire/sglang_bootstrap.jsonl");
        let exchanges: Vec<Exchange> =
            golden.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(exchanges.len(), 26);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let _on_it = runtime.enter();
        let listener = crate::http::server::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (_stop, stopped) = watch::channel(false);
        runtime.spawn(crate::http::server::serve_routes(listener, router(Registry::default()), stopped));
        for exchange in &exchanges {
            let (status, answer) = ask(port, exchange);
            let answer = match &exchange.answer {
                Value::String(_) => answer.into(),
                _ => serde_json::from_str(&answer).unwrap(),
            };
            let asked = format!("{} {} {}", exchange.method, exchange.path, exchange.body);
            assert_eq!((status, answer), (exchange.status, exchange.answer.clone()), "{asked}");
        }
    }
}
