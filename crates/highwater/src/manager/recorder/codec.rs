//! How each part of a moment is encoded: each value's encoding beside its decoding, in the order of
//! `docs/recorder.md`.

use std::time::Duration;

use super::format::{In, Out};
use super::moment::{
    FileMoment, FramesMoment, GroupStat, LockMoment, PcpMoment, VictimRecord, Waiting,
};
use crate::group::{GroupEvents, Limits, StallTime, Stalls};
use crate::units::{Bytes, Estimate};

/// The numbers of a group, without its place in the tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupNumbers {
    pub(super) usage: Estimate<Bytes>,
    pub(super) peak: Estimate<Bytes>,
    pub(super) limits: Limits,
    pub(super) events: GroupEvents,
    pub(super) pressure: Stalls,
    pub(super) stat: GroupStat,
    pub(super) stat_staleness: u64,
    pub(super) stat_age: Duration,
    pub(super) waiting: Waiting,
}

impl GroupNumbers {
    pub(super) fn encode(&self, out: &mut Out<'_>) {
        out.estimate(self.usage);
        out.estimate(self.peak);
        let Limits {
            min,
            low,
            high,
            max,
        } = self.limits;
        // The largest number, which means "not set", becomes the shortest.
        for limit in [min, low, Bytes(!high.0), Bytes(!max.0)] {
            out.number(limit.0);
        }
        let GroupEvents {
            low,
            high,
            max,
            debt,
            oom,
            oom_kill,
        } = self.events;
        for count in [low, high, max, debt, oom, oom_kill] {
            out.number(count);
        }
        encode_stalls(&self.pressure, out);
        for value in self.stat.values() {
            out.signed(value);
        }
        out.number(self.stat_staleness);
        out.time(self.stat_age);
        let Waiting {
            charges,
            bytes,
            longest,
        } = self.waiting;
        out.number(charges);
        if charges > 0 {
            out.number(bytes.0);
            out.time(longest);
        }
    }

    pub(super) fn decode(input: &mut In<'_>) -> Option<Self> {
        Some(Self {
            usage: input.estimate()?,
            peak: input.estimate()?,
            limits: decode_limits(input)?,
            events: decode_events(input)?,
            pressure: decode_stalls(input)?,
            stat: GroupStat::decode(input)?,
            stat_staleness: input.number()?,
            stat_age: input.time()?,
            waiting: Waiting::decode(input)?,
        })
    }
}

fn decode_limits(input: &mut In<'_>) -> Option<Limits> {
    let [min, low] = [input.bytes()?, input.bytes()?];
    let [high, max] = [input.number()?, input.number()?].map(|limit| Bytes(!limit));
    Some(Limits {
        min,
        low,
        high,
        max,
    })
}

fn decode_events(input: &mut In<'_>) -> Option<GroupEvents> {
    Some(GroupEvents {
        low: input.number()?,
        high: input.number()?,
        max: input.number()?,
        debt: input.number()?,
        oom: input.number()?,
        oom_kill: input.number()?,
    })
}

fn encode_stalls(stalls: &Stalls, out: &mut Out<'_>) {
    // Most groups never stall: one byte.
    out.number(stalls.some.total_us);
    if stalls.some.total_us == 0 {
        return;
    }
    out.number(stalls.full.total_us);
    for time in [stalls.some, stalls.full] {
        for average in [time.avg10, time.avg60, time.avg300] {
            out.number(hundredths(average));
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of 0 to 100 %"
)]
fn hundredths(percent: f64) -> u64 {
    (percent * 100.0).round() as u64
}

fn of_hundredths(hundredths: u32) -> f64 {
    f64::from(hundredths) / 100.0
}

fn decode_stalls(input: &mut In<'_>) -> Option<Stalls> {
    let some_us = input.number()?;
    if some_us == 0 {
        return Some(Stalls::default());
    }
    let full_us = input.number()?;
    let mut time = |total_us| {
        Some(StallTime {
            avg10: of_hundredths(input.small()?),
            avg60: of_hundredths(input.small()?),
            avg300: of_hundredths(input.small()?),
            total_us,
        })
    };
    Some(Stalls {
        some: time(some_us)?,
        full: time(full_us)?,
    })
}

impl GroupStat {
    fn values(&self) -> [i64; 12] {
        let Self {
            anon,
            file,
            shmem,
            file_dirty,
            refault,
            activate,
            scanned,
            stolen,
            scanned_direct,
            stolen_direct,
            fault,
            major_fault,
        } = *self;
        [
            anon,
            file,
            shmem,
            file_dirty,
            refault,
            activate,
            scanned,
            stolen,
            scanned_direct,
            stolen_direct,
            fault,
            major_fault,
        ]
    }

    fn decode(input: &mut In<'_>) -> Option<Self> {
        Some(Self {
            anon: input.signed()?,
            file: input.signed()?,
            shmem: input.signed()?,
            file_dirty: input.signed()?,
            refault: input.signed()?,
            activate: input.signed()?,
            scanned: input.signed()?,
            stolen: input.signed()?,
            scanned_direct: input.signed()?,
            stolen_direct: input.signed()?,
            fault: input.signed()?,
            major_fault: input.signed()?,
        })
    }
}

impl Waiting {
    fn decode(input: &mut In<'_>) -> Option<Self> {
        match input.number()? {
            0 => Some(Self::default()),
            charges => Some(Self {
                charges,
                bytes: input.bytes()?,
                longest: input.time()?,
            }),
        }
    }
}

impl FramesMoment {
    pub(super) fn encode(&self, out: &mut Out<'_>) {
        let Self {
            managed,
            ballooned,
            free,
            deferred,
            cached,
            allocated,
            peak,
            watermark_min,
            watermark_low,
            watermark_high,
            ..
        } = *self;
        for pages in [
            managed,
            ballooned,
            free,
            deferred,
            cached,
            allocated,
            peak,
            watermark_min,
            watermark_low,
            watermark_high,
            u64::from(self.reclaim_active),
            u64::from(self.below_high),
        ] {
            out.number(pages);
        }
    }

    /// Decodes all but the lists and the lock, which are items of their own.
    pub(super) fn decode(input: &mut In<'_>) -> Option<Self> {
        Some(Self {
            managed: input.number()?,
            ballooned: input.number()?,
            free: input.number()?,
            deferred: input.number()?,
            cached: input.number()?,
            allocated: input.number()?,
            peak: input.number()?,
            watermark_min: input.number()?,
            watermark_low: input.number()?,
            watermark_high: input.number()?,
            reclaim_active: input.number()? != 0,
            below_high: input.number()? != 0,
            lists: Vec::new(),
            zone_lock: LockMoment::default(),
        })
    }
}

impl PcpMoment {
    pub(super) fn encode(&self, out: &mut Out<'_>) {
        out.number(self.cpu.map_or(0, |cpu| u64::from(cpu) + 1));
        for frames in [
            self.count,
            self.high,
            self.high_min,
            self.high_max,
            self.batch,
        ] {
            out.number(u64::from(frames));
        }
    }

    pub(super) fn decode(input: &mut In<'_>) -> Option<Self> {
        Some(Self {
            cpu: input.small()?.checked_sub(1),
            count: input.small()?,
            high: input.small()?,
            high_min: input.small()?,
            high_max: input.small()?,
            batch: input.small()?,
        })
    }
}

impl LockMoment {
    pub(super) fn encode(
        out: &mut Out<'_>,
        class: &str,
        [contended, wait_ns]: [u64; 2],
        held: Option<[u64; 2]>,
    ) {
        out.text(class);
        out.number(contended);
        out.number(wait_ns);
        out.byte(u8::from(held.is_some()));
        for number in held.into_iter().flatten() {
            out.number(number);
        }
    }

    pub(super) fn decode(input: &mut In<'_>) -> Option<Self> {
        let mut lock = Self {
            class: input.text()?,
            contended: input.number()?,
            wait_ns: input.number()?,
            hold_ns: None,
            holds: None,
        };
        if input.byte()? != 0 {
            lock.hold_ns = Some(input.number()?);
            lock.holds = Some(input.number()?);
        }
        Some(lock)
    }
}

impl FileMoment {
    pub(super) fn encode(
        out: &mut Out<'_>,
        id: u64,
        path: &str,
        pages: u64,
        resident: Estimate<Bytes>,
    ) {
        out.number(id);
        out.text(path);
        out.number(pages);
        out.estimate(resident);
    }

    pub(super) fn decode(input: &mut In<'_>) -> Option<Self> {
        Some(Self {
            id: input.number()?,
            path: input.text()?,
            pages: input.number()?,
            resident: input.estimate()?,
        })
    }
}

impl VictimRecord {
    pub(super) fn encode(&self, out: &mut Out<'_>) {
        out.text(&self.target);
        out.text(&self.victim);
        out.estimate(self.estimate);
        out.byte(u8::from(self.exact.is_some()));
        out.number(self.exact.map_or(0, |bytes| bytes.0));
        out.signed(self.badness);
        out.byte(u8::from(self.runner_up.is_some()));
        let next = self.runner_up.as_ref();
        out.text(next.map_or("", |(path, _)| path));
        out.signed(next.map_or(0, |(_, badness)| *badness));
        out.number(self.gap.0);
        for count in [
            self.scanned,
            self.eligible,
            self.in_reach,
            self.reads,
            self.passes,
        ] {
            out.number(count);
        }
        out.text(&self.text);
    }

    pub(super) fn decode(time: Duration, input: &mut In<'_>) -> Option<Self> {
        Some(Self {
            time,
            target: input.text()?,
            victim: input.text()?,
            estimate: input.estimate()?,
            exact: {
                let is_exact = input.byte()? != 0;
                let bytes = input.bytes()?;
                is_exact.then_some(bytes)
            },
            badness: input.signed()?,
            runner_up: {
                let is_some = input.byte()? != 0;
                let next = (input.text()?, input.signed()?);
                is_some.then_some(next)
            },
            gap: input.bytes()?,
            scanned: input.number()?,
            eligible: input.number()?,
            in_reach: input.number()?,
            reads: input.number()?,
            passes: input.number()?,
            text: input.text()?,
        })
    }
}
