//! The spans themselves. Of a request: vLLM's `llm_request` (v1/engine/output_processor.py `do_tracing`, tracing/utils.py
//! 0.33.0; TensorRT-LLM's is the same), or SGLang's (srt/observability/trace.py, managers/tokenizer_manager.py 0.5.23).
//! Of a pass: our own `engine_pass`.

use super::context::{Parent, Traced};
use super::exporter::Tracer;
use crate::clock::WallClock;
use crate::observer::{EndReason, Ended, PassObserver, PassReport, RequestInfo, RequestTimes};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use std::hash::{BuildHasher, RandomState};
use windtunnel_engine::{Nanos, RankStats};

/// Whose span a request's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanForm {
    /// vLLM's, and TensorRT-LLM's.
    Vllm,
    /// SGLang's.
    Sglang {
        /// What it calls its workers: empty, `prefill` or `decode`.
        role: &'static str,
    },
}

/// Makes the spans of one rank.
#[derive(Debug)]
pub struct SpanObserver {
    tracer: Tracer,
    form: SpanForm,
    model: String,
    rank: u32,
    clock: Option<WallClock>,
}

impl SpanObserver {
    /// Those of `rank`, of a worker of the model that is called so.
    pub fn new(tracer: Tracer, form: SpanForm, model: &str, rank: u32) -> SpanObserver {
        SpanObserver { tracer, form, model: model.to_owned(), rank, clock: None }
    }

    fn request(&self, ended: &Ended<'_>) {
        let Some(clock) = self.clock else { return };
        // vLLM tells of a request when the engine says how it ended, and of one whose client is gone it says nothing.
        let told = match (self.form, ended.reason) {
            (_, EndReason::Finished(_)) | (SpanForm::Sglang { .. }, EndReason::Cancelled) => true,
            (_, EndReason::Cancelled | EndReason::Failed) => false,
        };
        let nothing = Traced::default();
        let traced = ended.info.traced.as_deref().unwrap_or(&nothing);
        // As a sampler does that goes by the parent.
        if !told || traced.parent.as_ref().is_some_and(|parent| !parent.sampled) {
            return;
        }
        let times = [ended.times.arrival, ended.at].map(|at| clock.unix_nanos(at));
        let mut span = span(traced.parent.as_ref(), times);
        match self.form {
            SpanForm::Vllm => {
                span.name = "llm_request".into();
                span.kind = SpanKind::Server.into();
                span.attributes = vllm(ended, traced);
            }
            SpanForm::Sglang { role } => {
                let rid = ended.info.name.rsplit('_').next().unwrap_or_default();
                span.name = format!("{role} Req {}", rid.chars().take(8).collect::<String>());
                span.attributes = sglang(ended, traced, rid, &self.model);
            }
        }
        self.tracer.send(span);
    }

    fn engine_pass(&self, pass: &PassReport<'_>) {
        let Some(clock) = self.clock else { return };
        if !self.tracer.passes() || pass.scheduled.tokens == 0 {
            return;
        }
        let mut span = span(None, [pass.start, pass.end].map(|at| clock.unix_nanos(at)));
        span.name = "engine_pass".into();
        let scheduled = pass.scheduled;
        let numbers = [
            ("rank", u64::from(self.rank)),
            ("number", pass.number),
            ("prefill_requests", scheduled.prefill.len() as u64),
            ("prefill_tokens", scheduled.prefill_tokens),
            ("decode_requests", scheduled.decode.count),
            ("decode_tokens", scheduled.tokens - scheduled.prefill_tokens),
            ("output_tokens", pass.tokens),
            ("admitted", scheduled.admitted.len() as u64),
            ("preempted", scheduled.preempted.len() as u64),
            ("ended", pass.ended.len() as u64),
            ("running", pass.stats.running as u64),
            ("waiting", pass.stats.waiting as u64),
            ("used_blocks", pass.stats.used_blocks.into()),
            ("usable_blocks", pass.stats.usable_blocks.into()),
        ];
        let named = numbers.map(|(name, number)| whole(&format!("windtunnel.pass.{name}"), number));
        span.attributes = named.into();
        self.tracer.send(span);
    }
}

impl PassObserver for SpanObserver {
    fn started(&mut self, clock: &WallClock) {
        self.clock = Some(*clock);
    }

    fn pass(&mut self, pass: &PassReport<'_>) {
        pass.ended.iter().for_each(|ended| self.request(ended));
        self.engine_pass(pass);
    }

    fn ended(&mut self, ended: &Ended<'_>, _: &RankStats) {
        self.request(ended);
    }
}

/// A span with new names, from one instant to another.
fn span(parent: Option<&Parent>, [start, end]: [u64; 2]) -> Span {
    Span {
        trace_id: parent.map_or_else(|| name::<16>().to_vec(), |parent| parent.trace.to_vec()),
        span_id: name::<8>().to_vec(),
        parent_span_id: parent.map_or_else(Vec::new, |parent| parent.span.to_vec()),
        trace_state: parent.map_or_else(String::new, |parent| parent.state.clone()),
        // Recorded; and, of a parent, that it is not of this process.
        flags: if parent.is_some() { 0x301 } else { 0x101 },
        kind: SpanKind::Internal.into(),
        start_time_unix_nano: start,
        end_time_unix_nano: end,
        ..Span::default()
    }
}

/// Bytes that nobody else has, not all of them 0.
fn name<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    while bytes == [0; N] {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&RandomState::new().hash_one(N).to_le_bytes()[..part.len()]);
        }
    }
    bytes
}

/// The latencies that both engines tell, in seconds.
fn latencies(times: &RequestTimes, end: Nanos) -> Vec<KeyValue> {
    let mut all = vec![seconds("e2e", times.arrival, end)];
    let (admitted, first, last) = (times.first_admit, times.first_token, times.last_token);
    all.extend(first.map(|first| seconds("time_to_first_token", times.arrival, first)));
    all.extend(first.zip(last).map(|(first, last)| seconds("time_in_model_decode", first, last)));
    all.extend(admitted.zip(first).map(|(from, first)| seconds("time_in_model_prefill", from, first)));
    all.extend(admitted.zip(last).map(|(from, last)| seconds("time_in_model_inference", from, last)));
    all
}

fn vllm(ended: &Ended<'_>, traced: &Traced) -> Vec<KeyValue> {
    let Ended { info, times, .. } = ended;
    let mut all = latencies(times, ended.at);
    all.extend(times.first_admit.map(|admitted| seconds("time_in_queue", times.arrival, admitted)));
    all.extend(usage(info, times));
    all.push(text(
        "gen_ai.request.id",
        &match traced.prompt {
            Some(prompt) => format!("{}-{prompt}", info.name),
            None => info.name.clone(),
        },
    ));
    // What is not set is 1 there, and what is 0 is left out. A choice of several is a request of its own.
    let set = |value: Option<f64>| value.or(Some(1.0)).filter(|value| *value != 0.0);
    all.extend(set(traced.top_p).map(|value| number("gen_ai.request.top_p", value)));
    all.push(whole("gen_ai.request.max_tokens", info.max_tokens.into()));
    all.extend(set(traced.temperature).map(|value| number("gen_ai.request.temperature", value)));
    all.push(whole("gen_ai.request.n", 1));
    all
}

fn sglang(ended: &Ended<'_>, traced: &Traced, rid: &str, model: &str) -> Vec<KeyValue> {
    let Ended { info, times, .. } = ended;
    let mut all = vec![text("rid", rid), text("module", "sglang::request")];
    all.extend(latencies(times, ended.at));
    all.extend(usage(info, times));
    all.push(whole("gen_ai.usage.cached_tokens", times.cached_tokens.into()));
    all.push(text("gen_ai.request.id", &info.name));
    let set = |value: Option<f64>| value.filter(|value| *value != 0.0);
    all.extend(set(traced.top_p).map(|value| number("gen_ai.request.top_p", value)));
    all.extend(set(traced.temperature).map(|value| number("gen_ai.request.temperature", value)));
    let asked = info.asked_max_tokens.filter(|tokens| *tokens > 0);
    all.extend(asked.map(|tokens| whole("gen_ai.request.max_tokens", tokens.into())));
    all.push(whole("gen_ai.request.n", info.choices.into()));
    all.push(text("gen_ai.response.model", model));
    all.push(text("gen_ai.response.finish_reasons", &format!("[\"{}\"]", ended.reason.as_str())));
    all
}

fn usage(info: &RequestInfo, times: &RequestTimes) -> [KeyValue; 2] {
    [
        whole("gen_ai.usage.prompt_tokens", info.prompt.len() as u64),
        whole("gen_ai.usage.completion_tokens", times.output_tokens.into()),
    ]
}

fn seconds(name: &str, from: Nanos, to: Nanos) -> KeyValue {
    number(&format!("gen_ai.latency.{name}"), to.since(from).as_seconds())
}

fn number(key: &str, value: f64) -> KeyValue {
    attribute(key, Value::DoubleValue(value))
}

fn whole(key: &str, value: u64) -> KeyValue {
    attribute(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
