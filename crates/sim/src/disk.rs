//! A disk behind the host's memory in virtual time: a lane for reads and one for writes, first come first served, beside
//! which it answers what it is asked. What is copied, and why, the rank says.

use crate::copy_lanes::CopyLanes;
use windtunnel_config::DiskOffload;
use windtunnel_engine::{DiskJob, DiskWork, Nanos, Rank};

/// The disk of a rank.
pub(crate) struct DiskLanes {
    offload: DiskOffload,
    /// For reads, and for writes.
    lanes: CopyLanes,
    /// What is not told yet, with its end.
    running: Vec<(Nanos, u64)>,
}

impl DiskLanes {
    pub(crate) fn new(offload: DiskOffload) -> DiskLanes {
        let lanes = CopyLanes::new(offload.bytes_per_token, [offload.read, offload.write], offload.latency);
        DiskLanes { offload, lanes, running: Vec::new() }
    }

    /// Bytes read, and written.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        self.lanes.bytes()
    }

    /// The most blocks that it holds.
    pub(crate) fn blocks(&self) -> Option<u64> {
        self.offload.blocks.map(u64::from)
    }

    /// These begin at `now`, if their lanes are free.
    pub(crate) fn start(&mut self, jobs: &[DiskJob], now: Nanos) {
        for job in jobs {
            let end = match job.work {
                DiskWork::LookUp => now + self.offload.latency,
                DiskWork::Read => self.lanes.copy(0, job.moved, now),
                DiskWork::Write => self.lanes.copy(1, job.moved, now),
            };
            self.running.push((end, job.job));
        }
    }

    /// Before a pass is scheduled at `now`, tells the rank what has ended. True if something has.
    pub(crate) fn report(&mut self, rank: &mut Rank, now: Nanos) -> bool {
        let mut ended: Vec<(Nanos, u64)> = self.running.extract_if(.., |(end, _)| *end <= now).collect();
        ended.sort_unstable();
        ended.iter().for_each(|&(_, job)| rank.disk_done(job));
        !ended.is_empty()
    }

    /// When something next ends.
    pub(crate) fn next_end(&self) -> Nanos {
        self.running.iter().map(|&(end, _)| end).min().unwrap_or(Nanos::NEVER)
    }
}
