//! Block identity: the name of a full KV block, standing for the whole prefix up to its end.
//!
//! Three ways to get one, each cheap where it is used: arithmetic from a trace's prefix ids, a number
//! reserved for content that only its own request can hit, and a chained hash of tokens. No identity is
//! made in a pass unless a block fills in it.

use crate::request::{Content, Request};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The identity of a full block. Equal keys: equal prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(pub u64);

/// The two top bits of a key say how it was made.
const SPACE_SHIFT: u32 = 62;
const SPACE_MASK: u64 = (1 << SPACE_SHIFT) - 1;

/// How a key was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySpace {
    /// Arithmetic on a trace's prefix ids. Dense.
    Prefix,
    /// Reserved for one request on one rank. Dense.
    Private,
    /// A 62-bit hash of parent and tokens. Two of the blocks alive in a run of a million share one by
    /// accident with a chance of about 1e-7.
    Hashed,
}

impl BlockKey {
    pub(crate) fn in_space(space: KeySpace, value: u64) -> BlockKey {
        BlockKey::new(space as u64, value)
    }

    #[inline]
    fn new(space: u64, value: u64) -> BlockKey {
        BlockKey((space << SPACE_SHIFT) | (value & SPACE_MASK))
    }

    /// How it was made.
    pub fn space(self) -> KeySpace {
        match self.0 >> SPACE_SHIFT {
            0 => KeySpace::Prefix,
            1 => KeySpace::Private,
            _ => KeySpace::Hashed,
        }
    }

    /// The number inside its space.
    pub fn value(self) -> u64 {
        self.0 & SPACE_MASK
    }
}

/// Keys with consecutive numbers of one space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRun {
    /// The first of them.
    pub first: BlockKey,
    /// How many they are.
    pub count: u32,
}

impl KeyRun {
    /// The key at a place of the run.
    #[inline]
    pub fn key(self, at: u32) -> BlockKey {
        BlockKey(self.first.0 + u64::from(at))
    }

    pub(crate) fn contains(self, key: BlockKey) -> bool {
        key.0.wrapping_sub(self.first.0) < u64::from(self.count)
    }
}

/// Gives the keys of one request's blocks. Keys do not depend on when they are asked for.
#[derive(Clone, Debug)]
pub struct Keys {
    block_size: u32,
    source: Source,
    /// First number of this request's private range.
    private_base: u64,
    /// Index of the first block that has a private key.
    first_private: u32,
}

#[derive(Clone, Debug)]
enum Source {
    Private,
    Prefixes {
        ids: Box<[u64]>,
        grid: Grid,
    },
    /// `made` grows as blocks fill.
    Tokens {
        scope: u64,
        prompt: Box<[u32]>,
        made: Vec<BlockKey>,
    },
}

impl Keys {
    /// Keys for `request` in blocks of `block_size` tokens. `next_private` is the rank's counter of
    /// private numbers; the request takes as many as it can ever fill blocks.
    pub fn new(request: &mut Request, block_size: u32, next_private: &mut u64) -> Keys {
        let content = std::mem::replace(&mut request.content, Content::Private);
        let whole_prompt_blocks = request.prompt_tokens / block_size;
        let source = match content {
            Content::Private => Source::Private,
            Content::Prefixes { ids, id_tokens } => {
                Source::Prefixes { ids, grid: Grid::new(id_tokens, block_size) }
            }
            Content::Tokens(prompt) => Source::Tokens { scope: 0, prompt, made: Vec::new() },
            Content::Scoped { scope, tokens } => Source::Tokens { scope, prompt: tokens, made: Vec::new() },
        };
        let first_private = match source {
            Source::Private => 0,
            _ => whole_prompt_blocks,
        };
        let total =
            (u64::from(request.prompt_tokens) + u64::from(request.output.max_tokens)) / u64::from(block_size);
        let private_base = *next_private;
        *next_private += total - u64::from(first_private).min(total);
        Keys { block_size, source, private_base, first_private }
    }

    /// Blocks from the first that other requests may have stored too, so that a look-up can find them
    /// although this request never stored them.
    pub fn shared(&self) -> u32 {
        match self.source {
            Source::Tokens { .. } => u32::MAX,
            _ => self.first_private,
        }
    }

    /// Appends the keys of `blocks` to `into`. Every token of these blocks must be known. `output` are the
    /// request's output tokens where they have an identity.
    pub fn extend(&mut self, blocks: Range<u32>, output: Option<&[u32]>, into: &mut Vec<BlockKey>) {
        self.runs(blocks, output, |run| {
            into.extend((0..run.count).map(|at| run.key(at)));
            true
        });
    }

    /// Gives `take` the same keys in runs, in order, until it says false.
    #[inline]
    pub(crate) fn runs(
        &mut self,
        blocks: Range<u32>,
        output: Option<&[u32]>,
        mut take: impl FnMut(KeyRun) -> bool,
    ) {
        let shared_end = blocks.end.min(self.first_private);
        let mut next = blocks.start;
        match &mut self.source {
            Source::Private => {}
            Source::Prefixes { ids, grid } => {
                while next < shared_end {
                    let run = grid.run(ids, next..shared_end, self.block_size);
                    next += run.count;
                    if !take(run) {
                        return;
                    }
                }
            }
            Source::Tokens { scope, prompt, made } => {
                let end = if output.is_some() { blocks.end } else { shared_end };
                while next < end {
                    while made.len() <= next as usize {
                        let key = hash_block(*scope, prompt, output, made, self.block_size);
                        made.push(key);
                    }
                    let first = made[next as usize];
                    next += 1;
                    if !take(KeyRun { first, count: 1 }) {
                        return;
                    }
                }
            }
        }
        if next < blocks.end {
            let value = self.private_base + u64::from(next - self.first_private);
            take(KeyRun { first: BlockKey::new(1, value), count: blocks.end - next });
        }
    }
}

/// Gives `take` the keys of the whole blocks of a prompt that other requests may have too, in runs, until it says
/// false: those that [`Keys`] gives, for who only asks what is there.
pub fn shared_prompt_keys(request: &Request, block_size: u32, mut take: impl FnMut(KeyRun) -> bool) {
    let whole = request.prompt_tokens / block_size;
    let (scope, prompt) = match &request.content {
        Content::Private => return,
        Content::Tokens(tokens) => (0, tokens),
        Content::Scoped { scope, tokens } => (*scope, tokens),
        Content::Prefixes { ids, id_tokens } => {
            let grid = Grid::new(*id_tokens, block_size);
            let mut next = 0;
            while next < whole {
                let run = grid.run(ids, next..whole, block_size);
                next += run.count;
                if !take(run) {
                    return;
                }
            }
            return;
        }
    };
    let mut made = Vec::with_capacity(whole as usize);
    for _ in 0..whole {
        let first = hash_block(scope, prompt, None, &made, block_size);
        made.push(first);
        if !take(KeyRun { first, count: 1 }) {
            return;
        }
    }
}

/// How engine blocks lie on trace ids. The id under a block's last token names the prefix up to that id's
/// end; with the block end's place inside it, it names the prefix up to the block's end.
#[derive(Clone, Copy, Debug)]
struct Grid {
    id_tokens: u32,
    /// Distance of the block ends that can occur inside an id.
    grain: u32,
    /// Such places in an id.
    parts: u32,
    /// log2 of `parts`, where blocks divide ids and their number is a power of two: the usual case.
    shift: Option<u32>,
}

impl Grid {
    fn new(id_tokens: u32, block_size: u32) -> Grid {
        let grain = gcd(id_tokens, block_size);
        let parts = id_tokens / grain;
        let shift = (grain == block_size && parts.is_power_of_two()).then(|| parts.trailing_zeros());
        Grid { id_tokens, grain, parts, shift }
    }

    /// The keys of `blocks` as far as they are consecutive: those of one id, and of further ids that are.
    #[inline]
    fn run(&self, ids: &[u64], blocks: Range<u32>, block_size: u32) -> KeyRun {
        let parts = u64::from(self.parts);
        let Some(shift) = self.shift else {
            let (id, part) = self.place(blocks.start, block_size);
            return KeyRun { first: BlockKey::new(0, ids[id] * parts + u64::from(part)), count: 1 };
        };
        let part = blocks.start & (self.parts - 1);
        let mut at = (blocks.start >> shift) as usize;
        let first = BlockKey::new(0, ids[at] * parts + u64::from(part));
        let most = blocks.end - blocks.start;
        let mut count = self.parts - part;
        while count < most && ids[at + 1] == ids[at] + 1 {
            count += self.parts;
            at += 1;
        }
        KeyRun { first, count: count.min(most) }
    }

    /// Which id a block ends in, and at which of its places.
    fn place(&self, index: u32, block_size: u32) -> (usize, u32) {
        let last = (u64::from(index) + 1) * u64::from(block_size) - 1;
        let id_tokens = u64::from(self.id_tokens);
        ((last / id_tokens) as usize, (last % id_tokens) as u32 / self.grain)
    }
}

/// The key of the block after `made`, from its parent's key, or else the scope, and its own tokens.
fn hash_block(
    scope: u64,
    prompt: &[u32],
    output: Option<&[u32]>,
    made: &[BlockKey],
    block_size: u32,
) -> BlockKey {
    let start = made.len() * block_size as usize;
    let tokens = prompt.iter().chain(output.unwrap_or_default()).skip(start).take(block_size as usize);
    let mut bytes = [0u8; 256];
    let mut filled = 0;
    let mut hash = made.last().map_or(scope, |parent| parent.0);
    for token in tokens {
        bytes[filled..filled + 4].copy_from_slice(&token.to_le_bytes());
        filled += 4;
        if filled == bytes.len() {
            hash = xxh3_64_with_seed(&bytes, hash);
            filled = 0;
        }
    }
    if filled > 0 {
        hash = xxh3_64_with_seed(&bytes[..filled], hash);
    }
    BlockKey::new(2, hash)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nanos::Nanos;
    use crate::request::{HandOff, OutputPlan, RequestId};

    fn request(prompt_tokens: u32, content: Content) -> Request {
        Request {
            id: RequestId(0),
            arrival: Nanos::ZERO,
            prompt_tokens,
            content,
            output: OutputPlan::of_length(100),
            priority: None,
            tie: 0,
            hand_off: HandOff::None,
        }
    }

    impl Keys {
        fn get(&mut self, index: u32, output: Option<&[u32]>) -> BlockKey {
            let mut keys = Vec::new();
            self.extend(index..index + 1, output, &mut keys);
            keys[0]
        }
    }

    fn prefixes(ids: &[u64], id_tokens: u32, block_size: u32) -> Keys {
        let n = ids.len() as u32 * id_tokens;
        Keys::new(&mut request(n, Content::Prefixes { ids: ids.into(), id_tokens }), block_size, &mut 0)
    }

    #[test]
    fn equal_prefixes_have_equal_keys_whatever_the_block_size() {
        for (id_tokens, block_size) in [(512, 64), (16, 64), (512, 48), (64, 64), (24, 16)] {
            let mut a = prefixes(&[0, 1, 2, 3, 4, 5, 6, 7], id_tokens, block_size);
            let mut b = prefixes(&[0, 1, 2, 3, 8, 9, 10, 11], id_tokens, block_size);
            let shared = 4 * id_tokens / block_size;
            let whole = 8 * id_tokens / block_size;
            for i in 0..whole {
                assert_eq!(a.get(i, None) == b.get(i, None), i < shared, "{id_tokens} {block_size} {i}");
            }
            let mut all: Vec<_> = (0..whole).map(|i| a.get(i, None)).collect();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), whole as usize, "no two blocks of a prompt share a key");
        }
    }

    #[test]
    fn a_prompt_tells_the_keys_that_its_blocks_will_have() {
        let contents = [
            (70, Content::Private),
            (70, Content::Prefixes { ids: vec![3, 4, 9, 10, 11].into(), id_tokens: 16 }),
            (70, Content::Prefixes { ids: vec![0, 7].into(), id_tokens: 48 }),
            (70, Content::Tokens((0..70).collect())),
            (70, Content::Scoped { scope: 5, tokens: (0..70).collect() }),
        ];
        for (prompt_tokens, content) in contents {
            for block_size in [1, 8, 12, 16, 64, 128] {
                let mut request = request(prompt_tokens, content.clone());
                let mut told = Vec::new();
                shared_prompt_keys(&request, block_size, |run| {
                    told.extend((0..run.count).map(|at| run.key(at)));
                    true
                });
                let whole = prompt_tokens / block_size;
                let mut keys = Keys::new(&mut request, block_size, &mut 0);
                let mut all = Vec::new();
                keys.extend(0..whole.min(keys.shared()), None, &mut all);
                assert_eq!(told, all, "{block_size} {content:?}");
            }
        }
    }

    #[test]
    fn token_keys_chain_over_prompt_and_output() {
        let prompt: Vec<u32> = (0..10).collect();
        let output: Vec<u32> = (10..30).collect();
        let mut short = Keys::new(&mut request(10, Content::Tokens(prompt.clone().into())), 4, &mut 0);
        let both: Vec<u32> = (0..30).collect();
        let mut long = Keys::new(&mut request(30, Content::Tokens(both.into())), 4, &mut 0);
        for i in 0..7 {
            assert_eq!(short.get(i, Some(&output)), long.get(i, None));
        }
        let mut other = Keys::new(&mut request(10, Content::Tokens(vec![9; 10].into())), 4, &mut 0);
        assert_ne!(other.get(1, None), long.get(1, None));
    }

    #[test]
    fn scopes_part_equal_tokens() {
        let prompt: Box<[u32]> = (0..12).collect();
        let keys = |content| Keys::new(&mut request(12, content), 4, &mut 0);
        let mut plain = keys(Content::Tokens(prompt.clone()));
        let mut one = keys(Content::Scoped { scope: 1, tokens: prompt.clone() });
        let mut again = keys(Content::Scoped { scope: 1, tokens: prompt.clone() });
        let mut two = keys(Content::Scoped { scope: 2, tokens: prompt });
        for block in 0..3 {
            let all = [plain.get(block, None), one.get(block, None), two.get(block, None)];
            assert_eq!(all[1], again.get(block, None));
            assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
        }
    }

    #[test]
    fn private_ranges_do_not_overlap() {
        let mut next = 0;
        let mut a = Keys::new(&mut request(100, Content::Private), 16, &mut next);
        let mut b = Keys::new(&mut request(100, Content::Private), 16, &mut next);
        assert_eq!(next, 24);
        assert_eq!(a.get(11, None), BlockKey::new(1, 11));
        assert_eq!(b.get(0, None), BlockKey::new(1, 12));
    }
}
