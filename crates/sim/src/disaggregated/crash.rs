//! A crash of a prefill or decode worker: which requests are lost with it, and what the other side lets go of.
//!
//! A request whose KV has come to its decode worker is that worker's alone. Until then it needs both sides: when the
//! worker of one crashes, the other one lets go of it, at once.

use super::Disaggregated;
use super::elastic::{Staff, Task};
use super::pool::{DECODE, PREFILL};
use super::trips::{Site, Trip};
use crate::error::SimError;
use crate::group::Lanes;
use crate::lane::Loading;
use crate::steering::CRASHED;
use std::collections::BTreeMap;
use std::ops::Range;
use windtunnel_engine::{Nanos, RequestId};
use windtunnel_report::RequestRecord;

/// A request that has lost its worker, and whether it was on the decode side.
pub(super) struct Lost {
    pub(super) record: RequestRecord,
    pub(super) placed: bool,
}

/// Requests that are lost, in order of their numbers, and the trips of those that both sides had.
type LostWith = (BTreeMap<RequestId, Lost>, Vec<Trip>);

impl<L: Lanes> Disaggregated<'_, L> {
    pub(super) fn crash(
        &mut self,
        pool: usize,
        worker: u32,
        restart: Option<Nanos>,
        now: Nanos,
    ) -> Result<(), SimError> {
        let Some(elastic) = &mut self.elastic else { return Ok(()) };
        if !elastic.crews[pool].crash(worker, restart, now) {
            return Ok(());
        }
        elastic.last = now;
        self.pools[pool].set_ready(elastic.crews[pool].fleet.ready());
        let groups = self.pools[pool].groups_of(worker);
        groups.clone().for_each(|at| self.tell(at, now));
        let (lost, trips) = match pool {
            PREFILL => self.lose_prefills(groups.clone(), worker, now),
            _ => self.lose_decodes(groups.clone(), now),
        };
        groups.for_each(|at| self.pools[pool].hear_all(&mut self.groups, at, now));
        self.pools[pool].leave(worker);
        self.renew(pool, worker, now)?;
        self.part(pool, trips, now);
        for (id, lost) in lost {
            let again = self.elastic.as_mut().and_then(|elastic| elastic.tries.lost(id));
            match again {
                Some(arrival) => self.dispatch(arrival, now),
                None => self.fail(&lost, now),
            }
        }
        if self.staff(pool) == Staff::Gone {
            // Who waits has nothing to wait for.
            self.resume(now);
        }
        Ok(())
    }

    fn fail(&mut self, Lost { record, placed }: &Lost, now: Nanos) {
        if let Some(elastic) = &mut self.elastic {
            match placed {
                true => elastic.past.failed(record, CRASHED),
                false => elastic.past.failed_unplaced(record, CRASHED),
            }
        }
        self.end_one(now);
    }

    /// The requests that are lost with the prompts that a prefill worker computes or holds, and their trips.
    fn lose_prefills(&mut self, groups: Range<usize>, worker: u32, now: Nanos) -> LostWith {
        let records = groups.clone().flat_map(|at| self.groups[at].lose(now));
        let mut records: BTreeMap<RequestId, RequestRecord> =
            records.map(|record| (record.id, record)).collect();
        let (mut lost, mut trips) = (BTreeMap::new(), Vec::new());
        for id in self.trips.prefilled_in(&groups) {
            let Some(trip) = self.lose_trip(id, now) else { continue };
            if trip.arrived {
                // Nothing of it is lost.
                continue;
            }
            let waits = self.withdraw_task(id);
            let on_decode =
                trip.decode.map(|site| self.groups[site.group].record_of(site.lane, site.slot, now));
            let placed = on_decode.is_some();
            let known = on_decode.or_else(|| records.remove(&id)).or(waits);
            if let Some(known) = known {
                let record = RequestRecord {
                    prefill_worker: Some(worker),
                    output_tokens: 0,
                    first_token: None,
                    last_token: None,
                    terminal: now,
                    ..known
                };
                lost.insert(id, Lost { record, placed });
            }
            trips.push(trip);
        }
        (lost, trips)
    }

    /// The requests that a decode worker has, and the trips of those that the other side has, too.
    fn lose_decodes(&mut self, groups: Range<usize>, now: Nanos) -> LostWith {
        let (mut lost, mut trips) = (BTreeMap::new(), Vec::new());
        let records: Vec<RequestRecord> = groups.flat_map(|at| self.groups[at].lose(now)).collect();
        for record in records {
            let id = record.id;
            let mut prefill_worker = record.prefill_worker;
            if let Some(trip) = self.lose_trip(id, now) {
                self.withdraw_task(id);
                let on = trip.prefill.map(|site| self.groups[site.group].worker());
                prefill_worker = prefill_worker.or(on);
                trips.push(trip);
            }
            lost.insert(id, Lost { record: RequestRecord { prefill_worker, ..record }, placed: true });
        }
        (lost, trips)
    }

    /// Takes a trip out, and stops its transfer.
    fn lose_trip(&mut self, id: RequestId, now: Nanos) -> Option<Trip> {
        let trip = self.trips.lose(id)?;
        if let Some(transfer) = trip.transfer {
            self.links.cancel(transfer, now);
        }
        Some(trip)
    }

    /// A request waits for a worker no more: what was known of it, if its prompt is computed.
    fn withdraw_task(&mut self, id: RequestId) -> Option<RequestRecord> {
        let waiting = &mut self.elastic.as_mut()?.waiting;
        let at = waiting.iter().position(|task| task.id() == id)?;
        match waiting.remove(at)? {
            Task::GoOn(_, record) => Some(*record),
            Task::Send(_) | Task::Compute(_) => None,
        }
    }

    /// The side that is left lets go of the requests that are lost on the side `gone`.
    fn part(&mut self, gone: usize, trips: Vec<Trip>, now: Nanos) {
        let mut left = Vec::new();
        for trip in trips {
            let loading = trip.loading();
            match (gone, trip) {
                (PREFILL, Trip { decode: Some(Site { group, lane, slot }), .. }) => {
                    self.groups[group].withdraw(lane, slot, loading, now);
                    left.push(group);
                }
                // It is computed, for nobody.
                (DECODE, Trip { prefill: Some(site), computed: Some(_), .. }) => self.let_go(site, now),
                (DECODE, Trip { prefill: Some(Site { group, lane, slot }), .. }) => {
                    match loading {
                        Loading::Awaited => {
                            self.groups[group].withdraw(lane, slot, Loading::Nothing, now);
                            left.push(group);
                        }
                        // Its prompt is being computed, and is to the end.
                        _ => {
                            self.groups[group].disown(lane, slot, now);
                            self.note_due(group);
                        }
                    }
                }
                _ => {}
            }
        }
        left.sort_unstable();
        left.dedup();
        left.iter().for_each(|&group| self.groups[group].go_on(now));
        for group in left {
            self.touched.push(group);
            self.tell(group, now);
            self.note_due(group);
        }
    }
}
