//! Requests between the two sides: from the moment at which a side has one until the source lets go of its blocks. After
//! that a request is its decode worker's affair alone.

use crate::lane::Loading;
use std::collections::HashMap;
use std::ops::Range;
use windtunnel_config::TransferId;
use windtunnel_engine::{KvLoad, Nanos, RequestId, Slot};
use windtunnel_traffic::Arrival;

/// Where a request stands on one side. A slot is another request's as soon as this one has left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) group: usize,
    pub(super) lane: usize,
    pub(super) slot: Slot,
}

/// A prompt whose blocks are held for the other side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Computed {
    pub(super) prompt_tokens: u32,
    pub(super) took: Nanos,
}

/// A request on its way.
#[derive(Debug, Default)]
pub(super) struct Trip {
    /// As it is submitted to the side that comes second, until it is.
    pub(super) second: Option<Box<Arrival>>,
    /// Where its prompt is computed and held.
    pub(super) prefill: Option<Site>,
    /// Since the prompt is.
    pub(super) computed: Option<Computed>,
    /// The decode worker that has it.
    pub(super) decode: Option<Site>,
    /// Room there for a prompt that is not computed yet, with what is loaded into it.
    pub(super) room: Option<KvLoad>,
    /// While its KV is on the way.
    pub(super) transfer: Option<TransferId>,
    /// Its KV has come, and the source holds it still (AISimulate 0.13).
    pub(super) arrived: bool,
}

impl Trip {
    /// How far its load is on the decode side.
    pub(super) fn loading(&self) -> Loading {
        match self.room.is_some() || self.transfer.is_some() || self.arrived {
            true => Loading::Begun,
            false => Loading::Awaited,
        }
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Trips {
    trips: HashMap<RequestId, Trip>,
    /// Whose KV a transfer moves.
    moved: HashMap<TransferId, RequestId>,
}

impl Trips {
    pub(super) fn begin(&mut self, id: RequestId, second: Option<Arrival>) {
        self.trips.insert(id, Trip { second: second.map(Box::new), ..Trip::default() });
    }

    pub(super) fn get(&mut self, id: RequestId) -> Option<&mut Trip> {
        self.trips.get_mut(&id)
    }

    pub(super) fn end(&mut self, id: RequestId) -> Option<Trip> {
        self.trips.remove(&id)
    }

    /// The decode worker of a request may run it, which stands there.
    pub(super) fn is_at(&self, id: RequestId, decode: Site) -> bool {
        self.trips.get(&id).is_some_and(|trip| trip.decode == Some(decode))
    }

    /// A prompt is computed or held in one of these groups.
    pub(super) fn any_in(&self, prefill: &Range<usize>) -> bool {
        self.trips.values().filter_map(|trip| trip.prefill).any(|site| prefill.contains(&site.group))
    }

    /// The requests whose prompts are computed or held in one of these groups, in order of their numbers.
    pub(super) fn prefilled_in(&self, prefill: &Range<usize>) -> Vec<RequestId> {
        let there = |trip: &Trip| trip.prefill.is_some_and(|site| prefill.contains(&site.group));
        let mut ids: Vec<RequestId> =
            self.trips.iter().filter(|(_, trip)| there(trip)).map(|(&id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.trips.keys().copied()
    }

    /// Takes a request out that is lost. If its KV is on the way, that is to be given up.
    pub(super) fn lose(&mut self, id: RequestId) -> Option<Trip> {
        let trip = self.trips.remove(&id)?;
        if let Some(transfer) = trip.transfer {
            self.moved.remove(&transfer);
        }
        Some(trip)
    }

    /// The decode groups have other numbers: `by` more.
    pub(super) fn renumber(&mut self, by: usize) {
        self.trips.values_mut().filter_map(|trip| trip.decode.as_mut()).for_each(|site| site.group += by);
    }

    pub(super) fn moves(&mut self, id: RequestId, transfer: TransferId) {
        if let Some(trip) = self.trips.get_mut(&id) {
            trip.transfer = Some(transfer);
            self.moved.insert(transfer, id);
        }
    }

    /// A transfer has ended: whose KV it moved, and where that is now.
    pub(super) fn arrived(&mut self, transfer: TransferId) -> Option<(RequestId, Site)> {
        let id = self.moved.remove(&transfer)?;
        let trip = self.trips.get_mut(&id)?;
        (trip.transfer, trip.arrived) = (None, true);
        Some((id, trip.decode?))
    }
}
