//! The side that reads: one request's claim on what a prefill worker holds, from its arrival to the end of its load.

use super::links::{Load, Timing};
use super::wire::{ANSWER, Answered, Asked, Lines};
use super::{Back, Loaded, Moved, RemoteKv, resolve};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use windtunnel_engine::Nanos;

/// What the rank says of the request. Where it says no more, the request has ended, or is no longer waited for.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Its load starts now,
    pub(super) at: Nanos,
    /// of so many tokens,
    pub(super) tokens: u32,
    /// which are so many bytes, as far as that is known,
    pub(super) bytes: u64,
    /// and takes its time.
    pub(super) timing: Timing,
}

/// A claim that was granted.
struct Granted {
    lines: Lines,
    /// The worker that computed it, among those of its process,
    worker: u32,
    /// and how long that took.
    computed_for: Nanos,
}

impl Granted {
    /// Waits until the other side has gone. It says nothing more while all is well.
    async fn lost(&mut self) {
        let _: io::Result<Option<Answered>> = self.lines.hear().await;
    }

    async fn release(&mut self) {
        // Where that does not arrive, the lease ends.
        let _ = self.lines.say(&Asked::Release).await;
    }
}

/// Claims, waits for the rank's word, and reports the end of the load.
pub(super) async fn run(remote: Arc<RemoteKv>, mut steps: UnboundedReceiver<Step>, back: Back) {
    let mut granted = tokio::time::timeout(ANSWER, claim(&remote))
        .await
        .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer")));
    let step = match &mut granted {
        Ok(claim) => tokio::select! {
            biased;
            step = steps.recv() => step,
            () = claim.lost() => {
                granted = Err(io::Error::other("the prefill worker is gone"));
                steps.recv().await
            }
        },
        Err(_) => steps.recv().await,
    };
    match (step, granted) {
        (Some(step), Ok(claim)) => load(claim, &back, step).await,
        (Some(_), Err(error)) => fail(&remote, &back, &error.to_string()),
        (None, Ok(mut claim)) => claim.release().await,
        (None, Err(_)) => {}
    }
}

async fn claim(remote: &RemoteKv) -> io::Result<Granted> {
    let stream = TcpStream::connect(resolve(&remote.host, remote.port).await?).await?;
    let mut lines = Lines::new(stream);
    let (engine_id, request_id) = (remote.engine_id.clone(), remote.request_id.clone());
    lines.say(&Asked::Claim { engine_id, request_id }).await?;
    match lines.hear().await? {
        Some(Answered::Held { worker, computed_for, .. }) => {
            Ok(Granted { lines, worker, computed_for: Nanos(computed_for) })
        }
        Some(Answered::Refused { reason }) => Err(io::Error::other(reason)),
        None => Err(io::Error::other("the prefill worker is gone")),
    }
}

/// The transfer: it takes its time, and fails when the other side goes meanwhile.
async fn load(mut claim: Granted, back: &Back, step: Step) {
    let Step { at, tokens, bytes, timing } = step;
    let load = Load { tokens, from: claim.worker as usize, computed_for: claim.computed_for };
    let end = tokio::select! {
        biased;
        end = timing.over(load, at, back.clock) => end,
        () = claim.lost() => return back.load_failed(),
    };
    let moved = Some(Moved { took: end.since(at), bytes });
    back.loaded(end, Loaded { moved, cached_tokens: None });
    claim.release().await;
}

fn fail(remote: &RemoteKv, back: &Back, reason: &str) {
    // The request's client is told that its KV did not come; why that is, the operator wants to know.
    eprintln!("warning: KV of {}:{} is not to be had: {reason}", remote.host, remote.port);
    back.load_failed();
}
