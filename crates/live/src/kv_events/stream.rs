//! From the engine core's events to what goes out: blocks get the engine's own hashes and their tokens, and events
//! are gathered into batches when the engine would publish them.
//!
//! vLLM publishes with every step that has events (v1/core/sched/scheduler.py `update_from_output`, 0.33.0).
//! SGLang publishes behind every prefill batch, behind every `decode_log_interval`-th decode batch, and when it
//! has nothing to do (managers/scheduler_components/metrics_reporter.py, `on_idle`; 0.5.23); what gathers until
//! then is joined where it continues.

use super::event::{Dialect, Encoding, ShownKey, Stored, WireEvent, WireHash, batch};
use super::hash::{BlockHash, BlockHasher, Namespace, PageHasher, SglangNamespace};
use crate::observer::RequestInfo;
use std::collections::HashMap;
use std::sync::Arc;
use windtunnel_engine::{BlockKey, Content, KvEvent, KvEvents, RequestId};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// How blocks are named.
#[derive(Clone, Debug)]
pub enum Naming {
    /// As vLLM does.
    Vllm {
        /// Makes the hashes.
        hasher: BlockHasher,
        /// Events show eight bytes of them as a number, not all of them.
        as_numbers: bool,
    },
    /// As SGLang does.
    Sglang {
        /// `format: dynamo`.
        dynamo: bool,
        /// Decode batches from one publication to the next (`--decode-log-interval`).
        decode_log_interval: u64,
    },
}

impl Naming {
    fn dialect(&self) -> Dialect {
        match self {
            Naming::Vllm { .. } => Dialect::Vllm,
            Naming::Sglang { .. } => Dialect::Sglang,
        }
    }
}

/// What makes the blocks of a request: its tokens and what parts them from others.
#[derive(Clone, Debug)]
pub struct Source {
    /// The prompt.
    pub prompt: Arc<[u32]>,
    /// Its output, as much of it as can ever stand in a block.
    pub output: Arc<[u32]>,
    /// Adapter, salt and media.
    pub namespace: Arc<Namespace>,
}

impl Source {
    /// What is known of a request.
    pub fn of(info: &RequestInfo) -> Source {
        Source {
            prompt: info.prompt.clone(),
            output: info.output.clone(),
            namespace: Arc::new(Namespace {
                adapter: info.lora.as_deref().cloned(),
                cache_salt: info.cache_salt.as_deref().map(str::to_owned),
                media: Vec::new(),
            }),
        }
    }

    /// The prompt as the engine core compares it. Adapter and salt make a scope; the placeholders of a medium
    /// become tokens of their own kind, from 2^31 on, that name it.
    pub fn content(&self) -> Content {
        let Namespace { adapter, cache_salt, media } = &*self.namespace;
        let mut tokens: Box<[u32]> = self.prompt.as_ref().into();
        for medium in media {
            let places = tokens.iter_mut().skip(medium.offset as usize).take(medium.length as usize);
            for (at, token) in (0..).zip(places) {
                *token = xxh3_64_with_seed(medium.identifier.as_bytes(), at) as u32 | 1 << 31;
            }
        }
        if adapter.is_none() && cache_salt.is_none() {
            return Content::Tokens(tokens);
        }
        let named = |text: Option<&str>| text.map_or(0, |text| xxh3_64(text.as_bytes()));
        let parts = [
            named(adapter.as_ref().map(|adapter| adapter.name.as_str())),
            named(adapter.as_ref().map(|adapter| adapter.path.as_str())),
            named(cache_salt.as_deref()),
        ];
        let scope = xxh3_64(&parts.map(u64::to_le_bytes).concat()).max(1);
        Content::Scoped { scope, tokens }
    }

    /// The tokens of some of its blocks.
    fn tokens(&self, blocks: std::ops::Range<u32>, block_size: u32, into: &mut Vec<u32>) {
        let (start, end) = (blocks.start * block_size, blocks.end * block_size);
        let all = self.prompt.iter().chain(self.output.iter());
        into.extend(all.skip(start as usize).take((end - start) as usize));
    }

    fn sglang(&self) -> SglangNamespace {
        let adapter = self.namespace.adapter.as_ref();
        SglangNamespace {
            // The engine appends an id that it draws when it loads the adapter.
            extra_key: adapter.map(|adapter| adapter.path.clone()),
            cache_salt: self.namespace.cache_salt.clone(),
            lora_name: adapter.map(|adapter| adapter.name.clone()),
        }
    }
}

/// A cached block: its name, what names those behind it, and how many copies there are.
#[derive(Clone, Copy, Debug)]
struct Cached {
    link: Link,
    shown: WireHash,
    copies: u32,
}

/// What goes into the hash of the next block.
#[derive(Clone, Copy, Debug)]
enum Link {
    Block(BlockHash),
    Page([u8; 32]),
}

/// The events of one rank, on their way out.
#[derive(Debug)]
pub struct EventStream {
    naming: Naming,
    encoding: Encoding,
    block_size: u32,
    dp_rank: u32,
    sources: HashMap<RequestId, Source>,
    /// Requests that have ended; their last events may still come with the next pass.
    ended: Vec<RequestId>,
    cached: HashMap<BlockKey, Cached>,
    pending: Vec<WireEvent>,
    decodes: u64,
}

impl EventStream {
    /// The stream of rank `dp_rank`, in blocks or pages of `block_size` tokens.
    pub fn new(naming: Naming, encoding: Encoding, block_size: u32, dp_rank: u32) -> EventStream {
        EventStream {
            naming,
            encoding,
            block_size,
            dp_rank,
            sources: HashMap::new(),
            ended: Vec::new(),
            cached: HashMap::new(),
            pending: Vec::new(),
            decodes: 0,
        }
    }

    /// A request that may store blocks from now on.
    pub fn submitted(&mut self, id: RequestId, source: Source) {
        self.sources.insert(id, source);
    }

    /// A request that has ended.
    pub fn ended(&mut self, id: RequestId) {
        self.ended.push(id);
    }

    /// Blocks in the prefix cache, by what was published.
    pub fn cached(&self) -> usize {
        self.cached.len()
    }

    /// Takes the events of a completed pass, which computed prefill or not, and decodes or not. A rank that is
    /// `idle` afterwards has nothing left. Returns what is to be published now.
    pub fn pass(
        &mut self,
        events: &KvEvents,
        prefill: bool,
        decode: bool,
        idle: bool,
        timestamp: f64,
    ) -> Option<Vec<u8>> {
        self.take(events);
        let due = match self.naming {
            Naming::Vllm { .. } => true,
            Naming::Sglang { decode_log_interval, .. } => {
                let by_decode = !prefill && decode && {
                    self.decodes += 1;
                    self.decodes.is_multiple_of(decode_log_interval)
                };
                prefill || by_decode || idle
            }
        };
        if due { self.publish(timestamp) } else { None }
    }

    /// The events of a reset on request. vLLM has them wait for the next step.
    pub fn reset(&mut self, events: &KvEvents) {
        self.take(events);
    }

    /// An idle rank's turn. SGLang publishes what is left; a vLLM engine that does nothing publishes nothing.
    pub fn publish_idle(&mut self, timestamp: f64) -> Option<Vec<u8>> {
        match self.naming {
            Naming::Vllm { .. } => None,
            Naming::Sglang { .. } => self.publish(timestamp),
        }
    }

    /// What is still waiting, as a batch.
    fn publish(&mut self, timestamp: f64) -> Option<Vec<u8>> {
        if self.pending.is_empty() {
            return None;
        }
        let bytes = batch(timestamp, &self.pending, self.dp_rank, self.naming.dialect(), self.encoding);
        self.pending.clear();
        Some(bytes)
    }

    fn take(&mut self, events: &KvEvents) {
        for event in events.parts() {
            match event {
                KvEvent::Stored { request, first_block, parent, blocks, .. } => {
                    self.store(request, first_block, parent, blocks);
                }
                KvEvent::Removed { blocks, .. } => self.remove(blocks),
                KvEvent::Cleared => {
                    self.cached.clear();
                    self.pending.push(WireEvent::Cleared);
                }
            }
        }
        for id in self.ended.drain(..) {
            self.sources.remove(&id);
        }
    }

    /// A request that nobody told of stores nothing that can be named; its blocks stay unpublished.
    fn store(&mut self, request: RequestId, first: u32, parent: Option<BlockKey>, blocks: &[BlockKey]) {
        let Some(source) = self.sources.get(&request) else { return };
        let range = first..first + blocks.len() as u32;
        let mut tokens = Vec::with_capacity(blocks.len() * self.block_size as usize);
        source.tokens(range.clone(), self.block_size, &mut tokens);
        let namer = Namer::new(&self.naming, source);
        let before = parent.and_then(|key| self.cached.get(&key));
        let (mut link, parent) = match before {
            Some(before) => (Some(before.link), Some(before.shown)),
            None => namer.chain(source, first, self.block_size),
        };
        let mut hashes = Vec::with_capacity(blocks.len());
        let mut extra_keys = Vec::new();
        for ((block, &key), tokens) in range.zip(blocks).zip(tokens.chunks_exact(self.block_size as usize)) {
            let start = block * self.block_size;
            let (next, shown) = namer.name(link, tokens, start);
            link = Some(next);
            hashes.push(shown);
            if let Naming::Vllm { .. } = self.naming {
                let keys = source.namespace.extra_keys(start, start + self.block_size);
                extra_keys.push(keys.into_iter().map(ShownKey::from).collect());
            }
            self.cached.entry(key).or_insert(Cached { link: next, shown, copies: 0 }).copies += 1;
        }
        let stored = Stored {
            hashes,
            parent,
            tokens,
            block_size: self.block_size,
            lora_id: namer.lora_id(),
            lora_name: source.namespace.adapter.as_ref().map(|adapter| adapter.name.as_str().into()),
            extra_keys,
            cache_salt: source.namespace.cache_salt.as_deref().map(Into::into),
        };
        self.push_stored(stored);
    }

    /// SGLang makes one event of what continues the one before it.
    fn push_stored(&mut self, stored: Stored) {
        if let (Naming::Sglang { .. }, Some(WireEvent::Stored(last))) =
            (&self.naming, self.pending.last_mut())
        {
            let alike = last.cache_salt == stored.cache_salt && last.lora_name == stored.lora_name;
            if alike && stored.parent.is_some() && stored.parent == last.hashes.last().copied() {
                last.hashes.extend(stored.hashes);
                last.tokens.extend(stored.tokens);
                return;
            }
        }
        self.pending.push(WireEvent::Stored(stored));
    }

    fn remove(&mut self, blocks: &[BlockKey]) {
        let mut hashes = Vec::with_capacity(blocks.len());
        for key in blocks {
            let Some(cached) = self.cached.get_mut(key) else { continue };
            hashes.push(cached.shown);
            cached.copies -= 1;
            if cached.copies == 0 {
                self.cached.remove(key);
            }
        }
        if hashes.is_empty() {
            return;
        }
        if let (Naming::Sglang { .. }, Some(WireEvent::Removed(last))) =
            (&self.naming, self.pending.last_mut())
        {
            last.extend(hashes);
            return;
        }
        self.pending.push(WireEvent::Removed(hashes));
    }
}

/// Names the blocks of one request.
enum Namer<'a> {
    Vllm { hasher: &'a BlockHasher, as_numbers: bool, namespace: &'a Namespace },
    Sglang(PageHasher),
}

impl<'a> Namer<'a> {
    fn new(naming: &'a Naming, source: &'a Source) -> Namer<'a> {
        match naming {
            Naming::Vllm { hasher, as_numbers } => {
                Namer::Vllm { hasher, as_numbers: *as_numbers, namespace: &source.namespace }
            }
            Naming::Sglang { dynamo, .. } => Namer::Sglang(PageHasher::new(&source.sglang(), *dynamo)),
        }
    }

    /// Only vLLM numbers its adapters.
    fn lora_id(&self) -> Option<u32> {
        match self {
            Namer::Vllm { namespace, .. } => namespace.adapter.as_ref().map(|adapter| adapter.id),
            Namer::Sglang(_) => None,
        }
    }

    /// The block behind `link` that begins with token `start`.
    fn name(&self, link: Option<Link>, tokens: &[u32], start: u32) -> (Link, WireHash) {
        match self {
            Namer::Vllm { hasher, as_numbers, namespace } => {
                let parent = link.and_then(|link| match link {
                    Link::Block(hash) => Some(hash),
                    Link::Page(_) => None,
                });
                let keys = namespace.extra_keys(start, start + tokens.len() as u32);
                let hash = hasher.hash(parent, tokens, &keys);
                let shown =
                    if *as_numbers { WireHash::Unsigned(hash.as_u64()) } else { WireHash::Bytes(hash) };
                (Link::Block(hash), shown)
            }
            Namer::Sglang(hasher) => {
                let parent = link.and_then(|link| match link {
                    Link::Page(digest) => Some(digest),
                    Link::Block(_) => None,
                });
                let digest = hasher.digest(parent, tokens);
                (Link::Page(digest), WireHash::Signed(hasher.number(digest)))
            }
        }
    }

    /// The block before block `first` of a request, made anew from its first token on: for blocks whose parent
    /// was not published here.
    fn chain(&self, source: &Source, first: u32, block_size: u32) -> (Option<Link>, Option<WireHash>) {
        let mut tokens = Vec::new();
        source.tokens(0..first, block_size, &mut tokens);
        let mut last = (None, None);
        for (at, tokens) in (0..).zip(tokens.chunks_exact(block_size as usize)) {
            let (link, shown) = self.name(last.0, tokens, at * block_size);
            last = (Some(link), Some(shown));
        }
        last
    }
}
