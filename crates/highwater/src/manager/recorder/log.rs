//! The log of a recording: which records there are, and of which moments; no bytes are kept.

use std::collections::BTreeMap;
use std::time::Duration;

use super::format::{In, Kind, RecordHead};
use super::moment::{Mark, VictimRecord};

/// The readable records.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// By number. Each [`Tick::base`] is a key.
    pub(super) ticks: BTreeMap<u64, Tick>,
    pub(super) marks: Vec<Mark>,
    pub(super) victims: Vec<VictimRecord>,
    /// Positions of `marks` and `victims`.
    marks_at: Vec<u64>,
    victims_at: Vec<u64>,
    pub(super) nr_records: u64,
    pub(super) nr_torn: u64,
    /// Number of the newest record.
    pub(super) seq: u64,
    /// Position behind it.
    pub(super) end: u64,
    pub(super) has_ended: bool,
}

/// The records of one moment.
#[derive(Debug)]
pub(super) struct Tick {
    pub(super) time: Duration,
    /// The whole moment below it; its own number for that itself.
    pub(super) base: u64,
    pub(super) parts: Vec<RecordPlace>,
    /// Whether the last part of a whole moment is there.
    has_last: bool,
}

/// Where a record is.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordPlace {
    pub(super) at: u64,
    pub(super) seq: u64,
    pub(super) len: u32,
    /// Number of the part of a whole moment, and whether it is the last.
    part: u64,
    is_last: bool,
}

impl Tick {
    /// Returns whether every part of a whole moment is there; the parts are in order.
    pub(super) fn is_complete(&self) -> bool {
        let parts = self.parts.iter().zip(0..);
        self.has_last && parts.into_iter().all(|(place, part)| place.part == part)
    }
}

/// A record, with what the log needs of its payload.
pub(super) struct Record {
    pub(super) head: RecordHead,
    what: Content,
}

pub(super) enum Content {
    Whole { tick: u64, part: u64, is_last: bool },
    Changed { tick: u64, base: u64 },
    Mark(String),
    Victim(Box<VictimRecord>),
    End,
}

impl Record {
    pub(super) fn of(head: RecordHead, payload: &[u8]) -> Option<Self> {
        let mut input = In(payload);
        let what = match head.kind {
            Kind::Whole => Content::Whole {
                is_last: input.byte()? != 0,
                tick: input.number()?,
                part: input.number()?,
            },
            Kind::Changed => Content::Changed {
                tick: {
                    input.byte()?;
                    input.number()?
                },
                base: input.number()?,
            },
            Kind::Mark => Content::Mark(input.text()?),
            Kind::Victim => Content::Victim(Box::new(VictimRecord::decode(head.time, &mut input)?)),
            Kind::End => Content::End,
        };
        Some(Self { head, what })
    }
}

impl Log {
    /// Returns a log without records, after as many torn ones.
    pub(super) fn with_torn(nr_torn: u64) -> Self {
        Self {
            nr_torn,
            ..Self::default()
        }
    }

    /// Adds a newer record, and forgets those that it has overwritten.
    pub(super) fn add(&mut self, record: Record, ring: u64) {
        let Record { head, what } = record;
        self.nr_records += 1;
        (self.seq, self.end) = (head.seq, head.end());
        self.has_ended = matches!(what, Content::End);
        let place = RecordPlace {
            at: head.at,
            seq: head.seq,
            len: head.len,
            part: 0,
            is_last: false,
        };
        match what {
            Content::Whole {
                tick,
                part,
                is_last,
            } => {
                let place = RecordPlace {
                    part,
                    is_last,
                    ..place
                };
                self.add_part((tick, tick), head.time, place);
            }
            // Without the moment that it changes, it could not be read.
            Content::Changed { tick, base } if base < tick && self.is_whole(base) => {
                self.add_part((tick, base), head.time, place);
            }
            Content::Changed { .. } | Content::End => {}
            Content::Mark(text) => {
                let time = head.time;
                self.marks.push(Mark { time, text });
                self.marks_at.push(head.at);
            }
            Content::Victim(victim) => {
                self.victims.push(*victim);
                self.victims_at.push(head.at);
            }
        }
        self.forget_before(self.end.saturating_sub(ring));
    }

    fn is_whole(&self, tick: u64) -> bool {
        let found = self.ticks.get(&tick);
        found.is_some_and(|found| found.base == tick)
    }

    /// Adds a record of moment `tick`, which changes the whole moment `base` or is a part of it.
    fn add_part(&mut self, (tick, base): (u64, u64), time: Duration, place: RecordPlace) {
        debug_assert!(base <= tick, "moment {tick} changes a later one, {base}");
        let found = self.ticks.entry(tick).or_insert(Tick {
            time,
            base,
            parts: Vec::with_capacity(1),
            has_last: false,
        });
        if found.base == base {
            found.has_last |= place.is_last;
            found.parts.push(place);
        }
    }

    /// Forgets records at positions below `oldest`: moments that have lost one, or their first one
    /// before this reader came, and changes of such moments.
    fn forget_before(&mut self, oldest: u64) {
        while let Some(first) = self.ticks.first_entry() {
            let (tick, found) = (*first.key(), first.get());
            let starts_late = found.parts.first().is_none_or(|place| place.part > 0);
            let is_cut = starts_late || found.parts.iter().any(|place| place.at < oldest);
            // A base is older than its changes: first here, if it is there at all.
            if !is_cut && found.base == tick {
                break;
            }
            self.ticks.pop_first();
        }
        let nr_marks = self.marks_at.partition_point(|at| *at < oldest);
        self.marks_at.drain(..nr_marks);
        self.marks.drain(..nr_marks);
        let nr_victims = self.victims_at.partition_point(|at| *at < oldest);
        self.victims_at.drain(..nr_victims);
        self.victims.drain(..nr_victims);
        debug_assert_eq!(
            self.marks.len(),
            self.marks_at.len(),
            "each mark has a place"
        );
        debug_assert_eq!(
            self.victims.len(),
            self.victims_at.len(),
            "each victim has a place"
        );
    }
}
