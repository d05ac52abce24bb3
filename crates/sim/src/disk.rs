//! A disk behind the host's memory in virtual time: a lane for reads and one for writes, first come first served, beside
//! which it answers what it is asked. What is copied, and why, the rank says.

use windtunnel_config::DiskOffload;
use windtunnel_engine::{DiskJob, DiskWork, Nanos, Rank};

/// The disk of a rank.
pub(crate) struct DiskLanes {
    offload: DiskOffload,
    /// When the lane for reads, and the one for writes, have done what they were given.
    free_at: [Nanos; 2],
    /// What is not told yet, with its end.
    running: Vec<(Nanos, u64)>,
    /// Tokens read, and written.
    tokens: [u64; 2],
}

impl DiskLanes {
    pub(crate) fn new(offload: DiskOffload) -> DiskLanes {
        DiskLanes { offload, free_at: [Nanos::ZERO; 2], running: Vec::new(), tokens: [0; 2] }
    }

    /// Bytes read, and written.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        self.tokens.map(|tokens| tokens * self.offload.bytes_per_token)
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
                DiskWork::Read => self.copy(job, (now, 0), self.offload.read),
                DiskWork::Write => self.copy(job, (now, 1), self.offload.write),
            };
            self.running.push((end, job.job));
        }
    }

    fn copy(&mut self, job: &DiskJob, (now, lane): (Nanos, usize), rate: Option<f64>) -> Nanos {
        let bytes = f64::from(job.moved) * self.offload.bytes_per_token as f64;
        let time = rate.map_or(0.0, |rate| bytes / rate).round() as u64;
        self.tokens[lane] += u64::from(job.moved);
        let end = now.max(self.free_at[lane]) + self.offload.latency + Nanos(time);
        self.free_at[lane] = end;
        end
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
