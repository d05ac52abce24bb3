//! The side that goes on: one request's way into its room, and the transfer of its KV.

use super::super::claim::Step;
use super::super::links::Load;
use super::super::wire::Lines;
use super::super::{Back, Loaded, Moved};
use super::lookup::Routes;
use super::{Room, Said, Told};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use windtunnel_engine::Nanos;

/// From one attempt to reach the other side to the next, and longest time of one
/// (srt/disaggregation/decode.py `_ensure_retry_interval`, common/conn.py `try_ensure_parallel_info`, 0.5.23).
const RETRY: Duration = Duration::from_secs(1);
const ATTEMPT: Duration = Duration::from_secs(5);

/// What a request has to know to meet the other side.
#[derive(Debug)]
pub(in crate::kv_transfer) struct Meeting {
    pub(super) room: Arc<Room>,
    pub(super) routes: Arc<Routes>,
    pub(super) page_size: u32,
    pub(super) attempts: u32,
    pub(super) waiting_timeout: Duration,
}

/// A request's rank speaks while the other side is waited for.
struct Rank {
    steps: UnboundedReceiver<Step>,
    start: Option<Step>,
}

/// What the other side says of the prompt: who computed it, how much was cached, and how long it took.
struct Computed {
    worker: u32,
    cached_tokens: u32,
    computed_for: Nanos,
}

/// The request has gone.
struct Gone;

impl Rank {
    /// Waits for something, unless the request goes before.
    async fn wait<T>(&mut self, what: impl Future<Output = T>) -> Result<T, Gone> {
        let mut what = pin!(what);
        loop {
            tokio::select! {
                biased;
                step = self.steps.recv() => match step {
                    Some(step) => self.start = Some(step),
                    None => return Err(Gone),
                },
                value = what.as_mut() => return Ok(value),
            }
        }
    }

    /// Waits until the rank has made room, unless `other` comes before.
    async fn room(&mut self, other: impl Future<Output = Failure>) -> Result<Result<Step, Failure>, Gone> {
        let mut other = pin!(other);
        loop {
            if let Some(step) = self.start.take() {
                return Ok(Ok(step));
            }
            tokio::select! {
                biased;
                step = self.steps.recv() => match step {
                    Some(step) => self.start = Some(step),
                    None => return Err(Gone),
                },
                error = other.as_mut() => return Ok(Err(error)),
            }
        }
    }
}

/// Why a request is given up here.
enum Failure {
    /// The other side's request has ended.
    Left,
    /// Something else.
    Error(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Error(error)
    }
}

/// Enters the room, waits for what the rank and the other side say, and reports the end of the transfer.
pub(in crate::kv_transfer) async fn receive(meeting: Meeting, steps: UnboundedReceiver<Step>, back: Back) {
    let mut rank = Rank { steps, start: None };
    let failed = match &meeting.room.server {
        None => {
            if let Ok(Ok(Step { at, .. })) = rank.room(std::future::pending()).await {
                back.loaded(at.max(back.clock.now()), Loaded::default());
            }
            return;
        }
        Some(server) => match rank.wait(meeting.enter(server)).await {
            Ok(Ok(mut lines)) => match follow(&meeting, &mut rank, &back, &mut lines).await {
                Ok(followed) => followed.err(),
                Err(Gone) => {
                    // Where that does not arrive, the other side finds the connection closed.
                    let _ = lines.say(&Said::Leave).await;
                    None
                }
            },
            Ok(Err(error)) => Some(error.into()),
            Err(Gone) => None,
        },
    };
    match failed {
        Some(Failure::Error(error)) => {
            back.given_up(&format!("KV of bootstrap_room {}: {error}", meeting.room.number));
        }
        Some(Failure::Left) => back.left(),
        None => {}
    }
}

/// In the room.
async fn follow(
    meeting: &Meeting,
    rank: &mut Rank,
    back: &Back,
    lines: &mut Lines,
) -> Result<Result<(), Failure>, Gone> {
    let Step { tokens, bytes, timing, .. } = match rank.room(refusal(lines)).await? {
        Ok(start) => start,
        Err(failure) => return Ok(Err(failure)),
    };
    let computed = match rank.wait(meeting.computed(lines, bytes)).await? {
        Ok(computed) => computed,
        Err(failure) => return Ok(Err(failure)),
    };
    let Computed { worker, cached_tokens, computed_for } = computed;
    let at = back.clock.now();
    let transfer = timing.over(Load { tokens, from: worker as usize, computed_for }, at, back.clock);
    let end = match rank.wait(unless_refused(lines, transfer)).await? {
        Ok(end) => end,
        Err(failure) => return Ok(Err(failure)),
    };
    let moved = Some(Moved { took: end.since(at), bytes });
    back.loaded(end, Loaded { moved, cached_tokens: Some(cached_tokens) });
    // Where that does not arrive, the other side finds the connection closed.
    let _ = lines.say(&Said::Release).await;
    Ok(Ok(()))
}

/// The transfer takes its time, and fails when the other side goes meanwhile.
async fn unless_refused(lines: &mut Lines, transfer: impl Future<Output = Nanos>) -> Result<Nanos, Failure> {
    tokio::select! {
        biased;
        end = transfer => Ok(end),
        error = refusal(lines) => Err(error),
    }
}

/// Waits until the other side says no, or goes. It says nothing else while all is well.
async fn refusal(lines: &mut Lines) -> Failure {
    match lines.hear::<Told>().await {
        Ok(Some(Told::Left)) => Failure::Left,
        Ok(Some(Told::Refused { reason })) => io::Error::other(reason).into(),
        Ok(Some(Told::Computed { .. })) => io::Error::other("the prefill worker is ahead of time").into(),
        Ok(None) => io::Error::other("the prefill worker is gone").into(),
        Err(error) => error.into(),
    }
}

impl Meeting {
    /// Reaches the other side, and enters the room there.
    async fn enter(&self, server: &(String, u16)) -> io::Result<Lines> {
        let mut attempt = 1;
        loop {
            let reached = tokio::time::timeout(ATTEMPT, self.try_enter(server)).await;
            let reached = reached
                .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")))
                .inspect_err(|_| self.routes.forget(server));
            match reached {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
                Err(error) if attempt >= self.attempts => {
                    let (host, port) = server;
                    let message = format!("{host}:{port} is not reached in {attempt} attempts: {error}");
                    return Err(io::Error::other(message));
                }
                Err(_) => tokio::time::sleep(RETRY).await,
                Ok(lines) => return Ok(lines),
            }
            attempt += 1;
        }
    }

    async fn try_enter(&self, server: &(String, u16)) -> io::Result<Lines> {
        let address = self.routes.find(server, self.page_size).await?;
        let mut lines = Lines::new(TcpStream::connect(address).await?);
        lines.say(&Said::Enter { room: self.room.number }).await?;
        Ok(lines)
    }

    /// Says that there is room, and waits until the prompt is computed.
    async fn computed(&self, lines: &mut Lines, bytes: u64) -> Result<Computed, Failure> {
        lines.say(&Said::Ready { bytes }).await?;
        let told = tokio::time::timeout(self.waiting_timeout, lines.hear()).await.map_err(|_| {
            let message = format!("its prompt is not computed in {:?}", self.waiting_timeout);
            io::Error::new(io::ErrorKind::TimedOut, message)
        })?;
        match told? {
            Some(Told::Computed { worker, cached_tokens, computed_for, .. }) => {
                Ok(Computed { worker, cached_tokens, computed_for: Nanos(computed_for) })
            }
            Some(Told::Left) => Err(Failure::Left),
            Some(Told::Refused { reason }) => Err(io::Error::other(reason).into()),
            None => Err(io::Error::other("the prefill worker is gone").into()),
        }
    }
}
