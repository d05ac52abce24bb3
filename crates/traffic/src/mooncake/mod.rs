//! Mooncake traces: JSON lines with a time, two lengths, and one id for each started block of the
//! prompt. An id names the whole prefix up to its end.
//!
//! Every rule a row must obey stands here. How a row is read from text is `row` (careful) and `scan`
//! (fast); how ids become prefixes is `prefixes`.

mod prefixes;
mod row;
mod scan;

use crate::fields::LineFault;
use crate::lines::{Fault, Lines};
use crate::times::TimeLine;
use crate::{Arrival, Times, TrafficError};
use prefixes::Prefixes;
use row::Row;
use std::path::Path;
use windtunnel_engine::{Content, HandOff, OutputPlan, Request, RequestId};

/// The stream of a Mooncake trace.
#[derive(Debug)]
pub(crate) struct MooncakeStream {
    lines: Lines,
    row: Row,
    block_size: u32,
    times: TimeLine,
    prefixes: Prefixes,
    next: u64,
}

impl MooncakeStream {
    pub(crate) fn open(path: &Path, block_size: u32, times: Times) -> Result<MooncakeStream, TrafficError> {
        if block_size == 0 || block_size > crate::MAX_TOKENS {
            return Err(TrafficError::Setting {
                field: "block_size",
                got: block_size.to_string(),
                problem: format!("must be from 1 to {}", crate::MAX_TOKENS),
            });
        }
        let times = TimeLine::new(times)?;
        Ok(MooncakeStream {
            lines: Lines::open(path)?,
            row: Row::default(),
            block_size,
            times,
            prefixes: Prefixes::default(),
            next: 0,
        })
    }

    pub(crate) fn next_arrival(&mut self) -> Option<Result<Arrival, TrafficError>> {
        match self.lines.next_line() {
            None if self.next == 0 => return Some(Err(self.lines.empty())),
            None => return None,
            Some(Err(error)) => return Some(Err(error)),
            Some(Ok(line)) => {
                if !scan::scan(line, &mut self.row)
                    && let Err(fault) = self.row.read(line)
                {
                    return Some(Err(match fault {
                        LineFault::Syntax(problem) => self.lines.syntax(problem),
                        LineFault::Field(fault) => self.lines.field(fault),
                    }));
                }
            }
        }
        Some(self.arrival().map_err(|fault| self.lines.field(fault)))
    }

    /// The request of the row just read.
    fn arrival(&mut self) -> Result<Arrival, Fault> {
        let ids = self.row.ids.len();
        let prompt_tokens = self.row.checked_input_length(self.block_size)?;
        let output_tokens = self.row.checked_output_length()?;
        let at = self.times.at(self.row.time_field, self.row.timestamp)?;
        let mut parent = None;
        let mut numbers = Vec::with_capacity(ids);
        for &id in &self.row.ids {
            let number = self.prefixes.number(parent, id).ok_or_else(|| {
                Fault::new("hash_ids", format!("got {id}"), "the trace has more than 2^32 - 2 prefixes")
            })?;
            numbers.push(u64::from(number));
            parent = Some(number);
        }
        let ordinal = self.next;
        self.next += 1;
        let request = Request {
            id: RequestId(ordinal),
            arrival: at,
            prompt_tokens,
            content: Content::Prefixes { ids: numbers.into(), id_tokens: self.block_size },
            output: OutputPlan::of_length(output_tokens),
            priority: self.row.priority,
            tie: ordinal,
            hand_off: HandOff::None,
        };
        Ok(Arrival { at, request, name: self.row.name.take(), dp_rank: None, session: None })
    }
}
