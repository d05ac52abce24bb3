//! The disk behind the host of vLLM's tiered offload: copies and look-ups as times. What the step asks of it begins at
//! once, and the rank is told before the first step that is scheduled when it has ended.

use super::scenario::Settings;
use crate::conformance::trace::rounded_ms;
use windtunnel_engine::vllm::Rank;
use windtunnel_engine::{DiskJob, DiskWork};

/// What it has to do.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// In the order in which it was asked: when each ends.
    due: Vec<(f64, u64)>,
}

impl Disk {
    /// Tells the rank what has ended by now.
    pub(super) fn report(&mut self, rank: &mut Rank, now: f64) {
        let mut ended: Vec<(f64, u64)> = self.due.extract_if(.., |(end, _)| *end <= now + 1e-9).collect();
        ended.sort_by(|a, b| a.0.total_cmp(&b.0));
        ended.into_iter().for_each(|(_, job)| rank.disk_done(job));
    }

    /// Starts what it is asked to do, and writes it down.
    pub(super) fn start(
        &mut self,
        jobs: &[DiskJob],
        settings: &Settings,
        now: f64,
    ) -> Vec<(&'static str, u32, f64)> {
        let start = |job: &DiskJob| {
            let (kind, size, ms) = match job.work {
                DiskWork::Read => ("read", job.tokens, settings.read_ms(job.tokens)),
                DiskWork::Write => ("write", job.tokens, settings.write_ms(job.tokens)),
                DiskWork::LookUp => ("look_up", job.tokens / settings.block_size, settings.look_up_ms()),
            };
            let end = rounded_ms(now + ms);
            self.due.push((end, job.job));
            (kind, size, end)
        };
        jobs.iter().map(start).collect()
    }

    /// When something next ends.
    pub(super) fn next_ms(&self) -> Option<f64> {
        self.due.iter().map(|&(end, _)| end).reduce(f64::min)
    }
}
