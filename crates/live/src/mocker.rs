//! `windtunnel mocker`: N workers of a deployment, each with a server on a port of its own, until it is told to
//! end. `windtunnel serve`: the same behind one server.

use crate::error::LiveError;
use crate::http::{App, ServerSettings, server};
use crate::kv_transfer::{SharedLinks, TransferSettings, Transfers};
use crate::outlets::{OutletSettings, Outlets, Shown, Told, WorkerIdentity};
use crate::text::{Language, Reply};
use crate::traces::{TraceSettings, Tracer};
use crate::worker::{Worker, WorkerOptions};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use windtunnel_config::{Deployment, LinkSharing};

/// Most ranks of all workers together.
const MOST_RANKS: u64 = 10_000;

/// Workers that are alike.
#[derive(Clone, Debug)]
pub struct Pool {
    /// What serves. Its number of replicas is that of the workers.
    pub deployment: Deployment,
    /// Their part in transfers of KV, if they take one. Worker `i` of all has the port `port + i`, and a name of its
    /// own.
    pub transfers: Option<TransferSettings>,
}

/// What a mocker is started with.
#[derive(Clone, Debug)]
pub struct MockerSettings {
    /// What serves: first the workers of the first pool, then those of the next. At least one.
    pub pools: Vec<Pool>,
    /// One server for all workers, which its router places requests on.
    pub together: bool,
    /// Passes take no time.
    pub no_delay: bool,
    /// Where the servers listen; worker `i` at `port + i`, or at any port if it is 0.
    pub host: IpAddr,
    /// See [`host`](Self::host).
    pub port: u16,
    /// How the servers look.
    pub server: ServerSettings,
    /// How they read and write.
    pub language: Language,
    /// What they say.
    pub reply: Reply,
    /// What the workers tell beside their answers; who takes spans is said by `traces`.
    pub outlets: OutletSettings,
    /// Where spans of requests go, if anywhere.
    pub traces: Option<TraceSettings>,
    /// Time from the start of a worker to that of the next one.
    pub stagger: Duration,
    /// Longest time that requests at work have to end in when the mocker is told to end.
    pub drain: Duration,
}

/// Why a mocker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to (SIGTERM), and all requests were served.
    Drained,
    /// It was told to (SIGTERM), and requests were cut off.
    CutOff,
    /// Ctrl-C.
    Interrupted,
}

/// Runs a mocker until a signal ends it. `ready` is told where the servers listen.
///
/// # Errors
/// What keeps it from starting.
pub fn run(settings: &MockerSettings, ready: impl FnOnce(&[SocketAddr])) -> Result<Ended, LiveError> {
    // As many connections as the system allows. What it does not allow, it does not.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(LiveError::Thread)?;
    let ended = runtime.block_on(serve(settings, ready));
    // Connections that are left are cut.
    runtime.shutdown_background();
    ended
}

async fn serve(settings: &MockerSettings, ready: impl FnOnce(&[SocketAddr])) -> Result<Ended, LiveError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(LiveError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(LiveError::Signals)?;
    let (stop, stopped) = watch::channel(false);
    let tracer = settings.traces.clone().map(Tracer::start);
    let outlets = OutletSettings { traces: tracer.clone(), ..settings.outlets.clone() };
    let traced = MockerSettings { outlets, ..settings.clone() };
    // Beside this, so that who starts many workers can be told to end.
    let starting = tokio::spawn(start(Arc::new(traced), stopped));
    let Started { mut servers, addresses } = tokio::select! {
        biased;
        _ = interrupt.recv() => return Ok(Ended::Interrupted),
        _ = terminate.recv() => return Ok(Ended::Drained),
        started = starting => started.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?,
    };
    ready(&addresses);
    tokio::select! {
        _ = interrupt.recv() => return Ok(Ended::Interrupted),
        _ = terminate.recv() => {}
    }
    let _ = stop.send(true);
    let ended = tokio::select! {
        done = tokio::time::timeout(settings.drain, async { while servers.join_next().await.is_some() {} }) => {
            if done.is_ok() { Ended::Drained } else { Ended::CutOff }
        }
        _ = interrupt.recv() => return Ok(Ended::Interrupted),
        _ = terminate.recv() => Ended::CutOff,
    };
    if let Some(tracer) = tracer {
        tracer.flush().await;
    }
    Ok(ended)
}

/// Servers that have begun.
pub struct Started {
    /// What serves; it ends when it is told to and its requests have ended.
    pub servers: JoinSet<()>,
    /// Where.
    pub addresses: Vec<SocketAddr>,
}

/// Starts the servers of a mocker on this runtime, until `stopped` is true.
///
/// # Errors
/// What keeps them from starting.
pub async fn start(
    settings: Arc<MockerSettings>,
    stopped: watch::Receiver<bool>,
) -> Result<Started, LiveError> {
    let listeners = listeners(&settings)?;
    let mut started = Started { servers: JoinSet::new(), addresses: Vec::new() };
    let mut serve = |listener: TcpListener, app: App| {
        started.servers.spawn(server::serve(listener, Arc::new(app), stopped.clone()));
    };
    started.addresses = listeners
        .iter()
        .map(|listener| listener.local_addr().map_err(LiveError::Signals))
        .collect::<Result<_, _>>()?;
    if settings.together {
        for (listener, &address) in listeners.into_iter().zip(&started.addresses) {
            serve(listener, together(&settings, address).await?);
        }
        return Ok(started);
    }
    let pools = settings.pools.iter().flat_map(|pool| (0..pool.deployment.replicas.get()).map(move |_| pool));
    let mut first_rank = 0;
    for (number, (pool, (listener, &address))) in
        (0..).zip(pools.zip(listeners.into_iter().zip(&started.addresses)))
    {
        let ranks = pool.deployment.ranks.get();
        let seat = Seat { number, first_rank, told: Told::alone(ranks), address };
        serve(listener, app(&settings, pool, &seat, None, None).await?.0);
        first_rank += ranks;
    }
    Ok(started)
}

/// One server for all workers: those of the last pool, behind those that compute prompts if there are any.
async fn together(settings: &MockerSettings, address: SocketAddr) -> Result<App, LiveError> {
    let ranks = |pool: &Pool| pool.deployment.replicas.get() * pool.deployment.ranks.get();
    let all = settings.pools.iter().map(ranks).sum();
    let links = match &settings.pools[..] {
        [prefill, decode] => links(prefill, decode),
        _ => None,
    };
    let (mut first, mut before): (u32, Option<(App, Shown)>) = (0, None);
    for pool in &settings.pools {
        let seat = Seat { number: 0, first_rank: first, told: Told { first, ranks: all }, address };
        let beside = before.as_ref().map(|(_, shown)| shown.clone());
        let (app, shown) = app(settings, pool, &seat, beside, links.clone()).await?;
        let app = match before {
            Some((prefill, _)) => app.before(Arc::new(prefill)),
            None => app,
        };
        before = Some((app, shown));
        first += ranks(pool);
    }
    // There is at least one pool.
    before.map(|(app, _)| app).ok_or_else(|| LiveError::Settings("there are no workers".into()))
}

/// What the transfers between all these workers share, if they share anything.
fn links(prefill: &Pool, decode: &Pool) -> Option<SharedLinks> {
    let law = decode.transfers.as_ref()?.law;
    let workers = [prefill, decode].map(|pool| pool.deployment.replicas.get() as usize);
    matches!(law.sharing, LinkSharing::FairShare { .. })
        .then(|| SharedLinks::new(law, workers[0], workers[1]))
}

/// All sockets, before anything else: who cannot have them is told at once.
fn listeners(settings: &MockerSettings) -> Result<Vec<TcpListener>, LiveError> {
    let replicas = || settings.pools.iter().map(|pool| u64::from(pool.deployment.replicas.get()));
    let ranks = settings.pools.iter().map(|pool| u64::from(pool.deployment.ranks.get()));
    let threads: u64 = replicas().zip(ranks).map(|(workers, ranks)| workers * ranks).sum();
    if threads > MOST_RANKS {
        let message = format!(
            "got {threads} ranks of all workers, allowed are {MOST_RANKS}: each has a thread of its own (--num-workers, \
             --data-parallel-size, replicas of the file)"
        );
        return Err(LiveError::Settings(message));
    }
    // Not above that.
    let workers = if settings.together { 1 } else { replicas().sum::<u64>() as u32 };
    let last = u32::from(settings.port) + workers - 1;
    if settings.port != 0 && last > u32::from(u16::MAX) {
        let message =
            format!("{workers} workers from port {} on reach port {last}, allowed is 65535", settings.port);
        return Err(LiveError::Settings(message));
    }
    (0..workers)
        .map(|worker| {
            let offset = if settings.port == 0 { 0 } else { worker as u16 };
            server::listen(SocketAddr::new(settings.host, settings.port + offset))
        })
        .collect()
}

/// How much later than the first one a worker starts. Dynamo's launcher rests for 2 s after every 32.
fn stagger(delay: Duration, number: u32) -> Duration {
    if delay.is_zero() {
        return delay;
    }
    delay.saturating_mul(number) + Duration::from_secs(2) * (number / 32)
}

/// A server's place among those of the process.
struct Seat {
    /// Of its worker, for transfers of KV.
    number: u32,
    first_rank: u32,
    told: Told,
    address: SocketAddr,
}

/// A server, and what it shows. What it shows of others is in `beside`, and then in this.
async fn app(
    settings: &MockerSettings,
    pool: &Pool,
    seat: &Seat,
    beside: Option<Shown>,
    links: Option<SharedLinks>,
) -> Result<(App, Shown), LiveError> {
    let deployment = &pool.deployment;
    let model = settings.server.served_names[0].clone();
    let Seat { number, first_rank, told, address } = *seat;
    let identity = WorkerIdentity {
        number,
        first_rank,
        told,
        host: address.ip().to_string(),
        port: address.port(),
        model,
    };
    let replicas = if settings.together { deployment.replicas } else { NonZeroU32::MIN };
    // Behind one address, the ranks of all workers are told as those of one.
    let mut alike = deployment.clone();
    alike.ranks = alike.ranks.saturating_mul(replicas);
    let mut outlets = Outlets::open(&settings.outlets, &alike, &identity, beside).await?;
    let kv_events = outlets.keeps_kv_events();
    let mut observers = |rank| outlets.take_observers(rank);
    let transfers = match pool.transfers.clone() {
        Some(transfers) => Some(Transfers::open(transfers.of_worker(number, address.port())?, links).await?),
        None => None,
    };
    let options = WorkerOptions {
        replicas,
        routed: settings.together,
        no_delay: settings.no_delay,
        kv_events,
        transfers: transfers.clone(),
        observers: &mut observers,
    };
    let worker = Worker::start(deployment, options)?;
    check_tokens(settings)?;
    let mut server = settings.server.clone();
    server.startup += stagger(settings.stagger, number);
    let app = App::new(worker, server, settings.language.clone(), settings.reply.clone());
    Ok((app.with_outlets(&outlets).with_transfers(transfers), outlets.shown))
}

/// Refuses thoughts between tokens that do not exist, and replies of them.
fn check_tokens(settings: &MockerSettings) -> Result<(), LiveError> {
    let tokenizer = &settings.language.tokenizer;
    let vocabulary = tokenizer.vocabulary();
    if let Some(token) = settings.server.replays.as_ref().map(|replays| replays.greatest_token())
        && token >= vocabulary
    {
        let message = format!(
            "--response-replay-trace-path: token {token} does not exist, the vocabulary has {vocabulary}; \
             --tokenizer gives another one"
        );
        return Err(LiveError::Settings(message));
    }
    let Some(thinking) = &settings.reply.thinking else { return Ok(()) };
    if (thinking.start.is_none() || thinking.end.is_none()) && tokenizer.thinking().is_none() {
        let message = "--reasoning: the tokenizer has no <think> and </think>; start_thinking_token_id and \
                       end_thinking_token_id say between which tokens";
        return Err(LiveError::Settings(message.into()));
    }
    let unknown = |token: &u32| *token >= vocabulary;
    if let Some(token) = thinking.start.into_iter().chain(thinking.end).find(unknown) {
        let message = format!("--reasoning: token {token} does not exist, the vocabulary has {vocabulary}");
        return Err(LiveError::Settings(message));
    }
    Ok(())
}
