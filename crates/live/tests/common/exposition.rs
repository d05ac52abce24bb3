//! Prometheus' text format 0.0.4, read strictly: what a scrape would reject or misread, a test rejects
//! (prometheus.io/docs/instrumenting/exposition_formats).

use std::collections::{BTreeMap, HashSet};

/// Label names with values.
pub type Labels = BTreeMap<String, String>;

/// One metric.
#[derive(Debug, Default)]
pub struct Family {
    pub kind: String,
    /// Sample name, labels, value.
    pub samples: Vec<(String, Labels, f64)>,
}

/// Reads a text, or says which line is wrong.
pub fn read(text: &str) -> Result<BTreeMap<String, Family>, String> {
    if !text.ends_with('\n') {
        return Err("the last line does not end".into());
    }
    let mut families = BTreeMap::<String, Family>::new();
    let (mut current, mut seen) = (String::new(), HashSet::new());
    let mut helped = HashSet::new();
    for line in text.lines() {
        let wrong = |why: &str| format!("{why}: {line}");
        if let Some(help) = line.strip_prefix("# HELP ") {
            let name = help.split(' ').next().unwrap_or_default();
            if !is_name(name) || !helped.insert(name.to_owned()) {
                return Err(wrong("HELP is there twice, or of no name"));
            }
        } else if let Some(of) = line.strip_prefix("# TYPE ") {
            let (name, kind) = of.split_once(' ').ok_or_else(|| wrong("TYPE of what"))?;
            if !["counter", "gauge", "histogram"].contains(&kind) || !is_name(name) {
                return Err(wrong("no type"));
            }
            let family = Family { kind: kind.into(), samples: Vec::new() };
            if families.insert(name.to_owned(), family).is_some() {
                return Err(wrong("TYPE is there twice"));
            }
            current = name.to_owned();
        } else {
            let (name, labels, value) = sample(line).ok_or_else(|| wrong("no sample"))?;
            let family = families.get_mut(&current).ok_or_else(|| wrong("no TYPE before it"))?;
            let rest = name.strip_prefix(&current).ok_or_else(|| wrong("of another metric"))?;
            let fits = match &*family.kind {
                "histogram" => ["_bucket", "_sum", "_count"].contains(&rest),
                _ => rest.is_empty(),
            };
            if !fits || (rest == "_bucket") != labels.contains_key("le") {
                return Err(wrong("not a sample of its metric"));
            }
            if !seen.insert((name.clone(), labels.clone())) {
                return Err(wrong("the series is there twice"));
            }
            if family.kind == "counter" && !(name.ends_with("_total") && value >= 0.0) {
                return Err(wrong("no counter"));
            }
            family.samples.push((name, labels, value));
        }
    }
    families.iter().try_for_each(|(name, family)| histograms(name, family))?;
    Ok(families)
}

/// Buckets are in order and only grow, the last one has all.
fn histograms(name: &str, family: &Family) -> Result<(), String> {
    if family.kind != "histogram" {
        return Ok(());
    }
    let mut buckets = BTreeMap::<Labels, Vec<(f64, f64)>>::new();
    for (sample, labels, value) in &family.samples {
        let mut labels = labels.clone();
        if sample.ends_with("_bucket") {
            let le = labels.remove("le").and_then(|le| number(&le)).ok_or(format!("{name}: no bound"))?;
            buckets.entry(labels).or_default().push((le, *value));
        }
    }
    for (sample, labels, value) in family.samples.iter().filter(|(sample, ..)| sample.ends_with("_count")) {
        let of = buckets.get(labels).ok_or(format!("{sample} {labels:?}: no buckets"))?;
        let grows = of.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        if !grows || of.last() != Some(&(f64::INFINITY, *value)) {
            return Err(format!("{sample} {labels:?}: {of:?}"));
        }
    }
    Ok(())
}

fn sample(line: &str) -> Option<(String, Labels, f64)> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Labels::new(), rest),
    };
    let value = number(rest.strip_prefix(' ')?)?;
    is_name(name).then(|| (name.to_owned(), labels, value))
}

/// Labels up to their brace, and what comes behind it.
fn labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        let (name, value) = rest.split_once("=\"")?;
        let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !starts || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return None;
        }
        let mut text = String::new();
        let mut letters = value.char_indices();
        let end = loop {
            match letters.next()? {
                (at, '"') => break at + 1,
                (_, '\\') => text.push(match letters.next()?.1 {
                    'n' => '\n',
                    letter @ ('\\' | '"') => letter,
                    _ => return None,
                }),
                (_, letter) => text.push(letter),
            }
        };
        if labels.insert(name.to_owned(), text).is_some() {
            return None;
        }
        rest = &value[end..];
        match rest.split_at_checked(1)? {
            (",", more) => rest = more,
            ("}", more) => return Some((labels, more)),
            _ => return None,
        }
    }
}

fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => text.parse().ok(),
        _ => None,
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == ':')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

#[test]
fn what_is_no_exposition_is_rejected() {
    let good = "# HELP a_total A.\n# TYPE a_total counter\na_total{x=\"\\\"\\\\\"} 1.0\n";
    assert_eq!(read(good).expect("good")["a_total"].samples.len(), 1);
    let histogram =
        "# TYPE h histogram\nh_bucket{le=\"1.0\"} 1.0\nh_bucket{le=\"+Inf\"} 2.0\nh_count 2.0\nh_sum 3.0\n";
    read(histogram).expect("good");
    for wrong in [
        "a_total 1.0\n",
        "# TYPE a_total counter\na_total{x=\"1\"} 1.0\na_total{x=\"1\"} 1.0\n",
        "# TYPE a_total counter\n# TYPE a_total counter\n",
        "# TYPE a_total counter\nb_total 1.0\n",
        "# TYPE a_total counter\na_total{x=\"\\x\"} 1.0\n",
        "# TYPE a_total counter\na_total{x=\"1\"}1.0\n",
        "# TYPE a_total counter\na_total inf\n",
        "# TYPE a counter\na 1.0\n",
        "# TYPE h histogram\nh_bucket{le=\"1.0\"} 3.0\nh_bucket{le=\"+Inf\"} 2.0\nh_count 2.0\n",
        "# TYPE h histogram\nh_bucket{le=\"1.0\"} 2.0\nh_count 2.0\n",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}
