//! The way from the ranks to the collector: a queue with an end, and a task that sends what is in it in batches.
//!
//! Sizes and times are those of OpenTelemetry's batch processor (specification/trace/sdk.md).

use super::collector::Collector;
use super::spans::attribute;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Spans that may wait.
const QUEUE: usize = 2048;
/// Spans of a batch.
const BATCH: usize = 512;
/// Attempts to send one, and the pause after the first that failed, which then doubles.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);
/// From one line about spans that are lost to the next one.
const SILENCE: Duration = Duration::from_secs(60);
/// Longest time for what is left at the end.
const FAREWELL: Duration = Duration::from_secs(5);

/// What is told of traces, and whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// Who is told.
    pub collector: Collector,
    /// Tell of passes, not only of requests.
    pub passes: bool,
    /// What the spans are of: keys and values.
    pub resource: Vec<(String, String)>,
    /// Who makes them.
    pub scope: String,
    /// Longest time that a span waits for others.
    pub delay: Duration,
}

enum Item {
    Span(Box<Span>),
    Flush(oneshot::Sender<()>),
}

/// Takes spans. Its clones are the same.
#[derive(Clone, Debug)]
pub struct Tracer {
    items: mpsc::Sender<Item>,
    lost: Arc<AtomicU64>,
    passes: bool,
}

impl Tracer {
    /// Starts to send. To be called on a runtime.
    pub fn start(settings: TraceSettings) -> Tracer {
        let (items, received) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let tracer = Tracer { items, lost: lost.clone(), passes: settings.passes };
        tokio::spawn(Exporter { settings, received, lost, told: 0, silent_until: None }.run());
        tracer
    }

    /// Passes are told of.
    pub(super) fn passes(&self) -> bool {
        self.passes
    }

    /// Never waits: what has no place in the queue is lost, and counted.
    pub(super) fn send(&self, span: Span) {
        if self.items.try_send(Item::Span(Box::new(span))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Spans that did not reach the collector.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Sends what is there, and waits for it, but not for long.
    pub async fn flush(&self) {
        let (done, sent) = oneshot::channel();
        let flushed = async {
            if self.items.send(Item::Flush(done)).await.is_ok() {
                let _ = sent.await;
            }
        };
        // A collector that does not answer in time gets no more.
        let _ = tokio::time::timeout(FAREWELL, flushed).await;
    }
}

struct Exporter {
    settings: TraceSettings,
    received: mpsc::Receiver<Item>,
    lost: Arc<AtomicU64>,
    /// Lost spans that were told of.
    told: u64,
    silent_until: Option<Instant>,
}

impl Exporter {
    async fn run(mut self) {
        let mut batch = Vec::new();
        let mut due = Instant::now() + self.settings.delay;
        loop {
            let flush = tokio::select! {
                item = self.received.recv() => match item {
                    None => return,
                    Some(Item::Flush(done)) => Some(done),
                    Some(Item::Span(span)) => {
                        batch.push(*span);
                        if batch.len() < BATCH {
                            continue;
                        }
                        None
                    }
                },
                () = tokio::time::sleep_until(due) => None,
            };
            if !batch.is_empty() {
                self.export(std::mem::take(&mut batch)).await;
            }
            self.tell_of_losses(flush.is_some());
            if let Some(done) = flush {
                // Whoever waits may be gone.
                let _ = done.send(());
            }
            due = Instant::now() + self.settings.delay;
        }
    }

    async fn export(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        let request = self.request(spans);
        let mut pause = PAUSE;
        for attempt in 1..=ATTEMPTS {
            match self.settings.collector.export(&request).await {
                Ok(refused) => {
                    self.lost.fetch_add(refused.min(count), Ordering::Relaxed);
                    return;
                }
                Err(_) if attempt < ATTEMPTS => tokio::time::sleep(pause).await,
                Err(_) => {}
            }
            pause *= 2;
        }
        self.lost.fetch_add(count, Ordering::Relaxed);
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let resource = self.settings.resource.iter();
        let resource = Resource {
            attributes: resource
                .map(|(key, text)| attribute(key, Value::StringValue(text.clone())))
                .collect(),
            ..Resource::default()
        };
        let scope = InstrumentationScope { name: self.settings.scope.clone(), ..Default::default() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
        let of_resource = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
        ExportTraceServiceRequest { resource_spans: vec![of_resource] }
    }

    /// One line now and then.
    fn tell_of_losses(&mut self, last: bool) {
        let lost = self.lost.load(Ordering::Relaxed);
        let silent = !last && self.silent_until.is_some_and(|until| Instant::now() < until);
        if lost > self.told && !silent {
            eprintln!("warning: {}: {lost} spans are lost", self.settings.collector);
            (self.told, self.silent_until) = (lost, Some(Instant::now() + SILENCE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Protocol;
    use super::*;

    /// Nothing is taken from the queue while nobody runs: what is beyond its end is lost at once.
    #[tokio::test]
    async fn a_queue_that_is_full_loses_spans_and_never_waits() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let tracer = Tracer::start(TraceSettings {
            collector: Collector::parse(&endpoint, Protocol::Http).unwrap(),
            passes: false,
            resource: Vec::new(),
            scope: String::new(),
            delay: Duration::from_secs(3600),
        });
        (0..QUEUE + 3).for_each(|_| tracer.send(Span::default()));
        assert_eq!(tracer.lost(), 3);
    }
}
