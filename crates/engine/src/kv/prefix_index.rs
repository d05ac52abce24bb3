//! Block identity → the physical block that was entered first under it.
//!
//! Identities that are dense numbers live in pages made on demand and given back when empty, so that a
//! look-up is two array reads and memory follows what is cached, not what was ever seen. Hashed
//! identities live in a hash map.

use crate::identity::{BlockKey, KeySpace};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) const NIL: u32 = u32::MAX;

const PAGE_BITS: u32 = 8;
const PAGE_LEN: usize = 1 << PAGE_BITS;
/// Page numbers up to this bound index an array; the rest (aliased prefixes, huge ids) a hash map.
const NEAR_PAGES: u64 = 1 << 24;
/// Empty pages kept for the next use.
const SPARE_PAGES: usize = 64;

/// For keys that are hashes already, or page numbers.
#[derive(Clone, Copy, Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys are hashed here")
    }
    fn write_u64(&mut self, value: u64) {
        // The table takes its bucket from the low bits and its tag from the top seven.
        self.0 = value ^ (value << 32);
    }
}

type Direct<V> = HashMap<u64, V, BuildHasherDefault<IdentityHasher>>;

#[derive(Clone)]
struct Page {
    live: u32,
    first: [u32; PAGE_LEN],
}

impl Page {
    fn empty() -> Box<Page> {
        Box::new(Page { live: 0, first: [NIL; PAGE_LEN] })
    }
}

#[derive(Clone, Default)]
struct Paged {
    near: Vec<Option<Box<Page>>>,
    far: Direct<Box<Page>>,
    #[allow(clippy::vec_box, reason = "pages move between here and the directory without being copied")]
    spare: Vec<Box<Page>>,
}

impl Paged {
    fn get(&self, value: u64) -> u32 {
        let (page, at) = (value >> PAGE_BITS, value as usize & (PAGE_LEN - 1));
        let found = if page < NEAR_PAGES {
            self.near.get(page as usize).and_then(Option::as_ref)
        } else {
            self.far.get(&page)
        };
        found.map_or(NIL, |p| p.first[at])
    }

    /// The entry for `value`, made if there is none.
    fn entry(&mut self, value: u64) -> (&mut u32, &mut u32) {
        let (page, at) = (value >> PAGE_BITS, value as usize & (PAGE_LEN - 1));
        let spare = &mut self.spare;
        let fresh = || spare.pop().unwrap_or_else(Page::empty);
        let found = if page < NEAR_PAGES {
            let page = page as usize;
            if page >= self.near.len() {
                self.near.resize_with(page + 1, || None);
            }
            self.near[page].get_or_insert_with(fresh)
        } else {
            self.far.entry(page).or_insert_with(fresh)
        };
        (&mut found.first[at], &mut found.live)
    }

    /// Puts `block` under `value` if nothing is there; tells what was.
    #[inline]
    fn enter(&mut self, value: u64, block: u32) -> u32 {
        let (page, at) = (value >> PAGE_BITS, value as usize & (PAGE_LEN - 1));
        // The usual case: the page is there.
        let (first, live) = match self.near.get_mut(page as usize) {
            Some(Some(page)) => (&mut page.first[at], &mut page.live),
            _ => self.entry(value),
        };
        let before = *first;
        if before == NIL {
            *first = block;
            *live += 1;
        }
        before
    }

    fn remove(&mut self, value: u64) {
        let (page, at) = (value >> PAGE_BITS, value as usize & (PAGE_LEN - 1));
        let slot = if page < NEAR_PAGES {
            match self.near.get_mut(page as usize) {
                Some(slot) => slot,
                None => return,
            }
        } else {
            let Some(entry) = self.far.get_mut(&page) else { return };
            entry.first[at] = NIL;
            entry.live -= 1;
            if entry.live == 0 {
                self.far.remove(&page);
            }
            return;
        };
        let Some(entry) = slot else { return };
        entry.first[at] = NIL;
        entry.live -= 1;
        if entry.live == 0
            && let Some(empty) = slot.take()
            && self.spare.len() < SPARE_PAGES
        {
            self.spare.push(empty);
        }
    }
}

/// The map. It holds one block per identity; further copies hang on that block (see `BlockPool`).
#[derive(Clone, Default)]
pub(crate) struct PrefixIndex {
    prefix: Paged,
    private: Paged,
    hashed: Direct<u32>,
    len: u32,
}

impl PrefixIndex {
    /// Distinct identities held.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// The first block under `key`, or [`NIL`].
    #[inline]
    pub(crate) fn get(&self, key: BlockKey) -> u32 {
        match key.space() {
            KeySpace::Prefix => self.prefix.get(key.value()),
            KeySpace::Private => self.private.get(key.value()),
            KeySpace::Hashed => self.hashed.get(&key.value()).copied().unwrap_or(NIL),
        }
    }

    /// Makes `block` the first under `key` if the key has none; tells the one it has, or [`NIL`].
    #[inline]
    pub(crate) fn enter(&mut self, key: BlockKey, block: u32) -> u32 {
        let before = match key.space() {
            KeySpace::Prefix => self.prefix.enter(key.value(), block),
            KeySpace::Private => self.private.enter(key.value(), block),
            KeySpace::Hashed => match self.hashed.entry(key.value()) {
                Entry::Occupied(entry) => *entry.get(),
                Entry::Vacant(entry) => {
                    entry.insert(block);
                    NIL
                }
            },
        };
        self.len += u32::from(before == NIL);
        before
    }

    /// Sets another first block for a key that has one.
    pub(crate) fn replace(&mut self, key: BlockKey, block: u32) {
        match key.space() {
            KeySpace::Prefix => *self.prefix.entry(key.value()).0 = block,
            KeySpace::Private => *self.private.entry(key.value()).0 = block,
            KeySpace::Hashed => {
                self.hashed.insert(key.value(), block);
            }
        }
    }

    /// Forgets a key.
    pub(crate) fn remove(&mut self, key: BlockKey) {
        self.len -= 1;
        match key.space() {
            KeySpace::Prefix => self.prefix.remove(key.value()),
            KeySpace::Private => self.private.remove(key.value()),
            KeySpace::Hashed => {
                self.hashed.remove(&key.value());
            }
        }
    }
}
