//! Parser of single lines of an RSS trace, independent of earlier lines.

use highwater::units::Pages;

use super::event::Member;
use crate::trace::text::Fields;

/// Limit of task numbers, with room to spare: the kernel's `PID_MAX_LIMIT` is 2^22.
const PID_LIMIT: u64 = 1 << 22;
/// CPUs that a trace may name, from 0. Chosen: the largest that Linux is built for (`NR_CPUS`).
pub(super) const CPU_LIMIT: u64 = 8192;
/// Pages of 4,096 bytes in an address space of 2^56 bytes.
const SIZE_LIMIT: u64 = 1 << 44;
/// `CLONE_VM`: the new task shares the space of its parent.
const CLONE_VM: u64 = 0x100;

const EXPECTED_HEADER: &str = "`# rss-trace 2 unit_ns=N cpus=N events=N` or `# t0_mono_ns=N`";
const EXPECTED_RSS: &str = "`R t cpu pid mm_id curr member size`";
const EXPECTED_SWITCH: &str = "`S t cpu prev_pid prev_state next_pid`";
const EXPECTED_FORK: &str = "`N t cpu pid child flags`";
const EXPECTED_EXEC: &str = "`X t cpu pid`";
const EXPECTED_EXIT: &str = "`Z t cpu pid is_last`";
const EXPECTED_KERNEL: &str = "`K pid`";
const EXPECTED_OTHER: &str = "`A|F|B|D|E t cpu pid ...`";
const EXPECTED_KIND_1: &str = "a line that begins with R, S, A, F, B, D or E";
const EXPECTED_KIND_2: &str = "a line that begins with R, S, N, X, Z or K";

/// Expectation that a line does not meet.
pub(super) type Fault = &'static str;

/// Content of the first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: Version,
    /// Nanoseconds of one unit of time.
    pub(super) unit_ns: u64,
    /// CPUs that lines may name.
    pub(super) cpus: u64,
    /// Events that follow, if known.
    pub(super) events: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// Without forks, execs, exits, kernel threads and a stated length.
    One,
    Two,
}

impl Header {
    pub(super) fn parse(line: &[u8]) -> Result<Self, Fault> {
        Self::parse_text(line).ok_or(EXPECTED_HEADER)
    }

    fn parse_text(line: &[u8]) -> Option<Self> {
        let text = str::from_utf8(line).ok()?;
        if let Some(start) = text.strip_prefix("# t0_mono_ns=") {
            start.parse::<u64>().ok()?;
            return Some(Self {
                version: Version::One,
                unit_ns: 1,
                cpus: CPU_LIMIT,
                events: None,
            });
        }
        let mut words = text.strip_prefix("# rss-trace 2 ")?.split(' ');
        let mut value = |name: &str| -> Option<u64> {
            let value = words.next()?.strip_prefix(name)?.strip_prefix('=')?;
            value.parse().ok()
        };
        let header = Self {
            version: Version::Two,
            unit_ns: value("unit_ns").filter(|unit| (1..=1_000_000_000).contains(unit))?,
            cpus: value("cpus").filter(|cpus| (1..=CPU_LIMIT).contains(cpus))?,
            events: Some(value("events")?),
        };
        words.next().is_none().then_some(header)
    }
}

/// One line after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// The task is a kernel thread.
    KernelThread(u32),
    Event {
        /// In units of the header.
        time: u64,
        cpu: u32,
        pid: u32,
        event: RawEvent,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RawEvent {
    Rss {
        mm_id: u32,
        is_current: bool,
        member: Member,
        size: Pages,
    },
    Switch {
        next: u32,
    },
    Fork {
        child: u32,
        is_sharing: bool,
    },
    Exec,
    Exit {
        is_last: bool,
    },
    /// An event that is checked and ignored.
    Other,
}

/// Parses a line after the first.
pub(super) fn parse(line: &[u8], header: &Header) -> Result<Line, Fault> {
    let mut fields = Fields::new(line);
    let letter = fields.letter();
    let (expected, event): (_, fn(&mut Fields<'_>) -> Option<RawEvent>) =
        match (letter, header.version) {
            (Some(b'R'), _) => (EXPECTED_RSS, rss),
            (Some(b'S'), _) => (EXPECTED_SWITCH, switch),
            (Some(b'N'), Version::Two) => (EXPECTED_FORK, fork),
            (Some(b'X'), Version::Two) => (EXPECTED_EXEC, exec),
            (Some(b'Z'), Version::Two) => (EXPECTED_EXIT, exit),
            (Some(b'K'), Version::Two) => {
                let task = pid(&mut fields).filter(|_| fields.is_at_end());
                return task.map(Line::KernelThread).ok_or(EXPECTED_KERNEL);
            }
            (Some(b'A' | b'F' | b'B' | b'D' | b'E'), Version::One) => {
                return place(&mut fields, header, |_| Some(RawEvent::Other)).ok_or(EXPECTED_OTHER);
            }
            (_, Version::One) => return Err(EXPECTED_KIND_1),
            (_, Version::Two) => return Err(EXPECTED_KIND_2),
        };
    let line = place(&mut fields, header, event);
    line.filter(|_| fields.is_at_end()).ok_or(expected)
}

/// Parses the fields that every event begins with, then its own.
fn place(
    fields: &mut Fields<'_>,
    header: &Header,
    event: impl Fn(&mut Fields<'_>) -> Option<RawEvent>,
) -> Option<Line> {
    Some(Line::Event {
        time: fields.number()?,
        cpu: number_below(fields, header.cpus)?,
        pid: pid(fields)?,
        event: event(fields)?,
    })
}

fn rss(fields: &mut Fields<'_>) -> Option<RawEvent> {
    Some(RawEvent::Rss {
        mm_id: fields.bare_hexadecimal()?.try_into().ok()?,
        is_current: flag(fields)?,
        member: *Member::ALL.get(usize::try_from(fields.number()?).ok()?)?,
        size: Pages(fields.number().filter(|&size| size < SIZE_LIMIT)?),
    })
}

fn switch(fields: &mut Fields<'_>) -> Option<RawEvent> {
    // The previous task's state: checked, not used.
    fields.number()?;
    let next = pid(fields)?;
    Some(RawEvent::Switch { next })
}

fn fork(fields: &mut Fields<'_>) -> Option<RawEvent> {
    Some(RawEvent::Fork {
        child: pid(fields)?,
        is_sharing: fields.bare_hexadecimal()? & CLONE_VM != 0,
    })
}

#[expect(clippy::unnecessary_wraps, reason = "one of a set of functions")]
fn exec(_: &mut Fields<'_>) -> Option<RawEvent> {
    Some(RawEvent::Exec)
}

fn exit(fields: &mut Fields<'_>) -> Option<RawEvent> {
    let is_last = flag(fields)?;
    Some(RawEvent::Exit { is_last })
}

fn number_below(fields: &mut Fields<'_>, limit: u64) -> Option<u32> {
    let value = fields.number().filter(|&value| value < limit)?;
    value.try_into().ok()
}

fn pid(fields: &mut Fields<'_>) -> Option<u32> {
    number_below(fields, PID_LIMIT + 1)
}

fn flag(fields: &mut Fields<'_>) -> Option<bool> {
    Some(number_below(fields, 2)? == 1)
}
