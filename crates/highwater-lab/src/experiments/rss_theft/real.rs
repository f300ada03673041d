//! The published program with real threads, which read real pages through a real space of the
//! library.
//!
//! One space maps a sparse unlinked file, as large as all threads together read. Each thread faults
//! in its own 32 pages, lets every design count the same faults on the CPU that it really runs on,
//! and sleeps. While all sleep, the run reads the space, the number of allocated frames and the
//! system's count of this process. Then the threads exit, and the file is closed.
//!
//! However the run ends, all threads are woken and joined, and the file is deleted with its handle.

use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use highwater::lab::percpu::current_cpu;
use highwater::topology::Topology;
use highwater::units::{CpuId, Estimate, PAGE_BYTES, Pages};
use highwater::{Access, File, FileBacking, Manager, Mapping, ReadError, Space};

use super::seen::Seen;
use crate::baselines::{Member, SpaceId, TaskId, Writer};
use crate::control::Control;
use crate::experiments::ExperimentError;
use crate::experiments::contenders::{Contender, contenders};
use crate::experiments::pages::{bytes, bytes_f64};
use crate::experiments::resident::process_rss_bytes;
use crate::report::text::to_f64;
use crate::report::{Check, Figures, Row, Source, Unit};

const REAL: &str = "real threads and real pages of a real space, while all threads sleep";

/// Pages that each thread reads.
const PAGES: u32 = 32;

/// Stack size: enough to read a page and to sleep.
const STACK_BYTES: usize = 64 << 10;

/// Interval of checks for arrivals and of the stop flag.
const TICK: Duration = Duration::from_millis(5);

/// The only space of the designs.
const SPACE: SpaceId = SpaceId(0);

/// Readings while all threads slept, and afterwards.
#[derive(Debug)]
pub(super) struct RealRun {
    cpus: usize,
    /// Readings of the designs.
    pub(super) designs: Vec<Seen>,
    /// Pages that the threads have read.
    touched: i64,
    /// The space's own reading.
    rss: Estimate<Pages>,
    rss_precise: Pages,
    frames: Pages,
    /// Growth of this process by the system's count; `None` if the system does not tell.
    process_bytes: Option<u64>,
    /// The space's reading after the file is closed.
    rss_closed: Pages,
}

/// Runs `threads` threads.
pub(super) fn run(threads: u32, control: &Control) -> Result<RealRun, ExperimentError> {
    control.expect(threads.into());
    check_maps(
        threads,
        fs::read_to_string("/proc/sys/vm/max_map_count").ok(),
    )?;
    let topology = Topology::detect();
    let (manager, space, file) = set_up(threads)?;
    let mapping = space.map_file(&file, 0..file.pages());
    let mapping = mapping.expect("the whole file is within the file");
    let (gate, shut) = Gate::shut().map_err(|source| ExperimentError::System {
        what: "open a pipe".to_owned(),
        source,
        remedy: "raise `ulimit -n`",
    })?;
    let before = process_rss_bytes();
    let stage = Stage {
        manager: &manager,
        mapping: &mapping,
        contenders: contenders(&topology, 1, threads as usize),
        nr_cpus: topology.nr_cpus(),
        gate,
    };
    let mut run = stage.perform(threads, control, shut, || {
        let touched = i64::from(threads) * i64::from(PAGES);
        RealRun {
            cpus: topology.nr_cpus(),
            designs: Seen::all(&stage.contenders, SPACE, touched),
            touched,
            rss: space.rss(),
            rss_precise: space.rss_precise(),
            frames: manager.snapshot().frames.allocated,
            process_bytes: before.and_then(|before| process_rss_bytes()?.checked_sub(before)),
            rss_closed: Pages::MAX,
        }
    })?;
    drop((mapping, file));
    run.rss_closed = space.rss_precise();
    Ok(run)
}

/// Refuses a number of threads that the system would start but whose signal stacks it would not
/// map: the program would abort.
fn check_maps(threads: u32, maps_max: Option<String>) -> Result<(), ExperimentError> {
    /// Maps of a thread: a stack, a signal stack, and a guard for each.
    const OF_A_THREAD: u64 = 4;
    /// Maps besides. Chosen: those of the program and its allocator, and as many again.
    const OTHERS: u64 = 2000;
    // A system without the file has no such limit.
    let max: u64 = maps_max
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(u64::MAX);
    let room = max.saturating_sub(OTHERS) / OF_A_THREAD;
    if u64::from(threads) <= room {
        return Ok(());
    }
    let why = format!("{max} maps of memory (`vm.max_map_count`) are enough for {room} threads");
    Err(ExperimentError::TooManyThreads {
        started: 0,
        wanted: threads,
        source: io::Error::other(why),
    })
}

/// Creates a manager with room for all pages, a space, and the file.
fn set_up(threads: u32) -> Result<(Manager, Space, File), ExperimentError> {
    let pages = u64::from(threads) * u64::from(PAGES);
    // An eighth more, for watermarks and per-CPU lists, so that reclaim evicts nothing.
    let capacity = Pages(pages + pages / 8 + 4096);
    let manager = Manager::builder().capacity(capacity.bytes()).build()?;
    let space = manager.space(&manager.root());
    let refused = |source| ExperimentError::System {
        what: format!("make a sparse temporary file of {pages} pages"),
        source,
        remedy: "set TMPDIR to a directory that can be written to, or ask for fewer `--threads`",
    };
    let sparse = tempfile::tempfile().map_err(refused)?;
    sparse.set_len(pages * PAGE_BYTES).map_err(refused)?;
    let backing = FileBacking::new(sparse).map_err(refused)?;
    let file = manager.open_backing(Arc::new(backing), Access::ReadOnly);
    let file = file.map_err(|e| refused(io::Error::other(e)))?;
    Ok((manager, space, file))
}

/// Shared state of the threads.
struct Stage<'a> {
    manager: &'a Manager,
    mapping: &'a Mapping,
    contenders: Vec<Contender>,
    nr_cpus: usize,
    gate: Gate,
}

impl Stage<'_> {
    /// Starts the threads, calls `look` while all of them sleep, and ends them.
    fn perform<T>(
        &self,
        threads: u32,
        control: &Control,
        shut: PipeWriter,
        look: impl FnOnce() -> T,
    ) -> Result<T, ExperimentError> {
        thread::scope(|scope| {
            // Dropped on every path; otherwise the scope would wait forever.
            let _shut = shut;
            for started in 0..threads {
                let thread = thread::Builder::new().stack_size(STACK_BYTES);
                let spawned = thread.spawn_scoped(scope, move || self.play(started));
                spawned.map_err(|source| ExperimentError::TooManyThreads {
                    started,
                    wanted: threads,
                    source,
                })?;
                control.advance(0)?;
            }
            self.gate.wait_for(threads, control)?;
            Ok(look())
        })
    }

    /// Runs one thread.
    fn play(&self, task: u32) {
        let arrival = Arrival(&self.gate);
        match self.read_pages(task) {
            Ok(()) => {}
            Err(error) => {
                self.gate.failure().get_or_insert(error);
            }
        }
        drop(arrival);
        self.gate.sleep();
        let by = self.writer(task);
        for contender in &self.contenders {
            contender.switch(by.cpu, SPACE);
            contender.unmap(by, Member::Anon, PAGES.into());
            contender.leave(by);
        }
    }

    fn read_pages(&self, task: u32) -> Result<(), ReadError> {
        let first = u64::from(task) * u64::from(PAGES);
        // One guard for all pages, dropped before the thread sleeps: with more than 4,096 threads,
        // each `enter` searches for a seat.
        let guard = self.manager.enter();
        for page in first..first + u64::from(PAGES) {
            let content = self.mapping.read(&guard, page)?;
            assert!(
                content.iter().all(|byte| *byte == 0),
                "a sparse file is blank"
            );
            let by = self.writer(task);
            for contender in &self.contenders {
                contender.switch(by.cpu, SPACE);
                contender.fault(by, Member::Anon);
            }
        }
        Ok(())
    }

    /// Returns the thread as a writer on its current CPU.
    fn writer(&self, task: u32) -> Writer {
        Writer {
            cpu: CpuId::from_index(current_cpu().index() % self.nr_cpus),
            task: TaskId(task),
            space: Some(SPACE),
        }
    }
}

/// Gate at which the threads sleep until all have arrived and the readings are taken.
///
/// They sleep in a read of a pipe without writes, which ends when the write end is closed. With ten
/// thousand waiters on a futex, every other futex of the process in the same hash bucket would walk
/// past all of them: 35 s instead of 3.
struct Gate {
    /// Never has data: a read returns when the write end is closed.
    sleepers: PipeReader,
    /// Threads that have arrived.
    ///
    /// Written by: arriving threads (Release). Read by: the thread that waits for them (Acquire).
    /// Publishes: their counts.
    nr_arrived: AtomicU32,
    /// The first failure.
    failure: Mutex<Option<ReadError>>,
}

/// Counts a thread as arrived when it is dropped, also by a panic.
struct Arrival<'a>(&'a Gate);

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        // Release. Pairs with the Acquire in `wait_for`.
        self.0.nr_arrived.fetch_add(1, Ordering::Release);
    }
}

impl Gate {
    /// Returns a gate, and the write end that keeps it shut.
    fn shut() -> io::Result<(Self, PipeWriter)> {
        let (sleepers, writer) = io::pipe()?;
        let gate = Self {
            sleepers,
            nr_arrived: AtomicU32::new(0),
            failure: Mutex::new(None),
        };
        Ok((gate, writer))
    }

    /// Returns the first failure, which is consistent at every moment.
    fn failure(&self) -> MutexGuard<'_, Option<ReadError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until the writer is dropped.
    fn sleep(&self) {
        let mut nothing = Vec::new();
        // An error ends the sleep too; a signal does not.
        let _ = (&self.sleepers).read_to_end(&mut nothing);
    }

    /// Waits until `threads` threads have arrived.
    fn wait_for(&self, threads: u32, control: &Control) -> Result<(), ExperimentError> {
        let mut told = 0;
        loop {
            if let Some(failure) = self.failure().take() {
                return Err(failure.into());
            }
            // Acquire. Pairs with the Release in `Arrival::drop`.
            let nr_arrived = self.nr_arrived.load(Ordering::Acquire);
            control.advance((nr_arrived - told).into())?;
            told = nr_arrived;
            if nr_arrived == threads {
                return Ok(());
            }
            thread::sleep(TICK);
        }
    }
}

impl RealRun {
    pub(super) fn config(&self, config: Figures) -> Figures {
        config
            .with("real_cpus", self.cpus)
            .with("real_pages_of_a_thread", u64::from(PAGES))
            .with("real_touched_pages", self.touched)
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let truth = bytes(self.touched);
        let row = |name: &str| Row::new(REAL, Source::Run, name);
        let shown = |name, shown: u64| {
            row(name)
                .with("shown_bytes", shown)
                .with("truth_bytes", truth)
        };
        let mut rows: Vec<Row> = self.designs.iter().map(|seen| seen.row(REAL)).collect();
        let Estimate { value, low, high } = self.rss;
        rows.push(
            shown("space of the library", value.bytes().0)
                .with("exact_bytes", self.rss_precise.bytes().0)
                .with("promised_low_bytes", low.bytes().0)
                .with("promised_high_bytes", high.bytes().0),
        );
        rows.push(shown("frames allocated", self.frames.bytes().0));
        if let Some(process_bytes) = self.process_bytes {
            rows.push(shown(
                "growth of this process in smaps_rollup",
                process_bytes,
            ));
        }
        rows
    }

    pub(super) fn checks(&self, checks: &mut Vec<Check>) {
        let touched = Pages(self.touched.unsigned_abs());
        checks.extend([
            Check::counted("real: exact reading of the library's space")
                .equal(&self.rss_precise, &touched),
            Check::counted("real: frames allocated").equal(&self.frames, &touched),
            Check::counted("real: pages read, within the interval of the library's space").between(
                to_f64(touched.0),
                to_f64(self.rss.low.0),
                to_f64(self.rss.high.0),
                Unit::Pages,
            ),
            Check::counted("real: exact reading once the file is closed")
                .equal(&self.rss_closed, &Pages(0)),
        ]);
        if let Some(process_bytes) = self.process_bytes {
            // Below 1 the pages would be missing. Stacks, tables and huge pages come on top. Not a
            // count of the library: a kernel short of memory swaps pages out, and khugepaged adds
            // some when it comes by.
            checks.push(
                Check::timed("real: growth of this process, against the pages read").between(
                    to_f64(process_bytes) / bytes_f64(self.touched),
                    1.0,
                    2.0,
                    Unit::Ratio,
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a number of threads that would abort the program is refused with figures, and a
    /// smaller one is not.
    #[test]
    fn threads_beyond_the_systems_maps_are_refused() {
        let check = |threads| check_maps(threads, Some("65530\n".to_owned()));
        assert!(check(15_882).is_ok());
        let said = check(15_883).unwrap_err().to_string();
        for word in [
            "0 of 15883 threads",
            "65530",
            "--threads",
            "vm.max_map_count",
        ] {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert!(check_maps(1_000_000, None).is_ok());
    }

    /// Goal: a stopped run wakes and joins its threads, and has no result. Method: stop it before
    /// it begins.
    #[test]
    fn a_stopped_run_ends() {
        let control = Control::default();
        control.stop();
        let stopped = run(8, &control).unwrap_err();
        assert!(matches!(stopped, ExperimentError::Interrupted), "{stopped}");
    }

    /// Goal: the space, the allocated frames and the exact designs agree with the pages that
    /// threads read, and nothing is left. Method: a few threads.
    #[test]
    fn pages_read_are_pages_counted() {
        let run = run(20, &Control::default()).unwrap();
        assert_eq!(run.touched, 640);
        assert_eq!((run.rss_precise, run.frames), (Pages(640), Pages(640)));
        assert!(run.rss.contains(Pages(640)), "{}", run.rss);
        assert_eq!(run.rss_closed, Pages(0));
        for seen in run.designs {
            assert_eq!(seen.precise, 640, "{}", seen.name);
        }
    }
}
