//! One mock worker, or several behind a router: rank groups on threads of their own, and the door through which
//! requests come.
//!
//! A request gets its time of arrival here, on the wall clock; from then on logical time decides. Its handle
//! ends it when it is dropped, so a client that is gone costs nothing from that instant on.

use crate::clock::WallClock;
use crate::drive::{self, Command, Shared};
use crate::error::LiveError;
use crate::group::{GroupSettings, RankGroup};
use crate::kv_transfer::{Mover, Transfers};
use crate::observer::Observers;
use crate::placement::Placement;
use crate::rank::LiveRank;
use crate::stream::TokenStream;
use crate::submission::Submission;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;
use windtunnel_config::Deployment;
use windtunnel_engine::{Nanos, Rank, RankConfig, RankStats, Rejection, RequestId, Stepper};
use windtunnel_router::RoundRobin;

/// What a worker is made with beside its deployment.
pub struct WorkerOptions<'a> {
    /// Passes take no time.
    pub no_delay: bool,
    /// Workers behind one door; 1 is a worker.
    pub replicas: NonZeroU32,
    /// Keep the events of the prefix caches for the observers.
    pub kv_events: bool,
    /// Its part in transfers of KV, if it takes one.
    pub transfers: Option<Arc<Transfers>>,
    /// Makes the observers of a rank, which is counted through all workers.
    pub observers: &'a mut dyn FnMut(u32) -> Observers,
}

/// A running worker. Its threads end when it and all handles are gone.
pub struct Worker {
    inner: Arc<Inner>,
}

struct Inner {
    clock: WallClock,
    groups: Vec<Group>,
    ranks_per_group: u32,
    ranks: u32,
    engine: RankConfig,
    next_id: AtomicU64,
    replicas: NonZeroU32,
    /// Which worker is next.
    router: Mutex<RoundRobin>,
    /// By worker.
    placements: Vec<Arc<Mutex<Placement>>>,
    /// Requests that have not ended, by rank.
    unfinished: Vec<AtomicU64>,
}

struct Group {
    commands: Arc<Sender<Command>>,
    shared: Arc<Shared>,
}

impl Worker {
    /// Starts the threads of workers of `deployment`.
    ///
    /// # Errors
    /// What the engine refuses about its settings, and a system that gives no thread.
    pub fn start(deployment: &Deployment, options: WorkerOptions<'_>) -> Result<Worker, LiveError> {
        let ranks = deployment.ranks.get();
        let ranks_per_group = if deployment.barrier { ranks } else { 1 };
        let mut engine = deployment.engine.clone();
        let block_size = engine.block_size();
        engine.set_kv_events(options.kv_events.into(), block_size);
        let placements: Vec<_> =
            (0..options.replicas.get()).map(|_| Arc::new(Mutex::new(Placement::new(deployment)))).collect();
        let mut settings = GroupSettings::new(deployment, if options.no_delay { 0.0 } else { 1.0 });
        settings.engine.set_kv_events(options.kv_events.into(), block_size);
        let clock = WallClock::start();
        let mut groups = Vec::new();
        let starts = (0..options.replicas.get()).flat_map(|worker| {
            (0..ranks).step_by(ranks_per_group as usize).map(move |first| (worker, first))
        });
        for (worker, first) in starts {
            let lanes = (first..first + ranks_per_group)
                .map(|rank| {
                    let rank = worker * ranks + rank;
                    let scheduler = Rank::new(settings.engine.clone(), Stepper::Plain)?;
                    Ok(LiveRank::new(settings.engine.clone(), scheduler, (options.observers)(rank)))
                })
                .collect::<Result<Vec<_>, LiveError>>()?;
            let group = RankGroup::new(first, lanes, settings.clone());
            let (commands, receiver) = channel();
            let commands = Arc::new(commands);
            let mover = options.transfers.clone().map(|transfers| Mover::new(transfers, &commands, clock));
            let shared = Arc::new(Shared::new(&group));
            let (theirs, balancer) = (shared.clone(), placements[worker as usize].clone());
            std::thread::Builder::new()
                .name(format!("rank {worker}.{first}"))
                .spawn(move || drive::run(group, &receiver, clock, &theirs, &balancer, mover))
                .map_err(LiveError::Thread)?;
            groups.push(Group { commands, shared });
        }
        let unfinished = (0..options.replicas.get() * ranks).map(|_| AtomicU64::new(0)).collect();
        let inner = Inner {
            clock,
            groups,
            ranks_per_group,
            ranks,
            engine,
            next_id: AtomicU64::new(0),
            replicas: options.replicas,
            router: Mutex::new(RoundRobin::new()),
            placements,
            unfinished,
        };
        Ok(Worker { inner: Arc::new(inner) })
    }

    /// A number for the next request.
    pub fn next_id(&self) -> RequestId {
        RequestId(self.inner.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// Data-parallel ranks of one worker.
    pub fn ranks(&self) -> u32 {
        self.inner.ranks
    }

    /// Settings of its ranks.
    pub fn engine(&self) -> &RankConfig {
        &self.inner.engine
    }

    /// Logical time now.
    pub fn now(&self) -> Nanos {
        self.inner.clock.now()
    }

    /// Hands a request to the rank that it names, or to the one that the worker's policy picks.
    ///
    /// # Errors
    /// [`Rejection::NoSuchRank`]. What the rank itself refuses comes through the stream.
    pub fn submit(&self, submission: Submission, dp_rank: Option<u32>) -> Result<RequestHandle, Rejection> {
        let inner = &self.inner;
        let at = inner.clock.now();
        let worker = match inner.replicas.get() {
            1 => 0,
            _ => inner.router.lock().unwrap_or_else(PoisonError::into_inner).next_of(inner.replicas),
        };
        let first = worker * inner.ranks;
        let rank = match dp_rank {
            Some(dp_rank) if dp_rank >= inner.ranks => {
                return Err(Rejection::NoSuchRank { dp_rank, ranks: inner.ranks });
            }
            Some(dp_rank) => dp_rank,
            None if inner.ranks == 1 => 0,
            None => {
                let placement = &inner.placements[worker as usize];
                let mut placement = placement.lock().unwrap_or_else(PoisonError::into_inner);
                placement.pick(at, |rank| inner.unfinished[(first + rank) as usize].load(Ordering::Relaxed))
            }
        };
        let rank = first + rank;
        inner.unfinished[rank as usize].fetch_add(1, Ordering::Relaxed);
        let stream = submission.stream.clone();
        let handle = RequestHandle { stream, rank, inner: inner.clone() };
        let lane = (rank % inner.ranks_per_group) as usize;
        handle.group().shared.tell(&handle.group().commands, Command::Submit { lane, submission, at });
        Ok(handle)
    }

    /// Ends a request of a rank, as if its client had gone.
    pub fn cancel(&self, rank: u32, id: RequestId) {
        let command = Command::Cancel { id, at: self.inner.clock.now() };
        if let Some(group) = self.inner.groups.get((rank / self.inner.ranks_per_group) as usize) {
            group.shared.tell(&group.commands, command);
        }
    }

    /// Empties the prefix caches of all ranks. False, and nothing happened on a rank, where a request is at work.
    pub async fn reset_cache(&self) -> bool {
        let mut done = true;
        for group in &self.inner.groups {
            let (reply, answer) = oneshot::channel();
            let command = Command::ResetCache { reply, at: self.inner.clock.now() };
            group.shared.tell(&group.commands, command);
            done &= answer.await.unwrap_or(false);
        }
        done
    }

    /// From now on, passes take the time of the deployment's law divided by `speed`; with 0 they take none.
    pub fn set_speed(&self, speed: f64) {
        for group in &self.inner.groups {
            group.shared.tell(&group.commands, Command::Speed { speed, at: self.inner.clock.now() });
        }
    }

    /// Counters of every rank, as of its last pass.
    pub fn stats(&self) -> Vec<RankStats> {
        self.inner.groups.iter().flat_map(|group| group.shared.stats()).collect()
    }

    /// What one of its engines died of, if one did.
    pub fn dead(&self) -> Option<&'static str> {
        self.inner.groups.iter().find_map(|group| group.shared.dead())
    }

    /// Requests that have not ended.
    pub fn unfinished(&self) -> u64 {
        self.inner.unfinished.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// How far the passes are behind the wall clock, at worst.
    pub fn lag(&self) -> Nanos {
        self.inner.groups.iter().map(|group| group.shared.lag()).max().unwrap_or(Nanos::ZERO)
    }
}

/// A request that was handed over. Dropping it ends the request.
pub struct RequestHandle {
    stream: Arc<TokenStream>,
    rank: u32,
    inner: Arc<Inner>,
}

impl RequestHandle {
    /// Where its tokens come.
    pub fn stream(&self) -> &Arc<TokenStream> {
        &self.stream
    }

    /// The rank that has it, counted through all workers.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    fn group(&self) -> &Group {
        &self.inner.groups[(self.rank / self.inner.ranks_per_group) as usize]
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        self.inner.unfinished[self.rank as usize].fetch_sub(1, Ordering::Relaxed);
        if self.stream.progress().verdict.is_none() {
            let command = Command::Cancel { id: self.stream.info.id, at: self.inner.clock.now() };
            self.group().shared.tell(&self.group().commands, command);
        }
    }
}
