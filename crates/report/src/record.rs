//! One request as the report sees it when it has ended: stamps, token counts, and the latencies that
//! follow from them.
//!
//! Every definition of a per-request latency stands here once. Nothing here knows how records are kept
//! or printed.

use windtunnel_engine::{FinishReason, Nanos, Rejection, Request, RequestId};

/// What the router thought to be cached of a prompt when it placed the request, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Where it sent it.
    pub overlap: u32,
    /// Where most of it was.
    pub best_overlap: u32,
    /// Where the router credits tiers below the accelerator's memory: of it on the host, and on a disk.
    pub below: Option<(u32, u32)>,
}

impl Routing {
    /// What another place had more.
    pub fn regret(&self) -> u32 {
        self.best_overlap - self.overlap
    }
}

/// A request that reached an engine and has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// Its number in the workload.
    pub id: RequestId,
    /// The name that its trace gave it.
    pub name: Option<Box<str>>,
    /// The worker that gave its tokens, numbered from 0 within its role.
    pub worker: u32,
    /// The rank in that worker.
    pub rank: u32,
    /// The worker that computed its prompt, where that is another one.
    pub prefill_worker: Option<u32>,
    /// What the router knew of its prompt, if it looked.
    pub routing: Option<Routing>,
    /// When the client sent it. In a closed loop: when its seat became free.
    pub arrival: Nanos,
    /// When the router placed it.
    pub dispatched: Nanos,
    /// Start of the first pass that computed part of it, none if there was no such pass.
    pub first_admit: Option<Nanos>,
    /// End of the pass that gave its first visible token.
    pub first_token: Option<Nanos>,
    /// End of the pass that gave its second token.
    pub second_token: Option<Nanos>,
    /// End of the pass that gave its last token.
    pub last_token: Option<Nanos>,
    /// When it ended. For a finished request with tokens usually the instant of the last one.
    pub terminal: Nanos,
    /// Prompt length (ISL) in tokens.
    pub input_tokens: u32,
    /// Output tokens that it asked for at most.
    pub requested_output_tokens: u32,
    /// Output tokens that it got (OSL).
    pub output_tokens: u32,
    /// Prompt tokens found in the prefix cache at the first admission.
    pub first_admission_reused_tokens: u32,
    /// The same, the largest over all admissions: after a preemption a request may find its own blocks.
    pub reused_tokens: u32,
    /// Times that it joined a running list.
    pub admissions: u32,
    /// Times that it lost its blocks.
    pub preemptions: u32,
    /// Times that it was sent anew because its worker crashed.
    pub retries: u32,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

impl RequestRecord {
    /// Time from arrival to the first admission.
    pub fn queue_time(&self) -> Option<Nanos> {
        self.first_admit.map(|at| at.since(self.arrival))
    }

    /// TTFT: arrival to first token.
    pub fn ttft(&self) -> Option<Nanos> {
        self.first_token.map(|at| at.since(self.arrival))
    }

    /// TTST: first token to second token.
    pub fn ttst(&self) -> Option<Nanos> {
        Some(self.second_token?.since(self.first_token?))
    }

    /// E2E: arrival to last token.
    pub fn e2e(&self) -> Option<Nanos> {
        self.last_token.map(|at| at.since(self.arrival))
    }

    /// First token to last token, with at least two tokens.
    pub fn decode_time(&self) -> Option<Nanos> {
        let decode_time = self.last_token?.since(self.first_token?);
        (self.output_tokens > 1).then_some(decode_time)
    }

    /// TPOT in picoseconds, rounded to the nearest: (last − first token) / (tokens − 1).
    pub fn tpot_picos(&self) -> Option<u64> {
        let decode_time = u128::from(self.decode_time()?.0);
        let gaps = u128::from(self.output_tokens - 1);
        let picos = (decode_time * 1000 + gaps / 2) / gaps;
        Some(u64::try_from(picos).unwrap_or(u64::MAX))
    }

    /// Reused prompt tokens, never more than the prompt has: a resumed request may also find blocks of
    /// its own output.
    pub(crate) fn reused_prompt_tokens(&self) -> u32 {
        self.reused_tokens.min(self.input_tokens)
    }

    /// The same for the first admission.
    pub(crate) fn first_admission_reused_prompt_tokens(&self) -> u32 {
        self.first_admission_reused_tokens.min(self.input_tokens)
    }
}

/// A request that no engine took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its number in the workload.
    pub id: RequestId,
    /// The name that its trace gave it.
    pub name: Option<Box<str>>,
    /// Worker and rank that refused it, none when it was refused before placement.
    pub placed: Option<(u32, u32)>,
    /// When the client sent it.
    pub arrival: Nanos,
    /// When it was refused.
    pub refused: Nanos,
    /// Prompt length in tokens.
    pub input_tokens: u32,
    /// Output tokens that it asked for at most.
    pub requested_output_tokens: u32,
    /// Why.
    pub reason: Rejection,
}

impl Refusal {
    /// Of a request that no rank was asked to take. `came`: when the client sent it.
    pub fn unplaced(
        request: &Request,
        name: Option<Box<str>>,
        came: Nanos,
        refused: Nanos,
        reason: Rejection,
    ) -> Refusal {
        Refusal {
            id: request.id,
            name,
            placed: None,
            arrival: came,
            refused,
            input_tokens: request.prompt_tokens,
            requested_output_tokens: request.output.max_tokens,
            reason,
        }
    }
}

/// A request as kept for requests.jsonl.
#[derive(Clone, Debug)]
pub(crate) enum Captured {
    Completed(RequestRecord),
    Cancelled(RequestRecord),
    Failed(RequestRecord, Box<str>),
    /// Failed before a worker had it that would have given its tokens, and why.
    Unplaced(RequestRecord, Box<str>),
    Refused(Refusal),
}

impl Captured {
    pub(crate) fn id(&self) -> RequestId {
        match self {
            Captured::Completed(r)
            | Captured::Cancelled(r)
            | Captured::Failed(r, _)
            | Captured::Unplaced(r, _) => r.id,
            Captured::Refused(refusal) => refusal.id,
        }
    }
}
