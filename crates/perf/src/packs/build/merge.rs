//! The lines of one table, gathered from the files of several versions and kernels: what stands in an earlier
//! file is not touched by a later one.

use super::columns::Columns;
use super::systems::Source;
use super::tables::Spec;
use crate::packs::PackError;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

/// The lines of a table, by key.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) lines: BTreeMap<String, Line>,
    pub(super) origins: Vec<String>,
    /// Which kernel of which file serves the keys that begin so.
    kernels: HashMap<String, (u8, String)>,
}

/// Times in microseconds by position.
pub(super) struct Line {
    pub(super) origin: u8,
    pub(super) points: BTreeMap<u64, f64>,
}

impl Lines {
    /// Takes over what is new in a file.
    pub(super) fn read(&mut self, spec: &Spec, source: &Source, preferred: &[&str]) -> Result<(), PackError> {
        let mut names = spec.columns.to_vec();
        names.extend(["latency", "kernel_source"]);
        let columns = Columns::read(&source.path, &names)?;
        if let Some(missing) = spec.columns.iter().find(|name| !columns.has(name) && !OPTIONAL.contains(name))
        {
            return Err(PackError::new(
                source.path.display().to_string(),
                format!("has no column {missing}"),
            ));
        }
        let origin = self.origin(&source.label);
        if let Some(fields) = spec.kernel_fields {
            self.choose_kernels(spec, fields, &columns, origin, preferred);
        }
        for row in 0..columns.rows {
            let Some((key, at)) = (spec.place)(&columns, row) else { continue };
            let Some(latency) = columns.float("latency", row).filter(|ms| ms.is_finite() && *ms > 0.0) else {
                continue;
            };
            if let Some(fields) = spec.kernel_fields {
                let serves = self.kernels.get(leading(&key, fields));
                let kernel = columns.text("kernel_source", row).unwrap_or_default();
                if serves.is_none_or(|(file, name)| (*file, name.as_str()) != (origin, kernel)) {
                    continue;
                }
            }
            let line = self.lines.entry(key).or_insert_with(|| Line { origin, points: BTreeMap::new() });
            if line.origin == origin {
                line.points.entry(at).or_insert(latency * spec.unit);
            }
        }
        Ok(())
    }

    /// Picks the kernel of every group of keys that no earlier file serves: the engine's own default, else
    /// the first one of the file.
    fn choose_kernels(
        &mut self,
        spec: &Spec,
        fields: usize,
        columns: &Columns,
        origin: u8,
        preferred: &[&str],
    ) {
        let rank =
            |kernel: &str| preferred.iter().position(|name| *name == kernel).unwrap_or(preferred.len());
        for row in 0..columns.rows {
            let Some((key, _)) = (spec.place)(columns, row) else { continue };
            let kernel = columns.text("kernel_source", row).unwrap_or_default();
            match self.kernels.get_mut(leading(&key, fields)) {
                None => {
                    self.kernels.insert(leading(&key, fields).to_owned(), (origin, kernel.to_owned()));
                }
                Some((file, chosen)) if *file == origin && rank(kernel) < rank(chosen) => {
                    kernel.clone_into(chosen);
                }
                Some(_) => {}
            }
        }
    }

    /// The number of an origin.
    pub(super) fn origin(&mut self, label: &str) -> u8 {
        let known = self.origins.iter().position(|other| other == label);
        let index = known.unwrap_or_else(|| {
            self.origins.push(label.to_owned());
            self.origins.len() - 1
        });
        u8::try_from(index).unwrap_or(u8::MAX)
    }

    /// Leaves out experts that get equal shares of the tokens where shares as they occur were measured too.
    pub(super) fn drop_balanced(&mut self) {
        let uneven: BTreeSet<String> = self
            .lines
            .keys()
            .filter(|key| key.contains(",power_law"))
            .map(|key| without_distribution(key))
            .collect();
        self.lines
            .retain(|key, _| !key.contains(",balanced,") || !uneven.contains(&without_distribution(key)));
    }

    pub(super) fn points(&self) -> usize {
        self.lines.values().map(|line| line.points.len()).sum()
    }

    /// Writes origins, axis and lines.
    pub(super) fn write(&self, text: &mut String) {
        // Writing to a String cannot fail.
        for (index, label) in self.origins.iter().enumerate() {
            let _ = writeln!(text, "from {index} {label}");
        }
        let axis: BTreeSet<u64> = self.lines.values().flat_map(|line| line.points.keys().copied()).collect();
        text.push_str("axis");
        for at in &axis {
            let _ = write!(text, " {at}");
        }
        text.push('\n');
        for (key, line) in &self.lines {
            let _ = write!(text, "{key}\t{}\t", line.origin);
            let last = line.points.keys().next_back().copied().unwrap_or(0);
            for (index, at) in axis.range(..=last).enumerate() {
                if index > 0 {
                    text.push(' ');
                }
                match line.points.get(at) {
                    Some(&us) => text.push_str(&four_digits(us)),
                    None => text.push('-'),
                }
            }
            text.push('\n');
        }
    }
}

/// Columns that some files lack.
const OPTIONAL: [&str; 2] = ["window_size", "step"];

fn leading(key: &str, fields: usize) -> &str {
    let end = key.match_indices(',').nth(fields - 1).map_or(key.len(), |(at, _)| at);
    &key[..end]
}

fn without_distribution(key: &str) -> String {
    key.split(',')
        .enumerate()
        .filter(|(field, _)| *field != 1)
        .map(|(_, text)| text)
        .collect::<Vec<_>>()
        .join(",")
}

/// A number with four significant digits: measurements repeat to about one in a hundred.
fn four_digits(us: f64) -> String {
    let digits = 3 - us.log10().floor() as i32;
    if digits <= 0 {
        let unit = 10f64.powi(-digits);
        return format!("{}", ((us / unit).round() * unit).round());
    }
    let text = format!("{us:.*}", digits as usize);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_four_digits() {
        let cases =
            [(2.3671, "2.367"), (0.42027, "0.4203"), (999.96, "1000"), (123_456.0, "123500"), (12.0, "12")];
        for (us, text) in cases {
            assert_eq!(four_digits(us), text);
        }
    }
}
