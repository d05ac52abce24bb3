//! The side that is read from: which requests' blocks are held, who has claimed them, and until when.

use super::wire::{ANSWER, Answered, Asked, Lines};
use super::{Back, Computed, Let, refused, resolve};
use crate::error::LiveError;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// Pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Blocks that are held.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) back: Back,
    pub(super) computed: Computed,
}

#[derive(Debug)]
struct Entry {
    held: Held,
    lease: Duration,
    /// When it ends, unless somebody has claimed it.
    expiry: Option<Instant>,
}

/// What a worker holds for others.
#[derive(Clone, Debug)]
pub(super) struct Source {
    engine_id: Arc<str>,
    entries: Arc<Mutex<HashMap<String, Entry>>>,
}

impl Source {
    pub(super) fn new(engine_id: String) -> Source {
        Source { engine_id: engine_id.into(), entries: Arc::default() }
    }

    /// Listens for those who want to read; tells where.
    pub(super) async fn open(&self, host: &str, port: u16) -> Result<SocketAddr, LiveError> {
        let address = resolve(host, port).await.map_err(|cause| refused(host, port, cause))?;
        let listener = TcpListener::bind(address).await.map_err(|cause| refused(host, port, cause))?;
        let bound = listener.local_addr().map_err(|cause| refused(host, port, cause))?;
        let source = self.clone();
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(source.clone().serve(stream))),
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
        });
        Ok(bound)
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks are held from now on, until they are read or the lease ends.
    pub(super) fn hold(&self, runtime: &Handle, name: String, held: Held, lease: Duration) {
        let entry = Entry { held, lease, expiry: Some(Instant::now() + lease) };
        self.entries().insert(name.clone(), entry);
        runtime.spawn(self.clone().watch(name, lease));
    }

    /// Lets go of blocks whose lease has ended.
    async fn watch(self, name: String, lease: Duration) {
        let mut wait = lease;
        loop {
            tokio::time::sleep(wait).await;
            let mut entries = self.entries();
            let Some(entry) = entries.get(&name) else { return };
            wait = match entry.expiry {
                // Claimed: when the claim is dropped, a whole lease is left.
                None => lease,
                Some(expiry) => expiry.saturating_duration_since(Instant::now()),
            };
            if wait.is_zero() {
                let entry = entries.remove(&name);
                drop(entries);
                entry.inspect(|entry| entry.held.back.let_go(Let::Expired));
                return;
            }
        }
    }

    /// Nobody will read what is held, if nobody has claimed it.
    pub(super) fn let_go(&self, name: &str) {
        let mut entries = self.entries();
        if entries.get(name).is_some_and(|entry| entry.expiry.is_some()) {
            let entry = entries.remove(name);
            drop(entries);
            entry.inspect(|entry| entry.held.back.let_go(Let::Unread));
        }
    }

    async fn serve(self, stream: TcpStream) {
        let mut lines = Lines::new(stream);
        // Who says nothing, or something else, has no claim.
        let Ok(Ok(Some(Asked::Claim { engine_id, request_id }))) =
            tokio::time::timeout(ANSWER, lines.hear()).await
        else {
            return;
        };
        let answer = match self.claim(&engine_id, &request_id) {
            Ok((worker, Computed { prompt_tokens, computed_for, .. })) => {
                Answered::Held { worker, prompt_tokens, computed_for: computed_for.0 }
            }
            Err(reason) => {
                let _ = lines.say(&Answered::Refused { reason }).await;
                return;
            }
        };
        let released = match lines.say(&answer).await {
            Ok(()) => matches!(lines.hear().await, Ok(Some(Asked::Release))),
            Err(_) => false,
        };
        self.end_claim(&request_id, released);
    }

    fn claim(&self, engine_id: &str, request_id: &str) -> Result<(u32, Computed), String> {
        if engine_id != &*self.engine_id {
            return Err(format!("this is engine {}, not {engine_id}", self.engine_id));
        }
        let mut entries = self.entries();
        let entry = entries.get_mut(request_id).ok_or("nothing is held for it, or no longer")?;
        if entry.expiry.take().is_none() {
            return Err("somebody else reads it".into());
        }
        Ok((entry.held.back.worker, entry.held.computed))
    }

    fn end_claim(&self, request_id: &str, released: bool) {
        let mut entries = self.entries();
        if released {
            let entry = entries.remove(request_id);
            drop(entries);
            entry.inspect(|entry| entry.held.back.let_go(Let::Read { bytes: None }));
        } else if let Some(entry) = entries.get_mut(request_id) {
            entry.expiry = Some(Instant::now() + entry.lease);
        }
    }
}
