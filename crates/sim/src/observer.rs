//! Writing what happens while it happens: the event log and periodic telemetry.
//!
//! Workers run ahead of each other, so their events are buffered until none can add an earlier one, and
//! then written in order of time and worker.

use crate::error::SimError;
use crate::worker::Worker;
use std::io::Write;
use windtunnel_engine::{KvEvents, Nanos, RequestId};
use windtunnel_report::{EventLog, PassStamp, Role, TelemetrySample, TelemetryWriter};

/// Time between two flushes of the event log while nothing arrives.
const EVENT_WINDOW: Nanos = Nanos(1_000_000_000);

/// One worker's events that are not yet written.
#[derive(Default)]
pub(crate) struct EventBuffer {
    entries: Vec<Entry>,
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
    pub(crate) fn preempted(&mut self, time: Nanos, pass: u64, id: RequestId) {
        self.entries.push(Entry { time, pass, what: What::Preempted(id) });
    }

    pub(crate) fn published(&mut self, time: Nanos, pass: u64, events: &KvEvents) {
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
}

impl<'a> Telemetry<'a> {
    pub(crate) fn new(out: Box<dyn Write + 'a>, interval: Nanos) -> Telemetry<'a> {
        Telemetry { writer: TelemetryWriter::new(out), interval, next: interval }
    }
}

/// Everything that watches a run.
#[derive(Default)]
pub(crate) struct Observer<'a> {
    pub(crate) events: Option<Events<'a>>,
    pub(crate) telemetry: Option<Telemetry<'a>>,
}

impl Observer<'_> {
    /// The next instant at which all workers have to be looked at.
    pub(crate) fn next_instant(&self) -> Nanos {
        let events = self.events.as_ref().map_or(Nanos::NEVER, |e| e.next);
        let telemetry = self.telemetry.as_ref().map_or(Nanos::NEVER, |t| t.next);
        events.min(telemetry)
    }

    /// Looks at the workers, which all have settled at `now`, the instant announced last.
    pub(crate) fn look(&mut self, workers: &mut [Worker], now: Nanos) -> Result<(), SimError> {
        if let Some(telemetry) = &mut self.telemetry
            && telemetry.next == now
        {
            telemetry.next = now + telemetry.interval;
            for worker in workers.iter() {
                telemetry.writer.sample(&sample(worker, now)).map_err(SimError::Telemetry)?;
            }
        }
        if let Some(events) = &mut self.events
            && events.next == now
        {
            events.next = now + EVENT_WINDOW;
            self.write_events(workers)?;
        }
        Ok(())
    }

    /// Hands everything on to the destinations.
    pub(crate) fn finish(&mut self) -> Result<(), SimError> {
        if let Some(events) = self.events.take() {
            events.log.into_inner().flush().map_err(SimError::Events)?;
        }
        if let Some(telemetry) = self.telemetry.take() {
            telemetry.writer.into_inner().flush().map_err(SimError::Telemetry)?;
        }
        Ok(())
    }

    /// Writes all events buffered so far.
    pub(crate) fn write_events(&mut self, workers: &mut [Worker]) -> Result<(), SimError> {
        let Some(Events { log, .. }) = &mut self.events else { return Ok(()) };
        let mut all: Vec<(u32, Entry)> = Vec::new();
        for worker in workers {
            let index = worker.index();
            if let Some(buffer) = worker.events() {
                all.extend(buffer.entries.drain(..).map(|entry| (index, entry)));
            }
        }
        // Stable: what one worker did at one instant keeps its order.
        all.sort_by_key(|(worker, entry)| (entry.time, *worker));
        for (worker, entry) in all {
            let stamp =
                PassStamp { role: Role::Aggregated, worker, rank: 0, pass: entry.pass, time: entry.time };
            match entry.what {
                What::Cache(events) => log.kv(&stamp, &events),
                What::Preempted(id) => log.preempted(&stamp, id),
            }
            .map_err(SimError::Events)?;
        }
        Ok(())
    }
}

fn sample(worker: &Worker, time: Nanos) -> TelemetrySample {
    let (stats, row) = (worker.stats(), worker.row_at(time));
    TelemetrySample {
        time,
        role: Role::Aggregated,
        worker: worker.index(),
        rank: 0,
        running: stats.running as u64,
        waiting: stats.waiting as u64,
        kv_blocks_used: u64::from(stats.used_blocks),
        kv_blocks_usable: u64::from(stats.usable_blocks),
        passes: row.passes,
        prefill_tokens: row.prefill_tokens,
        decode_tokens: row.decode_tokens,
        preemptions: stats.preemptions,
        busy: row.busy,
    }
}
