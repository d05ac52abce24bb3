//! OpenTelemetry traces, as the engines' flags and environment variables turn them on.

use crate::exit::Failure;
use clap::Args;
use std::time::Duration;
use windtunnel_engine::RankConfig;
use windtunnel_live::traces::{Collector, Protocol, TraceSettings};

/// SGLang's collector where none is named.
const SGLANG_ENDPOINT: &str = "localhost:4317";

/// Where traces go.
#[derive(Debug, Args)]
pub struct TraceArguments {
    /// OpenTelemetry collector that gets a span of each request: http://HOST:PORT for gRPC, with
    /// OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf http://HOST:PORT/v1/traces
    #[arg(long, alias = "otlp_traces_endpoint", value_name = "URL")]
    otlp_traces_endpoint: Option<String>,
    /// Turn traces on (SGLang), with localhost:4317 if no collector is named
    #[arg(long)]
    enable_trace: bool,
    /// What the spans are of (SGLang; OTEL_SERVICE_NAME for all)
    #[arg(long, value_name = "NAME")]
    otlp_service_name: Option<String>,
    /// A span of each pass, too
    #[arg(long)]
    otlp_trace_passes: bool,
}

impl TraceArguments {
    /// What they say for an engine.
    pub(super) fn settings(&self, engine: &RankConfig) -> Result<Option<TraceSettings>, Failure> {
        let refused = |flag: &str, why: &str| Err(Failure::Input(format!("{flag}: {why}")));
        let sglang = matches!(engine, RankConfig::Sglang(_));
        let endpoint = match (&self.otlp_traces_endpoint, self.enable_trace) {
            (_, true) if !sglang => return refused("--enable-trace", "only SGLang has it"),
            (Some(_), false) if sglang => {
                return refused("--otlp-traces-endpoint", "of SGLang, --enable-trace turns traces on");
            }
            (_, false) if self.otlp_service_name.is_some() => {
                return refused("--otlp-service-name", "belongs to --enable-trace, of SGLang");
            }
            (None, false) if self.otlp_trace_passes => {
                return refused(
                    "--otlp-trace-passes",
                    "needs --otlp-traces-endpoint (SGLang: --enable-trace)",
                );
            }
            (None, false) => return Ok(None),
            (None, true) => SGLANG_ENDPOINT,
            (Some(endpoint), _) => endpoint,
        };
        let protocol = match variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL").as_deref() {
            None | Some("grpc") => Protocol::Grpc,
            Some("http/protobuf") => Protocol::Http,
            Some(other) => {
                let why = format!("got \"{other}\", allowed is grpc, http/protobuf");
                return refused("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", &why);
            }
        };
        let delay = match variable("OTEL_BSP_SCHEDULE_DELAY") {
            None => 5_000,
            Some(text) => match text.parse() {
                Ok(delay @ 1..=3_600_000) => delay,
                _ => {
                    let why = format!("got \"{text}\", allowed is 1 to 3600000 milliseconds");
                    return refused("OTEL_BSP_SCHEDULE_DELAY", &why);
                }
            },
        };
        let wrong = |why| Failure::Input(format!("--otlp-traces-endpoint: {why}"));
        Ok(Some(TraceSettings {
            collector: Collector::parse(endpoint, protocol).map_err(wrong)?,
            passes: self.otlp_trace_passes,
            resource: self.resource(engine),
            scope: match engine {
                RankConfig::Vllm(_) => "vllm.tracing.otel",
                RankConfig::Sglang(_) => "sglang server",
                RankConfig::Trtllm(_) => "tensorrt_llm",
            }
            .to_owned(),
            delay: Duration::from_millis(delay),
        }))
    }

    /// As the engines name themselves.
    fn resource(&self, engine: &RankConfig) -> Vec<(String, String)> {
        let usual = if matches!(engine, RankConfig::Sglang(_)) { "sglang" } else { "unknown_service" };
        let service = self.otlp_service_name.clone().or_else(|| variable("OTEL_SERVICE_NAME"));
        let mut all = vec![
            ("service.name".to_owned(), service.unwrap_or_else(|| usual.to_owned())),
            ("telemetry.sdk.name".to_owned(), "windtunnel".to_owned()),
        ];
        if let RankConfig::Vllm(_) = engine {
            all.push(("vllm.instrumenting_module_name".to_owned(), "vllm.llm_engine".to_owned()));
            all.push(("vllm.process_id".to_owned(), std::process::id().to_string()));
        }
        all
    }
}

/// A variable of the environment; an empty one is none.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
