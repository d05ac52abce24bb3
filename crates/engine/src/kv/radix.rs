//! The radix cache: a tree of spans. A node is a run of tokens as it was entered or split, and goes as a
//! whole; what it holds is counted, not stored
//! (sglang/srt/mem_cache/unified_cache/unified_tree_core.py, version 0.5.23, its FULL component).
//!
//! The pool is a number of free tokens. Which slots they are is not known, for nothing depends on it. Nodes may have
//! a copy in the host's memory as well, or there alone: `host`.

mod host;

use super::text::{Symbol, Text};
use crate::event::{KvEventScope, KvEvents, Tier};
use crate::identity::{BlockKey, Keys};
use crate::request::RequestId;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

pub(crate) use host::HostMove;
use host::{Copies, Host};
pub use host::{HostTier, WritePolicy};

/// A node's number. Numbers of nodes that are gone are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(u32);

/// The node that stands for the empty prefix.
pub(crate) const ROOT: NodeId = NodeId(0);
const NIL: u32 = u32::MAX;

/// The logical clock counts in these; a path that is touched at once takes one a node, from its end up.
const TICK: u64 = 1 << 20;

#[derive(Debug)]
struct Node {
    /// None at the root and where no node is.
    text: Option<Arc<Text>>,
    start: u32,
    end: u32,
    parent: u32,
    /// Among the parent's children.
    symbol: Symbol,
    /// Children in the order in which their places were made.
    first_child: u32,
    last_child: u32,
    previous: u32,
    next: u32,
    locks: u32,
    /// Its KV is on the device; without a host tier always.
    on_device: bool,
    /// Children with KV on the device.
    device_children: u32,
    /// What a host tier knows of it.
    copies: Copies,
    /// When it was last used, by the logical clock.
    used: u64,
    /// Distinguishes nodes that have one number after the other.
    serial: u32,
    /// The identities of the blocks that end in it, as far as events tell of them.
    keys: Vec<BlockKey>,
}

impl Node {
    fn len(&self) -> u32 {
        self.end - self.start
    }
}

/// Mixes (parent, symbol).
#[derive(Clone, Copy, Default)]
struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are hashed here")
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// The last node of the path on the device.
    pub(crate) node: NodeId,
    /// Tokens found on the device.
    pub(crate) len: u32,
    /// The last node of the path, where the rest of it is on the host.
    pub(crate) best: NodeId,
    /// Tokens found behind those, on the host.
    pub(crate) host: u32,
}

impl Match {
    const NOTHING: Match = Match { node: ROOT, len: 0, best: ROOT, host: 0 };
}

/// Who enters a sequence, for the events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entering<'a> {
    pub(crate) request: RequestId,
    /// The identities of the whole blocks of the sequence that events tell of.
    pub(crate) keys: &'a [BlockKey],
    /// Tokens that the request has entered before: they count as used by it already.
    pub(crate) entered: u32,
}

/// What the events tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Telling {
    pub(crate) scope: KvEventScope,
    /// Tokens of a block in the events, a multiple of a page.
    pub(crate) block: u32,
}

/// The tree and the pool of one rank.
#[derive(Debug)]
pub(crate) struct Radix {
    page: u32,
    /// Off: nothing is ever found.
    enabled: bool,
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    next_serial: u32,
    children: HashMap<(u32, u64), u32, BuildHasherDefault<PlaceHasher>>,
    clock: u64,
    /// Leaves that may be evicted, by last use. An entry that no longer holds is dropped when seen.
    leaves: BinaryHeap<Reverse<(u64, u32, u32)>>,
    evictable_leaves: usize,
    free: u64,
    total: u64,
    /// Taken beyond what was free.
    owed: u64,
    evictable: u64,
    protected: u64,
    peak_used: u64,
    evicted_tokens: u64,
    telling: Telling,
    events: Option<KvEvents>,
    host: Option<Box<Host>>,
}

impl Radix {
    /// A pool of `pages` pages, all free.
    pub(crate) fn new(pages: u32, page: u32, enabled: bool, telling: Telling) -> Radix {
        let total = u64::from(pages) * u64::from(page);
        let mut radix = Radix {
            page,
            enabled,
            nodes: Vec::new(),
            vacant: Vec::new(),
            next_serial: 0,
            children: HashMap::default(),
            clock: 0,
            leaves: BinaryHeap::new(),
            evictable_leaves: 0,
            free: total,
            total,
            owed: 0,
            evictable: 0,
            protected: 0,
            peak_used: 0,
            evicted_tokens: 0,
            telling,
            events: (enabled && telling.scope.is_on()).then(KvEvents::default),
            host: None,
        };
        radix.add_node(None, 0, 0, NIL, Symbol(0));
        radix.nodes[0].locks = 1;
        if let Some(events) = &mut radix.events {
            events.cleared();
        }
        radix
    }

    /// Whether prefixes are kept.
    pub(crate) fn enabled(&self) -> bool {
        self.enabled
    }

    /// Tokens that nobody holds and that are not cached.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Which events are recorded.
    pub(crate) fn scope(&self) -> KvEventScope {
        if self.events.is_some() { self.telling.scope } else { KvEventScope::Off }
    }

    /// Appends the identities of the whole blocks among the first `len` tokens of a sequence, as far as events
    /// tell of them, to `into`.
    pub(crate) fn name(&self, keys: &mut Keys, len: u32, output: Option<&[u32]>, into: &mut Vec<BlockKey>) {
        let mut blocks = len / self.telling.block;
        if self.telling.scope != KvEventScope::All {
            blocks = blocks.min(keys.shared());
        }
        keys.extend(0..blocks, output, into);
        // Private identities stand at the end.
        while into.last().is_some_and(|&key| !self.telling.scope.tells(key)) {
            into.pop();
        }
    }

    /// Cached tokens that nobody holds.
    pub(crate) fn evictable(&self) -> u64 {
        self.evictable
    }

    /// Cached tokens that somebody holds.
    pub(crate) fn protected(&self) -> u64 {
        self.protected
    }

    /// Tokens with an owner.
    pub(crate) fn used(&self) -> u64 {
        self.total.saturating_sub(self.free + self.evictable)
    }

    /// Most tokens with an owner so far.
    pub(crate) fn peak_used(&self) -> u64 {
        self.peak_used
    }

    /// Cached tokens dropped to make room.
    pub(crate) fn evicted_tokens(&self) -> u64 {
        self.evicted_tokens
    }

    pub(crate) fn events(&self) -> Option<&KvEvents> {
        self.events.as_ref()
    }

    pub(crate) fn clear_events(&mut self) {
        if let Some(events) = &mut self.events {
            events.clear();
        }
    }

    /// Takes free tokens. False if there are not so many: the rest is owed, so that the books stay right.
    pub(crate) fn take(&mut self, tokens: u64) -> bool {
        let missing = tokens.saturating_sub(self.free);
        self.free -= tokens - missing;
        self.owed += missing;
        self.peak_used = self.peak_used.max(self.used());
        missing == 0
    }

    /// Gives tokens back that are in no node.
    pub(crate) fn give_back(&mut self, tokens: u64) {
        let paid = tokens.min(self.owed);
        self.owed -= paid;
        self.free += tokens - paid;
        debug_assert!(self.free + self.evictable + self.protected <= self.total);
    }

    fn floor(&self, len: u32) -> u32 {
        len - len % self.page
    }

    fn tick(&mut self) -> u64 {
        self.clock += TICK;
        self.clock
    }

    /// The longest cached prefix of the first `len` tokens of `text`, in whole pages; its path counts as
    /// used now. A node of which only a part matches is split.
    pub(crate) fn lookup(&mut self, text: &Arc<Text>, len: u32) -> Match {
        let len = self.floor(len);
        if !self.enabled || len == 0 {
            return Match::NOTHING;
        }
        let mut node = ROOT.0;
        let mut at = 0;
        let mut found = Match::NOTHING;
        while at < len {
            let symbol = text.symbol(at, at + self.page);
            let Some(&child) = self.children.get(&(node, symbol.0)) else { break };
            let (same, whole) = self.agreement(child, text, at, len);
            if same == at {
                break;
            }
            at = same;
            node = if whole { child } else { self.split(child, same) };
            // What is not on the device is the end of the path.
            if self.nodes[node as usize].on_device {
                (found.node, found.len) = (NodeId(node), at);
            }
            if !whole {
                break;
            }
        }
        let now = self.tick();
        (found.best, found.host) = (NodeId(node), at - found.len);
        let mut used = now;
        loop {
            self.touch(node, used);
            if node == ROOT.0 {
                return found;
            }
            node = self.nodes[node as usize].parent;
            used -= 1;
        }
    }

    /// Up to where a node agrees with `text`, in whole pages, and whether that is its end.
    fn agreement(&self, node: u32, text: &Text, at: u32, len: u32) -> (u32, bool) {
        let n = &self.nodes[node as usize];
        let end = n.end.min(len);
        let same = n.text.as_ref().map_or(at, |own| own.common(text, at, end));
        let same = at + self.floor(same - at);
        (same, same == n.end)
    }

    /// Enters the first `len` tokens of `text`, of which the request's own slots from `held` on are given to
    /// the tree, or back to the pool where the tree has those tokens on the device already. Returns the node at its
    /// end.
    pub(crate) fn insert(&mut self, text: &Arc<Text>, len: u32, held: u32, who: Entering<'_>) -> NodeId {
        let len = self.floor(len);
        let now = self.tick();
        self.touch(ROOT.0, now);
        let mut node = ROOT.0;
        let mut at = 0;
        while at < len {
            let symbol = text.symbol(at, at + self.page);
            let Some(&child) = self.children.get(&(node, symbol.0)) else { break };
            let (same, whole) = self.agreement(child, text, at, len);
            if same == at {
                break;
            }
            let now = self.tick();
            self.touch(child, now);
            node = if whole { child } else { self.split(child, same) };
            if self.nodes[node as usize].on_device {
                self.give_back(u64::from(same.saturating_sub(held.max(at))));
            } else {
                self.restore(node, who.request);
            }
            if same > who.entered {
                self.count_use(node, who.request);
            }
            at = same;
        }
        if at < len {
            let symbol = text.symbol(at, at + self.page);
            let leaf = self.add_node(Some(text.clone()), at, len, node, symbol);
            self.evictable += u64::from(len - at);
            if let Some(events) = &mut self.events {
                let known = |tokens: u32| ((tokens / self.telling.block) as usize).min(who.keys.len());
                let (before, keys) = (&who.keys[..known(at)], &who.keys[known(at)..known(len)]);
                if !keys.is_empty() {
                    self.nodes[leaf as usize].keys = keys.to_vec();
                    let first = before.len() as u32;
                    events.stored_joined(Tier::Device, who.request, first, before.last().copied(), keys);
                }
            }
            self.became_evictable(leaf);
            if len > who.entered {
                self.count_use(leaf, who.request);
            }
            node = leaf;
        }
        NodeId(node)
    }

    /// Makes the end of the first `len` tokens of a sequence that is cached the end of a node.
    pub(crate) fn part_at(&mut self, text: &Arc<Text>, len: u32) {
        let len = self.floor(len);
        self.insert(text, len, len, Entering { request: RequestId(0), keys: &[], entered: len });
    }

    /// Holds a path, so that it is not evicted.
    pub(crate) fn lock(&mut self, node: NodeId) {
        let mut at = node.0;
        while at != ROOT.0 {
            let n = &mut self.nodes[at as usize];
            if n.locks == 0 && n.on_device {
                let len = u64::from(n.len());
                self.evictable -= len;
                self.protected += len;
                if n.device_children == 0 {
                    self.evictable_leaves -= 1;
                }
            }
            n.locks += 1;
            at = n.parent;
        }
    }

    /// Lets a path go.
    pub(crate) fn unlock(&mut self, node: NodeId) {
        let mut at = node.0;
        while at != ROOT.0 {
            let n = &mut self.nodes[at as usize];
            n.locks -= 1;
            let parent = n.parent;
            if n.locks == 0 && n.on_device {
                let len = u64::from(n.len());
                self.evictable += len;
                self.protected -= len;
                self.became_evictable(at);
            } else if n.locks == 0 {
                self.became_host_leaf(at);
            }
            at = parent;
        }
    }

    /// Drops unlocked leaves, the one used least recently first, until `tokens` are free or none is left. With a host
    /// tier they may stay there.
    pub(crate) fn evict_until_free(&mut self, tokens: u64) {
        if self.host.is_some() {
            return self.evict_or_demote_until_free(tokens);
        }
        while self.free < tokens && self.evictable_leaves > 0 {
            let Some(Reverse((used, node, serial))) = self.leaves.pop() else { return };
            if self.is_evictable(node, serial, used) {
                self.drop_leaf(node);
            }
        }
    }

    /// Input indices in depth-first order, the subtree with the most of them first.
    pub(crate) fn depth_first_by_weight(&self, ends: &[NodeId]) -> Vec<usize> {
        let mut at_node: HashMap<u32, Vec<usize>> = HashMap::new();
        for (index, node) in ends.iter().enumerate() {
            at_node.entry(node.0).or_default().push(index);
        }
        let own = |node: u32| at_node.get(&node).map_or(0, Vec::len);
        let mut weight: HashMap<u32, usize> = HashMap::new();
        let mut stack = vec![(ROOT.0, false)];
        while let Some((node, done)) = stack.pop() {
            if done {
                let of = |child| weight.get(&child).copied().unwrap_or(0);
                let sum = own(node) + self.children_of(node).map(of).sum::<usize>();
                weight.insert(node, sum);
            } else {
                stack.push((node, true));
                stack.extend(self.children_of(node).map(|child| (child, false)));
            }
        }
        let mut order = Vec::with_capacity(ends.len());
        let mut stack = vec![(ROOT.0, false)];
        while let Some((node, done)) = stack.pop() {
            if done {
                order.extend(at_node.get(&node).into_iter().flatten());
                continue;
            }
            let mut children: Vec<u32> = self.children_of(node).collect();
            children.sort_by_key(|child| Reverse(weight.get(child).copied().unwrap_or(0)));
            stack.push((node, true));
            stack.extend(children.into_iter().rev().map(|child| (child, false)));
        }
        order
    }

    /// The identities in the cache, for tests.
    pub(crate) fn cached_keys(&self) -> Vec<BlockKey> {
        let on_device = |n: &&Node| n.text.is_some() && n.on_device;
        let mut keys: Vec<BlockKey> =
            self.nodes.iter().filter(on_device).flat_map(|n| n.keys.iter().copied()).collect();
        keys.sort_unstable();
        keys
    }

    fn children_of(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.nodes[node as usize].first_child;
        std::iter::successors((first != NIL).then_some(first), |&at| {
            let next = self.nodes[at as usize].next;
            (next != NIL).then_some(next)
        })
    }

    fn touch(&mut self, node: u32, used: u64) {
        let n = &mut self.nodes[node as usize];
        n.used = used;
        if n.locks == 0 && n.device_children == 0 && n.on_device {
            self.leaves.push(Reverse((used, node, n.serial)));
            self.tidy();
        } else if !n.on_device {
            self.became_host_leaf(node);
        }
    }

    /// Drops the entries that no longer hold, when there are too many of them.
    fn tidy(&mut self) {
        if self.leaves.len() > 4 * self.evictable_leaves + 1024 {
            let mut leaves = std::mem::take(&mut self.leaves).into_vec();
            leaves.retain(|&Reverse((used, node, serial))| self.is_evictable(node, serial, used));
            // A leaf may have been entered twice at one instant.
            leaves.sort_unstable();
            leaves.dedup();
            self.leaves = leaves.into();
        }
    }

    fn is_evictable(&self, node: u32, serial: u32, used: u64) -> bool {
        let n = &self.nodes[node as usize];
        n.serial == serial
            && n.used == used
            && n.locks == 0
            && n.device_children == 0
            && n.on_device
            && n.text.is_some()
    }

    /// A node on the device without locks: if none of its children is there too, it may be evicted from now on.
    fn became_evictable(&mut self, node: u32) {
        let n = &self.nodes[node as usize];
        if n.device_children == 0 {
            self.evictable_leaves += 1;
            self.leaves.push(Reverse((n.used, node, n.serial)));
            self.tidy();
        }
    }

    /// Drops a leaf that is on the device alone.
    fn drop_leaf(&mut self, node: u32) {
        let len = u64::from(self.nodes[node as usize].len());
        let (parent, keys) = self.unlink(node);
        self.leave_device(len, parent);
        self.tell_removed(Tier::Device, &keys);
    }

    /// So many tokens of a node that could be evicted are on the device no more.
    fn leave_device(&mut self, len: u64, parent: u32) {
        self.evictable -= len;
        self.evictable_leaves -= 1;
        self.give_back(len);
        self.evicted_tokens += len;
        let p = &mut self.nodes[parent as usize];
        p.device_children -= 1;
        if parent != ROOT.0 && p.locks == 0 {
            self.became_evictable(parent);
        }
    }

    fn tell_removed(&mut self, from: Tier, keys: &[BlockKey]) {
        if let Some(events) = &mut self.events
            && !keys.is_empty()
        {
            events.removed_together(from, keys);
        }
    }

    /// Takes a node without children out of the tree. Tells its parent, and its keys.
    fn unlink(&mut self, node: u32) -> (u32, Vec<BlockKey>) {
        let n = &mut self.nodes[node as usize];
        debug_assert_eq!(n.first_child, NIL);
        n.text = None;
        let (parent, symbol, previous, next) = (n.parent, n.symbol, n.previous, n.next);
        let keys = std::mem::take(&mut n.keys);
        self.children.remove(&(parent, symbol.0));
        match previous {
            NIL => self.nodes[parent as usize].first_child = next,
            at => self.nodes[at as usize].next = next,
        }
        match next {
            NIL => self.nodes[parent as usize].last_child = previous,
            at => self.nodes[at as usize].previous = previous,
        }
        self.vacant.push(node);
        (parent, keys)
    }

    /// Puts a node for the part of `child` before `at` above it, which keeps the rest.
    fn split(&mut self, child: u32, at: u32) -> u32 {
        let c = &self.nodes[child as usize];
        let (text, start, parent, symbol) = (c.text.clone(), c.start, c.parent, c.symbol);
        let (locks, previous, next) = (c.locks, c.previous, c.next);
        let (on_device, copies) = (c.on_device, c.copies);
        let serial = self.fresh_serial();
        let used = self.tick();
        let head = self.place(Node {
            text: text.clone(),
            start,
            end: at,
            parent,
            symbol,
            first_child: child,
            last_child: child,
            previous,
            next,
            locks,
            on_device,
            device_children: u32::from(on_device),
            copies,
            used,
            serial,
            keys: Vec::new(),
        });
        // It takes the child's place among the children.
        self.children.insert((parent, symbol.0), head);
        match previous {
            NIL => self.nodes[parent as usize].first_child = head,
            before => self.nodes[before as usize].next = head,
        }
        match next {
            NIL => self.nodes[parent as usize].last_child = head,
            after => self.nodes[after as usize].previous = head,
        }
        let now = self.tick();
        let c = &mut self.nodes[child as usize];
        let rest = text.as_ref().map_or(Symbol(0), |text| text.symbol(at, at + self.page));
        (c.start, c.parent, c.symbol, c.previous, c.next) = (at, head, rest, NIL, NIL);
        if !c.keys.is_empty() {
            let blocks = (at / self.telling.block - start / self.telling.block) as usize;
            let tail = c.keys.split_off(blocks.min(c.keys.len()));
            let keys = std::mem::replace(&mut c.keys, tail);
            self.nodes[head as usize].keys = keys;
        }
        self.children.insert((head, rest.0), child);
        self.touch(child, now);
        if self.host.is_some() {
            self.split_copies(child, head);
        }
        head
    }

    /// A node on the device behind the last child of `parent`.
    fn add_node(
        &mut self,
        text: Option<Arc<Text>>,
        start: u32,
        end: u32,
        parent: u32,
        symbol: Symbol,
    ) -> u32 {
        let serial = self.fresh_serial();
        let used = self.tick();
        let previous = if parent == NIL { NIL } else { self.nodes[parent as usize].last_child };
        let node = self.place(Node {
            text,
            start,
            end,
            parent,
            symbol,
            first_child: NIL,
            last_child: NIL,
            previous,
            next: NIL,
            locks: 0,
            on_device: true,
            device_children: 0,
            copies: Copies::default(),
            used,
            serial,
            keys: Vec::new(),
        });
        if parent != NIL {
            match previous {
                NIL => self.nodes[parent as usize].first_child = node,
                at => self.nodes[at as usize].next = node,
            }
            self.nodes[parent as usize].last_child = node;
            self.enter_device(parent);
            self.children.insert((parent, symbol.0), node);
        }
        node
    }

    /// A node has one more child on the device.
    fn enter_device(&mut self, parent: u32) {
        let p = &mut self.nodes[parent as usize];
        if p.device_children == 0 && p.locks == 0 {
            self.evictable_leaves -= 1;
        }
        p.device_children += 1;
    }

    fn fresh_serial(&mut self) -> u32 {
        self.next_serial = self.next_serial.wrapping_add(1);
        self.next_serial
    }

    fn place(&mut self, node: Node) -> u32 {
        match self.vacant.pop() {
            Some(at) => {
                self.nodes[at as usize] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        }
    }
}
