//! Which workers take requests, for policies that keep books of their own by worker: workers come and go while a
//! deployment runs.

/// Who is here. Numbers of workers that have gone may be used again.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    here: Vec<bool>,
    count: u32,
}

impl Members {
    /// The first `workers` are here.
    pub(crate) fn new(workers: u32) -> Members {
        Members { here: vec![true; workers as usize], count: workers }
    }

    /// A worker takes requests from now on.
    pub(crate) fn join(&mut self, worker: u32) {
        let at = worker as usize;
        if at >= self.here.len() {
            self.here.resize(at + 1, false);
        }
        self.count += u32::from(!std::mem::replace(&mut self.here[at], true));
    }

    /// It takes no more.
    pub(crate) fn leave(&mut self, worker: u32) {
        if let Some(here) = self.here.get_mut(worker as usize) {
            self.count -= u32::from(std::mem::replace(here, false));
        }
    }

    /// All that ever came are here.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.count as usize == self.here.len()
    }

    /// Nobody is here.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A worker is here.
    #[inline]
    pub(crate) fn has(&self, worker: u32) -> bool {
        self.here.get(worker as usize).copied().unwrap_or(false)
    }

    /// One more than the largest number that anybody here ever had.
    pub(crate) fn numbers(&self) -> u32 {
        self.here.len() as u32
    }

    /// Who is here, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.numbers()).filter(|&worker| self.has(worker))
    }
}
