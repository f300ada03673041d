//! Promise: a limit of the process ends the program with status 2 and an error that names the limit
//! and the remedy, never with a panic or an abort; and unused memory is not allocated.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use support::{Bench, highwater, text};

/// Returns a command that sets a limit in a shell and then runs the program.
fn limited(limit: &str, arguments: &[&str], bench: &Bench) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{limit} && exec \"$@\""), "sh"])
        .arg(bench.path("highwater"))
        .args(arguments)
        .stdin(Stdio::null());
    if arguments.contains(&"replay") {
        command.args(["--dir", &bench.dir()]);
    }
    command
}

/// A user without other processes: a limit on processes concerns the test alone.
struct User(Option<u32>);

impl User {
    /// None where root may not run the program as another user.
    fn of_this_test(bench: &Bench, offset: u32) -> Option<Self> {
        // Limits do not apply to root. The number belongs to no user, and to this test alone.
        if !rustix::process::getuid().is_root() {
            return Some(Self(None));
        }
        let user = 2_000_000_000 + 3 * std::process::id() + offset;
        let mut probe = Command::new(bench.path("highwater"));
        let probed = probe.arg("--version").uid(user).output();
        let may_run = probed.is_ok_and(|it| it.status.success());
        may_run.then_some(Self(Some(user)))
    }

    /// Runs the program as this user, with a limit on processes and threads.
    fn run(&self, processes: u32, arguments: &[&str], bench: &Bench) -> Output {
        let limit = format!("{{ ulimit -u {processes} 2>&- || ulimit -p {processes}; }}");
        let mut command = limited(&limit, arguments, bench);
        if let Some(user) = self.0 {
            command.uid(user);
        }
        command.output().unwrap()
    }
}

/// Creates a bench with a program that any user may run.
fn bench_for_all() -> Bench {
    let bench = Bench::new();
    let program = bench.path("highwater");
    // A process of its own writes the copy: a descriptor of this one could be inherited by a
    // program that another test starts, and a file that is open for writing cannot be run.
    let mut copy = Command::new("cp");
    copy.args([env!("CARGO_BIN_EXE_highwater"), &program]);
    assert!(copy.status().unwrap().success());
    for path in [bench.path(""), bench.dir(), program] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    bench
}

fn assert_explained(output: &Output, words: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{:?}: {said}", output.status);
    assert!(output.stdout.is_empty());
    for word in words {
        assert!(said.contains(word), "lacks {word}: {said}");
    }
    for word in ["bug", "panicked", "internal error"] {
        assert!(!said.contains(word), "{word}: {said}");
    }
}

/// Goal: each thread that the system refuses is an error that names the limit. Method: a user
/// without other processes and with a limit of one to four, which is one less than the run starts:
/// the program, the run, the reclaimer, the write-back, two workers.
#[test]
fn a_refused_thread_names_the_limit_and_is_no_bug() {
    let bench = bench_for_all();
    let trace = bench.write("small.lis", "0 8 0 0\n");
    fs::set_permissions(&trace, fs::Permissions::from_mode(0o644)).unwrap();
    // Limits do not apply to root. The number belongs to no user, and to this test alone.
    let Some(user) = User::of_this_test(&bench, 0) else {
        eprintln!("skipped: root may not run the program as another user here");
        return;
    };
    let mut refused = 0;
    for processes in 1..=5 {
        for threads in ["1", "2"] {
            let arguments = ["replay", &trace, "--threads", threads];
            let output = user.run(processes, &arguments, &bench);
            if output.status.code() == Some(0) {
                continue;
            }
            refused += 1;
            assert_explained(
                &output,
                &["thread", "RLIMIT_NPROC", "ulimit -u", "--threads"],
            );
        }
    }
    assert!(refused >= 5, "{refused} runs were refused a thread");
    assert!(bench.left().is_empty());
}

/// Goal: a thread that is refused to an experiment is an error too, and no thread that started
/// before it waits for it. Method: as above, for each experiment that starts threads.
#[test]
fn a_refused_thread_of_an_experiment_names_the_limit_and_is_no_bug() {
    let bench = bench_for_all();
    let Some(user) = User::of_this_test(&bench, 1) else {
        eprintln!("skipped: root may not run the program as another user here");
        return;
    };
    let experiments = [
        ("rss-cost", 3),
        ("charge-many", 1),
        ("space-churn", 2),
        ("flush-mixed", 4),
        ("flush-reads", 5),
        ("dirty-read", 7),
        ("pcp-exit", 7),
        ("pcp-remote", 7),
        ("rmap-mapped", 4),
        ("rmap-read", 5),
    ];
    for (experiment, too_few) in experiments {
        for processes in 1..=too_few {
            let arguments = ["lab", experiment, "--quick"];
            let output = user.run(processes, &arguments, &bench);
            assert_explained(&output, &["thread", "RLIMIT_NPROC", "ulimit -u"]);
        }
    }
}

/// Goal: as above for the checks of a machine. Method: as above, with the limit of one process.
#[test]
fn a_refused_thread_of_the_checks_names_the_limit() {
    let bench = bench_for_all();
    let Some(user) = User::of_this_test(&bench, 2) else {
        eprintln!("skipped: root may not run the program as another user here");
        return;
    };
    let output = user.run(1, &["host"], &bench);
    assert_explained(&output, &["thread", "RLIMIT_NPROC", "ulimit -u"]);
}

/// Goal: no limit on address space causes an abort. Method: limits from far too little to enough.
#[test]
fn a_small_address_space_is_an_error() {
    let bench = bench_for_all();
    let trace = bench.write("small.lis", "0 8 0 0\n100 800 0 1\n");
    let replay = |kib: u64, threads: &str| {
        let options = ["replay", &trace, "--threads", threads, "--format", "arc"];
        let limit = format!("ulimit -v {kib}");
        limited(&limit, &options, &bench).output().unwrap()
    };
    let mut refused = 0;
    for threads in ["1", "8"] {
        for mib in (24..800).step_by(16) {
            let output = replay(mib << 10, threads);
            if output.status.code() != Some(0) {
                assert_explained(&output, &["RLIMIT_AS", "ulimit -v", "--threads"]);
                refused += 1;
            }
        }
        assert_eq!(replay(1 << 20, threads).status.code(), Some(0));
    }
    assert!(refused >= 10, "{refused} limits were too small");
}

/// Goal: the same of an experiment. Method: as above, for one that counts and one with frames.
#[test]
fn a_small_address_space_is_an_error_of_an_experiment() {
    let bench = bench_for_all();
    for experiment in ["rss-hop", "rmap-mapped"] {
        let lab = |kib: u64| {
            let limit = format!("ulimit -v {kib}");
            let arguments = ["lab", experiment, "--quick"];
            limited(&limit, &arguments, &bench).output().unwrap()
        };
        for mib in (24..136).step_by(16) {
            assert_explained(&lab(mib << 10), &["RLIMIT_AS", "ulimit -v"]);
        }
        let output = lab(2 << 20);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
}

/// Goal: memory that is refused where no check foresaw it ends with status 2, after the standard
/// library has said how much. Method: a hundred tenants, which a little limit does not hold.
#[test]
fn memory_that_is_refused_later_ends_with_status_2() {
    let bench = bench_for_all();
    let trace = bench.write("small.lis", "0 8 0 0\n");
    let tenants: Vec<String> = (0..100)
        .map(|number| format!("t{number}={trace},format=arc"))
        .collect();
    let mut arguments = vec!["replay", "--capacity", "4MiB"];
    for tenant in &tenants {
        arguments.extend(["--tenant", tenant]);
    }
    let mut aborted = 0;
    for mib in (270..390_u64).step_by(20) {
        let limit = format!("ulimit -v {}", mib << 10);
        let output = limited(&limit, &arguments, &bench).output().unwrap();
        let said = text(&output.stderr);
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 2)), "{:?}: {said}", output.status);
        aborted += u32::from(said.contains("memory allocation of"));
        assert!(!said.contains("internal error"), "{said}");
    }
    assert!(aborted > 0, "memory was refused to no run");
}

/// Goal: an abort that has nothing to do with memory keeps its signal. Method: SIGABRT, without a
/// limit on memory, to a run that waits for its trace.
#[test]
fn another_abort_keeps_its_signal() {
    let bench = Bench::new();
    let mut child = highwater(&["replay", "-", "--dir", &bench.dir()])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    kill_process(Pid::from_child(&child), Signal::ABORT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
}

/// Goal: a tenant costs the memory that it uses, also where files may have any length. Method: ten
/// tenants of few pages on a tmpfs, which allows a data file of 2^44 pages.
#[test]
fn a_tenant_on_a_tmpfs_does_not_take_gigabytes() {
    let bench = Bench::new();
    let trace = bench.write("small.lis", "0 8 0 0\n800000000 800 0 1\n");
    let shared = Path::new("/dev/shm");
    let dir = tempfile::tempdir_in(if shared.is_dir() {
        shared
    } else {
        Path::new("/tmp")
    });
    let dir = dir.unwrap();
    let peak = |tenants: usize| {
        let dir = dir.path().to_str().unwrap();
        let mut command = highwater(&["replay", "--json", "--capacity", "1MiB", "--dir", dir]);
        for tenant in 0..tenants {
            command.args(["--tenant", &format!("t{tenant}={trace},format=arc")]);
        }
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        report["rss_peak_bytes"].as_u64().unwrap()
    };
    let (one, eleven) = (peak(1), peak(11));
    assert!(one < 64 << 20, "{one} bytes for one tenant");
    // Slots of leaves take half a MiB, the window of a trace a third; the rest is slack.
    let each = eleven.saturating_sub(one) / 10;
    assert!(each < 3 << 20, "{each} bytes for each tenant");
}

// Goal: memory for a mapping's entries is that of the pages in use, until the run has ended.
// Method: one page in each of 300 regions of 7 GiB; writing all entries of a region would take
// 2 MiB.
#[test]
fn pages_far_apart_take_no_memory_for_those_between() {
    let bench = Bench::new();
    let accesses: String = (0..300_u64)
        .map(|at| format!("{}\n", at * 1_835_008))
        .collect();
    let trace = bench.write("far.lirs", &accesses);
    let mut command = highwater(&["replay", "--json", "--capacity", "8MiB", "--buffered"]);
    command.args(["--dir", &bench.dir(), &trace]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let peak = report["rss_peak_bytes"].as_u64().unwrap();
    assert!(peak < 128 << 20, "{peak} bytes");
}
