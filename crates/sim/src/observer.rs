//! Writing what happens while it happens: the event log and periodic telemetry.
//!
//! Rank groups run ahead of each other, so their events are buffered until none can add an earlier one, and
//! then written in order of time, role, worker and rank.

use crate::error::SimError;
use crate::group::{Group, Lanes};
use crate::lane::Lane;
use std::collections::VecDeque;
use std::io::Write;
use windtunnel_engine::{KvEvents, Nanos, RequestId};
use windtunnel_report::{EventLog, PassStamp, Role, TelemetrySample, TelemetryWriter};

/// Time between two flushes of the event log while nothing arrives.
const EVENT_WINDOW: Nanos = Nanos(1_000_000_000);

/// One rank's events that are not yet written.
#[derive(Default)]
pub(crate) struct EventBuffer {
    entries: Vec<Entry>,
    /// Preemptions of passes that have not ended.
    decided: VecDeque<(u64, RequestId)>,
}

struct Entry {
    time: Nanos,
    pass: u64,
    what: What,
}

enum What {
    Cache(Box<KvEvents>),
    Preempted(RequestId),
}

impl EventBuffer {
    /// A request lost its blocks when pass `pass` was scheduled. Like the cache events of that pass, it is
    /// told when the pass ends.
    pub(crate) fn preempted(&mut self, pass: u64, id: RequestId) {
        self.decided.push_back((pass, id));
    }

    /// Preemptions of passes in flight have yet to be told, each when its pass ends.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.decided.is_empty()
    }

    /// Pass `pass` ended.
    pub(crate) fn published(&mut self, time: Nanos, pass: u64, events: &KvEvents) {
        while let Some(&(decided, id)) = self.decided.front()
            && decided <= pass
        {
            self.decided.pop_front();
            self.entries.push(Entry { time, pass, what: What::Preempted(id) });
        }
        if !events.is_empty() {
            let what = What::Cache(Box::new(events.clone()));
            self.entries.push(Entry { time, pass, what });
        }
    }
}

/// Where events go, if anywhere.
pub(crate) struct Events<'a> {
    pub(crate) log: EventLog<Box<dyn Write + 'a>>,
    pub(crate) next: Nanos,
}

impl<'a> Events<'a> {
    pub(crate) fn new(out: Box<dyn Write + 'a>) -> Events<'a> {
        Events { log: EventLog::new(out), next: EVENT_WINDOW }
    }
}

/// Where samples go, if anywhere.
pub(crate) struct Telemetry<'a> {
    pub(crate) writer: TelemetryWriter<Box<dyn Write + 'a>>,
    pub(crate) interval: Nanos,
    pub(crate) next: Nanos,
    /// The instant sampled last.
    last: Option<Nanos>,
}

impl<'a> Telemetry<'a> {
    pub(crate) fn new(out: Box<dyn Write + 'a>, interval: Nanos) -> Telemetry<'a> {
        Telemetry { writer: TelemetryWriter::new(out), interval, next: interval, last: None }
    }
}

impl Telemetry<'_> {
    fn sample(&mut self, groups: &[Group<impl Lanes>], now: Nanos) -> Result<(), SimError> {
        self.last = Some(now);
        let mut lanes = groups.iter().flat_map(Group::lanes);
        lanes.try_for_each(|lane| self.writer.sample(&sample(lane, now))).map_err(SimError::Telemetry)
    }
}

/// Everything that watches a run.
#[derive(Default)]
pub(crate) struct Observer<'a> {
    pub(crate) events: Option<Events<'a>>,
    pub(crate) telemetry: Option<Telemetry<'a>>,
}

impl Observer<'_> {
    /// The next instant at which all groups have to be looked at.
    pub(crate) fn next_instant(&self) -> Nanos {
        let events = self.events.as_ref().map_or(Nanos::NEVER, |e| e.next);
        let telemetry = self.telemetry.as_ref().map_or(Nanos::NEVER, |t| t.next);
        events.min(telemetry)
    }

    /// Looks at the groups, which all have settled at `now`, the instant announced last.
    pub(crate) fn look(&mut self, groups: &mut [Group<impl Lanes>], now: Nanos) -> Result<(), SimError> {
        if let Some(telemetry) = &mut self.telemetry
            && telemetry.next == now
        {
            telemetry.next = now + telemetry.interval;
            telemetry.sample(groups, now)?;
        }
        if let Some(events) = &mut self.events
            && events.next == now
        {
            events.next = now + EVENT_WINDOW;
            self.write_events(groups)?;
        }
        Ok(())
    }

    /// The run ended at `end`: a last sample, all events, and everything handed on to its destination.
    pub(crate) fn finish(&mut self, groups: &mut [Group<impl Lanes>], end: Nanos) -> Result<(), SimError> {
        self.write_events(groups)?;
        if let Some(telemetry) = &mut self.telemetry
            && telemetry.last.is_none_or(|last| last < end)
        {
            telemetry.sample(groups, end)?;
        }
        if let Some(events) = self.events.take() {
            events.log.into_inner().flush().map_err(SimError::Events)?;
        }
        if let Some(telemetry) = self.telemetry.take() {
            telemetry.writer.into_inner().flush().map_err(SimError::Telemetry)?;
        }
        Ok(())
    }

    /// Writes all events buffered so far.
    pub(crate) fn write_events(&mut self, groups: &mut [Group<impl Lanes>]) -> Result<(), SimError> {
        let Some(Events { log, .. }) = &mut self.events else { return Ok(()) };
        let mut all: Vec<((Role, u32, u32), Entry)> = Vec::new();
        for lane in groups.iter_mut().flat_map(Group::lanes_mut) {
            let at = (lane.row().role, lane.row().worker, lane.row().rank);
            if let Some(buffer) = lane.events() {
                all.extend(buffer.entries.drain(..).map(|entry| (at, entry)));
            }
        }
        // Stable: what one rank did at one instant keeps its order.
        all.sort_by_key(|(at, entry)| (entry.time, *at));
        for ((role, worker, rank), entry) in all {
            let stamp = PassStamp { role, worker, rank, pass: entry.pass, time: entry.time };
            match entry.what {
                What::Cache(events) => log.kv(&stamp, &events),
                What::Preempted(id) => log.preempted(&stamp, id),
            }
            .map_err(SimError::Events)?;
        }
        Ok(())
    }
}

fn sample(lane: &Lane, time: Nanos) -> TelemetrySample {
    let (stats, row) = (lane.stats(), lane.row());
    TelemetrySample {
        time,
        role: row.role,
        worker: row.worker,
        rank: row.rank,
        running: stats.running as u64,
        waiting: stats.waiting as u64,
        kv_blocks_used: u64::from(stats.used_blocks),
        kv_blocks_usable: u64::from(stats.usable_blocks),
        passes: row.passes,
        prefill_tokens: row.prefill_tokens,
        decode_tokens: row.decode_tokens,
        preemptions: stats.preemptions,
        busy: lane.busy(time),
    }
}
