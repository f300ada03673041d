//! Promise: where the system refuses io_uring, from the start or from some moment on, threads read
//! for asynchronous faults, and pages are written back without it; every read ends, with the right
//! bytes, and no write is lost.
//!
//! Each case runs in a process of its own, because filters of system calls are permanent: the test
//! starts itself again.
#![cfg(all(target_os = "linux", not(miri)))]
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]
#![expect(clippy::print_stderr, reason = "a test that skips something says so")]
#![expect(unsafe_code, reason = "installs a filter of system calls")]

#[path = "../src/memmap/sandbox.rs"]
mod sandbox;

use std::env;
use std::fs;
use std::future::poll_fn;
use std::io::Write;
use std::pin::Pin;
use std::process::{Command, exit};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use highwater::{Bytes, Manager, Mapping, ReadPattern, ReadWait};
use tempfile::NamedTempFile;

const PAGES: u64 = 512;

/// Makes the system refuse `calls` of all threads; ends the process if that is impossible.
fn refuse(calls: &[libc::c_long]) {
    if !sandbox::refuse_process(calls, libc::EPERM) {
        eprintln!("skipped: this system does not filter system calls");
        exit(0);
    }
}

/// Runs the test `name` again in a process of its own; returns true in that process.
fn is_in_a_process(name: &str) -> bool {
    const INSIDE: &str = "HIGHWATER_TEST_INSIDE";
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([name, "--exact", "--nocapture"])
        .env(INSIDE, "1");
    assert!(command.status().unwrap().success());
    false
}

fn scene() -> (Manager, Mapping, NamedTempFile) {
    let mut file = NamedTempFile::new().unwrap();
    for page in 0..PAGES {
        file.write_all(&[u8::try_from(page % 251).unwrap(); 4096])
            .unwrap();
    }
    let hw = Manager::builder().capacity(Bytes::mib(1)).build().unwrap();
    let open = hw.open(file.path()).unwrap();
    let map = hw.space(&hw.root()).map_file(&open, 0..PAGES).unwrap();
    map.set_read_pattern(ReadPattern::Random);
    (hw, map, file)
}

/// Reads pages, all in flight at once; calls `between` after they were asked for.
fn read(hw: &Manager, map: &Mapping, pages: std::ops::Range<u64>, between: impl FnOnce()) {
    let mut between = Some(between);
    let reads = pages.map(|page| (page, Box::pin(map.read_async(page))));
    let mut reads: Vec<_> = reads.collect();
    hw.block_on(poll_fn(|context| {
        reads.retain_mut(|(page, read)| match read.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(read) => {
                let byte = u8::try_from(*page % 251).unwrap();
                assert_eq!(*read.unwrap(), [byte; 4096]);
                false
            }
        });
        between.take().into_iter().for_each(|between| between());
        match reads.is_empty() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }));
}

/// Checks the manager once no read is in flight. A flight counts until its thread is done with it,
/// which is after its delivery.
fn check_landed(hw: &Manager) {
    while hw.snapshot().counter("nr_async_reads") > 0 {
        thread::yield_now();
    }
    hw.check_invariants();
}

fn shown(hw: &Manager) -> String {
    let snapshot = hw.snapshot().to_string();
    let line = snapshot.lines().find(|line| line.starts_with("io: "));
    line.unwrap().to_owned()
}

#[test]
fn threads_read_where_the_ring_is_refused() {
    if !is_in_a_process("threads_read_where_the_ring_is_refused") {
        return;
    }
    refuse(&[libc::SYS_io_uring_setup]);
    let (hw, map, _file) = scene();
    assert_eq!(shown(&hw), "io: not used yet");
    read(&hw, &map, 0..100, || {});
    let shown = shown(&hw);
    assert!(shown.contains("threads (no io_uring: "), "{shown}");
}

#[test]
fn threads_take_over_where_the_ring_is_refused_later() {
    if !is_in_a_process("threads_take_over_where_the_ring_is_refused_later") {
        return;
    }
    let (hw, map, _file) = scene();
    read(&hw, &map, 0..100, || {});
    if !shown(&hw).starts_with("io: io_uring") {
        eprintln!("skipped: {}", shown(&hw));
        return;
    }
    // Some of these reads are in the system, and the last few only queued.
    read(&hw, &map, 200..300, || {
        refuse(&[libc::SYS_io_uring_enter]);
    });
    let shown = shown(&hw);
    assert!(shown.contains("threads (io_uring refused: "), "{shown}");
    read(&hw, &map, 300..PAGES, || {});
    check_landed(&hw);
}

// Goal: pages are written back where the ring is refused, from the start or later. Method: every
// second page of a direct file is written to and synced, before and after each refusal.
#[test]
fn pages_are_written_back_where_the_ring_is_refused() {
    if !is_in_a_process("pages_are_written_back_where_the_ring_is_refused") {
        return;
    }
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(file.path(), vec![0; 4096 * 512]).unwrap();
    let manager = || Manager::builder().capacity(Bytes::mib(4)).build().unwrap();
    let sync = |hw: &Manager, byte| {
        let open = match hw.open_direct_writable(file.path()) {
            Ok(open) => open,
            Err(error) => {
                eprintln!("skipped: {error}");
                exit(0);
            }
        };
        let map = hw.space(&hw.root()).map_file(&open, 0..PAGES).unwrap();
        let pages = || (0..PAGES).step_by(2);
        pages().for_each(|page| map.write(page).unwrap()[7] = byte);
        open.sync().unwrap();
        let bytes = fs::read(file.path()).unwrap();
        let written = bytes.chunks(4096).step_by(2);
        assert!(written.map(|page| page[7]).all(|it| it == byte), "{byte}");
    };
    let hw = manager();
    sync(&hw, 1);
    refuse(&[libc::SYS_io_uring_enter]);
    [2, 3].into_iter().for_each(|byte| sync(&hw, byte));
    refuse(&[libc::SYS_io_uring_setup]);
    sync(&manager(), 4);
}

/// A task that owns its read, the last handle of the file.
#[derive(Default)]
struct Closer(Mutex<Option<Pin<Box<ReadWait>>>>);

impl Wake for Closer {
    fn wake(self: Arc<Self>) {
        let last = self.0.lock().unwrap().take();
        drop(last);
    }
}

// Symptom: a thread that read the pages of a refused ring itself called a waker that closed their
// file, and waited there for ever for the pages that it was yet to read. Method: two reads of one
// poll are refused, and no thread can be started; a signal ends the process if it hangs.
#[test]
fn a_waker_may_close_a_file_whose_reads_are_refused() {
    if !is_in_a_process("a_waker_may_close_a_file_whose_reads_are_refused") {
        return;
    }
    let (hw, map, _file) = scene();
    read(&hw, &map, 200..201, || {});
    if !shown(&hw).starts_with("io: io_uring") {
        eprintln!("skipped: {}", shown(&hw));
        return;
    }
    // SAFETY: takes a number only.
    unsafe { libc::alarm(60) };
    let task = Arc::new(Closer::default());
    let mut map = Some(map);
    hw.block_on(poll_fn(|context| {
        let map = map.take().unwrap();
        let mut reads = [1, 1, 20].map(|page| Box::pin(map.read_async(page)));
        assert!(reads[0].as_mut().poll(context).is_pending());
        let waker = Waker::from(Arc::clone(&task));
        let polled = reads[1].as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        assert!(reads[2].as_mut().poll(context).is_pending());
        let [_, last, _] = reads;
        *task.0.lock().unwrap() = Some(last);
        refuse(&[libc::SYS_io_uring_enter, libc::SYS_clone, libc::SYS_clone3]);
        Poll::Ready(())
    }));
    assert!(task.0.lock().unwrap().is_none(), "the waker was called");
    check_landed(&hw);
}

/// Unparks a thread.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

// Symptom: a thread that waited for its read stopped taking results as soon as others' reads had
// ended.
#[test]
fn threads_read_where_none_can_take_the_rings_results() {
    if !is_in_a_process("threads_read_where_none_can_take_the_rings_results") {
        return;
    }
    let (hw, map, _file) = scene();
    refuse(&[libc::SYS_eventfd, libc::SYS_eventfd2]);
    thread::scope(|scope| {
        for nth in 0..4 {
            let map = &map;
            scope.spawn(move || {
                let waker = Waker::from(Arc::new(Unpark(thread::current())));
                let mut context = Context::from_waker(&waker);
                for round in 0..2000 {
                    let page = (nth * 131 + round * 7) % PAGES;
                    let mut read = Box::pin(map.read_async(page));
                    let read = loop {
                        match read.as_mut().poll(&mut context) {
                            Poll::Ready(read) => break read,
                            Poll::Pending => thread::park(),
                        }
                    };
                    let byte = u8::try_from(page % 251).unwrap();
                    assert_eq!(*read.unwrap(), [byte; 4096]);
                }
            });
        }
    });
    let shown = shown(&hw);
    assert!(shown.contains("threads ("), "{shown}");
    // Also for a thread that drives.
    read(&hw, &map, 0..PAGES, || {});
    check_landed(&hw);
}
