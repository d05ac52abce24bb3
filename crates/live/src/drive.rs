//! The thread of a rank group: logical time meets the wall clock.
//!
//! What happens, and in which order, logical time decides: an instant is handled when the wall clock has
//! reached it, with the requests that had arrived by then. Being late changes nothing but when it is seen,
//! and is made up for: the next pass is due at the end of the last, not at when that was noticed.

use crate::clock::WallClock;
use crate::group::RankGroup;
use crate::kv_transfer::{Let, Loaded, Mover};
use crate::observer::EndReason;
use crate::placement::Placement;
use crate::stream::Verdict;
use crate::submission::Submission;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use windtunnel_engine::{Nanos, RankStats, RequestId};

/// Time without anything to do after which observers are told so, again and again.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What a group is asked to do.
pub(crate) enum Command {
    /// Take a request that arrived at `at`.
    Submit { lane: usize, submission: Submission, at: Nanos },
    /// End a request.
    Cancel { id: RequestId, at: Nanos },
    /// Empty the prefix caches, unless something is at work, and tell whether that was done.
    ResetCache { reply: oneshot::Sender<bool>, at: Nanos },
    /// Passes take the time of the law divided by this; with 0 they take none.
    Speed { speed: f64, at: Nanos },
    /// The load of a request's KV has ended; without success where nothing is said of it.
    LoadEnded { lane: usize, id: RequestId, loaded: Option<Loaded>, at: Nanos },
    /// Blocks that were held for others no longer have to be.
    SendEnded { lane: usize, id: RequestId, why: Let, at: Nanos },
    /// Another worker has made room for the KV of a request, whose prompt may be computed.
    Wanted { lane: usize, id: RequestId, at: Nanos },
    /// The worker that has the other part of a request is not there, or no longer.
    GiveUp { lane: usize, id: RequestId, at: Nanos },
}

impl Command {
    fn at(&self) -> Nanos {
        match self {
            Command::Submit { at, .. }
            | Command::Cancel { at, .. }
            | Command::ResetCache { at, .. }
            | Command::Speed { at, .. }
            | Command::LoadEnded { at, .. }
            | Command::SendEnded { at, .. }
            | Command::Wanted { at, .. }
            | Command::GiveUp { at, .. } => *at,
        }
    }
}

/// What the thread shows to others.
pub(crate) struct Shared {
    seen: Mutex<Seen>,
    lag: AtomicU64,
}

struct Seen {
    stats: Vec<RankStats>,
    dead: Option<&'static str>,
}

impl Shared {
    pub(crate) fn new(group: &RankGroup) -> Shared {
        Shared {
            seen: Mutex::new(Seen { stats: group.stats().collect(), dead: None }),
            lag: AtomicU64::new(0),
        }
    }

    pub(crate) fn stats(&self) -> Vec<RankStats> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).stats.clone()
    }

    pub(crate) fn dead(&self) -> Option<&'static str> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).dead
    }

    pub(crate) fn lag(&self) -> Nanos {
        Nanos(self.lag.load(Ordering::Relaxed))
    }

    /// Gives the thread a command. If the thread is gone, the engine is dead.
    pub(crate) fn tell(&self, commands: &Sender<Command>, command: Command) {
        if let Err(refused) = commands.send(command) {
            refuse(refused.0);
        }
    }

    fn publish(&self, group: &RankGroup) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.stats.clear();
        seen.stats.extend(group.stats());
        seen.dead = group.dead();
    }
}

/// The engine is dead: nobody serves the request.
fn refuse(command: Command) {
    if let Command::Submit { submission, .. } = command {
        submission.stream.end(Verdict::Ended(EndReason::Failed, Default::default()));
    }
}

/// Drives a group until nobody can send it anything any more.
pub(crate) fn run(
    mut group: RankGroup,
    commands: &Receiver<Command>,
    clock: WallClock,
    shared: &Shared,
    balancer: &Mutex<Placement>,
    mut mover: Option<Mover>,
    mut tell: impl FnMut(&mut RankGroup),
) {
    // Clients last: who is told that a prompt is computed may ask for its KV at once, and who has its answer may send
    // the next request, which the router then knows where to send.
    let mut deliver = |group: &mut RankGroup| {
        if let Some(mover) = &mut mover {
            group.take_moves(|lane, step| mover.carry_out(lane, step));
        }
        tell(group);
        group.deliver();
    };
    let mut pending: VecDeque<Command> = VecDeque::new();
    loop {
        pending.extend(commands.try_iter());
        let next = group.next_instant();
        if let Some(command) = pending.pop_front_if(|command| command.at() <= next.max(group.now())) {
            let answer = obey(&mut group, command);
            shared.publish(&group);
            deliver(&mut group);
            if let Some((reply, done)) = answer {
                // Who asked may have gone.
                let _ = reply.send(done);
            }
            continue;
        }
        let now = clock.now();
        if next <= now {
            shared.lag.store(now.since(next).0, Ordering::Relaxed);
            group.advance(now);
            let reports = group.take_reports();
            if !reports.is_empty() {
                let mut balancer = balancer.lock().unwrap_or_else(PoisonError::into_inner);
                reports.iter().for_each(|report| balancer.report(report));
            }
            shared.publish(&group);
            deliver(&mut group);
            continue;
        }
        let wait = if next == Nanos::NEVER { HEARTBEAT } else { clock.until(next).min(HEARTBEAT) };
        match commands.recv_timeout(wait) {
            Ok(command) => pending.push_back(command),
            Err(RecvTimeoutError::Timeout) if next == Nanos::NEVER => group.idle(clock.now()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Does what is asked for; what there is to answer when everyone has been told of it.
fn obey(group: &mut RankGroup, command: Command) -> Option<(oneshot::Sender<bool>, bool)> {
    if group.dead().is_some() {
        refuse(command);
        return None;
    }
    match command {
        Command::Submit { lane, submission, at } => {
            group.submit(lane, submission, at);
        }
        Command::Cancel { id, at } => group.cancel(id, at),
        Command::ResetCache { reply, at } => return Some((reply, group.reset_cache(at))),
        Command::Speed { speed, .. } => group.set_speed(speed),
        Command::LoadEnded { lane, id, loaded, at } => group.load_ended(lane, id, loaded, at),
        Command::SendEnded { lane, id, why, at } => group.send_ended(lane, id, why, at),
        Command::Wanted { lane, id, at } => group.kv_wanted(lane, id, at),
        Command::GiveUp { lane, id, at } => group.give_up(lane, id, at),
    }
    None
}
