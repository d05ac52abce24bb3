//! Forward-pass metrics: what each pass computed and what waits, for Dynamo's planner
//! (ai_dynamo/dynamo/common/forward_pass_metrics.py 1.6.1; sglang/srt/observability/forward_pass_metrics.py and
//! managers/scheduler_components/metrics_reporter.py 0.5.23). PUB, topic "", one MessagePack map a pass; zeros about
//! once a second while there is nothing to do.

use crate::error::LiveError;
use crate::msgpack::Msgpack;
use crate::observer::{Lengths, PassObserver, PassReport};
use crate::publisher::{Publisher, PublisherSettings};
use crate::zmq::Endpoint;
use std::collections::{HashMap, VecDeque};
use windtunnel_engine::{Chunk, Nanos, Scheduled, Slot};

/// A prompt that is computed in several passes.
#[derive(Clone, Copy, Debug)]
struct Partial {
    slot: Slot,
    prompt: u64,
    known: u64,
    done: u64,
}

/// The prompt lengths behind the chunks of passes. A pass names those that it admits; the chunks of the others
/// continue prompts begun before, in the same order.
#[derive(Debug, Default)]
struct Prompts {
    /// By slot, of every request that was admitted.
    lengths: HashMap<Slot, u64>,
    partial: VecDeque<Partial>,
}

impl Prompts {
    fn of(&mut self, scheduled: &Scheduled) -> Lengths {
        self.partial.retain(|partial| !scheduled.preempted.contains(&partial.slot));
        let mut admitted = scheduled.admitted.iter();
        let mut lengths = Lengths::default();
        let mut going_on = VecDeque::new();
        for &Chunk { new_tokens, before } in &scheduled.prefill {
            let (new, before) = (u64::from(new_tokens), u64::from(before));
            // Whoever is passed over is gone: without budget, all that follow wait.
            let found = self.partial.iter().position(|partial| partial.done == before);
            let mut partial = match found {
                Some(at) => {
                    self.partial.drain(..at);
                    self.partial.pop_front()
                }
                None => admitted.next().map(|admission| {
                    let known = u64::from(admission.known_tokens);
                    let first =
                        if admission.resumed { self.lengths.get(&admission.slot).copied() } else { None };
                    let prompt = first.unwrap_or(known);
                    self.lengths.insert(admission.slot, prompt);
                    Partial { slot: admission.slot, prompt, known, done: before }
                }),
            };
            if let Some(partial) = &mut partial {
                partial.done = before + new;
                lengths.add(partial.prompt);
                if partial.done < partial.known {
                    going_on.push_back(*partial);
                }
            }
        }
        going_on.append(&mut self.partial);
        self.partial = going_on;
        lengths
    }
}

/// Publishes the forward-pass metrics of one rank.
#[derive(Debug)]
pub struct ForwardPassPublisher {
    publisher: Publisher,
    worker_id: String,
    dp_rank: u32,
    counter: u64,
    prompts: Prompts,
}

impl ForwardPassPublisher {
    /// Binds the socket of rank `dp_rank`, `offset` ports behind `endpoint`. To be called on the runtime that is to
    /// serve it.
    ///
    /// # Errors
    /// A socket that cannot be had.
    pub async fn start(
        endpoint: &Endpoint,
        offset: u32,
        worker_id: &str,
        dp_rank: u32,
    ) -> Result<ForwardPassPublisher, LiveError> {
        let refused = |e| LiveError::Settings(format!("--forward-pass-metrics-ipc-name: {e}"));
        let settings = PublisherSettings {
            endpoint: endpoint.offset(offset).map_err(refused)?,
            binds: true,
            replay_endpoint: None,
            topic: String::new(),
            buffer_steps: 1,
            max_queue_size: 10_000,
        };
        Ok(ForwardPassPublisher {
            publisher: Publisher::start(settings).await?,
            worker_id: worker_id.to_owned(),
            dp_rank,
            counter: 0,
            prompts: Prompts::default(),
        })
    }

    /// Where it publishes.
    pub fn endpoint(&self) -> &Endpoint {
        &self.publisher.settings().endpoint
    }

    fn publish(&mut self, message: &Message) {
        let bytes = message.encode(&self.worker_id, self.dp_rank, self.counter);
        self.counter += 1;
        self.publisher.publish(bytes);
    }
}

impl PassObserver for ForwardPassPublisher {
    fn pass(&mut self, pass: &PassReport<'_>) {
        let Scheduled { prefill, decode, .. } = pass.scheduled;
        let prompts = self.prompts.of(pass.scheduled);
        if pass.scheduled.tokens == 0 {
            return;
        }
        self.publish(&Message {
            took: pass.end.since(pass.start).as_seconds(),
            prefill_requests: prefill.len() as u64,
            prefill_tokens: prefill.iter().map(|chunk| u64::from(chunk.new_tokens)).sum(),
            prefill_kv: prefill.iter().map(|chunk| u64::from(chunk.before)).sum(),
            prompts,
            decode: Lengths {
                count: decode.count,
                sum: decode.sum_context,
                squares: decode.sum_context_squared,
            },
            queued_prefill: pass.queued_prefill,
            queued_decode: pass.queued_decode,
        });
    }

    fn idle(&mut self, _at: Nanos) {
        self.publish(&Message::default());
    }
}

/// What one message says beside whose it is.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    /// Seconds.
    took: f64,
    prefill_requests: u64,
    prefill_tokens: u64,
    /// Tokens that stand before the chunks.
    prefill_kv: u64,
    prompts: Lengths,
    /// Contexts.
    decode: Lengths,
    /// Prompts of those that never ran.
    queued_prefill: Lengths,
    /// Prompts and outputs of those that lost their blocks.
    queued_decode: Lengths,
}

impl Message {
    fn encode(&self, worker_id: &str, dp_rank: u32, counter: u64) -> Vec<u8> {
        let mut out = Msgpack::default();
        out.map(7);
        count(&mut out, "version", 1);
        out.text("worker_id");
        out.text(worker_id);
        count(&mut out, "dp_rank", u64::from(dp_rank));
        count(&mut out, "counter_id", counter);
        out.text("wall_time");
        out.float(self.took);
        out.text("scheduled_requests");
        out.map(7);
        count(&mut out, "num_prefill_requests", self.prefill_requests);
        count(&mut out, "sum_prefill_tokens", self.prefill_tokens);
        variance(&mut out, "var_prefill_length", self.prompts);
        count(&mut out, "sum_prefill_kv_tokens", self.prefill_kv);
        count(&mut out, "num_decode_requests", self.decode.count);
        count(&mut out, "sum_decode_kv_tokens", self.decode.sum);
        variance(&mut out, "var_decode_kv_tokens", self.decode);
        out.text("queued_requests");
        out.map(6);
        count(&mut out, "num_prefill_requests", self.queued_prefill.count);
        count(&mut out, "sum_prefill_tokens", self.queued_prefill.sum);
        variance(&mut out, "var_prefill_length", self.queued_prefill);
        count(&mut out, "num_decode_requests", self.queued_decode.count);
        count(&mut out, "sum_decode_kv_tokens", self.queued_decode.sum);
        variance(&mut out, "var_decode_kv_tokens", self.queued_decode);
        out.into_bytes()
    }
}

fn count(out: &mut Msgpack, name: &str, value: u64) {
    out.text(name);
    out.uint(value);
}

fn variance(out: &mut Msgpack, name: &str, lengths: Lengths) {
    out.text(name);
    out.float(lengths.variance());
}

#[cfg(test)]
mod tests {
    use super::*;
    use windtunnel_engine::Admission;

    fn pass(admitted: &[(u32, u32, bool)], prefill: &[(u32, u32)]) -> Scheduled {
        let admission = |&(slot, known_tokens, resumed): &(u32, u32, bool)| Admission {
            host_tokens: 0,
            slot: Slot(slot),
            hit_tokens: 0,
            known_tokens,
            resumed,
            loaded: false,
        };
        Scheduled {
            admitted: admitted.iter().map(admission).collect(),
            prefill: prefill.iter().map(|&(new_tokens, before)| Chunk { new_tokens, before }).collect(),
            ..Scheduled::default()
        }
    }

    /// The length of a prompt counts in every pass that computes a part of it, whole (SGLang: `origin_input_ids`).
    #[test]
    fn every_chunk_stands_for_its_whole_prompt() {
        let mut prompts = Prompts::default();
        let sums = |lengths: Lengths| (lengths.count, lengths.sum);
        assert_eq!(
            sums(prompts.of(&pass(&[(0, 100, false), (1, 30, false)], &[(60, 0), (30, 0)]))),
            (2, 130)
        );
        assert_eq!(sums(prompts.of(&pass(&[(2, 50, false)], &[(40, 60), (20, 0)]))), (2, 150));
        // Preempted and resumed with what it said meanwhile: still a prompt of 50 tokens.
        let mut lost = pass(&[], &[]);
        lost.preempted.push(Slot(2));
        assert_eq!(sums(prompts.of(&lost)), (0, 0));
        assert_eq!(sums(prompts.of(&pass(&[(2, 53, true)], &[(53, 0)]))), (1, 50));
        assert!(prompts.partial.is_empty());
    }

    /// What msgspec 0.20 makes of SGLang 0.5.23's `ForwardPassMetrics(worker_id="w", dp_rank=1, counter_id=2)`.
    #[test]
    fn a_heartbeat_is_that_of_the_engine() {
        let hex: String =
            Message::default().encode("w", 1, 2).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, HEARTBEAT);
    }

    const HEARTBEAT: &str = "87a776657273696f6e01a9776f726b65725f6964a177a764705f72616e6b01aa636f756e7465725f696402a977616c6c5f74696d65cb0000000000000000b27363686564756c65645f726571756573747387b46e756d5f70726566696c6c5f726571756573747300b273756d5f70726566696c6c5f746f6b656e7300b27661725f70726566696c6c5f6c656e677468cb0000000000000000b573756d5f70726566696c6c5f6b765f746f6b656e7300b36e756d5f6465636f64655f726571756573747300b473756d5f6465636f64655f6b765f746f6b656e7300b47661725f6465636f64655f6b765f746f6b656e73cb0000000000000000af7175657565645f726571756573747386b46e756d5f70726566696c6c5f726571756573747300b273756d5f70726566696c6c5f746f6b656e7300b27661725f70726566696c6c5f6c656e677468cb0000000000000000b36e756d5f6465636f64655f726571756573747300b473756d5f6465636f64655f6b765f746f6b656e7300b47661725f6465636f64655f6b765f746f6b656e73cb0000000000000000";
}
