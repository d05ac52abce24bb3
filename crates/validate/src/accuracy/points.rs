//! Measured deployments: a CSV file, plain or gzip, with the columns of `silicon_sample.csv` of
//! aiconfigurator-core 0.12.0. One row is one deployment under one closed load.

use super::{AccuracyError, table};
use std::collections::HashMap;
use std::path::Path;

/// A measured deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Its name in the file.
    pub id: String,
    /// The engine.
    pub backend: String,
    /// The engine version that was measured.
    pub version: String,
    /// The accelerator.
    pub system: String,
    /// The model.
    pub model: String,
    /// fp8, fp4, bf16, int4, or empty.
    pub precision: String,
    /// Prefill and decode ran in workers of their own.
    pub disaggregated: bool,
    /// Prompt length that was asked for.
    pub input_tokens: u32,
    /// Output length that was asked for.
    pub output_tokens: u32,
    /// Requests in flight.
    pub concurrency: u32,
    /// How the model was spread.
    pub spread: Spread,
    /// Lengths were drawn, not fixed.
    pub drawn: bool,
    /// The day of the measurement, as in 2026-01-14.
    pub measured: String,
    /// Time to first token in milliseconds.
    pub ttft_ms: f64,
    /// Time per output token in milliseconds.
    pub tpot_ms: f64,
}

impl Point {
    /// Output tokens per second and accelerator at these times: what its requests in flight give.
    pub(super) fn throughput(&self, ttft_ms: f64, tpot_ms: f64) -> f64 {
        let tokens = f64::from(self.output_tokens);
        let request_ms = ttft_ms + tpot_ms * (tokens - 1.0);
        f64::from(self.concurrency) * tokens * 1e3 / request_ms / f64::from(self.spread.accelerators().max(1))
    }

    /// An accelerator of the generation of B200, by its name or by that of the file that describes it.
    pub(super) fn is_blackwell(&self) -> bool {
        let name = self.system.rsplit('/').next().unwrap_or_default();
        ["b200", "b300", "gb200", "gb300"].iter().any(|of| name.starts_with(of))
    }

    /// The deployment drafted tokens (multi-token prediction). No column says so. These rows of DeepSeek on TensorRT-LLM
    /// are of the days on which the public benchmark ran its variants with it, and take half to three quarters
    /// of the time per token of the rows beside them with the same settings.
    pub fn is_drafted(&self) -> bool {
        self.backend == "trtllm"
            && self.model.contains("DeepSeek")
            && (self.version == "1.2.0rc6.post3"
                || (self.version == "1.1.0rc2.post2" && self.measured == "2026-01-14"))
    }
}

/// How a model is spread over accelerators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Accelerators of a rank.
    pub tensor: u32,
    /// Ranks.
    pub attention_data: u32,
    /// Tensor parallelism of the experts.
    pub moe_tensor: u32,
    /// Expert parallelism.
    pub moe_expert: u32,
}

impl Spread {
    /// Accelerators of a worker.
    pub fn accelerators(&self) -> u32 {
        self.tensor.saturating_mul(self.attention_data)
    }

    /// What the columns mean. In the file a worker of g accelerators with expert parallelism g stands as tensor
    /// parallelism g² with experts g × g, and one with data-parallel attention as data parallelism g² or, with
    /// tensor parallelism g beside it, g: the rows' names, which come from the benchmark's own settings, say
    /// tp g, ep g, dp g.
    fn of(tensor: u32, data: u32, moe_tensor: u32, moe_expert: u32) -> Spread {
        let (tensor, data) = (tensor.max(1), data.max(1));
        let (moe_tensor, moe_expert) = (moe_tensor.max(1), moe_expert.max(1));
        let square = moe_tensor == moe_expert && moe_tensor > 1;
        if data > 1 {
            let gpus = match (tensor, square) {
                (1, true) if moe_tensor * moe_expert == data => moe_tensor,
                (1, _) => data,
                _ => tensor,
            };
            let moe_expert = if moe_expert > 1 { gpus } else { 1 };
            return Spread { tensor: 1, attention_data: gpus, moe_tensor: gpus / moe_expert, moe_expert };
        }
        if square && moe_tensor * moe_expert == tensor {
            return Spread { tensor: moe_tensor, attention_data: 1, moe_tensor: 1, moe_expert };
        }
        let experts = moe_tensor * moe_expert;
        if experts > tensor && experts.is_multiple_of(tensor) {
            // Fewer accelerators for attention than for experts: so many ranks.
            return Spread { tensor, attention_data: experts / tensor, moe_tensor, moe_expert };
        }
        if experts == tensor {
            return Spread { tensor, attention_data: 1, moe_tensor, moe_expert };
        }
        Spread { tensor, attention_data: 1, moe_tensor: tensor, moe_expert: 1 }
    }
}

/// Reads a file. Rows that repeat one measurement (engine, accelerator, lengths, concurrency and both times)
/// count once: the first one stays.
///
/// # Errors
/// A file that is not such a CSV, with its line.
pub fn read(path: &Path) -> Result<Vec<Point>, AccuracyError> {
    let failed = |line: u64, message: String| AccuracyError {
        path: path.to_owned(),
        reason: format!("line {line}: {message}"),
    };
    let rows: Vec<(u64, HashMap<String, String>)> = table::rows(path, &NEEDED)?;
    if rows.is_empty() {
        return Err(failed(1, "there are no rows below the header".into()));
    }
    let mut points: Vec<Point> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (line, row) in &rows {
        let get = |name: &str| row.get(name).map_or("", String::as_str);
        let point = point(&get).map_err(|message| failed(*line, message))?;
        let same = format!(
            "{} {} {} {} {} {} {} {}",
            point.backend,
            point.system,
            point.disaggregated,
            point.input_tokens,
            point.output_tokens,
            point.concurrency,
            point.ttft_ms,
            point.tpot_ms
        );
        if seen.insert(same) {
            points.push(point);
        }
    }
    Ok(points)
}

const NEEDED: [&str; 14] = [
    "id",
    "silicon_data_source",
    "backend",
    "backend_version",
    "model_path",
    "system",
    "precision",
    "mode",
    "isl",
    "osl",
    "batch_size",
    "tp_size",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
];

fn point<'a>(get: &dyn Fn(&str) -> &'a str) -> Result<Point, String> {
    let number = |name: &str| -> Result<u32, String> {
        let text = get(name);
        text.parse().map_err(|_| format!("{name}: got {text:?}; allowed is a whole number"))
    };
    // An empty field is a parallelism that was not set.
    let spread = |name: &str| if get(name).is_empty() { Ok(0) } else { number(name) };
    let time = |name: &str| -> Result<f64, String> {
        let text = get(name);
        let ms: f64 = text.parse().unwrap_or(f64::NAN);
        if ms.is_finite() && ms > 0.0 {
            Ok(ms)
        } else {
            Err(format!("{name}: got {text:?}; allowed is a number above 0"))
        }
    };
    let source = get("silicon_data_source");
    let disaggregated = get("mode") == "disagg";
    let recorded = source.split_once("silicon_concurrency=").map(|(_, rest)| rest);
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>();
    let concurrency = match recorded.and_then(|rest| digits(rest).parse().ok()) {
        Some(concurrency) => concurrency,
        None if disaggregated => 1,
        None => number("batch_size")?,
    };
    if concurrency == 0 {
        return Err("a concurrency of 0".into());
    }
    Ok(Point {
        id: get("id").to_owned(),
        backend: get("backend").to_owned(),
        version: get("backend_version").to_owned(),
        system: get("system").to_owned(),
        model: get("model_path").to_owned(),
        precision: get("precision").to_owned(),
        disaggregated,
        input_tokens: number("isl")?,
        output_tokens: number("osl")?,
        concurrency,
        spread: Spread::of(
            spread("tp_size")?,
            spread("attention_dp_size")?,
            spread("moe_tp_size")?,
            spread("moe_ep_size")?,
        ),
        // The other files are of a load generator whose lengths are exact.
        drawn: !source.contains("gap-analysis"),
        measured: source.split_once("measured=").map_or("", |(_, rest)| rest).chars().take(10).collect(),
        ttft_ms: time("silicon_ttft_ms")?,
        tpot_ms: time("silicon_tpot_ms")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_those_of_the_benchmark() {
        let spread = |tensor, attention_data, moe_tensor, moe_expert| Spread {
            tensor,
            attention_data,
            moe_tensor,
            moe_expert,
        };
        // …_tp4_ep4_…: sixteen are written, four are meant.
        assert_eq!(Spread::of(16, 1, 4, 4), spread(4, 1, 1, 4));
        assert_eq!(Spread::of(1, 64, 8, 8), spread(1, 8, 1, 8));
        // Four accelerators with data-parallel attention.
        assert_eq!(Spread::of(4, 4, 1, 16), spread(1, 4, 1, 4));
        assert_eq!(Spread::of(2, 2, 1, 4), spread(1, 2, 1, 2));
        assert_eq!(Spread::of(1, 8, 1, 8), spread(1, 8, 1, 8));
        assert_eq!(Spread::of(8, 1, 8, 1), spread(8, 1, 8, 1));
        assert_eq!(Spread::of(2, 0, 1, 1), spread(2, 1, 2, 1));
    }
}
