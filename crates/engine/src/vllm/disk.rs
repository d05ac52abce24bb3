//! The tier behind the host of vLLM's offload: files of blocks, to which what reaches the host is copied, and from which it
//! comes back there when a look-up finds it gone (vllm/v1/kv_offload/tiering/manager.py, fs/manager.py and
//! async_lookup.py, version 0.33.0).
//!
//! What is on the disk is asked in the background: a look-up gets its answer when the driver says that its batch has been
//! answered, and an answer is kept while a request lives that asked. How long copies and answers take is the driver's
//! affair. The engine's files stay for ever; a capacity, with the least recently used going first, is ours.

use super::host::{Found, HostPool, Uses};
use crate::event::{KvEventScope, KvEvents, Tier};
use crate::identity::BlockKey;
use crate::pass::{DiskJob, DiskWork};
use crate::request::RequestId;
use std::collections::{BTreeMap, HashMap};

/// Reads for one request after which it is computed instead: on a host with too little room, requests take from each
/// other what has come for them. The engine itself would go on; AISimulate gives up after so many rounds, too
/// (`g3_offload`, aisimulate-core 0.13.0).
const MOST_READS: u32 = 1024;

/// A copy under way.
#[derive(Debug)]
struct Job {
    request: RequestId,
    load: bool,
    keys: Vec<BlockKey>,
}

/// A block on the disk, or on its way there.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// It is there.
    ready: bool,
    /// Copies that write or read it now.
    users: u32,
    /// When it was used: the smaller goes first.
    used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// To be asked with the end of this schedule call.
    New,
    Asked,
    Answered,
}

/// What is known of an identity on the disk.
#[derive(Debug)]
struct LookUp {
    /// Of this question: an identity may be asked for again.
    number: u64,
    phase: Phase,
    there: bool,
    /// Requests that have asked and live.
    requests: Vec<RequestId>,
}

/// What a look-up behind the host says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is nowhere, or there is no room for it on the host.
    Miss,
    /// It will be known, or be on the host, later.
    Later,
}

/// Blocks that a request has come from the disk to the host.
#[derive(Debug)]
struct Promotion {
    request: RequestId,
    keys: Vec<BlockKey>,
}

/// The tier.
#[derive(Debug)]
pub(super) struct Disk {
    capacity: Option<u32>,
    entries: HashMap<BlockKey, Entry>,
    /// Those that can go, by use.
    idle: BTreeMap<u64, BlockKey>,
    clock: u64,
    next_job: u64,
    jobs: HashMap<u64, Job>,
    look_ups: HashMap<BlockKey, LookUp>,
    asked_by: HashMap<RequestId, Vec<BlockKey>>,
    next_number: u64,
    batch: Vec<(BlockKey, u64)>,
    batches: HashMap<u64, Vec<(BlockKey, u64)>>,
    promotions: Vec<Promotion>,
    /// Reads for requests that live.
    reads: HashMap<RequestId, u32>,
    events: KvEvents,
    scope: KvEventScope,
    block_size: u32,
    /// Tokens that came from the disk to the host.
    pub(super) hits: u64,
}

impl Disk {
    pub(super) fn new(capacity: Option<u32>, block_size: u32, scope: KvEventScope) -> Disk {
        Disk {
            capacity,
            entries: HashMap::new(),
            idle: BTreeMap::new(),
            clock: 0,
            next_job: 0,
            jobs: HashMap::new(),
            look_ups: HashMap::new(),
            asked_by: HashMap::new(),
            next_number: 0,
            batch: Vec::new(),
            batches: HashMap::new(),
            promotions: Vec::new(),
            reads: HashMap::new(),
            events: KvEvents::default(),
            scope,
            block_size,
            hits: 0,
        }
    }

    /// Copies are under way (`has_pending_work`): look-ups keep no engine at work.
    pub(super) fn is_busy(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Blocks that are there.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn events(&mut self) -> &mut KvEvents {
        &mut self.events
    }

    // ---- look-ups, and what they bring to the host ----

    /// A look-up of a block that the host lacks (`TieringOffloadingManager.lookup`).
    pub(super) fn look_up(
        &mut self,
        id: RequestId,
        at: (u32, BlockKey),
        host: &mut HostPool,
        uses: &mut Uses,
    ) -> Answer {
        let key = at.1;
        match self.ask(id, key) {
            None => Answer::Later,
            Some(false) => Answer::Miss,
            // It may have gone since, which only a capacity does.
            Some(true) if !self.entries.get(&key).is_some_and(|entry| entry.ready) => Answer::Miss,
            Some(true) if self.reads.get(&id).is_some_and(|&reads| reads >= MOST_READS) => Answer::Miss,
            Some(true) => {
                debug_assert_eq!(host.find(key), Found::Nothing);
                if host.write(&[at], uses).is_none() {
                    return Answer::Miss;
                }
                self.hold(key);
                match self.promotions.iter_mut().find(|promotion| promotion.request == id) {
                    Some(promotion) => promotion.keys.push(key),
                    None => self.promotions.push(Promotion { request: id, keys: vec![key] }),
                }
                Answer::Later
            }
        }
    }

    /// Whether a block is on the disk, if that is known by now (`AsyncLookupManager.lookup`).
    fn ask(&mut self, id: RequestId, key: BlockKey) -> Option<bool> {
        let look_up = self.look_ups.entry(key).or_insert_with(|| {
            let number = self.next_number;
            self.next_number += 1;
            self.batch.push((key, number));
            LookUp { number, phase: Phase::New, there: false, requests: Vec::new() }
        });
        if !look_up.requests.contains(&id) {
            look_up.requests.push(id);
            self.asked_by.entry(id).or_default().push(key);
        }
        (look_up.phase == Phase::Answered).then_some(look_up.there)
    }

    /// The schedule call ends: what was found starts to come to the host, and what was not known is asked.
    pub(super) fn end_schedule(&mut self, jobs: &mut Vec<DiskJob>) {
        for Promotion { request, keys } in std::mem::take(&mut self.promotions) {
            let tokens = keys.len() as u32 * self.block_size;
            self.hits += u64::from(tokens);
            *self.reads.entry(request).or_default() += 1;
            let job = self.add(request, true, keys);
            jobs.push(DiskJob { job, work: DiskWork::Read, tokens, moved: tokens });
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.retain(|(key, number)| {
            let asked = self.look_ups.get_mut(key).filter(|look_up| look_up.number == *number);
            asked.map(|look_up| look_up.phase = Phase::Asked).is_some()
        });
        if !batch.is_empty() {
            let job = self.next_job;
            self.next_job += 1;
            let tokens = batch.len() as u32 * self.block_size;
            jobs.push(DiskJob { job, work: DiskWork::LookUp, tokens, moved: 0 });
            self.batches.insert(job, batch);
        }
    }

    /// No request of this number will ask any more (`cleanup`).
    pub(super) fn forget(&mut self, id: RequestId) {
        self.reads.remove(&id);
        for key in self.asked_by.remove(&id).unwrap_or_default() {
            let Some(look_up) = self.look_ups.get_mut(&key) else { continue };
            look_up.requests.retain(|&other| other != id);
            if look_up.requests.is_empty() && look_up.phase != Phase::Asked {
                self.look_ups.remove(&key);
            }
        }
    }

    // ---- copies ----

    fn add(&mut self, request: RequestId, load: bool, keys: Vec<BlockKey>) -> u64 {
        let job = self.next_job;
        self.next_job += 1;
        self.jobs.insert(job, Job { request, load, keys });
        job
    }

    /// Blocks have reached the host: they are copied on, and stay there meanwhile (`create_store_job`). What is on the
    /// disk already is not written again.
    pub(super) fn write(
        &mut self,
        request: RequestId,
        keys: &[BlockKey],
        host: &mut HostPool,
    ) -> Option<DiskJob> {
        let lacking = keys.iter().filter(|&key| !self.entries.contains_key(key)).count();
        let mut keys = keys.to_vec();
        keys.iter().for_each(|&key| self.hold(key));
        let room = self.make_room(lacking as u32);
        let mut fresh = 0;
        keys.retain(|&key| {
            if self.entries.contains_key(&key) {
                return true;
            }
            let fits = fresh < room;
            if fits {
                fresh += 1;
                self.entries.insert(key, Entry { ready: false, users: 1, used: 0 });
            }
            fits
        });
        if keys.is_empty() {
            return None;
        }
        host.hold(&keys);
        let tokens = keys.len() as u32 * self.block_size;
        let job = self.add(request, false, keys);
        Some(DiskJob { job, work: DiskWork::Write, tokens, moved: fresh * self.block_size })
    }

    /// A copy has ended, or a batch of look-ups was answered.
    pub(super) fn end(&mut self, id: u64, host: &mut HostPool, host_events: &mut KvEvents) {
        if let Some(batch) = self.batches.remove(&id) {
            return self.answer(batch);
        }
        let Some(Job { request, load, keys }) = self.jobs.remove(&id) else { return };
        keys.iter().for_each(|&key| self.release(key));
        let told = |key: &BlockKey| self.scope.tells(*key);
        if load {
            let ready = host.end_write(&keys);
            for &key in ready.iter().filter(|&key| told(key)) {
                host_events.stored_in(Tier::Host, request, 0, None, &[key]);
            }
        } else {
            host.end_read(&keys);
            for &key in keys.iter().filter(|&key| told(key)) {
                self.events.stored_in(Tier::Disk, request, 0, None, &[key]);
            }
        }
    }

    fn answer(&mut self, batch: Vec<(BlockKey, u64)>) {
        for (key, number) in batch {
            let Some(look_up) = self.look_ups.get_mut(&key).filter(|look_up| look_up.number == number) else {
                continue;
            };
            if look_up.requests.is_empty() {
                self.look_ups.remove(&key);
                continue;
            }
            look_up.phase = Phase::Answered;
            look_up.there = self.entries.get(&key).is_some_and(|entry| entry.ready);
        }
    }

    // ---- room ----

    /// A copy uses a block.
    fn hold(&mut self, key: BlockKey) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if entry.users == 0 {
            self.idle.remove(&entry.used);
        }
        entry.users += 1;
    }

    /// A copy has used a block, which is there now.
    fn release(&mut self, key: BlockKey) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        entry.ready = true;
        entry.users -= 1;
        if entry.users == 0 {
            self.clock += 1;
            entry.used = self.clock;
            self.idle.insert(self.clock, key);
        }
    }

    /// Room for so many blocks, for which those go that were used least recently. Tells for how many there is some.
    fn make_room(&mut self, wanted: u32) -> u32 {
        let Some(capacity) = self.capacity else { return wanted };
        let mut free = capacity.saturating_sub(self.entries.len() as u32);
        while free < wanted
            && let Some((_, key)) = self.idle.pop_first()
        {
            self.entries.remove(&key);
            if self.scope.tells(key) {
                self.events.removed_as_one(Tier::Disk, &[key]);
            }
            free += 1;
        }
        free.min(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> BlockKey {
        BlockKey(number)
    }

    /// A host with these blocks, and a disk of so many.
    fn tiers(blocks: &[u64], capacity: Option<u32>) -> (HostPool, Disk) {
        let mut host = HostPool::new(100);
        let keys: Vec<(u32, BlockKey)> = (0..).zip(blocks.iter().map(|&number| key(number))).collect();
        host.write(&keys, &mut Uses::default()).unwrap();
        host.end_write(&keys.iter().map(|&(_, key)| key).collect::<Vec<_>>());
        (host, Disk::new(capacity, 4, KvEventScope::All))
    }

    fn write(disk: &mut Disk, host: &mut HostPool, blocks: &[u64]) -> Option<DiskJob> {
        let keys: Vec<BlockKey> = blocks.iter().map(|&number| key(number)).collect();
        disk.write(RequestId(0), &keys, host)
    }

    /// The answer to a question: asked with one schedule call, known when the disk has answered.
    fn ask(disk: &mut Disk, host: &mut HostPool, id: u64, block: u64) -> Answer {
        let (id, at) = (RequestId(id), (0, key(block)));
        assert_eq!(disk.look_up(id, at, host, &mut Uses::default()), Answer::Later);
        let mut jobs = vec![];
        disk.end_schedule(&mut jobs);
        assert_eq!(jobs.iter().map(|job| job.work).collect::<Vec<_>>(), [DiskWork::LookUp]);
        disk.end(jobs[0].job, host, &mut KvEvents::default());
        disk.look_up(id, at, host, &mut Uses::default())
    }

    /// What is written is not there before that has ended; it is not written twice; and what was used least recently goes
    /// first: of 1, 2 and 3 the first was used again when it was written again, so 2 goes for 4.
    #[test]
    fn the_least_recently_used_goes() {
        let (mut host, mut disk) = tiers(&[1, 2, 3, 4], Some(3));
        let first = write(&mut disk, &mut host, &[1, 2]).unwrap();
        assert_eq!((first.tokens, first.moved), (8, 8));
        assert_eq!(ask(&mut disk, &mut host, 1, 1), Answer::Miss);
        disk.end(first.job, &mut host, &mut KvEvents::default());
        let second = write(&mut disk, &mut host, &[1, 3]).unwrap();
        assert_eq!((second.tokens, second.moved), (8, 4));
        disk.end(second.job, &mut host, &mut KvEvents::default());
        disk.events().clear();
        let third = write(&mut disk, &mut host, &[4]).unwrap();
        let removed: Vec<_> = disk.events().iter().collect();
        assert_eq!(removed, [crate::KvEvent::Removed { tier: Tier::Disk, blocks: &[key(2)] }]);
        disk.end(third.job, &mut host, &mut KvEvents::default());
        assert_eq!(disk.len(), 3);
    }

    /// What copies use stays: with all three blocks being written there is no room for a fourth, which is left out.
    #[test]
    fn what_is_in_use_stays() {
        let (mut host, mut disk) = tiers(&[1, 2, 3, 4], Some(3));
        assert_eq!(write(&mut disk, &mut host, &[1, 2, 3, 4]).unwrap().tokens, 12);
        assert_eq!(write(&mut disk, &mut host, &[4]), None);
        assert_eq!(disk.len(), 3);
    }

    /// An answer holds while a request lives that has asked (`AsyncLookupManager`): who asks meanwhile gets it at once,
    /// though the block has come since; afterwards it is asked anew, and comes to the host.
    #[test]
    fn an_answer_holds_while_somebody_lives_who_asked() {
        let (mut host, mut disk) = tiers(&[1], None);
        assert_eq!(ask(&mut disk, &mut host, 1, 1), Answer::Miss);
        let job = write(&mut disk, &mut host, &[1]).unwrap();
        disk.end(job.job, &mut host, &mut KvEvents::default());
        let again = |disk: &mut Disk, host: &mut HostPool, id| {
            disk.look_up(RequestId(id), (0, key(1)), host, &mut Uses::default())
        };
        assert_eq!(again(&mut disk, &mut host, 2), Answer::Miss);
        disk.forget(RequestId(1));
        assert_eq!(again(&mut disk, &mut host, 2), Answer::Miss);
        disk.forget(RequestId(2));
        let mut empty = HostPool::new(1);
        assert_eq!(ask(&mut disk, &mut empty, 3, 1), Answer::Later);
        let mut jobs = vec![];
        disk.end_schedule(&mut jobs);
        assert_eq!((jobs[0].work, jobs[0].tokens), (DiskWork::Read, 4));
        assert_eq!(empty.find(key(1)), Found::Unready);
        disk.end(jobs[0].job, &mut empty, &mut KvEvents::default());
        assert_eq!((empty.find(key(1)), disk.hits), (Found::Ready, 4));
    }
}
