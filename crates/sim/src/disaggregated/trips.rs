//! Requests between the two sides: from the moment at which a side has one until the source lets go of its blocks. After
//! that a request is its decode worker's affair alone.

use std::collections::HashMap;
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
        trip.transfer = None;
        Some((id, trip.decode?))
    }
}
