//! Series and their values, and the text that a scrape reads: Prometheus' text format 0.0.4 as Python's
//! prometheus_client 0.26 writes it (exposition.py), for that is what the engines serve.
//!
//! It knows no metric by name. One lock guards all values: a pass takes it once, a scrape once.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The `Content-Type` of [`Registry::text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Grows. Its samples end in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values by buckets with these upper bounds, and infinity.
    Histogram(&'static [f64]),
    /// The same with the bounds 1, 2, 5, 10 … up to the context length.
    UpToContext,
}

/// A metric: what it is called, and by what its series differ.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Its name, of a counter without `_total`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Which of its set's label groups its series have.
    pub group: Group,
    /// Further labels, each with the values that exist from the start. Without values no series does.
    pub extra: &'static [(&'static str, &'static [&'static str])],
    /// One line of explanation.
    pub help: &'static str,
}

/// Labels that many metrics share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// One series for each rank.
    Rank,
    /// The same of ranks that take part in transfers of KV.
    Connector,
    /// One series for each worker.
    Worker,
    /// None beside the metric's own.
    Bare,
}

/// A metric with its series.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its definition.
    pub definition: Definition,
    /// Upper bounds of its buckets, without infinity.
    pub bounds: Vec<f64>,
    /// The labels of its series.
    pub series: Vec<Labels>,
}

/// Label names with values, sorted by name.
pub type Labels = Vec<(String, String)>;

#[derive(Debug)]
enum Value {
    Number(f64),
    Histogram { counts: Vec<u64>, sum: f64 },
}

#[derive(Debug)]
struct Series {
    labels: Labels,
    value: Value,
}

#[derive(Debug)]
struct Family {
    definition: Definition,
    bounds: Vec<f64>,
    series: Vec<Series>,
}

/// How a set is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One process: with `_created`, which say when a series began.
    OneProcess,
    /// Collected from several processes, as SGLang does: without those; the sum of a histogram stands first.
    ManyProcesses,
}

#[derive(Debug)]
struct Inner {
    families: Vec<Family>,
    by_name: HashMap<&'static str, usize>,
}

/// The metrics of one worker.
#[derive(Clone, Debug)]
pub struct Registry {
    inner: Arc<Mutex<Inner>>,
    style: Style,
    created: f64,
}

/// Values while the lock is held.
pub struct Values<'a>(MutexGuard<'a, Inner>);

impl Registry {
    /// The metrics `definitions`. Their series come with [`add_series`](Self::add_series).
    pub fn new(definitions: &[Definition], style: Style, context_length: u32) -> Registry {
        let family = |&definition: &Definition| {
            let bounds = match definition.kind {
                Kind::Histogram(bounds) => bounds.to_vec(),
                Kind::UpToContext => one_two_five(context_length),
                Kind::Counter | Kind::Gauge => Vec::new(),
            };
            Family { definition, bounds, series: Vec::new() }
        };
        let families: Vec<Family> = definitions.iter().map(family).collect();
        let by_name = families.iter().enumerate().map(|(at, it)| (it.definition.name, at)).collect();
        Registry { inner: Arc::new(Mutex::new(Inner { families, by_name })), style, created: now() }
    }

    /// Creates the series of every metric of `group` that has the labels `labels`, at zero.
    pub fn add_series(&self, group: Group, labels: &[(&str, &str)]) {
        for family in &mut self.lock().0.families {
            if family.definition.group != group {
                continue;
            }
            let mut all = vec![to_labels(labels)];
            for (name, values) in family.definition.extra {
                let with = |labels: &Labels, value: &str| {
                    let mut labels = labels.clone();
                    labels.push(((*name).to_owned(), value.to_owned()));
                    labels
                };
                all = all.iter().flat_map(|labels| values.iter().map(|value| with(labels, value))).collect();
            }
            all.into_iter().for_each(|labels| add(family, labels));
        }
    }

    /// Creates one series with exactly these labels, at zero, unless it is there.
    pub fn add_one(&self, name: &str, labels: &[(&str, &str)]) {
        let mut values = self.lock();
        if let Some(&at) = values.0.by_name.get(name) {
            add(&mut values.0.families[at], to_labels(labels));
        }
    }

    /// Takes the lock.
    pub fn lock(&self) -> Values<'_> {
        Values(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// All values as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for family in &self.lock().0.families {
            if !family.series.is_empty() {
                self.write_family(family, &mut out);
            }
        }
        out
    }

    fn write_family(&self, family: &Family, out: &mut String) {
        let Definition { name, kind, help, .. } = family.definition;
        let help = if self.style == Style::ManyProcesses { "Multiprocess metric" } else { help };
        let (shown, kind) = match kind {
            Kind::Counter => (format!("{name}_total"), "counter"),
            Kind::Gauge => (name.to_owned(), "gauge"),
            Kind::Histogram(_) | Kind::UpToContext => (name.to_owned(), "histogram"),
        };
        head(out, &shown, kind, help);
        for series in &family.series {
            match &series.value {
                Value::Number(value) => sample(out, &shown, &series.labels, *value),
                Value::Histogram { counts, sum } => {
                    self.write_histogram(out, name, family, series, counts, *sum)
                }
            }
        }
        if self.style == Style::OneProcess && kind != "gauge" {
            let shown = format!("{name}_created");
            head(out, &shown, "gauge", help);
            family.series.iter().for_each(|series| sample(out, &shown, &series.labels, self.created));
        }
    }

    fn write_histogram(
        &self,
        out: &mut String,
        name: &str,
        family: &Family,
        series: &Series,
        counts: &[u64],
        sum: f64,
    ) {
        let many = self.style == Style::ManyProcesses;
        if many {
            sample(out, &format!("{name}_sum"), &series.labels, sum);
        }
        let mut total = 0;
        for (count, bound) in counts.iter().zip(family.bounds.iter().chain([&f64::INFINITY])) {
            total += count;
            let mut labels = series.labels.clone();
            let at = labels.partition_point(|(name, _)| name.as_str() < "le");
            labels.insert(at, ("le".to_owned(), number(*bound)));
            sample(out, &format!("{name}_bucket"), &labels, total as f64);
        }
        sample(out, &format!("{name}_count"), &series.labels, total as f64);
        if !many {
            sample(out, &format!("{name}_sum"), &series.labels, sum);
        }
    }

    /// What there is.
    pub fn listing(&self) -> Vec<Listed> {
        let of = |family: &Family| Listed {
            definition: family.definition,
            bounds: family.bounds.clone(),
            series: family.series.iter().map(|series| series.labels.clone()).collect(),
        };
        self.lock().0.families.iter().map(of).collect()
    }
}

impl Values<'_> {
    /// Adds to a counter or a gauge. A series that is not there comes to be.
    pub fn add(&mut self, name: &str, labels: &[(&str, &str)], by: f64) {
        if let Some(Value::Number(value)) = self.find(name, labels) {
            *value += by;
        }
    }

    /// Sets a gauge, or a counter that is counted elsewhere.
    pub fn set(&mut self, name: &str, labels: &[(&str, &str)], to: f64) {
        if let Some(Value::Number(value)) = self.find(name, labels) {
            *value = to;
        }
    }

    /// Counts a value in a histogram, `times` times.
    pub fn observe(&mut self, name: &str, labels: &[(&str, &str)], value: f64, times: u64) {
        let Some(&at) = self.0.by_name.get(name) else { return };
        let bucket = self.0.families[at].bounds.partition_point(|&bound| bound < value);
        if let Some(Value::Histogram { counts, sum }) = self.find(name, labels) {
            counts[bucket] += times;
            *sum += value * times as f64;
        }
    }

    fn find(&mut self, name: &str, labels: &[(&str, &str)]) -> Option<&mut Value> {
        let at = *self.0.by_name.get(name)?;
        let family = &mut self.0.families[at];
        let same = |series: &Series| {
            series.labels.len() == labels.len()
                && labels
                    .iter()
                    .all(|&(name, value)| series.labels.iter().any(|(n, v)| n == name && v == value))
        };
        let found = family.series.iter().position(same);
        let at = found.unwrap_or_else(|| {
            add(family, to_labels(labels));
            family.series.len() - 1
        });
        Some(&mut family.series[at].value)
    }
}

fn add(family: &mut Family, mut labels: Labels) {
    labels.sort();
    if family.series.iter().any(|series| series.labels == labels) {
        return;
    }
    let value = match family.definition.kind {
        Kind::Counter | Kind::Gauge => Value::Number(0.0),
        Kind::Histogram(_) | Kind::UpToContext => {
            Value::Histogram { counts: vec![0; family.bounds.len() + 1], sum: 0.0 }
        }
    };
    family.series.push(Series { labels, value });
}

fn to_labels(labels: &[(&str, &str)]) -> Labels {
    let mut labels: Labels =
        labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    labels.sort();
    labels
}

/// 1, 2, 5, 10 … not above `most` (vllm/v1/metrics/buckets.py, `request_tokens`).
fn one_two_five(most: u32) -> Vec<f64> {
    let powers = (0..10).map(|power| 10u64.pow(power));
    let all = powers.flat_map(|power| [1, 2, 5].map(|digit| digit * power));
    all.take_while(|&bound| bound <= u64::from(most)).map(|bound| bound as f64).collect()
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a text cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn sample(out: &mut String, name: &str, labels: &Labels, value: f64) {
    out.push_str(name);
    for (at, (name, value)) in labels.iter().enumerate() {
        out.push(if at == 0 { '{' } else { ',' });
        let escaped = value.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
        let _ = write!(out, "{name}=\"{escaped}\"");
    }
    if !labels.is_empty() {
        out.push('}');
    }
    let _ = writeln!(out, " {}", number(value));
}

/// A number as prometheus_client prints it (utils.py `floatToGoString`): Python's `repr`, but large positive ones
/// with an exponent from 10^6 on.
fn number(value: f64) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if value.is_nan() {
        return "NaN".to_owned();
    }
    let mut text = format!("{value:?}");
    if let Some((digits, exponent)) = text.split_once('e') {
        // Python writes at least two digits of it, and a sign.
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        text = format!("{digits}e{sign}{:02}", exponent.abs());
    }
    match text.find('.') {
        Some(dot) if value > 0.0 && dot > 6 && !text.contains('e') => {
            let mantissa = format!("{}.{}{}", &text[..1], &text[1..dot], &text[dot + 1..]);
            let mantissa = mantissa.trim_end_matches(['0', '.']);
            format!("{mantissa}e+0{}", dot - 1)
        }
        _ => text,
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What prometheus_client 0.26 prints for the same numbers.
    #[test]
    fn numbers_are_printed_as_python_prints_them() {
        let expected = [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (0.3, "0.3"),
            (123_456.0, "123456.0"),
            (1_000_000.0, "1e+06"),
            (1_100_000.0, "1.1e+06"),
            (12_345_678.5, "1.23456785e+07"),
            (1.796_064_615_500_910_8e9, "1.7960646155009108e+09"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e16, "1e+16"),
            (f64::INFINITY, "+Inf"),
            (-2_000_000.0, "-2000000.0"),
        ];
        for (value, text) in expected {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn text_is_that_of_the_python_client() {
        let definitions = [
            Definition { name: "a", kind: Kind::Counter, group: Group::Rank, extra: &[], help: "A." },
            Definition {
                name: "b",
                kind: Kind::Histogram(&[0.5, 1.0]),
                group: Group::Rank,
                extra: &[("z", &["x"])],
                help: "B.",
            },
            Definition { name: "c", kind: Kind::Gauge, group: Group::Bare, extra: &[("q", &[])], help: "C." },
        ];
        let mut registry = Registry::new(&definitions, Style::OneProcess, 100);
        registry.created = 1.5;
        registry.add_series(Group::Rank, &[("n", "\"1\"")]);
        registry.lock().add("a", &[("n", "\"1\"")], 2.0);
        registry.lock().observe("b", &[("n", "\"1\""), ("z", "x")], 0.5, 3);
        registry.lock().observe("b", &[("n", "\"1\""), ("z", "x")], 7.0, 1);
        let expected = r#"# HELP a_total A.
# TYPE a_total counter
a_total{n="\"1\""} 2.0
# HELP a_created A.
# TYPE a_created gauge
a_created{n="\"1\""} 1.5
# HELP b B.
# TYPE b histogram
b_bucket{le="0.5",n="\"1\"",z="x"} 3.0
b_bucket{le="1.0",n="\"1\"",z="x"} 3.0
b_bucket{le="+Inf",n="\"1\"",z="x"} 4.0
b_count{n="\"1\"",z="x"} 4.0
b_sum{n="\"1\"",z="x"} 8.5
# HELP b_created B.
# TYPE b_created gauge
b_created{n="\"1\"",z="x"} 1.5
"#;
        assert_eq!(registry.text(), expected);
    }

    #[test]
    fn token_buckets_end_below_the_context_length() {
        assert_eq!(one_two_five(8192).last(), Some(&5000.0));
        assert_eq!(one_two_five(10), [1.0, 2.0, 5.0, 10.0]);
    }
}
