//! `windtunnel mocker`: N workers of a deployment, each with a server on a port of its own, until it is told to
//! end. `windtunnel serve`: the same behind one server.

use crate::error::LiveError;
use crate::http::{App, ServerSettings, server};
use crate::kv_transfer::{TransferSettings, Transfers};
use crate::outlets::{OutletSettings, Outlets, WorkerIdentity};
use crate::text::{Language, Reply};
use crate::worker::{Worker, WorkerOptions};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use windtunnel_config::Deployment;

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
    /// What the workers tell beside their answers.
    pub outlets: OutletSettings,
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
    let mut servers = JoinSet::new();
    let mut addresses = Vec::new();
    let mut listeners = listeners(settings)?.into_iter();
    if let [prefill, decode] = &settings.pools[..]
        && settings.together
    {
        refuse_outlets(&settings.outlets)?;
        for listener in listeners.by_ref() {
            let address = listener.local_addr().map_err(LiveError::Signals)?;
            addresses.push(address);
            let prefill = Arc::new(app(settings, prefill, 0, address).await?);
            let front = app(settings, decode, 0, address).await?.before(prefill);
            servers.spawn(server::serve(listener, Arc::new(front), stopped.clone()));
        }
    }
    for pool in &settings.pools {
        let servers_of_pool = if settings.together { 1 } else { pool.deployment.replicas.get() };
        for listener in listeners.by_ref().take(servers_of_pool as usize) {
            let address = listener.local_addr().map_err(LiveError::Signals)?;
            let number = addresses.len() as u32;
            addresses.push(address);
            let app = Arc::new(app(settings, pool, number, address).await?);
            servers.spawn(server::serve(listener, app, stopped.clone()));
        }
    }
    drop(stopped);
    ready(&addresses);
    tokio::select! {
        _ = interrupt.recv() => return Ok(Ended::Interrupted),
        _ = terminate.recv() => {}
    }
    let _ = stop.send(true);
    tokio::select! {
        done = tokio::time::timeout(settings.drain, async { while servers.join_next().await.is_some() {} }) => {
            Ok(if done.is_ok() { Ended::Drained } else { Ended::CutOff })
        }
        _ = interrupt.recv() => Ok(Ended::Interrupted),
        _ = terminate.recv() => Ok(Ended::CutOff),
    }
}

/// Behind one address, what prefill and decode workers publish would have one name.
fn refuse_outlets(outlets: &OutletSettings) -> Result<(), LiveError> {
    let flag = match (&outlets.kv_events, &outlets.forward_passes) {
        (None, None) => return Ok(()),
        (Some(_), _) => "--kv-events-config",
        (None, Some(_)) => "--enable-forward-pass-metrics",
    };
    let message = format!("{flag}: serve does not publish for prefill and decode workers; mocker does");
    Err(LiveError::Settings(message))
}

/// All sockets, before anything else: who cannot have them is told at once.
fn listeners(settings: &MockerSettings) -> Result<Vec<TcpListener>, LiveError> {
    let all = settings.pools.iter().map(|pool| pool.deployment.replicas.get()).sum();
    let workers: u32 = if settings.together { 1 } else { all };
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

async fn app(
    settings: &MockerSettings,
    pool: &Pool,
    number: u32,
    address: SocketAddr,
) -> Result<App, LiveError> {
    let deployment = &pool.deployment;
    let model = settings.server.served_names[0].clone();
    let identity = WorkerIdentity { number, host: address.ip().to_string(), port: address.port(), model };
    let replicas = if settings.together { deployment.replicas } else { NonZeroU32::MIN };
    // Behind one address, the ranks of all workers are told as those of one.
    let mut told = deployment.clone();
    told.ranks = told.ranks.saturating_mul(replicas);
    let mut outlets = Outlets::open(&settings.outlets, &told, &identity).await?;
    let kv_events = outlets.keeps_kv_events();
    let mut observers = |rank| outlets.take_observers(rank);
    let transfers = match pool.transfers.clone() {
        Some(transfers) => Some(Transfers::open(transfers.of_worker(number, address.port())?).await?),
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
    if let Some(thinking) = &settings.reply.thinking {
        let tokenizer = &settings.language.tokenizer;
        let vocabulary = tokenizer.vocabulary();
        if (thinking.start.is_none() || thinking.end.is_none()) && tokenizer.thinking().is_none() {
            let message = "--reasoning: the tokenizer has no <think> and </think>; start_thinking_token_id and \
                           end_thinking_token_id say between which tokens";
            return Err(LiveError::Settings(message.into()));
        }
        let unknown = |token: &u32| *token >= vocabulary;
        if let Some(token) = thinking.start.into_iter().chain(thinking.end).find(unknown) {
            let message =
                format!("--reasoning: token {token} does not exist, the vocabulary has {vocabulary}");
            return Err(LiveError::Settings(message));
        }
    }
    if let Some(replays) = &settings.server.replays {
        let (token, vocabulary) = (replays.greatest_token(), settings.language.tokenizer.vocabulary());
        if token >= vocabulary {
            let message = format!(
                "--response-replay-trace-path: token {token} does not exist, the vocabulary has {vocabulary}; \
                 --tokenizer gives another one"
            );
            return Err(LiveError::Settings(message));
        }
    }
    let mut server = settings.server.clone();
    server.startup += stagger(settings.stagger, number);
    let app = App::new(worker, server, settings.language.clone(), settings.reply.clone());
    Ok(app.with_outlets(&outlets).with_transfers(transfers))
}
