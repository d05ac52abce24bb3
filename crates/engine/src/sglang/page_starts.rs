//! When the members of the decode set start pages: each in one of as many decode passes as a page has
//! tokens, so that counters by the pass number's remainder know it for all passes to come.

/// Counters of the members by the phase in which they start a page.
#[derive(Debug)]
pub(super) struct PageStarts(Vec<u32>);

impl PageStarts {
    pub(super) fn new(page_size: u32) -> PageStarts {
        PageStarts(vec![0; page_size as usize])
    }

    /// Members that start a page in decode pass `pass`.
    pub(super) fn in_pass(&self, pass: u64) -> u32 {
        self.0[(pass % self.0.len() as u64) as usize]
    }

    /// The counter of those that start a page when someone who has `committed` slots after decode pass
    /// `scheduled` does.
    fn phase(&mut self, scheduled: u64, committed: u32) -> &mut u32 {
        let size = self.0.len() as u64;
        // The next pass starts a page if the slots so far fill theirs.
        let at = (scheduled + 1 + size - u64::from(committed) % size) % size;
        &mut self.0[at as usize]
    }

    pub(super) fn add(&mut self, scheduled: u64, committed: u32) {
        *self.phase(scheduled, committed) += 1;
    }

    pub(super) fn remove(&mut self, scheduled: u64, committed: u32) {
        *self.phase(scheduled, committed) -= 1;
    }
}
