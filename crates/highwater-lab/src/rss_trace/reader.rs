//! The RSS trace reader: opens a trace and returns its events one by one.
//!
//! Invariants: `line` is the number of the line of the last answer; after an error or the end, the
//! iterator returns only `None`. Memory: the window of the stream, the decoder's, and the state of
//! each task and space, about 100 bytes each.

use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::iter::FusedIterator;
use std::path::Path;
use std::sync::Arc;

use super::error::RssTraceError;
use super::event::{RssEvent, RssEventKind, SpaceId};
use super::line::{self, Fault, Header, RawEvent};
use super::spaces::{RssStat, Spaces};
use crate::trace::Digesting;
use crate::trace::decompress::Decoder;
use crate::trace::error::quote_text;
use crate::trace::source::{self, Source};

/// Limit of a trace's lines: lifetimes are numbered with 32 bits.
const LINES_MAX: u64 = u32::MAX as u64;

/// An iterator over the events of an rss trace.
///
/// # Cost
///
/// No allocation per event, except for a new task or space.
///
/// # Examples
///
/// A process changes its own space, then one that it builds for another:
///
/// ```
/// use highwater_lab::rss_trace::{RssEventKind, RssTrace};
///
/// let text: &[u8] = b"# t0_mono_ns=0\nR 0 1 7 ab 1 1 40\nR 9 1 7 cd 0 1 3\n";
/// for event in RssTrace::from_reader("example", text)? {
///     let event = event?;
///     if let RssEventKind::Rss(change) = event.kind {
///         assert_eq!(change.is_current, event.active == Some(change.space));
///     }
/// }
/// # Ok::<(), highwater_lab::rss_trace::RssTraceError>(())
/// ```
pub struct RssTrace {
    source: Source,
    header: Header,
    spaces: Spaces,
    line: u64,
    events: u64,
    /// Time of the last event, in units of the header.
    time: u64,
    is_done: bool,
    file: Arc<Path>,
}

impl fmt::Debug for RssTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RssTrace")
            .field("file", &self.file)
            .field("header", &self.header)
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

impl RssTrace {
    /// Opens a trace file, plain or compressed.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened, its beginning cannot be read, or its first line is not that
    /// of an rss trace.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RssTraceError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|source| RssTraceError::Open {
            file: path.into(),
            source,
        })?;
        Self::from_reader(path, BufReader::new(file))
    }

    /// Reads a trace from any stream; messages use `name`.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn from_reader(
        name: impl AsRef<Path>,
        stream: impl Read + Send + 'static,
    ) -> Result<Self, RssTraceError> {
        let file: Arc<Path> = name.as_ref().into();
        let decoder = Decoder::new(Box::new(stream), Digesting::Off).map_err(|source| {
            RssTraceError::Open {
                file: Arc::clone(&file),
                source,
            }
        })?;
        let mut source = Source::new(decoder);
        let header = first_line(&mut source, &file)?;
        Ok(Self {
            source,
            header,
            spaces: Spaces::new(header.version),
            line: 1,
            events: 0,
            time: 0,
            is_done: false,
            file,
        })
    }

    /// Returns the number of address spaces so far, each lifetime counted: the next [`SpaceId`].
    #[must_use]
    pub fn spaces(&self) -> u64 {
        self.spaces.count()
    }

    /// Returns the number of switches so far that the trace lacks: an event was of another task
    /// than the one that its CPU last switched to.
    #[must_use]
    pub fn inferred_switches(&self) -> u64 {
        self.spaces.inferred_switches()
    }

    /// Returns the space active on a CPU after the last event.
    #[must_use]
    pub fn active(&self, cpu: u32) -> Option<SpaceId> {
        self.spaces.active(cpu)
    }

    /// Returns the next event; `None` at the end.
    fn read(&mut self) -> Result<Option<RssEvent>, RssTraceError> {
        loop {
            let Some(line) = next_line(&mut self.source, &self.file, self.line + 1)? else {
                return self.finish();
            };
            self.line += 1;
            let event = self.follow(line.length);
            let event = event.map_err(|expected| {
                let text = &self.source.bytes()[..line.length];
                bad_line(&self.file, self.line, text, expected)
            })?;
            self.source.consume(line.length + 1);
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// Applies the next line, of `length` bytes; returns its event, if it has one.
    fn follow(&mut self, length: usize) -> Result<Option<RssEvent>, Fault> {
        if self.line > LINES_MAX {
            return Err("fewer than 2^32 lines");
        }
        let parsed = line::parse(&self.source.bytes()[..length], &self.header)?;
        let (time, cpu, pid, raw) = match parsed {
            line::Line::KernelThread(pid) if self.events == 0 => {
                self.spaces.declare_kernel_thread(pid);
                return Ok(None);
            }
            line::Line::KernelThread(_) => return Err("kernel threads before the first event"),
            line::Line::Event {
                time,
                cpu,
                pid,
                event,
            } => (time, cpu, pid, event),
        };
        if self.header.events == Some(self.events) {
            return Err("the end: the first line promises fewer events");
        }
        if time < self.time {
            return Err("a time not before the line above's");
        }
        let Some(time_ns) = time.checked_mul(self.header.unit_ns) else {
            return Err("a time of less than 2^64 ns");
        };
        self.time = time;
        self.events += 1;
        let Some(kind) = self.apply(cpu, pid, raw) else {
            return Ok(None);
        };
        Ok(Some(RssEvent {
            time_ns,
            cpu,
            pid,
            active: self.spaces.active(cpu),
            kind,
        }))
    }

    fn apply(&mut self, cpu: u32, pid: u32, raw: RawEvent) -> Option<RssEventKind> {
        if raw == RawEvent::Other {
            return None;
        }
        self.spaces.observe(cpu, pid);
        Some(match raw {
            RawEvent::Rss {
                mm_id,
                is_current,
                member,
                size,
            } => {
                let stat = RssStat {
                    mm_id,
                    is_current,
                    member,
                    size,
                };
                RssEventKind::Rss(self.spaces.rss(cpu, pid, stat))
            }
            RawEvent::Switch { next } => {
                self.spaces.switch(cpu, next);
                RssEventKind::Switch { next }
            }
            RawEvent::Fork { child, is_sharing } => {
                if is_sharing {
                    self.spaces.fork_sharing(pid, child);
                } else {
                    self.spaces.fork_copied(pid, child);
                }
                RssEventKind::Fork { child, is_sharing }
            }
            RawEvent::Exec => {
                self.spaces.exec(pid);
                RssEventKind::Exec
            }
            RawEvent::Exit { is_last } => {
                self.spaces.exit(pid);
                RssEventKind::Exit { is_last }
            }
            RawEvent::Other => return None,
        })
    }

    /// Ends the stream: complete or too early.
    fn finish(&self) -> Result<Option<RssEvent>, RssTraceError> {
        match self.header.events {
            Some(promised) if promised != self.events => Err(RssTraceError::Truncated {
                file: Arc::clone(&self.file),
                line: self.line + 1,
                found: self.events,
                promised,
            }),
            _ => Ok(None),
        }
    }
}

impl Iterator for RssTrace {
    type Item = Result<RssEvent, RssTraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let answer = self.read().transpose();
        self.is_done = !matches!(answer, Some(Ok(_)));
        answer
    }
}

impl FusedIterator for RssTrace {}

/// A line that ends in LF, at the beginning of the source's bytes.
struct Whole {
    length: usize,
}

/// Finds line `number`; `None` at the end of the stream.
fn next_line(
    source: &mut Source,
    file: &Arc<Path>,
    number: u64,
) -> Result<Option<Whole>, RssTraceError> {
    match source.line() {
        source::Line::Whole { length, ending: 1 } => Ok(Some(Whole { length })),
        source::Line::Whole { .. } => Err(bad_line(
            file,
            number,
            source.bytes(),
            "a line end: the trace is truncated",
        )),
        source::Line::TooLong => Err(bad_line(
            file,
            number,
            source.bytes(),
            "a line of at most 256 KiB",
        )),
        source::Line::End => match source.take_failure() {
            None => Ok(None),
            Some(failure) => Err(RssTraceError::Stream {
                file: Arc::clone(file),
                line: number,
                source: failure,
            }),
        },
    }
}

fn first_line(source: &mut Source, file: &Arc<Path>) -> Result<Header, RssTraceError> {
    let length = next_line(source, file, 1)?.map_or(0, |line| line.length);
    let text = &source.bytes()[..length];
    let header = Header::parse(text).map_err(|expected| bad_line(file, 1, text, expected))?;
    source.consume(length + 1);
    Ok(header)
}

fn bad_line(file: &Arc<Path>, line: u64, text: &[u8], expected: Fault) -> RssTraceError {
    RssTraceError::BadLine {
        file: Arc::clone(file),
        line,
        found: quote_text(text).into(),
        expected,
    }
}
