//! Steady passes in one go: what a rank group does while the same requests decode and nobody comes or goes.
//!
//! The loop over passes is the hottest of all, so it is compiled anew for each way to ask for a pass time that is
//! cheap enough for that to show, and for a group of one rank.

use windtunnel_engine::{DecodeSet, MAX_NANOS, Nanos};
use windtunnel_perf::TimingModel;
use windtunnel_report::Collector;

/// A lane that takes part in a stretch.
#[derive(Clone, Copy)]
pub(crate) struct Strider {
    pub(crate) lane: usize,
    /// What it decodes in the next pass.
    pub(crate) decode: DecodeSet,
    /// End of its pass before that.
    pub(crate) last_end: Nanos,
}

/// A run of steady passes.
#[derive(Clone, Copy)]
pub(crate) struct Leap {
    pub(crate) passes: u64,
    /// End of the last one completed.
    pub(crate) now: Nanos,
    /// End of the newest one in flight.
    pub(crate) busy_until: Nanos,
}

/// How far a leap may go.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Passes in flight at once, 1 or 2.
    pub(crate) depth: usize,
    /// Passes for which all striders are steady.
    pub(crate) most: u64,
    /// No pass is completed after this.
    pub(crate) horizon: Nanos,
}

/// Lets time pass from `begin` on, and enters the gaps between tokens.
pub(crate) fn leap(
    striders: &mut [Strider],
    begin: Leap,
    limits: Limits,
    timing: &TimingModel,
    collector: &mut Collector,
) -> Leap {
    let mut walk = Walk { limits, timing, collector };
    match (striders, timing.polynomial_decodes()) {
        // The usual cases, compiled for themselves.
        ([alone], Some(formula)) => walk.leap(std::array::from_mut(alone), begin, |of| formula.duration(of)),
        ([alone], None) => walk.leap(std::array::from_mut(alone), begin, |of| timing.decode_duration(of)),
        (several, _) => walk.leap(several, begin, |of| timing.decode_duration(of)),
    }
}

struct Walk<'a> {
    limits: Limits,
    timing: &'a TimingModel,
    collector: &'a mut Collector,
}

impl Walk<'_> {
    #[inline]
    fn leap<S: AsMut<[Strider]> + ?Sized>(
        &mut self,
        striders: &mut S,
        begin: Leap,
        pass_of: impl Fn(&DecodeSet) -> Nanos,
    ) -> Leap {
        let striders = striders.as_mut();
        let Limits { depth, most, horizon } = self.limits;
        let Leap { mut passes, mut now, mut busy_until } = begin;
        while passes < most && now < horizon {
            if passes == 1
                && let Some(leap) = self.leap_evenly(striders, Leap { passes, now, busy_until })
            {
                return leap;
            }
            let duration =
                striders.iter().fold(Nanos::ZERO, |most, strider| most.max(pass_of(&strider.decode)));
            let end = now.max(busy_until) + duration;
            // Synchronous: this pass ends before the next is scheduled. Asynchronous: the one before it.
            let completed = if depth == 1 { end } else { busy_until };
            if completed > horizon || end.0 >= MAX_NANOS {
                break;
            }
            for strider in &mut *striders {
                self.collector.gap(completed.since(strider.last_end), strider.decode.count);
                strider.last_end = completed;
                strider.decode.grow();
            }
            busy_until = end;
            now = completed;
            passes += 1;
        }
        Leap { passes, now, busy_until }
    }

    /// The rest of a leap whose passes all take the same time, at once. The pass before them was one of the leap,
    /// so that every gap is as long as a pass.
    fn leap_evenly(&mut self, striders: &mut [Strider], begun: Leap) -> Option<Leap> {
        let Limits { depth, most, horizon } = self.limits;
        let Leap { passes: done, now, busy_until } = begun;
        let mut duration = Nanos::ZERO;
        for strider in &*striders {
            duration = duration.max(self.timing.steady_duration(strider.decode)?);
        }
        // The pass in flight, where there is one, is to be as long as the others.
        let ahead = depth as u64 - 1;
        if duration == Nanos::ZERO || busy_until.since(now) != Nanos(duration.0 * ahead) {
            return None;
        }
        let by_horizon = horizon.since(now).0 / duration.0;
        let by_end = (MAX_NANOS - 1).saturating_sub(now.0) / duration.0;
        let passes = (most - done).min(by_horizon).min(by_end.saturating_sub(ahead));
        let time = Nanos(passes * duration.0);
        for strider in striders {
            self.collector.gap(duration, strider.decode.count.saturating_mul(passes));
            strider.decode.grow_by(passes);
            strider.last_end += time;
        }
        Some(Leap { passes: done + passes, now: now + time, busy_until: busy_until + time })
    }
}
