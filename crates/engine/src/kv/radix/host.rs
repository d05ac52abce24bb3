//! The tier in the host's memory of the radix cache (HiCache): which nodes have a copy there, when one is made or goes,
//! and what moves between the two memories (sglang/srt/mem_cache/unified_radix_cache.py and
//! unified_cache/unified_tree_core.py, version 0.5.23, cache mode, FULL component).
//!
//! On any path the nodes that are on the device come first. How long a copy takes is not known here: the driver says
//! when one has ended.

use super::{NIL, Node, NodeId, ROOT, Radix};
use crate::event::Tier;
use crate::identity::BlockKey;
use crate::request::RequestId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Fewer tokens are not worth a load (`load_back_threshold`).
const LOAD_BACK_THRESHOLD: u32 = 10;

/// When a node is copied to the host (`--hicache-write-policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePolicy {
    /// When it is entered.
    WriteThrough,
    /// When it is used for the second time.
    WriteThroughSelective,
    /// When it is evicted, which waits for the copy.
    WriteBack,
}

impl WritePolicy {
    /// Its name on SGLang's command line.
    pub fn name(self) -> &'static str {
        match self {
            WritePolicy::WriteThrough => "write_through",
            WritePolicy::WriteThroughSelective => "write_through_selective",
            WritePolicy::WriteBack => "write_back",
        }
    }

    /// Uses after which a node is copied; never for that reason with write-back.
    fn threshold(self) -> Option<u32> {
        match self {
            WritePolicy::WriteThrough => Some(1),
            WritePolicy::WriteThroughSelective => Some(2),
            WritePolicy::WriteBack => None,
        }
    }
}

/// A tier in the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTier {
    /// Pages that it can hold.
    pub pages: u32,
    /// When nodes are copied there.
    pub write_policy: WritePolicy,
}

/// What the host tier knows of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copies {
    /// It has a copy on the host, or one is being made.
    on_host: bool,
    /// How often it was used (`hit_count`).
    uses: u32,
    /// The write under way that reads it, 0 for none (`write_through_pending_id`).
    writing: u64,
    /// The load under way that reads its copy, 0 for none; with write-back only (`load_back_pending_id`).
    loading: u64,
    /// Who holds its copy (`host_lock_ref`).
    locks: u32,
    /// Where those that were taken at once end: 0 for not here (`host_uuid`).
    mark: u64,
    /// Its place among the nodes that are in both memories, 0 for none; with write-back only.
    duplicate: u64,
}

/// Copies between the memories that start together, and are told to have ended together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostMove {
    pub(crate) job: u64,
    /// From the host, otherwise to it.
    pub(crate) load: bool,
    pub(crate) tokens: u32,
    /// The scheduler waits for it.
    pub(crate) awaited: bool,
}

/// A write of one node: to it and to what was split off from it since.
#[derive(Clone, Debug)]
struct Write {
    number: u64,
    request: RequestId,
    node: u32,
    /// From the root on (`publish_node_ids`).
    parts: Vec<u32>,
    tokens: u32,
    /// It holds the path.
    locks: bool,
}

/// A load of the end of a path.
#[derive(Clone, Copy, Debug)]
struct Load {
    number: u64,
    node: u32,
    /// Where what it holds on the host ends.
    mark: Option<u64>,
    tokens: u32,
}

/// The host tier of a rank.
#[derive(Debug)]
pub(super) struct Host {
    policy: WritePolicy,
    total: u64,
    free: u64,
    /// Copies that can go, by last use. An entry that no longer holds is dropped when seen.
    leaves: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// Nodes in both memories, in the order in which they came to be so; they may have left one since.
    duplicates: BTreeMap<u64, u32>,
    next: u64,
    /// Not handed over yet.
    writes: Vec<Write>,
    loads: Vec<Load>,
    /// Handed over, and not told to have ended.
    writing: VecDeque<(u64, Vec<Write>)>,
    loading: VecDeque<(u64, Vec<Load>)>,
    ended: Vec<u64>,
    next_job: u64,
    moves: Vec<HostMove>,
}

impl Host {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn is_write_back(&self) -> bool {
        self.policy == WritePolicy::WriteBack
    }

    fn hand_over(&mut self, load: bool, tokens: u32, awaited: bool) -> u64 {
        let job = self.next_job;
        self.next_job += 1;
        self.moves.push(HostMove { job, load, tokens, awaited });
        job
    }

    fn submit_writes(&mut self, awaited: bool) {
        if !self.writes.is_empty() {
            let writes = std::mem::take(&mut self.writes);
            let job = self.hand_over(false, writes.iter().map(|write| write.tokens).sum(), awaited);
            self.writing.push_back((job, writes));
        }
    }
}

impl Radix {
    /// Gives the cache a host tier, before anything is in it.
    pub(crate) fn set_host(&mut self, tier: HostTier) {
        if !self.enabled {
            return;
        }
        let total = u64::from(tier.pages) * u64::from(self.page);
        self.host = Some(Box::new(Host {
            policy: tier.write_policy,
            total,
            free: total,
            leaves: BinaryHeap::new(),
            duplicates: BTreeMap::new(),
            next: 0,
            writes: Vec::new(),
            loads: Vec::new(),
            writing: VecDeque::new(),
            loading: VecDeque::new(),
            ended: Vec::new(),
            next_job: 0,
            moves: Vec::new(),
        }));
    }

    /// There is a host tier.
    pub(crate) fn has_host(&self) -> bool {
        self.host.is_some()
    }

    /// Copies are under way, or waiting to be handed over.
    pub(crate) fn host_is_busy(&self) -> bool {
        self.host.as_ref().is_some_and(|host| {
            !host.writes.is_empty() || !host.writing.is_empty() || !host.loading.is_empty()
        })
    }

    /// Free and all tokens of the host tier.
    pub(crate) fn host_tokens(&self) -> Option<(u64, u64)> {
        self.host.as_ref().map(|host| (host.free, host.total))
    }

    /// Writes of nodes and loads of paths that are not told to have ended.
    pub(crate) fn host_transfers(&self) -> (usize, usize) {
        let Some(host) = &self.host else { return (0, 0) };
        let writing = host.writing.iter().map(|(_, writes)| writes.len()).sum::<usize>();
        let loading = host.loading.iter().map(|(_, loads)| loads.len()).sum::<usize>();
        (writing + host.writes.len(), loading + host.loads.len())
    }

    /// Takes what was handed over since the last call, in order.
    pub(crate) fn take_moves(&mut self) -> impl Iterator<Item = HostMove> + '_ {
        self.host.iter_mut().flat_map(|host| host.moves.drain(..))
    }

    /// Hands over the writes that wait for it, as one (`flush_pending_backups`).
    pub(crate) fn submit_writes(&mut self) {
        if let Some(host) = &mut self.host {
            host.submit_writes(false);
        }
    }

    /// Hands over the loads that wait for it, as one (`ready_to_load_host_cache`).
    pub(crate) fn submit_loads(&mut self) {
        let Some(host) = &mut self.host else { return };
        if !host.loads.is_empty() {
            let loads = std::mem::take(&mut host.loads);
            let job = host.hand_over(true, loads.iter().map(|load| load.tokens).sum(), false);
            host.loading.push_back((job, loads));
        }
    }

    /// A copy has ended, which the next `check_host` reads.
    pub(crate) fn move_ended(&mut self, job: u64) {
        if let Some(host) = &mut self.host {
            host.ended.push(job);
        }
    }

    /// What a turn begins with: writes are handed over, and the ends of copies are read, in order
    /// (`check_hicache_events`).
    pub(crate) fn check_host(&mut self) {
        self.submit_writes();
        while let Some(host) = &mut self.host
            && host.writing.front().is_some_and(|(job, _)| host.ended.contains(job))
            && let Some((job, writes)) = host.writing.pop_front()
        {
            host.ended.retain(|&ended| ended != job);
            writes.into_iter().for_each(|write| self.end_write(write));
        }
        while let Some(host) = &mut self.host
            && host.loading.front().is_some_and(|(job, _)| host.ended.contains(job))
            && let Some((job, loads)) = host.loading.pop_front()
        {
            host.ended.retain(|&ended| ended != job);
            loads.into_iter().for_each(|load| self.end_load(load));
        }
    }

    /// `_finish_write_through_ack`.
    fn end_write(&mut self, write: Write) {
        for &part in &write.parts {
            let copies = &mut self.nodes[part as usize].copies;
            if copies.writing == write.number {
                copies.writing = 0;
                self.note_duplicate(part);
            }
            self.tell_stored(Tier::Host, part, write.request);
        }
        if write.locks {
            self.unlock(NodeId(write.node));
        }
    }

    fn end_load(&mut self, load: Load) {
        self.unlock(NodeId(load.node));
        self.unlock_host(load.node, load.mark);
        let mut at = load.node;
        while at != ROOT.0 && self.host.as_ref().is_some_and(|host| host.is_write_back()) {
            let n = &mut self.nodes[at as usize];
            let parent = n.parent;
            if n.copies.loading == load.number {
                n.copies.loading = 0;
                self.note_duplicate(at);
            }
            at = parent;
        }
    }

    fn tell_stored(&mut self, tier: Tier, node: u32, request: RequestId) {
        let n = &self.nodes[node as usize];
        let Some(events) = &mut self.events else { return };
        if n.keys.is_empty() {
            return;
        }
        let before = n.start / self.telling.block;
        // Of several blocks that end in nodes before it, the last.
        let mut at = n.parent;
        let parent = loop {
            let Node { keys, parent, .. } = &self.nodes[at as usize];
            match keys.last() {
                Some(&key) => break Some(key),
                None if at == ROOT.0 => break None,
                None => at = *parent,
            }
        };
        events.stored_joined(tier, request, before, parent, &n.keys);
    }

    // ---- what is used, and copied ----

    /// A request has used a node (`_inc_hit_count_and_check`), which may make a copy of it due.
    pub(super) fn count_use(&mut self, node: u32, request: RequestId) {
        let Some(threshold) = self.host.as_ref().and_then(|host| host.policy.threshold()) else { return };
        let copies = &mut self.nodes[node as usize].copies;
        copies.uses += 1;
        if !copies.on_host && copies.uses >= threshold {
            self.back_up_path(node, request);
        }
    }

    /// Copies a node after those before it that have no copy, up to the first for which there is no room
    /// (`_build_backup_kv_action`, `_execute_and_commit_kv_backup`).
    fn back_up_path(&mut self, node: u32, request: RequestId) {
        let mut chain = vec![node];
        let mut at = self.nodes[node as usize].parent;
        while at != ROOT.0 && !self.nodes[at as usize].copies.on_host {
            chain.push(at);
            at = self.nodes[at as usize].parent;
        }
        while let Some(node) = chain.pop() {
            if !self.back_up(node, request, true) {
                return;
            }
        }
    }

    /// Makes a copy of a node due, if the host has room, if need be by dropping what it used least recently.
    fn back_up(&mut self, node: u32, request: RequestId, locks: bool) -> bool {
        let tokens = self.nodes[node as usize].len();
        let Some(host) = &self.host else { return false };
        let missing = u64::from(tokens).saturating_sub(host.free);
        if missing > 0 && self.evict_host(missing) < missing {
            return false;
        }
        let Some(host) = &mut self.host else { return false };
        host.free -= u64::from(tokens);
        let number = host.number();
        host.writes.push(Write { number, request, node, parts: vec![node], tokens, locks });
        let copies = &mut self.nodes[node as usize].copies;
        (copies.on_host, copies.writing) = (true, number);
        if locks {
            self.lock(NodeId(node));
        }
        true
    }

    /// A node was split: what its copies know holds for both parts (`_split_node`, `redistribute_on_node_split`).
    pub(super) fn split_copies(&mut self, child: u32, head: u32) {
        let c = &mut self.nodes[child as usize].copies;
        c.mark = 0;
        let number = c.writing;
        self.nodes[head as usize].copies.duplicate = 0;
        if number > 0
            && let Some(host) = &mut self.host
        {
            let all = host.writing.iter_mut().flat_map(|(_, writes)| writes).chain(&mut host.writes);
            for write in all.filter(|write| write.number == number) {
                if let Some(at) = write.parts.iter().position(|&part| part == child) {
                    write.parts.insert(at, head);
                }
            }
        }
        self.note_duplicate(head);
    }

    // ---- what is loaded ----

    /// Brings what of a path is on the host alone back to the device, if it is enough to be worth it and there is room.
    /// Tells how many tokens (`load_back`).
    pub(crate) fn load_back(&mut self, best: NodeId, request: RequestId) -> u32 {
        let mark = self.lock_host(best.0);
        self.lock(best);
        let mut missing = Vec::new();
        let mut at = best.0;
        while !self.nodes[at as usize].on_device {
            missing.push(at);
            at = self.nodes[at as usize].parent;
        }
        missing.reverse();
        let tokens: u32 = missing.iter().map(|&node| self.nodes[node as usize].len()).sum();
        let worth = tokens >= LOAD_BACK_THRESHOLD;
        if worth {
            self.evict_until_free(u64::from(tokens));
        }
        if !worth || self.free < u64::from(tokens) {
            self.unlock(best);
            self.unlock_host(best.0, mark);
            return 0;
        }
        self.take(u64::from(tokens));
        self.unlock(best);
        let Some(host) = &mut self.host else { return 0 };
        let number = host.number();
        let pins = host.is_write_back();
        host.loads.push(Load { number, node: best.0, mark, tokens });
        for &node in &missing {
            if pins {
                self.nodes[node as usize].copies.loading = number;
            }
            self.bring(node);
        }
        missing.iter().for_each(|&node| self.tell_stored(Tier::Device, node, request));
        self.lock(best);
        tokens
    }

    /// A request gives its own KV to a node that was on the host alone (`_unevict_node_on_insert`).
    pub(super) fn restore(&mut self, node: u32, request: RequestId) {
        self.bring(node);
        self.note_duplicate(node);
        self.tell_stored(Tier::Device, node, request);
    }

    /// A node is on the device again.
    fn bring(&mut self, node: u32) {
        let n = &mut self.nodes[node as usize];
        n.on_device = true;
        let (len, parent, locks) = (u64::from(n.len()), n.parent, n.locks);
        if locks > 0 {
            self.protected += len;
        } else {
            self.evictable += len;
            self.became_evictable(node);
        }
        self.enter_device(parent);
    }

    // ---- what goes ----

    /// As [`Radix::evict_until_free`]: a leaf that has a copy stays on the host; with write-back one that has none is
    /// copied first, or dropped with all behind it if the host has no room.
    pub(super) fn evict_or_demote_until_free(&mut self, tokens: u64) {
        let writes_back = self.host.as_ref().is_some_and(|host| host.is_write_back());
        let mut kept = Vec::new();
        while self.free < tokens && self.evictable_leaves > 0 {
            let Some(entry @ Reverse((used, node, serial))) = self.leaves.pop() else { break };
            if !self.is_evictable(node, serial, used) {
                continue;
            }
            if self.nodes[node as usize].copies.on_host {
                self.demote(node);
            } else if !writes_back {
                self.drop_leaf(node);
            } else if self.write_back(node) {
                self.demote(node);
            } else if !self.drop_subtree(node) {
                kept.push(entry);
            }
        }
        self.leaves.extend(kept);
    }

    /// Copies a node to the host and waits for it.
    fn write_back(&mut self, node: u32) -> bool {
        // Who stored it is not known any more, and events of the host tier do not need it.
        if !self.back_up(node, RequestId(0), false) {
            return false;
        }
        let Some(host) = &mut self.host else { return false };
        host.submit_writes(true);
        let writes = host.writing.pop_back().map(|(_, writes)| writes).unwrap_or_default();
        writes.into_iter().for_each(|write| self.end_write(write));
        true
    }

    /// A leaf leaves the device, and stays on the host.
    fn demote(&mut self, node: u32) {
        let n = &mut self.nodes[node as usize];
        n.on_device = false;
        let (len, parent) = (u64::from(n.len()), n.parent);
        let keys = std::mem::take(&mut n.keys);
        self.leave_device(len, parent);
        self.tell_removed(Tier::Device, &keys);
        self.nodes[node as usize].keys = keys;
        self.became_host_leaf(node);
    }

    /// Drops a leaf of the device that cannot be copied, with what is behind it on the host; unless somebody holds some
    /// of it (`drop_subtree_no_host`).
    fn drop_subtree(&mut self, node: u32) -> bool {
        let is_held =
            |n: &Node| n.locks > 0 || n.copies.locks > 0 || n.copies.writing > 0 || n.copies.loading > 0;
        if is_held(&self.nodes[node as usize]) {
            return false;
        }
        let mut behind: Vec<u32> = Vec::new();
        let mut stack: Vec<u32> = self.children_of(node).collect();
        while let Some(at) = stack.pop() {
            if is_held(&self.nodes[at as usize]) {
                return false;
            }
            behind.push(at);
            stack.extend(self.children_of(at));
        }
        while let Some(at) = behind.pop() {
            self.drop_copy(at);
        }
        self.drop_leaf(node);
        true
    }

    /// Drops a node that is on the host alone. Tells its parent.
    fn drop_copy(&mut self, node: u32) -> u32 {
        let n = &self.nodes[node as usize];
        let (len, duplicate) = (u64::from(n.len()), n.copies.duplicate);
        let (parent, keys) = self.unlink(node);
        self.tell_removed(Tier::Host, &keys);
        if let Some(host) = &mut self.host {
            host.free += len;
            host.duplicates.remove(&duplicate);
        }
        parent
    }

    /// Drops copies until `tokens` of the host are free beyond what was, and tells how many are
    /// (`drive_host_eviction`).
    fn evict_host(&mut self, tokens: u64) -> u64 {
        let mut freed = self.reclaim_duplicates(tokens);
        while freed < tokens
            && let Some(host) = &mut self.host
            && let Some(Reverse((used, node, serial))) = host.leaves.pop()
        {
            let n = &self.nodes[node as usize];
            if n.serial == serial && n.used == used && n.is_host_leaf() {
                freed += u64::from(n.len());
                let parent = self.drop_copy(node);
                self.became_host_leaf(parent);
            }
        }
        freed
    }

    /// With write-back, copies of what is on the device too go first: those of leaves of the device last, since they may
    /// be evicted soon (`_reclaim_full_host_duplicates`).
    fn reclaim_duplicates(&mut self, tokens: u64) -> u64 {
        let Some(host) = self.host.as_ref().filter(|host| host.is_write_back()) else { return 0 };
        let all: Vec<(u64, u32)> = host.duplicates.iter().map(|(&place, &node)| (place, node)).collect();
        let (mut freed, mut gone) = (0, Vec::new());
        for spares_leaves in [true, false] {
            for &(place, node) in &all {
                if freed >= tokens {
                    break;
                }
                let n = &mut self.nodes[node as usize];
                let copies = n.copies;
                if !n.on_device || !copies.on_host {
                    gone.push((place, node));
                    continue;
                }
                let is_leaf = n.locks == 0 && n.device_children == 0;
                if spares_leaves && is_leaf || copies.writing > 0 || copies.loading > 0 || copies.locks > 0 {
                    continue;
                }
                n.copies.on_host = false;
                let len = u64::from(n.len());
                let keys = std::mem::take(&mut n.keys);
                self.tell_removed(Tier::Host, &keys);
                self.nodes[node as usize].keys = keys;
                if let Some(host) = &mut self.host {
                    host.free += len;
                }
                freed += len;
                gone.push((place, node));
            }
        }
        for (place, node) in gone {
            self.nodes[node as usize].copies.duplicate = 0;
            if let Some(host) = &mut self.host {
                host.duplicates.remove(&place);
            }
        }
        freed
    }

    /// Enters a node among those in both memories, or takes it out (`_update_duplicate_tracking`).
    fn note_duplicate(&mut self, node: u32) {
        let Some(host) = self.host.as_mut().filter(|host| host.is_write_back()) else { return };
        let n = &mut self.nodes[node as usize];
        let copies = &mut n.copies;
        if n.on_device && copies.on_host && copies.writing == 0 && copies.loading == 0 {
            if copies.duplicate == 0 {
                copies.duplicate = host.number();
                host.duplicates.insert(copies.duplicate, node);
            }
        } else {
            host.duplicates.remove(&std::mem::take(&mut copies.duplicate));
        }
    }

    /// A node may have become one whose copy can go.
    pub(super) fn became_host_leaf(&mut self, node: u32) {
        let n = &self.nodes[node as usize];
        if n.is_host_leaf()
            && let Some(host) = &mut self.host
        {
            host.leaves.push(Reverse((n.used, node, n.serial)));
            if host.leaves.len() > 4 * self.nodes.len() + 1024 {
                let mut leaves = std::mem::take(&mut host.leaves).into_vec();
                leaves.retain(|&Reverse((used, node, serial))| {
                    let n = &self.nodes[node as usize];
                    n.serial == serial && n.used == used && n.is_host_leaf()
                });
                // A leaf may have been entered twice at one instant.
                leaves.sort_unstable();
                leaves.dedup();
                host.leaves = leaves.into();
            }
        }
    }

    // ---- who holds a copy ----

    /// Holds the copy of a node. Tells where what it holds ends, if there is something to hold.
    fn lock_host(&mut self, node: u32) -> Option<u64> {
        let host = self.host.as_mut()?;
        let copies = &mut self.nodes[node as usize].copies;
        if !copies.on_host && !host.is_write_back() {
            return None;
        }
        if copies.mark == 0 {
            copies.mark = host.number();
        }
        copies.locks += 1;
        Some(copies.mark)
    }

    /// Lets it go, with what was split off from it since.
    fn unlock_host(&mut self, node: u32, mark: Option<u64>) {
        let Some(mark) = mark else { return };
        let mut at = node;
        while at != ROOT.0 {
            let n = &mut self.nodes[at as usize];
            n.copies.locks -= 1;
            let (parent, ends) = (n.parent, n.copies.mark == mark);
            self.became_host_leaf(at);
            if ends {
                return;
            }
            at = parent;
        }
    }

    /// The identities on the host, for tests.
    pub(crate) fn host_keys(&self) -> Vec<BlockKey> {
        let is_there = |n: &&Node| n.text.is_some() && n.copies.on_host && n.copies.writing == 0;
        let mut keys: Vec<BlockKey> =
            self.nodes.iter().filter(is_there).flat_map(|n| n.keys.iter().copied()).collect();
        keys.sort_unstable();
        keys
    }
}

impl Node {
    /// Its copy is all there is of it, and can go (`_is_host_leaf`).
    fn is_host_leaf(&self) -> bool {
        self.text.is_some()
            && !self.on_device
            && self.copies.on_host
            && self.copies.locks == 0
            && self.locks == 0
            && self.first_child == NIL
    }
}
