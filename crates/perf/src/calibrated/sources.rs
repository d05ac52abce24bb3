//! The look-ups: an operation by its key in the engine's own pack, else with other shapes, else in the packs of
//! the other engines for the same accelerator, else of the accelerator's peak figures, if that is allowed.

use super::curve::Curve;
use super::peak::Reach;
use super::surface::{Measured, Surface};
use super::{Engine, Uncovered};
use crate::packs::{Gpu, Pack, PackError, PackName, Row, Store};
use serde::{Serialize, Serializer};
use std::cell::RefCell;
use thiserror::Error;

/// How a figure came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// Measured with these shapes, engine and version.
    Measured,
    /// Measured with these shapes and another version of the engine.
    OtherVersion,
    /// Measured with these shapes and another engine.
    OtherEngine,
    /// Scaled from other shapes by the least possible times.
    Transferred,
    /// Of the accelerator's peak figures.
    Roofline,
}

impl How {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            How::Measured => "measured",
            How::OtherVersion => "other version",
            How::OtherEngine => "other engine",
            How::Transferred => "transferred",
            How::Roofline => "roofline",
        }
    }
}

impl Serialize for How {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Where the time of one operation comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Use {
    /// The operation.
    pub operation: &'static str,
    /// What was looked for.
    pub cell: String,
    /// How it was answered.
    pub how: How,
    /// The file that it comes from.
    pub origin: String,
    /// Sizes at which the time of another engine took its place.
    pub outvoted: u32,
}

/// Packs that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// None of the accelerator; those that there are.
    #[error("there are no measurements of it, but of {0}")]
    System(String),
    /// None of the engine version.
    #[error("of {system} there are no measurements of it, but of {known}")]
    Version {
        /// The accelerator.
        system: String,
        /// What there is.
        known: String,
    },
    /// A pack that cannot be read.
    #[error(transparent)]
    Pack(#[from] PackError),
}

/// The packs of one accelerator, the engine's own first.
pub struct Sources {
    pub(super) packs: Vec<(PackName, Pack)>,
    /// The accelerator.
    pub gpu: Gpu,
    /// Peak figures may stand in for measurements.
    pub allow_roofline: bool,
    /// Times that both other engines contradict are replaced.
    pub(super) screens: bool,
    used: RefCell<Vec<Use>>,
}

impl Sources {
    /// Of a store. Without a version the only one there is.
    ///
    /// # Errors
    /// No such pack, with those that there are, or one that cannot be read.
    pub fn open(
        store: &Store,
        system: &str,
        engine: Engine,
        version: Option<&str>,
        allow_roofline: bool,
    ) -> Result<Sources, OpenError> {
        let all = store.list()?;
        let here: Vec<&PackName> = all.iter().filter(|name| name.system == system).collect();
        if here.is_empty() {
            let mut systems: Vec<&str> = all.iter().map(|name| name.system.as_str()).collect();
            systems.dedup();
            return Err(OpenError::System(systems.join(", ")));
        }
        let fits =
            |name: &PackName| name.backend == engine.name() && version.is_none_or(|v| v == name.version);
        if !here.iter().any(|name| fits(name)) {
            let known: Vec<String> =
                here.iter().map(|name| format!("{} {}", name.backend, name.version)).collect();
            return Err(OpenError::Version { system: system.to_owned(), known: known.join(", ") });
        }
        let mut names: Vec<PackName> = here.into_iter().cloned().collect();
        names.sort_by_key(|name| (!fits(name), name.backend.clone(), name.version.clone()));
        let mut packs = Vec::new();
        for name in names {
            let pack = store.pack(&name)?;
            packs.push((name, pack));
        }
        Ok(Sources {
            packs,
            gpu: store.gpu(system)?,
            allow_roofline,
            screens: true,
            used: RefCell::default(),
        })
    }

    /// Without packs: everything is made of the accelerator's peak figures.
    pub fn roofline(gpu: Gpu) -> Sources {
        Sources { packs: Vec::new(), gpu, allow_roofline: true, screens: true, used: RefCell::default() }
    }

    /// The same with the times as they were measured, also those that both other engines contradict.
    pub fn as_measured(self) -> Sources {
        Sources { screens: false, ..self }
    }

    /// All packs.
    pub(super) fn packs(&self) -> impl Iterator<Item = &Pack> {
        self.packs.iter().map(|(_, pack)| pack)
    }

    /// The engine and version whose times these are; none without packs.
    pub fn name(&self) -> Option<&PackName> {
        self.packs.first().map(|(name, _)| name)
    }

    /// Number of packs.
    pub(super) fn count(&self) -> usize {
        self.packs.len()
    }

    /// What was looked up, each operation once.
    pub(super) fn take_uses(&self) -> Vec<Use> {
        let mut used = self.used.take();
        used.sort();
        used.dedup();
        used
    }

    pub(super) fn note(&self, operation: &'static str, cell: &str, how: How, origin: &str) {
        let used = Use { operation, cell: cell.to_owned(), how, origin: origin.to_owned(), outvoted: 0 };
        self.used.borrow_mut().push(used);
    }

    /// Of what was noted last.
    pub(super) fn note_outvoted(&self, outvoted: u32) {
        if let Some(last) = self.used.borrow_mut().last_mut() {
            last.outvoted = outvoted;
        }
    }

    pub(super) fn note_pack(
        &self,
        operation: &'static str,
        cell: &str,
        pack: usize,
        row: &Row,
        transferred: bool,
    ) {
        let how = match pack {
            _ if transferred => How::Transferred,
            0 if row.origin.contains(&self.packs[0].0.version) || row.origin.contains("nccl") => {
                How::Measured
            }
            0 => How::OtherVersion,
            _ => How::OtherEngine,
        };
        self.note(operation, cell, how, row.origin);
    }

    /// The roofline, if it is allowed, and the error if not.
    pub(super) fn roofline_or<T>(
        &self,
        operation: &'static str,
        cell: String,
        nearest: Vec<String>,
        peak: impl FnOnce() -> T,
    ) -> Result<T, Uncovered> {
        if self.allow_roofline {
            self.note(operation, &cell, How::Roofline, "peak figures of the accelerator");
            return Ok(peak());
        }
        Err(Sources::uncovered(operation, cell, nearest))
    }

    /// That nothing covers a cell, with the first of what is nearest.
    pub(super) fn uncovered(operation: &'static str, cell: String, mut nearest: Vec<String>) -> Uncovered {
        nearest.sort();
        nearest.dedup();
        let more = nearest.len().saturating_sub(8);
        nearest.truncate(8);
        let mut nearest = if nearest.is_empty() { "none".to_owned() } else { nearest.join("; ") };
        if more > 0 {
            nearest += &format!("; and {more} more");
        }
        Uncovered { operation, cell, nearest }
    }

    /// The first pack that has a line for a key.
    pub(super) fn curve(&self, operation: &'static str, table: &str, key: &str) -> Option<Curve> {
        for (index, (_, pack)) in self.packs.iter().enumerate() {
            let found = pack.table(table).and_then(|table| pack.row(table, key));
            if let Some(row) = found
                && let (points, outvoted) = self.screened(table, &row)
                && let Some(curve) = Curve::new(points)
            {
                self.note_pack(operation, key, index, &row, false);
                self.note_outvoted(outvoted);
                return Some(curve);
            }
        }
        None
    }

    /// The keys of the own pack that begin so, for messages.
    pub(super) fn keys(&self, table: &str, prefix: &str) -> Vec<String> {
        let own = self.packs.first().and_then(|(_, pack)| Some((pack, pack.table(table)?)));
        own.map_or_else(Vec::new, |(pack, table)| {
            pack.rows(table, prefix).map(|row| row.key.to_owned()).collect()
        })
    }

    /// The types that the own pack has of an operation.
    pub(super) fn types(&self, table: &str) -> Vec<String> {
        let mut types: Vec<String> =
            self.keys(table, "").iter().filter_map(|key| key.split(',').next().map(str::to_owned)).collect();
        types.dedup();
        types
    }

    /// A surface over batch and axis, of any engine: `prefix` is the key up to the heads, exclusive.
    pub(super) fn surface(
        &self,
        operation: &'static str,
        table: &str,
        prefixes: &[String],
        heads: u32,
        root: bool,
        least: &dyn Fn(f64, f64, f64) -> f64,
    ) -> Option<Surface> {
        self.surface_of(self.packs.len(), operation, table, prefixes, heads, root, least)
    }

    /// The same of the first `packs` packs.
    #[expect(clippy::too_many_arguments, reason = "the table, the key and the law of one look-up")]
    pub(super) fn surface_of(
        &self,
        packs: usize,
        operation: &'static str,
        table: &str,
        prefixes: &[String],
        heads: u32,
        root: bool,
        least: &dyn Fn(f64, f64, f64) -> f64,
    ) -> Option<Surface> {
        for (index, (_, pack)) in self.packs.iter().enumerate().take(packs) {
            let Some(table) = pack.table(table) else { continue };
            let heads_at = table.keys.iter().position(|key| key == "heads").unwrap_or(0);
            for prefix in prefixes {
                let rows: Vec<Row> = pack.rows(table, prefix).collect();
                let measured = rows.iter().filter_map(|row| row.number(heads_at));
                let octaves = |other: u32| (f64::from(other) / f64::from(heads)).log2().abs();
                let nearest = measured.min_by(|a, b| octaves(*a).total_cmp(&octaves(*b)).then(a.cmp(b)));
                let Some(nearest) = nearest.filter(|other| octaves(*other) <= 1.01) else { continue };
                let of: Vec<&Row> = rows.iter().filter(|row| row.number(heads_at) == Some(nearest)).collect();
                let mut grid = Measured::default();
                for row in &of {
                    let Some(batch) = row.number(heads_at + 1) else { continue };
                    let scale = |length: u32| {
                        let (batch, length) = (f64::from(batch), f64::from(length));
                        least(f64::from(heads), batch, length) / least(f64::from(nearest), batch, length)
                    };
                    for (length, us) in row.points() {
                        let us = if nearest == heads { us } else { us * scale(length) };
                        grid.points.push((batch, length, us));
                    }
                }
                let surface =
                    Surface::new(&grid, root, &|batch, length| least(f64::from(heads), batch, length));
                if let (Some(surface), Some(row)) = (surface, of.first()) {
                    let cell = format!("{prefix}{heads} heads");
                    self.note_pack(operation, &cell, index, row, nearest != heads);
                    return Some(surface);
                }
            }
        }
        None
    }

    /// A surface of a kernel of the gated delta rule: the value heads stand where other tables have heads.
    pub(super) fn delta_surface(
        &self,
        prefix: &str,
        values: u32,
        root: bool,
        least: &dyn Fn(f64, f64, f64) -> f64,
    ) -> Option<Surface> {
        for (index, (_, pack)) in self.packs.iter().enumerate() {
            let Some(table) = pack.table("gated_delta") else { continue };
            let mut grid = Measured::default();
            let rows: Vec<Row> = pack.rows(table, &format!("{prefix}{values},")).collect();
            for row in &rows {
                let batch = row.number(5).unwrap_or(1);
                grid.points.extend(row.points().into_iter().map(|(length, us)| (batch, length, us)));
            }
            let surface = Surface::new(&grid, root, &|batch, length| least(f64::from(values), batch, length));
            if let (Some(surface), Some(row)) = (surface, rows.first()) {
                self.note_pack("gated delta rule", &format!("{prefix}{values}"), index, row, false);
                return Some(surface);
            }
        }
        None
    }

    /// A surface of what the accelerator reaches, by the least times of `least`.
    pub(super) fn peak_surface(
        &self,
        root: bool,
        reach: Reach,
        least: &dyn Fn(&Gpu, f64, f64) -> f64,
    ) -> Option<Surface> {
        let gpu = reach.of(&self.gpu);
        let least = |batch: f64, length: f64| least(&gpu, batch, length);
        let lengths = (0..=17u32).map(|power| 1u32 << power);
        let points = lengths.flat_map(|length| (0..=9u32).map(move |power| (1u32 << power, length)));
        let us = |batch: u32, length: u32| least(f64::from(batch), f64::from(length)) + reach.kernel_us;
        let points = points.map(|(batch, length)| (batch, length, us(batch, length))).collect();
        Surface::new(&Measured { points }, root, &least)
    }
}
