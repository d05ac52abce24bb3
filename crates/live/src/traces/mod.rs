//! OpenTelemetry traces, opt-in: a span for each request, as the engines make it, and, of our own, one for each pass.
//!
//! `spans` makes them where passes end, in logical time; `exporter` sends them on, from a queue with an end, so that a
//! collector that is slow or gone loses spans and never holds up a stream; `collector` is the wire, OTLP over gRPC or HTTP.

mod collector;
mod context;
mod exporter;
mod spans;

pub use collector::{Collector, Protocol};
pub use context::{Parent, Traced};
pub use exporter::{TraceSettings, Tracer};
pub use spans::{SpanForm, SpanObserver};
