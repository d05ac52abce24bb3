//! The event log: every change of a prefix cache and every preemption, in the order in which a rank made
//! them, stamped with the pass that made them visible. For people who compare two schedulers step by
//! step.

use crate::json_line;
use crate::rank::Role;
use serde::{Serialize, Serializer};
use std::io::{self, Write};
use windtunnel_engine::{BlockKey, KvEvent, KvEvents, Nanos, RequestId, Tier};

/// Which pass an event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassStamp {
    /// The worker's role.
    pub role: Role,
    /// The worker, numbered from 0 within its role.
    pub worker: u32,
    /// The rank in it.
    pub rank: u32,
    /// The rank's pass, numbered from 0.
    pub pass: u64,
    /// When the event became visible.
    pub time: Nanos,
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    time_ms: f64,
    role: Role,
    worker: u32,
    rank: u32,
    pass: u64,
    #[serde(flatten)]
    event: Event<'a>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Stored {
        request: u64,
        first_block: u32,
        parent: Option<Key>,
        #[serde(serialize_with = "as_keys")]
        blocks: &'a [BlockKey],
    },
    Removed {
        #[serde(serialize_with = "as_keys")]
        blocks: &'a [BlockKey],
    },
    Cleared,
    Preempted {
        request: u64,
    },
}

/// A block key as 16 hexadecimal digits: as a number it would be rounded by every reader that keeps JSON
/// numbers as floating-point ones (jq, JavaScript).
#[derive(Clone, Copy, Debug)]
struct Key(BlockKey);

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:016x}", self.0.0))
    }
}

fn as_keys<S: Serializer>(keys: &[BlockKey], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(keys.iter().copied().map(Key))
}

/// Writes events as lines.
#[derive(Debug)]
pub struct EventLog<W> {
    out: W,
}

impl<W: Write> EventLog<W> {
    /// A log that writes to `out`, which should be buffered.
    pub fn new(out: W) -> EventLog<W> {
        EventLog { out }
    }

    /// Writes the cache events of a pass. Block keys are the engine's 64-bit identities; a private one
    /// names a block on its own rank only.
    pub fn kv(&mut self, at: &PassStamp, events: &KvEvents) -> io::Result<()> {
        events.iter().try_for_each(|event| match event {
            // The log is of the cache on the device.
            KvEvent::Stored { tier, .. } | KvEvent::Removed { tier, .. } if tier != Tier::Device => Ok(()),
            KvEvent::Stored { request, first_block, parent, blocks, .. } => {
                let parent = parent.map(Key);
                self.line(at, Event::Stored { request: request.0, first_block, parent, blocks })
            }
            KvEvent::Removed { blocks, .. } => self.line(at, Event::Removed { blocks }),
            KvEvent::Cleared => self.line(at, Event::Cleared),
        })
    }

    /// Writes that a request lost its blocks.
    pub fn preempted(&mut self, at: &PassStamp, request: RequestId) -> io::Result<()> {
        self.line(at, Event::Preempted { request: request.0 })
    }

    fn line(&mut self, at: &PassStamp, event: Event<'_>) -> io::Result<()> {
        let line = Line {
            time_ms: at.time.as_ms(),
            role: at.role,
            worker: at.worker,
            rank: at.rank,
            pass: at.pass,
            event,
        };
        json_line::write(&mut self.out, &line)
    }

    /// The destination, to be finished.
    pub fn into_inner(self) -> W {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_event() {
        let at = PassStamp { role: Role::Aggregated, worker: 2, rank: 1, pass: 17, time: Nanos(12_000_500) };
        let mut log = EventLog::new(Vec::new());
        let stored = Event::Stored {
            request: 3,
            first_block: 1,
            parent: Some(Key(BlockKey(9))),
            // Neighbours that are one floating-point number.
            blocks: &[BlockKey(10), BlockKey(1 << 62), BlockKey((1 << 62) + 1)],
        };
        log.line(&at, stored).unwrap();
        log.line(&at, Event::Removed { blocks: &[BlockKey(10)] }).unwrap();
        log.preempted(&at, RequestId(3)).unwrap();
        log.kv(&at, &KvEvents::default()).unwrap();
        let text = String::from_utf8(log.into_inner()).unwrap();
        let stamp = r#"{"time_ms":12.0005,"role":"aggregated","worker":2,"rank":1,"pass":17,"#;
        let want = [
            concat!(
                r#""event":"stored","request":3,"first_block":1,"parent":"0000000000000009","#,
                r#""blocks":["000000000000000a","4000000000000000","4000000000000001"]}"#
            ),
            r#""event":"removed","blocks":["000000000000000a"]}"#,
            r#""event":"preempted","request":3}"#,
        ];
        assert_eq!(text, want.map(|event| format!("{stamp}{event}\n")).concat());
    }
}
