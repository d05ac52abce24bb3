//! Block identity → a number: in a cache the physical block that was entered first under it, in an index of
//! several caches who has it.
//!
//! Identities that are dense numbers live in pages made on demand and given back when empty, so that a
//! look-up is two array reads and memory follows what is cached, not what was ever seen. Hashed
//! identities live in a hash map.

use crate::identity::{BlockKey, KeyRun, KeySpace};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) use super::block_table::NIL;

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

    /// Page `page`, made if it is not there.
    fn page(&mut self, page: u64) -> &mut Page {
        let spare = &mut self.spare;
        let fresh = || spare.pop().unwrap_or_else(Page::empty);
        if page < NEAR_PAGES {
            let page = page as usize;
            if page >= self.near.len() {
                self.near.resize_with(page + 1, || None);
            }
            self.near[page].get_or_insert_with(fresh)
        } else {
            self.far.entry(page).or_insert_with(fresh)
        }
    }

    /// The entry for `value`, made if there is none.
    fn entry(&mut self, value: u64) -> (&mut u32, &mut u32) {
        let page = self.page(value >> PAGE_BITS);
        (&mut page.first[value as usize & (PAGE_LEN - 1)], &mut page.live)
    }

    /// The entries for `count` values from `value` on that stand in the same page, if it is there.
    #[inline]
    fn piece(&self, value: u64, count: u32) -> Option<&[u32]> {
        let (page, at) = (value >> PAGE_BITS, value as usize & (PAGE_LEN - 1));
        let found = if page < NEAR_PAGES {
            self.near.get(page as usize).and_then(Option::as_ref)
        } else {
            self.far.get(&page)
        };
        found.map(|page| &page.first[at..PAGE_LEN.min(at + count as usize)])
    }

    /// Puts `blocks` under the values from `value` on, as far as these stand in one page; tells how many
    /// those are. Where there is a block already, `taken` is told the position and that block.
    #[inline]
    fn enter_piece(&mut self, value: u64, blocks: &[u32], mut taken: impl FnMut(usize, u32)) -> (usize, u32) {
        let (page, at) = (value >> PAGE_BITS, value as usize & (PAGE_LEN - 1));
        // The usual case: the page is there.
        let page = match self.near.get_mut(page as usize) {
            Some(Some(page)) => page,
            _ => self.page(page),
        };
        let entries = &mut page.first[at..];
        let mut entered = 0;
        for (i, (first, &block)) in entries.iter_mut().zip(blocks).enumerate() {
            if *first == NIL {
                *first = block;
                entered += 1;
            } else {
                taken(i, *first);
            }
        }
        page.live += entered;
        (blocks.len().min(PAGE_LEN - at), entered)
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

    /// Forgets `value` if `block` stands there.
    #[inline]
    fn remove_if(&mut self, value: u64, block: u32) -> bool {
        let (page, at) = (value >> PAGE_BITS, value as usize & (PAGE_LEN - 1));
        let near = page < NEAR_PAGES;
        let found = match near {
            true => self.near.get_mut(page as usize).and_then(Option::as_mut),
            false => self.far.get_mut(&page),
        };
        let Some(entries) = found.filter(|entries| entries.first[at] == block) else { return false };
        entries.first[at] = NIL;
        entries.live -= 1;
        if entries.live == 0 {
            self.drop_page(page);
        }
        true
    }

    /// Forgets `value`, under which there is something.
    fn remove(&mut self, value: u64) {
        let block = self.get(value);
        self.remove_if(value, block);
    }

    /// Changes every entry that there is. Tells how many are no more.
    fn update_all(&mut self, change: &mut impl FnMut(u32) -> u32) -> u32 {
        let mut update = |page: &mut Page| {
            let before = page.live;
            for entry in page.first.iter_mut().filter(|entry| **entry != NIL) {
                *entry = change(*entry);
                page.live -= u32::from(*entry == NIL);
            }
            before - page.live
        };
        let mut gone = 0;
        for page in self.near.iter_mut() {
            let Some(entries) = page else { continue };
            gone += update(entries);
            if entries.live == 0 {
                *page = None;
            }
        }
        self.far.retain(|_, entries| {
            gone += update(entries);
            entries.live > 0
        });
        gone
    }

    fn drop_page(&mut self, page: u64) {
        let empty = match page < NEAR_PAGES {
            true => self.near[page as usize].take(),
            false => self.far.remove(&page),
        };
        if let Some(empty) = empty
            && self.spare.len() < SPARE_PAGES
        {
            self.spare.push(empty);
        }
    }
}

/// The map. In a cache it holds one block per identity; further copies hang on that block (see `BlockPool`).
#[derive(Clone, Default)]
pub struct KeyTable {
    prefix: Paged,
    private: Paged,
    hashed: Direct<u32>,
    len: u32,
}

impl KeyTable {
    /// No number: what is under an identity that has none.
    pub const NIL: u32 = NIL;

    /// An empty table.
    pub fn new() -> KeyTable {
        KeyTable::default()
    }

    /// Changes what is under the keys of a run: `change` is given each key's number, or [`NIL`](Self::NIL), in order,
    /// and says what is to be there instead.
    #[inline]
    pub fn update_run(&mut self, run: KeyRun, mut change: impl FnMut(BlockKey, u32) -> u32) {
        let paged = match run.first.space() {
            KeySpace::Prefix => &mut self.prefix,
            KeySpace::Private => &mut self.private,
            KeySpace::Hashed => {
                for at in 0..run.count {
                    let key = run.key(at);
                    let before = self.hashed.get(&key.value()).copied().unwrap_or(NIL);
                    let after = change(key, before);
                    match after {
                        NIL => self.hashed.remove(&key.value()),
                        _ => self.hashed.insert(key.value(), after),
                    };
                    self.len = self.len + u32::from(before == NIL) - u32::from(after == NIL);
                }
                return;
            }
        };
        let mut done = 0;
        while done < run.count {
            let value = run.first.value() + u64::from(done);
            let (number, at) = (value >> PAGE_BITS, value as usize & (PAGE_LEN - 1));
            let count = (PAGE_LEN - at).min((run.count - done) as usize);
            let page = paged.page(number);
            let (mut came, mut went) = (0, 0);
            for entry in &mut page.first[at..at + count] {
                let before = *entry;
                let after = change(run.key(done), before);
                *entry = after;
                came += u32::from(before == NIL);
                went += u32::from(after == NIL);
                done += 1;
            }
            page.live = page.live + came - went;
            self.len = self.len + came - went;
            if page.live == 0 {
                paged.drop_page(number);
            }
        }
    }

    /// Changes every number that there is: `change` says what is to be there instead, [`NIL`](Self::NIL) for nothing.
    pub fn update_all(&mut self, mut change: impl FnMut(u32) -> u32) {
        for paged in [&mut self.prefix, &mut self.private] {
            self.len -= paged.update_all(&mut change);
        }
        let before = self.hashed.len();
        self.hashed.retain(|_, number| {
            *number = change(*number);
            *number != NIL
        });
        self.len -= (before - self.hashed.len()) as u32;
    }

    /// Gives `take` what is under the keys of a run, in order and in pieces, until it says false or a key has
    /// nothing. True if it said true to the end.
    #[inline]
    pub fn read_run(&self, run: KeyRun, mut take: impl FnMut(&[u32]) -> bool) -> bool {
        let paged = match run.first.space() {
            KeySpace::Prefix => &self.prefix,
            KeySpace::Private => &self.private,
            KeySpace::Hashed => {
                return (0..run.count).all(|at| match self.hashed.get(&run.key(at).value()) {
                    Some(&number) => take(&[number]),
                    None => false,
                });
            }
        };
        let mut done = 0;
        while done < run.count {
            let Some(piece) = paged.piece(run.first.value() + u64::from(done), run.count - done) else {
                return false;
            };
            let here = piece.iter().position(|&number| number == NIL).unwrap_or(piece.len());
            if !take(&piece[..here]) || here < piece.len() {
                return false;
            }
            done += here as u32;
        }
        true
    }

    /// Distinct identities held.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// What is under `key`, or [`NIL`](Self::NIL).
    #[inline]
    pub fn get(&self, key: BlockKey) -> u32 {
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

    /// Appends the first blocks under the keys of a run to `into`, up to the first key that has none; tells
    /// how many have one.
    #[inline]
    pub(crate) fn find_run(&self, run: KeyRun, into: &mut Vec<u32>) -> u32 {
        let paged = match run.first.space() {
            KeySpace::Prefix => &self.prefix,
            KeySpace::Private => &self.private,
            KeySpace::Hashed => {
                let found = (0..run.count).map_while(|at| self.hashed.get(&run.key(at).value()));
                let before = into.len();
                into.extend(found);
                return (into.len() - before) as u32;
            }
        };
        let mut found = 0;
        while found < run.count {
            let Some(piece) = paged.piece(run.first.value() + u64::from(found), run.count - found) else {
                break;
            };
            let here = piece.iter().position(|&block| block == NIL).unwrap_or(piece.len());
            into.extend_from_slice(&piece[..here]);
            found += here as u32;
            if here < piece.len() {
                break;
            }
        }
        found
    }

    /// Makes `blocks` the first under the keys of a run, where these have none. Where they do, `taken` is
    /// told the position and that block.
    #[inline]
    pub(crate) fn enter_run(&mut self, run: KeyRun, blocks: &[u32], mut taken: impl FnMut(usize, u32)) {
        let paged = match run.first.space() {
            KeySpace::Prefix => &mut self.prefix,
            KeySpace::Private => &mut self.private,
            KeySpace::Hashed => {
                for (at, &block) in blocks.iter().enumerate() {
                    let first = self.enter(run.key(at as u32), block);
                    if first != NIL {
                        taken(at, first);
                    }
                }
                return;
            }
        };
        let mut done = 0;
        while done < blocks.len() {
            let value = run.first.value() + done as u64;
            let (piece, entered) =
                paged.enter_piece(value, &blocks[done..], |at, first| taken(done + at, first));
            done += piece;
            self.len += entered;
        }
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

    /// Forgets a key if `block` is the first under it.
    #[inline]
    pub(crate) fn remove_if(&mut self, key: BlockKey, block: u32) -> bool {
        let removed = match key.space() {
            KeySpace::Prefix => self.prefix.remove_if(key.value(), block),
            KeySpace::Private => self.private.remove_if(key.value(), block),
            KeySpace::Hashed => match self.hashed.entry(key.value()) {
                Entry::Occupied(entry) if *entry.get() == block => {
                    entry.remove();
                    true
                }
                _ => false,
            },
        };
        self.len -= u32::from(removed);
        removed
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
