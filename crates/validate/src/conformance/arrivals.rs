//! The way of a scenario's requests into a rank, alike for every engine: which ones are due at a time or a
//! step, which are aborted, and where the clock goes when nothing is left to do. The rank is not known
//! here.

use std::collections::VecDeque;
use windtunnel_traffic::RequestLine;

pub(super) struct Arrivals<'a> {
    requests: &'a [RequestLine],
    /// Not yet added, by arrival; in file order where arrivals are equal.
    pending: VecDeque<usize>,
    /// Step and request, in file order.
    aborts: Vec<(u64, usize)>,
    /// Time and request, in file order.
    aborts_ms: Vec<(f64, usize)>,
    is_added: Vec<bool>,
}

impl<'a> Arrivals<'a> {
    pub(super) fn new(requests: &'a [RequestLine]) -> Arrivals<'a> {
        let mut pending: Vec<usize> = (0..requests.len()).collect();
        let key = |i: usize| (requests[i].arrival_ms.unwrap_or(0.0), requests[i].arrival_step.unwrap_or(0));
        pending.sort_by(|&a, &b| key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal));
        let aborts =
            requests.iter().enumerate().filter_map(|(i, r)| r.abort_step.map(|step| (step, i))).collect();
        let aborts_ms =
            requests.iter().enumerate().filter_map(|(i, r)| r.abort_ms.map(|ms| (ms, i))).collect();
        Arrivals {
            requests,
            pending: pending.into(),
            aborts,
            aborts_ms,
            is_added: vec![false; requests.len()],
        }
    }

    /// Takes the next request if it is due.
    pub(super) fn take_due(&mut self, now_ms: f64, step: u64) -> Option<usize> {
        let &next = self.pending.front()?;
        let request = &self.requests[next];
        let due = match (request.arrival_ms, request.arrival_step) {
            (None, Some(at)) => at <= step,
            (ms, _) => ms.unwrap_or(0.0) <= now_ms + 1e-9,
        };
        if !due {
            return None;
        }
        self.pending.pop_front();
        self.is_added[next] = true;
        Some(next)
    }

    /// Takes the aborts that are due. That of a request that has not arrived waits for it.
    pub(super) fn take_aborts(&mut self, now_ms: f64, step: u64) -> Vec<usize> {
        let is_added = &self.is_added;
        let by_step = self.aborts.extract_if(.., |&mut (at, request)| step >= at && is_added[request]);
        let mut due: Vec<usize> = by_step.map(|(_, request)| request).collect();
        let by_time =
            self.aborts_ms.extract_if(.., |&mut (at, request)| now_ms >= at - 1e-9 && is_added[request]);
        due.extend(by_time.map(|(_, request)| request));
        due
    }

    /// Aborts by time that are not due yet, of requests that were added.
    pub(super) fn coming_aborts(&self) -> impl Iterator<Item = (f64, usize)> + '_ {
        self.aborts_ms.iter().copied().filter(|&(_, request)| self.is_added[request])
    }

    /// Moves the time or the step to the next arrival. False if there is none.
    pub(super) fn skip_to_next(&self, now_ms: &mut f64, step: &mut u64) -> bool {
        let Some(&next) = self.pending.front() else { return false };
        match self.requests[next].arrival_ms {
            Some(ms) => *now_ms = now_ms.max(ms),
            None => *step = (*step).max(self.requests[next].arrival_step.unwrap_or(0)),
        }
        true
    }

    /// The time of the next arrival, if it has one.
    pub(super) fn next_ms(&self) -> Option<f64> {
        self.pending.front().and_then(|&next| self.requests[next].arrival_ms)
    }

    /// The requests not yet added, by arrival.
    pub(super) fn pending(&self) -> impl Iterator<Item = usize> + '_ {
        self.pending.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(arrival_ms: Option<f64>, arrival_step: Option<u64>, abort_step: Option<u64>) -> RequestLine {
        RequestLine { arrival_ms, arrival_step, abort_step, ..RequestLine::default() }
    }

    #[test]
    fn requests_arrive_by_time_or_step_in_file_order() {
        let requests = [
            request(Some(5.0), None, None),
            request(None, Some(3), None),
            request(None, None, None),
            request(Some(5.0), None, None),
        ];
        let mut arrivals = Arrivals::new(&requests);
        // Without a time a request sorts as one of time 0; a step orders these.
        assert_eq!(arrivals.pending().collect::<Vec<_>>(), [2, 1, 0, 3]);
        assert_eq!((arrivals.take_due(0.0, 0), arrivals.take_due(9.0, 0)), (Some(2), None));
        let (mut now, mut step) = (1.0, 0);
        assert!(arrivals.skip_to_next(&mut now, &mut step));
        assert_eq!((now, step), (1.0, 3));
        assert_eq!((arrivals.take_due(now, step), arrivals.take_due(now, step)), (Some(1), None));
        assert!(arrivals.skip_to_next(&mut now, &mut step));
        assert_eq!((now, step), (5.0, 3));
        assert_eq!((arrivals.take_due(now, step), arrivals.take_due(now, step)), (Some(0), Some(3)));
        assert!(!arrivals.skip_to_next(&mut now, &mut step));
    }

    #[test]
    fn an_abort_waits_for_its_step_and_its_request() {
        let requests = [request(Some(0.0), None, Some(4)), request(Some(9.0), None, Some(2))];
        let mut arrivals = Arrivals::new(&requests);
        arrivals.take_due(0.0, 0);
        assert!(arrivals.take_aborts(0.0, 3).is_empty());
        assert_eq!(arrivals.take_aborts(0.0, 4), [0]);
        arrivals.take_due(9.0, 5);
        assert_eq!(arrivals.take_aborts(9.0, 5), [1]);
        assert!(arrivals.take_aborts(9.0, 6).is_empty(), "once");
    }

    #[test]
    fn an_abort_by_time_waits_for_its_time_and_its_request() {
        let aborted = RequestLine { abort_ms: Some(7.0), ..request(Some(5.0), None, None) };
        let requests = [aborted];
        let mut arrivals = Arrivals::new(&requests);
        assert!(arrivals.take_aborts(9.0, 0).is_empty() && arrivals.coming_aborts().next().is_none());
        arrivals.take_due(5.0, 0);
        assert_eq!(arrivals.coming_aborts().collect::<Vec<_>>(), [(7.0, 0)]);
        assert!(arrivals.take_aborts(6.9, 1).is_empty());
        assert_eq!(arrivals.take_aborts(7.0, 2), [0]);
    }
}
