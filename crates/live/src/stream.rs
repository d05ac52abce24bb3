//! What connects a rank's thread with the client of one request: how many of its tokens have been given out,
//! and how it ended.
//!
//! A count and no queue: the tokens themselves are the request's plan, which both sides know. So nothing grows
//! when a client reads slowly, and nothing is lost.

use crate::observer::{EndReason, RequestInfo, RequestTimes};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::Notify;
use windtunnel_engine::Rejection;

/// How a request left its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was served, to its end or to where it was given up.
    Ended(EndReason, RequestTimes),
    /// It was refused.
    Rejected(Rejection),
}

/// Shared by a rank's thread and a request's client.
#[derive(Debug)]
pub struct TokenStream {
    /// The request.
    pub info: Arc<RequestInfo>,
    given: AtomicU32,
    cached: AtomicU32,
    done: AtomicBool,
    verdict: Mutex<Option<Verdict>>,
    held: OnceLock<Box<[u32]>>,
    cached_elsewhere: OnceLock<u32>,
    news: Arc<Notify>,
}

/// A look at a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Tokens given out so far.
    pub tokens: u32,
    /// How it ended, if it has.
    pub verdict: Option<Verdict>,
}

impl TokenStream {
    /// A stream of which only its reader hears.
    pub fn new(info: Arc<RequestInfo>) -> TokenStream {
        TokenStream::with_notify(info, Arc::new(Notify::new()))
    }

    /// A stream of which `news` tells, as others may do too.
    pub(crate) fn with_notify(info: Arc<RequestInfo>, news: Arc<Notify>) -> TokenStream {
        TokenStream {
            info,
            given: AtomicU32::new(0),
            cached: AtomicU32::new(0),
            done: AtomicBool::new(false),
            verdict: Mutex::new(None),
            held: OnceLock::new(),
            cached_elsewhere: OnceLock::new(),
            news,
        }
    }

    fn verdict(&self) -> MutexGuard<'_, Option<Verdict>> {
        // A value that is written whole is right also after a panic elsewhere.
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn give(&self, tokens: u32, cached: u32) {
        self.cached.store(cached, Ordering::Relaxed);
        self.given.store(tokens, Ordering::Release);
        self.news.notify_one();
    }

    pub(crate) fn end(&self, verdict: Verdict) {
        if let Verdict::Ended(_, times) = verdict {
            self.cached.store(times.known_tokens(), Ordering::Relaxed);
            self.given.store(times.output_tokens, Ordering::Release);
        }
        *self.verdict() = Some(verdict);
        self.done.store(true, Ordering::Release);
        self.news.notify_one();
    }

    /// Its blocks are held for others. To be told before its end.
    pub(crate) fn hold(&self, blocks: &[u32]) {
        self.held.get_or_init(|| blocks.into());
    }

    /// The blocks that are held for others to read, once it has ended.
    pub fn held(&self) -> Option<&[u32]> {
        self.held.get().map(|blocks| &**blocks)
    }

    /// What there is now.
    pub fn progress(&self) -> Progress {
        // The end first: the tokens are then those at the end, not fewer.
        let verdict = if self.done.load(Ordering::Acquire) { *self.verdict() } else { None };
        Progress { tokens: self.given.load(Ordering::Acquire), verdict }
    }

    /// So much of its prompt was cached on the worker that computed it. To be told before its first token.
    pub(crate) fn tell_cached_elsewhere(&self, tokens: u32) {
        self.cached_elsewhere.get_or_init(|| tokens);
    }

    /// Prompt tokens that were not computed, known with the first token; where another worker computed it and says so,
    /// those that it had cached.
    pub fn cached_tokens(&self) -> u32 {
        self.cached_elsewhere.get().copied().unwrap_or_else(|| self.cached.load(Ordering::Relaxed))
    }

    /// Waits until there are more than `seen` tokens, or the end.
    pub async fn more_than(&self, seen: u32) -> Progress {
        loop {
            let progress = self.progress();
            if progress.tokens > seen || progress.verdict.is_some() {
                return progress;
            }
            self.news.notified().await;
        }
    }

    /// Waits for the end.
    pub async fn ended(&self) -> Verdict {
        loop {
            if let Some(verdict) = self.progress().verdict {
                return verdict;
            }
            self.news.notified().await;
        }
    }
}
