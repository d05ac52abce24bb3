//! One mock worker, or several behind a router: rank groups on threads of their own, and the door through which
//! requests come.
//!
//! A request gets its time of arrival here, on the wall clock; from then on logical time decides. Its handle
//! ends it when it is dropped, so a client that is gone costs nothing from that instant on.

use crate::clock::WallClock;
use crate::door::{Door, Place, Released};
use crate::drive::{self, Command, Shared};
use crate::error::LiveError;
use crate::group::{GroupSettings, RankGroup};
use crate::kv_transfer::{Mover, Transfers};
use crate::observer::{EndReason, Observers, PassObserver, RequestTimes};
use crate::placement::Placement;
use crate::rank::LiveRank;
use crate::stream::{TokenStream, Verdict};
use crate::submission::Submission;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use tokio::sync::oneshot;
use windtunnel_config::Deployment;
use windtunnel_engine::{Nanos, Rank, RankConfig, RankStats, Rejection, RequestId, Stepper};
use windtunnel_router::{Choice, Router, WorkerLoad, Workers};

/// What a worker is made with beside its deployment.
pub struct WorkerOptions<'a> {
    /// Passes take no time.
    pub no_delay: bool,
    /// Workers; 1 is a worker.
    pub replicas: NonZeroU32,
    /// The deployment's router places the requests, not somebody outside.
    pub routed: bool,
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
    /// The router, if there is one.
    door: Option<Door>,
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
        let telling = options.routed.then(|| Door::telling(deployment));
        let (scope, event_tokens) = match &telling {
            Some(telling) if !options.kv_events => telling.scope(block_size),
            Some(telling) => {
                let (scope, tokens) = telling.scope(block_size);
                if scope.is_on() && tokens != block_size {
                    let message = format!(
                        "router.block_size: got {tokens}, and KV events are published in blocks of {block_size} \
                         tokens; with --kv-events-config allowed is {block_size}"
                    );
                    return Err(LiveError::Settings(message));
                }
                (true.into(), block_size)
            }
            None => (options.kv_events.into(), block_size),
        };
        engine.set_kv_events(scope, event_tokens);
        let placements: Vec<_> =
            (0..options.replicas.get()).map(|_| Arc::new(Mutex::new(Placement::new(deployment)))).collect();
        let mut settings = GroupSettings::new(deployment, if options.no_delay { 0.0 } else { 1.0 });
        settings.engine.set_kv_events(scope, event_tokens);
        let house: Arc<OnceLock<Weak<Inner>>> = Arc::default();
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
                    let book = telling.and_then(|telling| telling.book());
                    let mut observers = (options.observers)(rank);
                    observers.started(&clock);
                    Ok(LiveRank::new(settings.engine.clone(), scheduler, observers, book))
                })
                .collect::<Result<Vec<_>, LiveError>>()?;
            let group = RankGroup::new(first, lanes, settings.clone());
            let (commands, receiver) = channel();
            let commands = Arc::new(commands);
            let transfers = options.transfers.clone();
            let mover = transfers.map(|transfers| Mover::new(transfers, &commands, clock, worker));
            let shared = Arc::new(Shared::new(&group));
            let (theirs, balancer) = (shared.clone(), placements[worker as usize].clone());
            let (house, number) = (house.clone(), worker * ranks + first);
            let listened_to = telling.is_some_and(|telling| telling.book().is_some());
            let tell = move |group: &mut RankGroup| {
                if listened_to && let Some(inner) = house.get().and_then(Weak::upgrade) {
                    inner.hear(group, number);
                }
            };
            std::thread::Builder::new()
                .name(format!("rank {worker}.{first}"))
                .spawn(move || drive::run(group, &receiver, clock, &theirs, &balancer, mover, tell))
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
            door: options.routed.then(|| Door::new(deployment)),
            placements,
            unfinished,
        };
        let inner = Arc::new(inner);
        house.get_or_init(|| Arc::downgrade(&inner));
        Ok(Worker { inner })
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
        if let Some(dp_rank) = dp_rank.filter(|&rank| rank >= inner.ranks) {
            return Err(Rejection::NoSuchRank { dp_rank, ranks: inner.ranks });
        }
        let stream = submission.stream.clone();
        let handle = RequestHandle { stream, place: Place::default(), inner: inner.clone() };
        let placed = match &inner.door {
            Some(door) => door.route(submission, dp_rank, at, &handle.place, &mut inner.loads()),
            None => Some((submission, Choice::worker(0))),
        };
        if let Some((submission, choice)) = placed {
            inner.place(submission, dp_rank, choice, at, &handle.place);
        }
        Ok(handle)
    }

    /// Ends a request, as if its client had gone. `place` is that of its handle.
    pub(crate) fn cancel(&self, place: &Place, id: RequestId) {
        self.inner.cancel(place, id);
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

impl Inner {
    fn group(&self, rank: u32) -> &Group {
        &self.groups[(rank / self.ranks_per_group) as usize]
    }

    fn loads(&self) -> Loads<'_> {
        Loads { inner: self }
    }

    /// Hands a request to a rank of the worker that was chosen.
    fn place(&self, submission: Submission, named: Option<u32>, choice: Choice, at: Nanos, place: &Place) {
        let first = choice.worker * self.ranks;
        let rank = match named.or(choice.rank) {
            Some(rank) => rank,
            None if self.ranks == 1 => 0,
            None => {
                let placement = &self.placements[choice.worker as usize];
                let mut placement = placement.lock().unwrap_or_else(PoisonError::into_inner);
                placement.pick(at, |rank| self.unfinished[(first + rank) as usize].load(Ordering::Relaxed))
            }
        };
        let rank = first + rank;
        self.unfinished[rank as usize].fetch_add(1, Ordering::Relaxed);
        // A request is placed once.
        let _ = place.set(rank);
        let (group, lane) = (self.group(rank), (rank % self.ranks_per_group) as usize);
        group.shared.tell(&group.commands, Command::Submit { lane, submission, at });
    }

    /// Lets a group tell the router what has happened in it, and places those whose turn it is then.
    fn hear(&self, group: &mut RankGroup, first: u32) {
        let Some(door) = &self.door else { return };
        let now = group.now();
        let tell = |router: &mut dyn Router| group.tell(first, now, router);
        door.hear(now, tell, |Released { held, choice }| {
            self.place(held.submission, held.dp_rank, choice, now, &held.place);
        });
    }

    fn cancel(&self, place: &Place, id: RequestId) {
        if place.get().is_none()
            && let Some(held) = self.door.as_ref().and_then(|door| door.forget(id))
        {
            let verdict = Verdict::Ended(EndReason::Cancelled, RequestTimes::default());
            held.submission.stream.end(verdict);
        }
        if let Some(&rank) = place.get() {
            let group = self.group(rank);
            group.shared.tell(&group.commands, Command::Cancel { id, at: self.clock.now() });
        }
    }
}

/// What the workers have to do, as of their last passes; requests on their way are counted.
struct Loads<'a> {
    inner: &'a Inner,
}

impl Workers for Loads<'_> {
    fn count(&self) -> NonZeroU32 {
        self.inner.replicas
    }

    fn load(&mut self, worker: u32) -> WorkerLoad {
        let inner = self.inner;
        let ranks = (worker * inner.ranks) as usize..((worker + 1) * inner.ranks) as usize;
        let groups = ranks.clone().step_by(inner.ranks_per_group as usize);
        let mut load = WorkerLoad::default();
        for stats in groups.flat_map(|rank| inner.group(rank as u32).shared.stats()) {
            load.running += stats.running as u64;
            load.waiting += stats.waiting as u64;
            load.used_blocks += u64::from(stats.used_blocks);
            load.usable_blocks += u64::from(stats.usable_blocks);
        }
        let unfinished = &inner.unfinished[ranks];
        load.unfinished = unfinished.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        load
    }
}

/// A request that was handed over. Dropping it ends the request.
pub struct RequestHandle {
    stream: Arc<TokenStream>,
    place: Place,
    inner: Arc<Inner>,
}

impl RequestHandle {
    /// Where its tokens come.
    pub fn stream(&self) -> &Arc<TokenStream> {
        &self.stream
    }

    /// The rank that has it, counted through all workers. None while the router holds it back.
    pub fn rank(&self) -> Option<u32> {
        self.place.get().copied()
    }

    /// Where that will be told.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        // Who sees that its blocks are free finds it gone.
        let count_off = |rank: u32| {
            self.inner.unfinished[rank as usize].fetch_sub(1, Ordering::Relaxed);
        };
        let placed = self.place.get().copied();
        placed.inspect(|&rank| count_off(rank));
        if self.stream.progress().verdict.is_none() {
            self.inner.cancel(&self.place, self.stream.info.id);
        }
        if placed.is_none() {
            // It may have been let go meanwhile.
            self.place.get().inspect(|&&rank| count_off(rank));
        }
    }
}
