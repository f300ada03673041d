//! Promise: no thread spins. A manager that has nothing to do takes no CPU time, also after
//! asynchronous reads, by io_uring or by threads, and after write-back.

#![cfg(all(target_os = "linux", not(miri)))]
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]
#![expect(clippy::print_stderr, reason = "a test that skips something says so")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use highwater::{Background, Builder, File, Manager, Mapping, ReadPattern};
use tempfile::NamedTempFile;

#[path = "support/engines.rs"]
mod engines;

/// Long enough that the periodic work of a second takes place.
const IDLING: Duration = Duration::from_secs(2);

/// Largest CPU time of all threads meanwhile. It is not 0: each reclaim thread wakes up once a
/// second for its periodic work, of some 50 us. Chosen: far above that on any machine; a thread
/// that never sleeps exceeds it even if it gets only 2 % of a CPU.
const CPU_MAX: Duration = Duration::from_millis(20);

/// Most sleeps of one thread meanwhile. Chosen: above the 5 that the reclaim thread's three timers
/// cause, of one, one and two seconds. A thread that looks for work every 100 ms exceeds it on any
/// machine.
const SLEEPS_MAX: u64 = 12;

/// What a thread has done.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    cpu: Duration,
    sleeps: u64,
}

/// Returns what each thread of the managers has done, by its number and name; `None` where the
/// kernel does not count it.
fn threads() -> Option<BTreeMap<String, Done>> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let mut threads = BTreeMap::new();
    for task in tasks.map(|task| task.unwrap().path()) {
        let name = read(&task, "comm")?;
        if name.starts_with("highwater-") {
            let id = task.file_name()?.to_string_lossy().into_owned();
            threads.insert(format!("{id} {}", name.trim()), done(&task)?);
        }
    }
    Some(threads)
}

fn read(task: &Path, file: &str) -> Option<String> {
    fs::read_to_string(task.join(file)).ok()
}

fn done(task: &Path) -> Option<Done> {
    let cpu = read(task, "schedstat")?;
    let status = read(task, "status")?;
    let mut lines = status.lines();
    let sleeps = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    Some(Done {
        cpu: Duration::from_nanos(cpu.split(' ').next()?.parse().ok()?),
        sleeps: sleeps.trim().parse().ok()?,
    })
}

/// A manager that has read and written.
struct Scene {
    hw: Manager,
    map: Mapping,
    file: File,
    _named: NamedTempFile,
}

impl Scene {
    fn new(builder: Builder) -> Self {
        let named = NamedTempFile::new().unwrap();
        fs::write(named.path(), vec![7; 64 * 4096]).unwrap();
        let hw = builder.background(Background::Thread).build().unwrap();
        let file = hw.open_writable(named.path()).unwrap();
        let map = hw.space(&hw.root()).map_file(&file, 0..64).unwrap();
        map.set_read_pattern(ReadPattern::Random);
        Self {
            hw,
            map,
            file,
            _named: named,
        }
    }

    /// Reads outside `block_on`, so that the manager's own threads land the pages; drops reads in
    /// flight; writes back.
    fn work(&self) {
        for page in 0..64 {
            let read = Box::pin(self.map.read_latched_async(page));
            _ = poll_once(read);
        }
        while self.hw.snapshot().counter("nr_async_reads") > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        self.map.write(3).unwrap()[0] = 8;
        self.file.sync().unwrap();
    }
}

fn poll_once<R>(mut read: Pin<Box<impl Future<Output = R>>>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    read.as_mut().poll(&mut context).is_ready()
}

// Goal: the promise. Method: managers with each engine work, and then leave their threads alone for
// two seconds; the kernel tells what each did meanwhile.
#[test]
fn no_thread_of_an_idle_manager_spins() {
    let probe = Scene::new(Manager::builder());
    probe.work();
    let engines = engines::engines(&probe.hw);
    let mut names = vec!["highwater-kswap", "highwater-write", "highwater-io"];
    if engines.iter().any(|(name, _)| *name == "io_uring") {
        names.push("highwater-reape");
    }
    let scenes: Vec<Scene> = engines
        .into_iter()
        .map(|(_, builder)| Scene::new(builder))
        .collect();
    scenes.iter().for_each(Scene::work);
    let Some(before) = threads() else {
        eprintln!("skipped: the kernel does not count the CPU time of threads");
        return;
    };
    for name in names {
        let is_there = before.keys().any(|thread| thread.ends_with(name));
        assert!(is_there, "{name}: {before:?}");
    }
    thread::sleep(IDLING);
    let mut meanwhile = threads().unwrap();
    for (thread, done) in &mut meanwhile {
        let before = before.get(thread).copied().unwrap_or_default();
        done.cpu -= before.cpu;
        done.sleeps -= before.sleeps;
    }
    let cpu: Duration = meanwhile.values().map(|done| done.cpu).sum();
    assert!(cpu <= CPU_MAX, "{cpu:?}: {meanwhile:#?}");
    let is_calm = |done: &Done| done.sleeps <= SLEEPS_MAX;
    assert!(meanwhile.values().all(is_calm), "{meanwhile:#?}");
}
