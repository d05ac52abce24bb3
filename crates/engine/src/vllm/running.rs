//! The running list: requests in the order of their admission, which is also that of their tickets.

/// Slots and their tickets, apart, so that a search reads tickets only.
#[derive(Debug, Default)]
pub(super) struct Running {
    slots: Vec<u32>,
    /// Ascending.
    tickets: Vec<u64>,
}

impl Running {
    /// Adds the request that was admitted last.
    #[inline]
    pub(super) fn push(&mut self, slot: u32, ticket: u64) {
        debug_assert!(self.tickets.last().is_none_or(|&last| last < ticket));
        self.slots.push(slot);
        self.tickets.push(ticket);
    }

    /// Place of the first request whose ticket is not smaller.
    #[inline]
    pub(super) fn position(&self, ticket: u64) -> usize {
        self.tickets.partition_point(|&other| other < ticket)
    }

    #[inline]
    pub(super) fn remove(&mut self, at: usize) {
        self.slots.remove(at);
        self.tickets.remove(at);
    }
}

impl std::ops::Deref for Running {
    type Target = [u32];

    #[inline]
    fn deref(&self) -> &[u32] {
        &self.slots
    }
}
