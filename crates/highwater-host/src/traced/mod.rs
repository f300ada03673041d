//! Counts of the kernel's own events over some seconds, for the checks that need its tracing.
//!
//! [`Traced::collect`] records into an instance of its own, which is gone afterwards, also after an
//! error or a panic; one whose process was killed is removed by the next. Three things are
//! measured at once, and an event that a kernel lacks takes away only its own:
//!
//! | measured | events |
//! |---|---|
//! | [`ZoneTrips`] | `kmem:mm_page_alloc`, `mm_page_alloc_zone_locked`, `mm_page_free`, `mm_page_pcpu_drain` |
//! | [`LockWaits`] | `lock:contention_begin` with a stack, `contention_end` |
//! | [`Flushes`] | `memcg:memcg_flush_stats` |

mod classes;
mod flushes;
mod symbols;
mod waits;
mod zones;

use std::time::{Duration, Instant};

pub use classes::LockClass;
pub use flushes::Flushes;
pub use symbols::Symbols;
pub use waits::{ClassWaits, LockWaits};
pub use zones::ZoneTrips;

use crate::finding::printable;
use crate::tracefs::{Event, Instance, Stream, Tracefs, TracefsError};

/// Memory of all buffers together, in KiB. Chosen: half a second of a million events a second.
const BUFFERS_KIB: u64 = 64 << 10;

/// Bounds of one CPU's buffer, in KiB.
const BUFFER_KIB: std::ops::RangeInclusive<u64> = 512..=16 << 10;

/// Time between two reads of the buffers.
const POLL: Duration = Duration::from_millis(20);

/// What some seconds of the kernel's events say.
#[derive(Debug)]
pub struct Traced {
    /// How long was recorded, in seconds.
    pub seconds: f64,
    /// Buffers, which are the CPUs that the kernel may use.
    pub cpus: u64,
    /// Events that found their buffer full: the counts lack them.
    pub lost_events: u64,
    /// Events that were counted.
    pub events: u64,
    /// Pages between per-CPU lists and zones.
    pub zone_trips: Result<ZoneTrips, TracefsError>,
    /// Time waited for locks.
    pub lock_waits: Result<LockWaits, TracefsError>,
    /// Flushes of the statistics of groups.
    pub flushes: Result<Flushes, TracefsError>,
}

impl Traced {
    /// Records for `time`, or until `is_interrupted` says so, which is asked every 20 ms.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the recording: mostly because this process is not root.
    pub fn collect(
        tracefs: &Tracefs,
        time: Duration,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<Self, TracefsError> {
        let instance = tracefs.instance()?;
        let cpus = instance.cpus()?;
        let share = BUFFERS_KIB / cpus.max(1);
        instance.set_buffer_kib(share.clamp(*BUFFER_KIB.start(), *BUFFER_KIB.end()))?;
        let mut counts = Counts {
            zone_trips: ZoneTrips::enable(&instance, tracefs),
            lock_waits: LockWaits::enable(&instance, tracefs),
            flushes: Flushes::enable(&instance),
            events: 0,
        };
        let mut stream = instance.stream()?;
        let seconds = counts.record(&instance, &mut stream, time, is_interrupted)?;
        let lost_events = instance.lost()?.events();
        drop(stream);
        Ok(Self {
            seconds,
            cpus,
            lost_events,
            events: counts.events,
            zone_trips: counts.zone_trips,
            lock_waits: counts.lock_waits.map(LockWaits::finish),
            flushes: counts.flushes,
        })
    }

    /// The share of all events that were lost, from 0 to 1.
    #[must_use]
    pub fn lost_share(&self) -> f64 {
        let all = self.lost_events.saturating_add(self.events);
        crate::finding::share(self.lost_events, all)
    }
}

/// The counts while they grow.
struct Counts {
    zone_trips: Result<ZoneTrips, TracefsError>,
    lock_waits: Result<LockWaits, TracefsError>,
    flushes: Result<Flushes, TracefsError>,
    events: u64,
}

impl Counts {
    /// Returns how long was recorded, in seconds.
    fn record(
        &mut self,
        instance: &Instance,
        stream: &mut Stream,
        time: Duration,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<f64, TracefsError> {
        instance.start()?;
        let start = Instant::now();
        while start.elapsed() < time && !is_interrupted() {
            std::thread::sleep(POLL.min(time.saturating_sub(start.elapsed())));
            stream.poll(|event| self.count(&event))?;
        }
        let seconds = start.elapsed().as_secs_f64();
        instance.stop()?;
        stream.drain(|event| self.count(&event))?;
        Ok(seconds)
    }

    fn count(&mut self, event: &Event<'_>) {
        self.events += 1;
        if let Ok(trips) = &mut self.zone_trips
            && trips.count(event)
        {
            return;
        }
        if let Ok(waits) = &mut self.lock_waits
            && waits.count(event)
        {
            return;
        }
        if let Ok(flushes) = &mut self.flushes {
            flushes.count(event);
        }
    }
}

/// Returns the name of a task as a text shows it, while it lives.
fn name_of_task(task: u64) -> Option<String> {
    if task == 0 {
        return Some("interrupts of idle CPUs".to_owned());
    }
    let name = std::fs::read(format!("/proc/{task}/comm")).ok()?;
    Some(shown(&name))
}

/// Formats the content of `comm`. The kernel cuts names at 15 bytes, also within a character.
fn shown(comm: &[u8]) -> String {
    printable(String::from_utf8_lossy(comm).trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Symptom: a live task whose name was cut within a character was "a task that ended", and one
    // with escape sequences in its name sent them to the terminal.
    #[test]
    fn names_of_tasks_are_shown_whatever_their_bytes() {
        assert_eq!(shown(b"kswapd0\n"), "kswapd0");
        assert_eq!(shown(b"a\x1b[2J\n"), "a?[2J");
        assert_eq!(shown("fünfzehn-bytes-é\n".as_bytes()), "fünfzehn-bytes-é");
        assert_eq!(shown(b"14-bytes-and-\xc3\n"), "14-bytes-and-\u{fffd}");
        let own = u64::from(std::process::id());
        assert!(name_of_task(own).is_some());
        assert_eq!(name_of_task(u64::MAX), None);
    }
}
