//! vLLM's native CPU offload: full blocks of prompts are copied to the host as they are computed, and come back as loads
//! (distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py, version 0.33.0).
//!
//! The scheduler's side: which jobs there are, and which of them a pass has to wait for, because a block that they
//! still read was handed out again. Who copies, and how long that takes, is the driver's affair.

use super::disk::{Answer, Disk};
use super::host::{Found, HostPool, Uses};
use super::rank::Rank;
use super::sequence::State;
use crate::event::{KvEventScope, KvEvents, Tier};
use crate::identity::BlockKey;
use crate::pass::{DiskJob, HostJob, Slot};
use crate::request::{FinishReason, RequestId};
use std::collections::{BTreeSet, HashMap, HashSet};

/// A copy under way.
#[derive(Debug)]
struct Job {
    request: RequestId,
    load: bool,
    keys: Vec<BlockKey>,
    /// Of a store: what it reads.
    blocks: Vec<u32>,
}

/// What is known of a request, from its first look-up until it has ended and its copies too.
#[derive(Debug, Default)]
struct Copies {
    /// Blocks of it that were stored, or need not be.
    stored: u32,
    jobs: Vec<u64>,
    uses: Uses,
    /// Of a request that has no blocks now: those that it had in its last pass.
    blocks: Vec<u32>,
    /// It has ended, and that was told.
    ended: bool,
    /// The host had no room for its blocks in this range, after so many changes there.
    no_room: Option<(u32, u32, u64)>,
}

/// A request that has ended since the last pass was scheduled.
#[derive(Debug)]
struct Ended {
    id: RequestId,
    tie: u64,
    /// Identities of its blocks from the first one that is not stored, as far as they may be.
    keys: Vec<(u32, BlockKey)>,
    blocks: Vec<u32>,
}

/// The offload of a rank.
#[derive(Debug)]
pub(super) struct Offload {
    host: HostPool,
    next_job: u64,
    jobs: HashMap<u64, Job>,
    copies: HashMap<RequestId, Copies>,
    ended: Vec<Ended>,
    /// Stores that still read a block of an ended request.
    readers: HashMap<u32, BTreeSet<u64>>,
    /// Identities that are being loaded; with prefix caching only.
    loading: HashSet<BlockKey>,
    caching: bool,
    /// Tokens of a block.
    block_size: u32,
    /// Blocks handed to somebody in the pass being scheduled.
    handed_out: HashSet<u32>,
    disk: Option<Disk>,
    /// What the disk has done since the last pass was scheduled, in order.
    disk_done: Vec<u64>,
    /// Those that the next pass to be processed makes visible.
    events: KvEvents,
    scope: KvEventScope,
}

/// What the host has for a waiting request.
pub(super) enum HostHit {
    /// That is not known yet.
    Later,
    /// So many tokens.
    Tokens(u32),
}

impl Offload {
    /// `disk`: whether there is one behind the host, and how many blocks it holds at most.
    pub(super) fn new(
        (chunks, disk): (u32, Option<Option<u32>>),
        block_size: u32,
        caching: bool,
        scope: KvEventScope,
    ) -> Offload {
        Offload {
            host: HostPool::new(chunks),
            next_job: 0,
            jobs: HashMap::new(),
            copies: HashMap::new(),
            ended: Vec::new(),
            readers: HashMap::new(),
            loading: HashSet::new(),
            caching,
            block_size,
            handed_out: HashSet::new(),
            disk: disk.map(|capacity| Disk::new(capacity, block_size, scope)),
            disk_done: Vec::new(),
            events: KvEvents::default(),
            scope,
        }
    }

    /// Copies are under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.jobs.is_empty() || self.disk.as_ref().is_some_and(Disk::is_busy)
    }

    fn add_job(&mut self, request: RequestId, load: bool, keys: Vec<BlockKey>, blocks: &[u32]) -> u64 {
        let id = self.next_job;
        self.next_job += 1;
        self.copies.entry(request).or_default().jobs.push(id);
        let blocks = if load { Vec::new() } else { blocks.to_vec() };
        self.jobs.insert(id, Job { request, load, keys, blocks });
        id
    }

    /// From now on a store of an ended request reads blocks that may be handed out.
    fn watch(&mut self, job: u64) {
        for &block in &self.jobs[&job].blocks {
            self.readers.entry(block).or_default().insert(job);
        }
    }

    /// A copy has ended. What reached the host may go on to the disk.
    fn end(&mut self, id: u64, onward: &mut Vec<DiskJob>) {
        let Some(job) = self.jobs.remove(&id) else { return };
        if job.load {
            self.host.end_read(&job.keys);
            job.keys.iter().for_each(|key| {
                self.loading.remove(key);
            });
        } else {
            let ready = self.host.end_write(&job.keys);
            for &key in ready.iter().filter(|&&key| self.scope.tells(key)) {
                self.events.stored_in(Tier::Host, job.request, 0, None, &[key]);
            }
            if let Some(disk) = &mut self.disk {
                onward.extend(disk.write(job.request, &job.keys, &mut self.host));
            }
        }
        for block in job.blocks {
            if let Some(jobs) = self.readers.get_mut(&block) {
                jobs.remove(&id);
                if jobs.is_empty() {
                    self.readers.remove(&block);
                }
            }
        }
        if let Some(copies) = self.copies.get_mut(&job.request) {
            copies.jobs.retain(|&other| other != id);
            let (ended, all) = (copies.ended, copies.jobs.is_empty());
            if ended && all {
                self.copies.remove(&job.request);
            }
            if ended {
                self.forget_look_ups(job.request);
            }
        }
    }

    /// A request has ended: what it asked the disk is of no more use, once all that it had stored has reached the host
    /// (`_maybe_finalize_request`).
    fn forget_look_ups(&mut self, id: RequestId) {
        let jobs = self.copies.get(&id).into_iter().flat_map(|copies| &copies.jobs);
        let storing = jobs.filter_map(|job| self.jobs.get(job)).any(|job| !job.load);
        if let Some(disk) = &mut self.disk
            && !storing
        {
            disk.forget(id);
        }
    }

    /// Takes in what the disk has done (`_process_finished_jobs`).
    fn read_disk(&mut self) {
        for job in std::mem::take(&mut self.disk_done) {
            if let Some(disk) = &mut self.disk {
                disk.end(job, &mut self.host, &mut self.events);
            }
        }
    }

    /// Looks a block of a waiting request up.
    fn find(&mut self, id: RequestId, at: (u32, BlockKey)) -> Found {
        let found = self.host.find(at.1);
        let (Found::Nothing, Some(disk)) = (found, &mut self.disk) else { return found };
        let uses = &mut self.copies.entry(id).or_default().uses;
        let answer = disk.look_up(id, at, &mut self.host, uses);
        self.tell_removed();
        match answer {
            Answer::Miss => Found::Nothing,
            Answer::Later => Found::Unready,
        }
    }

    /// Tells of what has just left the host.
    fn tell_removed(&mut self) {
        self.host.removed.retain(|&key| self.scope.tells(key));
        if !self.host.removed.is_empty() {
            self.events.removed_as_one(Tier::Host, &self.host.removed);
        }
        self.host.removed.clear();
    }

    /// Stores blocks with these identities, if the host has room for those that it lacks. None if it has not.
    fn store(&mut self, id: RequestId, keys: &[(u32, BlockKey)], blocks: &[u32]) -> Option<Option<HostJob>> {
        let copies = self.copies.entry(id).or_default();
        let written = self.host.write(keys, &mut copies.uses);
        self.tell_removed();
        let written = written?;
        if written.is_empty() {
            return Some(None);
        }
        let blocks: Vec<u32> = written.iter().map(|&(position, ..)| blocks[position as usize]).collect();
        let chunks = written.iter().map(|&(.., chunk)| chunk).collect();
        let job = self.add_job(id, false, written.iter().map(|&(_, key, _)| key).collect(), &blocks);
        Some(Some(HostJob {
            job,
            request: Some(id),
            load: false,
            tokens: blocks.len() as u32 * self.block_size,
            blocks,
            chunks,
        }))
    }
}

impl Rank {
    /// A copy has ended; told with the pass scheduled last.
    pub fn job_done(&mut self, job: u64) {
        if let Some(pass) = self.flight.iter_mut().next_back() {
            pass.jobs_done.push(job);
        }
    }

    /// The events of the host tier become visible with those of the pool, behind them.
    pub(super) fn tell_host_events(&mut self) {
        if let Some(offload) = &mut self.offload {
            let disk = offload.disk.as_mut().map(Disk::events);
            for events in
                [Some(&mut offload.events), disk].into_iter().flatten().filter(|one| !one.is_empty())
            {
                self.pool.tell(events);
                events.clear();
            }
        }
    }

    /// The disk has done what it was asked to ([`DiskJob`]); told before the next `schedule`, in order of these ends.
    pub fn disk_done(&mut self, job: u64) {
        if let Some(offload) = &mut self.offload {
            offload.disk_done.push(job);
        }
    }

    /// Takes in what the disk has done, before anything is looked up.
    pub(super) fn read_disk(&mut self) {
        if let Some(offload) = &mut self.offload {
            offload.read_disk();
        }
    }

    /// Blocks on the disk, those that are being written there included.
    pub fn disk_blocks(&self) -> usize {
        self.offload.as_ref().and_then(|offload| offload.disk.as_ref()).map_or(0, Disk::len)
    }

    /// Tokens that came from the disk to the host.
    pub(super) fn disk_hits(&self) -> u64 {
        self.offload.as_ref().and_then(|offload| offload.disk.as_ref()).map_or(0, |disk| disk.hits)
    }

    /// Blocks in the host tier, those that are being copied there included.
    pub fn host_blocks(&self) -> usize {
        self.offload.as_ref().map_or(0, |offload| offload.host.len())
    }

    /// Identities of a request's blocks in a range, with their positions.
    fn block_keys(&mut self, slot: u32, range: std::ops::Range<u32>) -> Vec<(u32, BlockKey)> {
        let s = &mut self.sequences[slot as usize];
        let tokens = s.output.tokens.as_deref();
        self.keys.clear();
        let first = range.start;
        if !range.is_empty() {
            s.keys.extend(range, tokens, &mut self.keys);
        }
        (first..).zip(self.keys.iter().copied()).collect()
    }

    /// What the host has of a waiting request behind `hit_tokens`.
    pub(super) fn look_up_host(&mut self, slot: u32, hit_tokens: u32) -> HostHit {
        let Some(offload) = &mut self.offload else { return HostHit::Tokens(0) };
        let (id, known) = (self.sequences[slot as usize].id, self.sequences[slot as usize].known);
        let copies = offload.copies.entry(id).or_default();
        copies.blocks.clear();
        copies.stored = 0;
        if !copies.jobs.is_empty() {
            return HostHit::Later;
        }
        let size = self.config.block_size;
        let (first, end) = (hit_tokens / size, known / size);
        if end <= first {
            return HostHit::Tokens(0);
        }
        let keys = self.block_keys(slot, first..end);
        let Some(offload) = &mut self.offload else { return HostHit::Tokens(0) };
        let found = keys.iter().map(|&at| offload.find(id, at));
        let hits: Vec<Found> = found.take_while(|&found| found != Found::Nothing).collect();
        let unready = hits.contains(&Found::Unready);
        let loading = keys[..hits.len()].iter().any(|(_, key)| offload.loading.contains(key));
        if unready || loading {
            return HostHit::Later;
        }
        HostHit::Tokens(hits.len() as u32 * size)
    }

    /// A waiting request has got its blocks: all of them, as far as the engine looks.
    pub(super) fn note_handed_out(&mut self, slot: u32) {
        if let Some(offload) = &mut self.offload {
            offload.handed_out.extend(&self.sequences[slot as usize].blocks);
        }
    }

    /// A running request got blocks behind its first `held`.
    pub(super) fn note_grown(&mut self, slot: u32, held: usize) {
        if let Some(offload) = &mut self.offload {
            offload.handed_out.extend(&self.sequences[slot as usize].blocks[held..]);
        }
    }

    /// The load of a waiting request from the host: its tokens from `hit_tokens` to `end`.
    pub(super) fn load_from_host(&mut self, slot: u32, hit_tokens: u32, end: u32) {
        if self.offload.is_none() {
            return;
        }
        let size = self.config.block_size;
        let keys = self.block_keys(slot, hit_tokens / size..end / size);
        let s = &self.sequences[slot as usize];
        let (id, blocks) = (s.id, s.blocks[(hit_tokens / size) as usize..].to_vec());
        let Some(offload) = &mut self.offload else { return };
        let copies = offload.copies.entry(id).or_default();
        copies.stored = end / size;
        let chunks = offload.host.read(&keys, &mut copies.uses);
        if offload.caching {
            offload.loading.extend(keys.iter().map(|&(_, key)| key));
        }
        let job = offload.add_job(id, true, keys.iter().map(|&(_, key)| key).collect(), &[]);
        let (request, tokens) = (Some(id), end - hit_tokens);
        self.stats.host_hits += u64::from(tokens);
        self.scheduled.host_jobs.push(HostJob { job, request, load: true, tokens, blocks, chunks });
    }

    /// A running request loses its blocks: it is remembered which they were.
    pub(super) fn note_preempted(&mut self, slot: u32) {
        let s = &self.sequences[slot as usize];
        if let Some(offload) = &mut self.offload
            && let Some(copies) = offload.copies.get_mut(&s.id)
        {
            copies.blocks.clone_from(&s.blocks);
        }
    }

    /// A request ends; it has left its queue and still has its blocks.
    pub(super) fn note_ended(&mut self, slot: u32, reason: FinishReason) {
        if self.offload.is_none() {
            return;
        }
        let s = &self.sequences[slot as usize];
        let running = matches!(s.state, State::Running | State::Attached | State::Draining);
        let tokens = match reason {
            FinishReason::Abort => self.computed(slot).min(s.prompt),
            _ => s.prompt,
        };
        let (id, tie, own) = (s.id, s.tie, s.blocks.clone());
        let Some(offload) = &mut self.offload else { return };
        let Some(copies) = offload.copies.get_mut(&id) else {
            // It was never looked up: nothing of it was copied.
            return;
        };
        let blocks = if running { own } else { std::mem::take(&mut copies.blocks) };
        let (stored, jobs) = (copies.stored, copies.jobs.clone());
        jobs.into_iter().for_each(|job| offload.watch(job));
        let end = (tokens / self.config.block_size).min(blocks.len() as u32);
        let keys = if end > stored { self.block_keys(slot, stored..end) } else { Vec::new() };
        if let Some(offload) = &mut self.offload {
            offload.ended.push(Ended { id, tie, keys, blocks });
        }
    }

    /// The stores that start with the pass being scheduled, and the copies that it has to wait for.
    pub(super) fn plan_host_jobs(&mut self, members: &[(u32, u32)]) {
        let Some(offload) = &mut self.offload else { return };
        let mut flush = BTreeSet::new();
        let starting: HashSet<u64> = self.scheduled.host_jobs.iter().map(|job| job.job).collect();
        for slot in &self.scheduled.preempted {
            let id = self.sequences[slot.0 as usize].id;
            let jobs = offload.copies.get(&id).into_iter().flat_map(|copies| &copies.jobs);
            flush.extend(jobs.filter(|job| !starting.contains(job)));
        }
        for block in &offload.handed_out {
            flush.extend(offload.readers.get(block).into_iter().flatten());
        }
        for &(slot, computed) in members {
            self.store_scheduled(slot, computed);
        }
        self.store_ended(&mut flush);
        if let Some(offload) = &mut self.offload {
            offload.handed_out.clear();
            if let Some(disk) = &mut offload.disk {
                disk.end_schedule(&mut self.scheduled.disk_jobs);
            }
        }
        self.scheduled.flush.extend(flush);
    }

    /// The blocks that a scheduled request fills in this pass, up to `computed` tokens.
    fn store_scheduled(&mut self, slot: u32, computed: u32) {
        let s = &self.sequences[slot as usize];
        let (id, size) = (s.id, self.config.block_size);
        let end = (computed.min(s.prompt) / size).min(s.blocks.len() as u32);
        let Some(offload) = &mut self.offload else { return };
        let copies = offload.copies.entry(id).or_default();
        let stored = copies.stored;
        // The engine asks in every pass; the answer is the same until something changes.
        if end <= stored || copies.no_room == Some((stored, end, offload.host.changes)) {
            return;
        }
        let keys = self.block_keys(slot, stored..end);
        let Some(offload) = &mut self.offload else { return };
        let job = offload.store(id, &keys, &self.sequences[slot as usize].blocks);
        let copies = offload.copies.entry(id).or_default();
        let Some(job) = job else {
            copies.no_room = Some((stored, end, offload.host.changes));
            return;
        };
        self.scheduled.host_jobs.extend(job);
        copies.stored = end;
    }

    /// The last blocks of requests that have ended since the last pass, which may be handed out already.
    fn store_ended(&mut self, flush: &mut BTreeSet<u64>) {
        let Some(offload) = &mut self.offload else { return };
        let mut ended = std::mem::take(&mut offload.ended);
        ended.sort_by_key(|ended| (ended.tie, ended.id));
        for Ended { id, keys, blocks, .. } in &ended {
            let job = if keys.is_empty() { None } else { offload.store(*id, keys, blocks).flatten() };
            let Some(job) = job else { continue };
            offload.watch(job.job);
            if job.blocks.iter().any(|block| offload.handed_out.contains(block)) {
                flush.insert(job.job);
            }
            self.scheduled.host_jobs.push(job);
        }
        for Ended { id, .. } in ended {
            let Some(copies) = offload.copies.get_mut(&id) else { continue };
            copies.ended = true;
            let uses = std::mem::take(&mut copies.uses);
            offload.forget_look_ups(id);
            if offload.copies.get(&id).is_some_and(|copies| copies.jobs.is_empty()) {
                offload.copies.remove(&id);
            }
            offload.host.end_request(uses);
        }
    }

    /// The copies that the worker reports with a pass have ended.
    pub(super) fn read_jobs(&mut self, jobs: &[u64]) {
        for &id in jobs {
            let Some(offload) = &mut self.offload else { return };
            offload.end(id, &mut self.outcome.disk_jobs);
        }
    }

    /// The waiting request that a load is for.
    pub fn slot_of(&self, id: RequestId) -> Option<Slot> {
        let loading =
            |s: &super::sequence::Sequence| s.id == id && matches!(s.state, State::Loading | State::Held);
        self.sequences.iter().position(loading).map(|slot| Slot(slot as u32))
    }
}
