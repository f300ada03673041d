//! Promise: a program that enters a sandbox after it has built its manager keeps working, or gets
//! errors; nothing hangs.
//!
//! Each case runs in a process of its own, because filters of system calls are permanent: the test
//! starts itself again.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]
#![expect(unsafe_code, reason = "installs a filter of system calls")]

#[path = "../src/memmap/sandbox.rs"]
mod sandbox;
mod support;

use std::env;
use std::fs;
use std::io;
use std::process::{Command, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use highwater::frame::Tunables;
use highwater::lab::percpu::harness::{allowed_cpus, pin, run_on, skipped, this_thread};
use highwater::units::CpuId;
use highwater::{
    Access, Background, Backing, BuildError, Bytes, Limits, Manager, Pages, ReadError,
};
use support::{TestFile, assert_empty, first_word, mapped};

const FRAMES: u64 = 256;
const FILE_PAGES: u64 = 2048;

/// Makes the system refuse `calls` of all threads of the process with `errno`; ends the process if
/// that is impossible.
#[expect(clippy::print_stderr, reason = "a test that skips something says so")]
fn enter_sandbox(calls: &[libc::c_long], errno: libc::c_int) {
    if !sandbox::refuse_process(calls, errno) {
        let error = io::Error::last_os_error();
        eprintln!("skipped: this system does not filter system calls ({error})");
        exit(0);
    }
}

/// Runs the test `name` again, in a process with `case` in its environment. Returns the case in
/// that process.
fn in_a_process(name: &str, cases: &[&str]) -> Option<String> {
    const CASE: &str = "HIGHWATER_TEST_CASE";
    /// Far above its time on an emulated machine of many CPUs, each of which is visited: a hang
    /// never ends.
    const PATIENCE: Duration = Duration::from_secs(1800);
    if let Ok(case) = env::var(CASE) {
        return Some(case);
    }
    for case in cases {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args([name, "--exact", "--nocapture"])
            .env(CASE, case);
        let mut child = command.spawn().unwrap();
        let since = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if since.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!("{case}: it hangs");
            }
            thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{case}: {status}");
    }
    None
}

fn errno_of(case: &str) -> libc::c_int {
    match case {
        "EPERM" => libc::EPERM,
        "ENOSYS" => libc::ENOSYS,
        other => panic!("no case {other}"),
    }
}

// Symptom: a filter that refuses membarrier, installed when the manager was built, made each
// eviction spin a million times and panic, and every access to a page of its batch waited for ever.
// Method: readers of a file that is eight times the pool, anonymous memory in swap, groups at their
// maximum that come and go; the filter comes in the middle. All bytes are right and all invariants
// hold.
#[test]
fn a_manager_goes_on_where_membarrier_is_refused_later() {
    let name = "a_manager_goes_on_where_membarrier_is_refused_later";
    let Some(case) = in_a_process(name, &["EPERM", "ENOSYS"]) else {
        return;
    };
    let hw = Manager::builder()
        .capacity(Pages(FRAMES).bytes())
        .swap_on(TestFile::new(1024) as Arc<dyn Backing>)
        .build()
        .unwrap();
    let storage = TestFile::new(FILE_PAGES);
    let (file, map) = mapped(&hw, &storage, Access::ReadOnly);
    let is_entered = AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 0..4_u64 {
            let (hw, map, is_entered) = (&hw, &map, &is_entered);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let scratch = hw.space(&hw.root()).map_anon(Pages(64)).unwrap();
                let mut after = 0;
                while after < 300 {
                    let page = rng.u64(..FILE_PAGES);
                    let guard = hw.enter();
                    match map.read(&guard, page) {
                        Ok(bytes) => assert_eq!(first_word(bytes), page),
                        // Four readers at once, in a small pool.
                        Err(ReadError::NoMemory { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    drop(guard);
                    if page.is_multiple_of(4) {
                        let byte = u8::try_from(seed).unwrap() + 1;
                        scratch.write(page % 64).unwrap().fill(byte);
                        let other = scratch.read_latched(page / 4 % 64).unwrap();
                        assert!([0, byte].contains(&other[9]));
                    }
                    if page.is_multiple_of(16) {
                        let limits = Limits::max(Bytes::kib(64));
                        let group = hw.root().child(&format!("{seed}-{page}"), limits).unwrap();
                        let charge = group.charge(Bytes::kib(40));
                        drop(charge);
                        group.remove().unwrap();
                    }
                    after += is_entered.load(Ordering::Relaxed);
                }
            });
        }
        thread::sleep(Duration::from_millis(50));
        enter_sandbox(&[libc::SYS_membarrier], errno_of(&case));
        is_entered.store(1, Ordering::Relaxed);
    });
    drop((map, file));
    assert_empty(&hw);
}

// Goal: if neither a barrier nor a visit to other CPUs is allowed, requests end with errors; cached
// pages can be read. Method: a filter of both, on a thread that stays on its CPU; then more pages
// than there are frames.
#[test]
fn requests_end_with_errors_where_no_barrier_can_be_had() {
    let name = "requests_end_with_errors_where_no_barrier_can_be_had";
    let Some(case) = in_a_process(name, &["EPERM"]) else {
        return;
    };
    pin(this_thread(), allowed_cpus()[0]);
    let hw = support::manager(FRAMES);
    let storage = TestFile::new(FILE_PAGES);
    let (_file, map) = mapped(&hw, &storage, Access::ReadOnly);
    assert_eq!(first_word(map.read(&hw.enter(), 7).unwrap()), 7);
    // Where the system has no such barrier, the manager does not rely on it.
    let query = libc::MEMBARRIER_CMD_QUERY;
    // SAFETY: takes numbers only.
    let known = unsafe { libc::syscall(libc::SYS_membarrier, query, 0, 0) };
    let relies = known > 0 && known & i64::from(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0;
    enter_sandbox(
        &[libc::SYS_membarrier, libc::SYS_sched_setaffinity],
        errno_of(&case),
    );
    let refused = (0..FILE_PAGES).filter(|page| match map.read(&hw.enter(), *page) {
        Ok(bytes) => {
            assert_eq!(first_word(bytes), *page);
            false
        }
        Err(ReadError::NoMemory { .. }) => true,
        Err(error) => panic!("{error}"),
    });
    let refused = refused.take(100).count();
    assert_eq!(refused, if relies { 100 } else { 0 });
    assert_eq!(first_word(map.read(&hw.enter(), 7).unwrap()), 7);
    // Not dropped: the manager's end may need the refused calls.
    exit(0);
}

// Symptom: the background thread ended at its first look at a list of another CPU, and with it the
// deadlines of awaited charges. Method: frames in a list of each CPU; then a filter of both ways to
// reach another CPU, for as long as lists shrink at least twice; then a deadline that only the
// thread can see to. This thread stays on its CPU, where it may charge.
#[test]
fn the_background_thread_goes_on_where_no_other_cpu_can_be_reached() {
    let name = "the_background_thread_goes_on_where_no_other_cpu_can_be_reached";
    let Some(case) = in_a_process(name, &["EPERM"]) else {
        return;
    };
    let cpus = allowed_cpus();
    if cpus.len() < 2 {
        skipped("there is no other CPU");
        exit(0);
    }
    pin(this_thread(), cpus[0]);
    let hw = Manager::builder()
        .capacity(Bytes::mib(64))
        .background(Background::Thread)
        .build()
        .unwrap();
    let group = hw.root().child("full", Limits::max(Bytes(1))).unwrap();
    let held = group.charge(Bytes(1)).unwrap();
    fill_lists(&hw, &cpus);
    enter_sandbox(
        &[libc::SYS_membarrier, libc::SYS_sched_setaffinity],
        errno_of(&case),
    );
    // New tunables reach the lists that can be reached. They panicked.
    let fixed = Tunables::default().with("percpu_pagelist_high_fraction", 8);
    for tunables in [fixed.unwrap(), Tunables::default()] {
        hw.set_tunables(tunables);
        assert_eq!(hw.zoneinfo().tunables, tunables);
    }
    thread::sleep(Duration::from_millis(2500));
    let deadline = Instant::now() + Duration::from_millis(100);
    let mut waiting = Box::pin(group.charge_async(Bytes(1)).with_deadline(deadline));
    let (tell, told) = std::sync::mpsc::channel();
    let waker = std::task::Waker::from(Arc::new(Telling(tell)));
    let mut context = std::task::Context::from_waker(&waker);
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    // However late: whether it comes decides. A test that hangs says less.
    told.recv_timeout(Duration::from_secs(3600)).unwrap();
    drop((waiting, held));
    // Not dropped: the manager's end may need the refused calls.
    exit(0);
}

// Symptom: a manager that was refused a thread moved the recording of the last run to `.old`; the
// second one that was refused replaced it there.
#[test]
fn a_manager_that_is_refused_a_thread_leaves_the_last_recording() {
    let name = "a_manager_that_is_refused_a_thread_leaves_the_last_recording";
    if in_a_process(name, &["EPERM"]).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flight.rec");
    let build = || {
        let builder = Manager::builder().background(Background::Thread);
        builder.recorder(&path, Bytes::mib(1)).build()
    };
    let hw = build().unwrap();
    hw.mark("the crash");
    drop(hw);
    let before = fs::read(&path).unwrap();
    enter_sandbox(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
    for _ in 0..2 {
        let refused = build().unwrap_err();
        assert!(matches!(refused, BuildError::Thread(_)), "{refused}");
        assert!(fs::read(&path).unwrap() == before, "the recording is gone");
        let names = fs::read_dir(dir.path()).unwrap();
        let names = names.map(|it| it.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["flight.rec"]);
    }
}

/// Wakes a task by a message.
struct Telling(std::sync::mpsc::Sender<()>);

impl std::task::Wake for Telling {
    fn wake(self: Arc<Self>) {
        let _is_awaited = self.0.send(()).is_ok();
    }
}

/// Puts frames into the list of each of these CPUs.
fn fill_lists(hw: &Manager, cpus: &[CpuId]) {
    for &cpu in cpus {
        run_on(cpu, || {
            let scratch = hw.space(&hw.root()).map_anon(Pages(512)).unwrap();
            (0..512).for_each(|page| scratch.write(page).unwrap().fill(1));
        });
    }
    let filled = hw
        .zoneinfo()
        .lists
        .into_iter()
        .filter(|list| list.count > 0);
    assert!(filled.count() >= cpus.len());
}
