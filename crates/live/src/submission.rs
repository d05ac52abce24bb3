//! A request on its way to a rank: what the engine is asked, and what the worker has to know beside that.

use crate::kv_events::Source;
use crate::kv_transfer::Remote;
use crate::observer::RequestInfo;
use crate::stream::TokenStream;
use std::sync::Arc;
use windtunnel_engine::{HandOff, Nanos, OutputPlan, Request};

/// A request on its way to a rank.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Where its tokens and its end go.
    pub(crate) stream: Arc<TokenStream>,
    /// What the engine is asked.
    pub(crate) request: Request,
    /// Output tokens of which the last one completes a stop string. The engine does not know it; whoever reads
    /// the text ends the request when it sees that.
    pub(crate) abort_after: Option<u32>,
    /// What it has to do with the KV of others.
    pub(crate) remote: Remote,
    /// The conversation that it belongs to, if its client says so.
    pub(crate) session: Option<Box<str>>,
    /// When it came, if other workers had it before.
    pub(crate) came: Option<Nanos>,
}

/// What may end a request before it has `max_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// Output tokens of which the last one is a stop token.
    pub stop_after: Option<u32>,
    /// Output tokens of which the last one completes a stop string that the engine does not know.
    pub abort_after: Option<u32>,
    /// The client asked for it not to end by itself.
    pub ignore_eos: bool,
}

impl Submission {
    /// A request of a client, who hears of it through `stream`.
    pub fn new(stream: Arc<TokenStream>, stops: Stops) -> Submission {
        let info = &stream.info;
        let request = Request {
            id: info.id,
            arrival: Nanos::ZERO,
            prompt_tokens: u32::try_from(info.prompt.len()).unwrap_or(u32::MAX),
            content: Source::of(info).content(),
            output: OutputPlan {
                max_tokens: info.max_tokens,
                stop_after: stops.stop_after,
                tokens: Some(info.output.as_ref().into()),
                ignore_eos: Some(stops.ignore_eos),
            },
            priority: info.priority,
            tie: info.id.0,
            hand_off: HandOff::None,
        };
        Submission {
            stream,
            request,
            abort_after: stops.abort_after,
            remote: Remote::None,
            session: None,
            came: None,
        }
    }

    /// The same, of which others read the KV, or have computed it. For workers that take such a part.
    #[must_use]
    pub fn with_remote(mut self, remote: Remote) -> Submission {
        self.request.hand_off = match remote {
            // The rank knows its part in a meeting.
            Remote::None | Remote::Meet(_) => HandOff::None,
            Remote::Hold => HandOff::Hold,
            Remote::Pull(_) => HandOff::Pull,
        };
        self.remote = remote;
        self
    }

    /// The same, of a conversation.
    #[must_use]
    pub fn with_session(mut self, session: Option<&str>) -> Submission {
        self.session = session.map(Into::into);
        self
    }

    /// The same, which other workers had before.
    #[must_use]
    pub(crate) fn that_came(mut self, came: Nanos) -> Submission {
        self.came = Some(came);
        self
    }

    /// What is known of it.
    pub fn info(&self) -> &Arc<RequestInfo> {
        &self.stream.info
    }

    /// A request that no client waits for.
    pub(crate) fn of(info: RequestInfo, request: Request) -> Submission {
        Submission {
            stream: Arc::new(TokenStream::new(Arc::new(info))),
            request,
            abort_after: None,
            remote: Remote::None,
            session: None,
            came: None,
        }
    }
}
