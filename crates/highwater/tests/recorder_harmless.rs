//! Promise: the flight recorder does no harm. It flushes no statistics, its ticks allocate nothing,
//! and a disk without room, or a file that another program cuts, costs records alone.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]
#![expect(unsafe_code, reason = "counts the allocator's calls")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use highwater::group::{StatItem, Tolerance};
use highwater::lab::recording::{Everything, Moment, Recording, RecordingError};
use highwater::{Background, BuildError, Bytes, Group, Limits, Manager};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts the calls of each thread.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    /// # Safety
    ///
    /// As for the trait.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of this function, which is the same.
        unsafe { System.alloc(layout) }
    }

    /// # Safety
    ///
    /// As for the trait.
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Returns the allocations of this thread in `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// A manager without background threads, so that nothing else flushes or records.
fn recorded(path: &Path) -> Result<Manager, BuildError> {
    let builder = Manager::builder()
        .capacity(Bytes::mib(64))
        .background(Background::Off);
    builder.recorder(path, Bytes::mib(1)).build()
}

fn in_new_dir() -> (tempfile::TempDir, PathBuf, Manager) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flight.rec");
    let hw = recorded(&path).unwrap();
    (dir, path, hw)
}

fn last(path: &Path) -> Moment {
    let recording = Recording::open(path).unwrap();
    recording.moment(recording.last().unwrap()).unwrap()
}

fn marks(path: &Path) -> Vec<String> {
    let recording = Recording::open(path).unwrap();
    let marks = recording.marks().iter();
    marks.map(|mark| mark.text.clone()).collect()
}

#[test]
fn recording_flushes_no_statistics() {
    // Goal: what is recorded of statistics is as old as it says, and no tick makes it younger.
    // Method: faults on a few pages, which nothing flushes; whole moments, changes and a mark;
    // then an exact read, which shows that there was something to flush.
    let (dir, path, hw) = in_new_dir();
    let source = dir.path().join("pages");
    fs::write(&source, vec![7; 16 * 4096]).unwrap();
    let tenant = hw.root().child("tenant", Limits::default()).unwrap();
    let file = hw.open(&source).unwrap();
    let mapping = hw.space(&tenant).map_file(&file, 0..16).unwrap();
    let guard = hw.enter();
    (0..16_u64).for_each(|at| assert_eq!(mapping.read(&guard, at).unwrap()[0], 7));
    drop(guard);
    let seen = || last(&path).group("/tenant").unwrap().clone();
    let mut faults = 0;
    for round in 0..3 {
        hw.record_now(Everything::Yes);
        hw.mark("a mark");
        let charge = tenant.charge(Bytes::mib(1 + round)).unwrap();
        hw.record_now(Everything::No);
        let seen = seen();
        assert!(seen.stat_staleness > 0, "round {round}: a tick has flushed");
        assert!(!seen.stat_age.is_zero(), "round {round}");
        faults = seen.stat.fault;
        drop(charge);
    }
    let exact = tenant.stats(Tolerance::EXACT).get(StatItem::Pgfault);
    assert!(faults < exact, "{faults} of {exact} were known");
    hw.record_now(Everything::Yes);
    assert_eq!(seen().stat.fault, exact);
}

/// Returns a manager with groups in which something has changed since the last moment.
fn groups(hw: &Manager, nr_groups: usize) -> Vec<Group> {
    let child = |nr| hw.root().child(&format!("g{nr}"), Limits::default());
    (0..nr_groups).map(|nr| child(nr).unwrap()).collect()
}

/// Runs code when the recorder's thread drops it.
struct DroppedThere<F: Fn()>(F);

impl<F: Fn()> Drop for DroppedThere<F> {
    fn drop(&mut self) {
        if thread::current().name() == Some("highwater-recorder") {
            (self.0)();
        }
    }
}

/// Returns a manager whose recorder's thread has dropped the last handle of a group, and so its
/// data, which run `code` once.
fn dropped_there(path: &Path, code: impl Fn(&Manager) + Send + Sync + 'static) -> Manager {
    let builder = Manager::builder().background(Background::Thread);
    let hw = builder.recorder(path, Bytes::mib(16)).build().unwrap();
    // So many that a whole moment takes longer than the group below is there.
    drop(groups(&hw, 4000));
    let has_run = Arc::new(AtomicBool::new(false));
    let (code, of_code) = (Arc::new(code), hw.clone());
    let of_code = Arc::new(Mutex::new(Some(of_code)));
    let end = Instant::now() + Duration::from_secs(60);
    while !has_run.load(Ordering::SeqCst) {
        assert!(Instant::now() < end, "no moment has met the group");
        let group = hw.root().child("passing", Limits::default()).unwrap();
        let (has_run, code, of_code) = (has_run.clone(), code.clone(), of_code.clone());
        let data = DroppedThere(move || {
            if !has_run.swap(true, Ordering::SeqCst) {
                let hw = of_code.lock().unwrap().take().unwrap();
                code(&hw);
            }
        });
        assert!(group.set_data(data).is_ok());
        thread::sleep(Duration::from_millis(1));
        group.remove().unwrap();
    }
    hw
}

// Symptom: the destructor of a group's data that panicked ended the recorder's thread.
// Goal: later moments are recorded. Method: the thread reads a group while that is removed.
#[test]
fn a_destructor_that_panics_does_not_end_the_recording() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flight.rec");
    let hw = dropped_there(&path, |_| panic!("as told"));
    let after = || {
        let recording = Recording::open(&path).unwrap();
        recording.last().and_then(|last| recording.time(last))
    };
    let (before, end) = (after(), Instant::now() + Duration::from_secs(30));
    while after() <= before {
        assert!(Instant::now() < end, "nothing is recorded any more");
        thread::sleep(Duration::from_millis(50));
    }
    drop(hw);
    assert!(Recording::open(&path).unwrap().has_ended());
}

// Symptom: a recording had no orderly end if its own thread dropped the last handle of the manager.
// Goal: it has. Method: as above, with data that wait until they have the last handle.
#[test]
fn a_recording_whose_thread_ends_the_manager_has_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flight.rec");
    let is_last = Arc::new(Barrier::new(2));
    let waits = Arc::clone(&is_last);
    drop(dropped_there(&path, move |_| _ = waits.wait()));
    is_last.wait();
    let end = Instant::now() + Duration::from_secs(30);
    while !Recording::open(&path).unwrap().has_ended() {
        assert!(Instant::now() < end, "it has no end");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_tick_allocates_nothing() {
    // Goal: a tick of changes makes no allocation, also while charges wait, and a whole moment a
    // number that does not grow with the groups but for the doublings of one list. Method: the
    // thread's allocations, after three rounds in which buffers grow.
    let (_dir, path, hw) = in_new_dir();
    let mut recording = Recording::open(&path).unwrap();
    let mut groups_so_far = groups(&hw, 100);
    let full = hw.root().child("full", Limits::max(Bytes(4096))).unwrap();
    let _filled = full.charge(Bytes(4096)).unwrap();
    let mut waits = pin!(full.charge_async(Bytes(1)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    let mut whole = Vec::new();
    for nr_groups in [100_usize, 1_600] {
        while groups_so_far.len() < nr_groups {
            let name = format!("g{}", groups_so_far.len());
            groups_so_far.push(hw.root().child(&name, Limits::default()).unwrap());
        }
        for round in 0_u64..6 {
            let tick = allocations(|| hw.record_now(Everything::Yes));
            recording.refresh().unwrap();
            let charges: Vec<_> = groups_so_far
                .iter()
                .map(|group| group.charge(Bytes(4096 * (round + 1))).unwrap())
                .collect();
            let changes = allocations(|| hw.record_now(Everything::No));
            assert_eq!(recording.refresh().unwrap(), 1, "the changes are written");
            drop(charges);
            let nothing_due = allocations(|| hw.record_tick());
            if round >= 3 {
                assert_eq!((changes, nothing_due), (0, 0), "{nr_groups} groups");
            }
            if round == 5 {
                whole.push(tick);
            }
        }
    }
    println!("allocations of a whole moment: {whole:?}");
    assert!(whole[1] <= whole[0] + 4, "100 and 1,600 groups: {whole:?}");
}

#[test]
fn a_file_that_is_cut_costs_its_records() {
    // Goal: no signal and no panic when another program truncates or removes the file; recording
    // goes on. Method: cut behind the header, cut to nothing, remove.
    let (_dir, path, hw) = in_new_dir();
    hw.mark("before");
    hw.record_now(Everything::Yes);
    let other = OpenOptions::new().write(true).open(&path).unwrap();
    other.set_len(4096).unwrap();
    assert_eq!(marks(&path), [""; 0]);
    hw.mark("after");
    hw.record_now(Everything::Yes);
    assert_eq!(marks(&path), ["after"]);
    assert!(last(&path).is_whole);
    other.set_len(0).unwrap();
    hw.record_now(Everything::Yes);
    let headless = Recording::open(&path).unwrap_err();
    assert!(
        matches!(headless, RecordingError::NotARecording { .. }),
        "{headless}"
    );
    fs::remove_file(&path).unwrap();
    hw.record_now(Everything::Yes);
    drop(hw);
    assert!(!path.exists());
}

/// Passes the folder on the small disk to the child.
const CHILD: &str = "HIGHWATER_TEST_SMALL_DISK";

#[test]
fn a_full_disk_refuses_the_recorder_and_costs_records() {
    // Goal: a recorder that the disk has no room for is an error of the builder, which leaves
    // nothing behind; a disk that fills later costs records. Method: the child below, with a file
    // system of 2 MiB.
    let dir = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=2m none "$1" && echo mounted && exec "$2" --exact \
                    child_on_a_small_disk --nocapture"#;
    let child = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .args([dir.path(), &env::current_exe().unwrap()])
        .env(CHILD, dir.path())
        .output();
    let output = match child {
        Ok(output) => output,
        Err(error) => {
            println!("not tested: cannot run unshare: {error}");
            return;
        }
    };
    let (out, errors) = (&output.stdout, &output.stderr);
    let [out, errors] = [out, errors].map(|text| String::from_utf8_lossy(text));
    if !out.contains("mounted") {
        println!("not tested: no file system can be mounted: {errors}");
        return;
    }
    assert!(output.status.success(), "{out}{errors}");
    assert!(out.contains("1 passed"), "{out}");
}

/// Fills the disk.
fn fill(path: &Path) {
    let mut filler = File::create(path).unwrap();
    let full = loop {
        if let Err(error) = filler.write_all(&[1; 4096]) {
            break error;
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn child_on_a_small_disk() {
    let Ok(dir) = env::var(CHILD).map(PathBuf::from) else {
        return;
    };
    let path = dir.join("flight.rec");
    let hw = recorded(&path).unwrap();
    hw.mark("before");
    hw.record_now(Everything::Yes);
    let Err(BuildError::Recorder { source, .. }) = recorded(&path) else {
        panic!("two recordings do not fit");
    };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    let names = fs::read_dir(&dir)
        .unwrap()
        .map(|it| it.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["flight.rec"]);
    assert_eq!(marks(&path), ["before"]);
    // All blocks are there, so a full disk does not matter ...
    let filler = dir.join("filler");
    fill(&filler);
    hw.mark("full");
    hw.record_now(Everything::Yes);
    assert_eq!(marks(&path), ["before", "full"]);
    // ... until another program gives them back and fills the disk with them.
    let other = OpenOptions::new().write(true).open(&path).unwrap();
    other.set_len(4096).unwrap();
    fill(&dir.join("more"));
    hw.mark("lost");
    hw.record_now(Everything::Yes);
    assert_eq!(marks(&path), [""; 0]);
    fs::remove_file(&filler).unwrap();
    hw.mark("after");
    hw.record_now(Everything::Yes);
    assert_eq!(marks(&path), ["after"]);
    assert!(last(&path).is_whole);
}
