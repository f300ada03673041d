//! Events of all CPUs in the order of time.
//!
//! Each round reads every CPU's buffer until it is empty. Events are held back until no CPU can
//! still have an older one: an empty buffer holds no event from before the round, but for events
//! being written at that time, which are given [`SLACK`]. An event that comes later still is passed
//! on out of order, and counted.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::error::TracefsError;
use super::instance::cpus_of;
use super::page::{LostBefore, PageLayout};

/// How long an event may take from its time stamp to the end of its writing. Chosen: far above a
/// preempted virtual CPU's usual delay.
const SLACK: Duration = Duration::from_millis(20);

/// Most pages that one round reads from one CPU, so that memory has a bound: 16 MiB of 4 KiB pages.
const PAGES_A_ROUND: usize = 4096;

/// Files that may be open beside the buffers. Chosen: several times those of a recording.
const OTHER_FILES: u64 = 128;

/// An event of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'stream> {
    /// `CLOCK_MONOTONIC` in ns.
    pub time_ns: u64,
    /// The CPU that wrote it.
    pub cpu: u32,
    /// Its fields, as [`EventFormat`](super::EventFormat) places them.
    pub bytes: &'stream [u8],
}

impl Event<'_> {
    /// Returns the number of the event's format; 0, which no event has, if the event has no bytes.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.bytes
            .first_chunk()
            .map_or(0, |bytes| u16::from_ne_bytes(*bytes))
    }
}

/// Readers of all CPUs' buffers.
#[derive(Debug)]
pub struct Stream {
    cpus: Vec<Cpu>,
    layout: PageLayout,
    page: Vec<u8>,
    held: Held,
    bytes_read: u64,
    newest_ns: u64,
    late: u64,
    lost: LostBefore,
}

#[derive(Debug)]
struct Cpu {
    number: u32,
    file: File,
}

/// Events read and not passed on yet.
#[derive(Debug, Default)]
struct Held {
    places: Vec<Place>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    time: u64,
    start: usize,
    length: usize,
    cpu: u32,
}

impl Stream {
    pub(super) fn open(root: &Path, instance: &Path) -> Result<Self, TracefsError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|error| TracefsError::file("read", path, error))
        };
        let layout = PageLayout::parse(&read_at_once(&root.join("events/header_page"))?)?;
        // Since Linux 6.8 sub-buffers may be larger than a page.
        let page_kib = read(&instance.join("buffer_subbuf_size_kb"))
            .ok()
            .and_then(|text| text.trim().parse::<usize>().ok())
            .unwrap_or(0);
        let page = vec![0; (page_kib << 10).max(rustix::param::page_size())];
        let found = cpus_of(instance)?;
        let nr_cpus = found.len() as u64;
        allow_files(nr_cpus.saturating_add(OTHER_FILES));
        let mut cpus = Vec::new();
        for (number, directory) in found {
            let path = directory.join("trace_pipe_raw");
            let mut options = OpenOptions::new();
            options.read(true);
            options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
            let file = options
                .open(&path)
                .map_err(|error| match Errno::from_io_error(&error) {
                    Some(Errno::MFILE) => TracefsError::OpenFiles {
                        cpus: nr_cpus,
                        limit: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
                    },
                    _ => TracefsError::file("open", &path, error),
                })?;
            cpus.push(Cpu { number, file });
        }
        Ok(Self {
            cpus,
            layout,
            page,
            held: Held::default(),
            bytes_read: 0,
            newest_ns: 0,
            late: 0,
            lost: LostBefore::None,
        })
    }

    /// Reads every buffer, and passes on the events that no older one can follow, in order of
    /// time. Call it again before a buffer is full.
    ///
    /// # Errors
    ///
    /// When a buffer cannot be read or decoded.
    pub fn poll(&mut self, pass_on: impl FnMut(Event<'_>)) -> Result<(), TracefsError> {
        let slack = u64::try_from(SLACK.as_nanos()).unwrap_or(u64::MAX);
        let mut complete_until = monotonic_ns().saturating_sub(slack);
        for index in 0..self.cpus.len() {
            if let Some(newest) = self.read_cpu(index)? {
                complete_until = complete_until.min(newest);
            }
        }
        self.release(complete_until, pass_on);
        Ok(())
    }

    /// Reads every buffer to its end, and passes on all events: after
    /// [`Instance::stop`](super::Instance::stop).
    ///
    /// # Errors
    ///
    /// When a buffer cannot be read or decoded.
    pub fn drain(&mut self, pass_on: impl FnMut(Event<'_>)) -> Result<(), TracefsError> {
        for index in 0..self.cpus.len() {
            while self.read_cpu(index)?.is_some() {}
        }
        self.release(u64::MAX, pass_on);
        Ok(())
    }

    /// Returns the number of buffers: the CPUs that the kernel may use.
    #[must_use]
    pub const fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Returns the bytes read from the buffers so far.
    #[must_use]
    pub const fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Returns the events that were passed on after a younger one.
    #[must_use]
    pub const fn late(&self) -> u64 {
        self.late
    }

    /// Returns the events that pages say were lost before them. A buffer that drops new events
    /// counts them only in [`Instance::lost`](super::Instance::lost).
    #[must_use]
    pub const fn lost_in_pages(&self) -> LostBefore {
        self.lost
    }

    /// Reads a CPU's buffer. Returns the time of its newest event if it may hold more.
    fn read_cpu(&mut self, index: usize) -> Result<Option<u64>, TracefsError> {
        let cpu = &mut self.cpus[index];
        let number = cpu.number;
        for _ in 0..PAGES_A_ROUND {
            let read = match cpu.file.read(&mut self.page) {
                Ok(0) => return Ok(None),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // A CPU that has not been online since the instance was made has no buffer yet.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => {
                    return Ok(None);
                }
                Err(error) => {
                    let path = format!("per_cpu/cpu{number}/trace_pipe_raw");
                    return Err(TracefsError::file("read", Path::new(&path), error));
                }
            };
            self.bytes_read += read as u64;
            let lost = self
                .held
                .push_page(&self.layout, &self.page[..read], number)
                .map_err(|source| TracefsError::Page {
                    cpu: number,
                    source,
                })?;
            self.lost = add(self.lost, lost);
        }
        Ok(Some(self.held.places.last().map_or(0, |place| place.time)))
    }

    /// Passes on the events up to a time.
    fn release(&mut self, until: u64, mut pass_on: impl FnMut(Event<'_>)) {
        let released = self.held.sort(until);
        for place in &self.held.places[..released] {
            self.late += u64::from(place.time < self.newest_ns);
            self.newest_ns = self.newest_ns.max(place.time);
            pass_on(Event {
                time_ns: place.time,
                cpu: place.cpu,
                bytes: &self.held.bytes[place.start..place.start + place.length],
            });
        }
        self.held.forget(released);
    }
}

impl Held {
    /// Appends the events of a page; returns those lost before it.
    fn push_page(
        &mut self,
        layout: &PageLayout,
        page: &[u8],
        cpu: u32,
    ) -> Result<LostBefore, super::page::PageError> {
        let events = layout.events(page)?;
        let lost = events.lost();
        for event in events {
            let event = event?;
            self.places.push(Place {
                time: event.time,
                start: self.bytes.len(),
                length: event.bytes.len(),
                cpu,
            });
            self.bytes.extend_from_slice(event.bytes);
        }
        Ok(lost)
    }

    /// Sorts by time and returns how many events are not younger than `until`. The sort is stable:
    /// events of one CPU with one time keep their order, and each CPU's run is already in order.
    fn sort(&mut self, until: u64) -> usize {
        self.places.sort_by_key(|place| place.time);
        self.places.partition_point(|place| place.time <= until)
    }

    /// Removes the first events.
    fn forget(&mut self, count: usize) {
        let kept = self.places.split_off(count);
        let mut bytes = Vec::new();
        self.places.clear();
        for place in kept {
            let start = bytes.len();
            bytes.extend_from_slice(&self.bytes[place.start..place.start + place.length]);
            self.places.push(Place { start, ..place });
        }
        self.bytes = bytes;
    }
}

/// Raises the soft limit on open files to so many, as far as the hard limit allows.
fn allow_files(needed: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|soft| soft < needed) {
        let raised = Rlimit {
            current: Some(limit.maximum.map_or(needed, |hard| hard.min(needed))),
            maximum: limit.maximum,
        };
        // If it is refused, a file that does not open is the error.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

/// Reads a file that the kernel returns in the first read only, however small its buffer is.
fn read_at_once(path: &Path) -> Result<String, TracefsError> {
    let refuse = |error| TracefsError::file("read", path, error);
    let mut bytes = vec![0; 1 << 14];
    let mut file = File::open(path).map_err(refuse)?;
    let length = file.read(&mut bytes).map_err(refuse)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

/// Adds two counts of lost events.
const fn add(sum: LostBefore, more: LostBefore) -> LostBefore {
    match (sum, more) {
        (LostBefore::Unknown, _) | (_, LostBefore::Unknown) => LostBefore::Unknown,
        (LostBefore::None, other) | (other, LostBefore::None) => other,
        (LostBefore::Events(a), LostBefore::Events(b)) => LostBefore::Events(a.saturating_add(b)),
    }
}

/// Returns `CLOCK_MONOTONIC` in ns.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let of_seconds = now.tv_sec.cast_unsigned().saturating_mul(1_000_000_000);
    of_seconds.saturating_add(now.tv_nsec.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a page of events of one word each, at these times after `base`.
    fn page(base: u64, deltas: &[u32]) -> Vec<u8> {
        let mut page = base.to_ne_bytes().to_vec();
        page.extend((8 * deltas.len() as u64).to_ne_bytes());
        for (index, delta) in deltas.iter().enumerate() {
            page.extend((delta << 5 | 1).to_ne_bytes());
            page.extend((u32::try_from(index).unwrap()).to_ne_bytes());
        }
        page
    }

    /// Goal: CPUs are merged by time, and events wait for older ones. Method: two pages, a limit
    /// between their events.
    #[test]
    fn cpus_are_merged_by_time() {
        let mut held = Held::default();
        let layout = PageLayout::WORD_64;
        for (cpu, page) in [(0, page(100, &[0, 10, 10])), (1, page(105, &[0, 10, 50]))] {
            assert_eq!(held.push_page(&layout, &page, cpu), Ok(LostBefore::None));
        }
        assert_eq!(held.sort(120), 5);
        let order: Vec<_> = held.places.iter().map(|at| (at.time, at.cpu)).collect();
        let expected = [(100, 0), (105, 1), (110, 0), (115, 1), (120, 0), (165, 1)];
        assert_eq!(order, expected);
        held.forget(5);
        let last = held.places[0];
        assert_eq!((last.time, last.start, held.bytes.len()), (165, 0, 4));
        assert_eq!(held.bytes, 2_u32.to_ne_bytes());
    }

    /// Opens 100 buffers of a made tree; returns how many are open, or the error.
    fn opened() -> Result<usize, String> {
        let root = tempfile::tempdir().unwrap();
        let header = include_str!("../../tests/tracefs_6_18/header_page");
        std::fs::create_dir(root.path().join("events")).unwrap();
        std::fs::write(root.path().join("events/header_page"), header).unwrap();
        for cpu in 0..100 {
            let directory = root.path().join(format!("per_cpu/cpu{cpu}"));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("trace_pipe_raw"), "").unwrap();
        }
        let stream = Stream::open(root.path(), root.path());
        stream
            .map(|it| it.cpus())
            .map_err(|error| error.to_string())
    }

    // Symptom: "Too many open files" from about 1,010 CPUs on. Method: this test again, in
    // processes with a soft limit of 64 files, and with a hard one.
    #[test]
    fn buffers_of_more_cpus_than_the_limit_on_files_are_opened() {
        const EXPECTED: &str = "EXPECTED_OF_BUFFERS";
        let name =
            "tracefs::stream::tests::buffers_of_more_cpus_than_the_limit_on_files_are_opened";
        match std::env::var(EXPECTED).as_deref() {
            Ok("opened") => assert_eq!(opened(), Ok(100)),
            Ok(_) => {
                let said = opened().unwrap_err();
                assert!(said.contains("ulimit -n") && said.contains("100"), "{said}");
            }
            Err(_) => {
                for (limit, expected) in [("-S -n", "opened"), ("-n", "refused")] {
                    let mut child = std::process::Command::new("sh");
                    let limited = format!("ulimit {limit} 64 && exec \"$0\" --exact {name}");
                    child.arg("-c").arg(limited);
                    child.arg(std::env::current_exe().unwrap());
                    let output = child.env(EXPECTED, expected).output().unwrap();
                    let said = String::from_utf8_lossy(&output.stdout);
                    assert!(output.status.success(), "{said}");
                    assert!(said.contains("1 passed"), "{said}");
                }
            }
        }
    }

    #[test]
    fn lost_events_add_up() {
        let (none, some) = (LostBefore::None, LostBefore::Events(2));
        assert_eq!(add(add(none, some), some), LostBefore::Events(4));
        assert_eq!(add(some, LostBefore::Unknown), LostBefore::Unknown);
    }
}
