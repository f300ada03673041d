//! Promise: a limit of the process ends the program with status 2 and an error that names the limit
//! and the remedy, never with a panic or an abort; and unused memory is not allocated.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use support::{Bench, highwater, text};

/// Returns a command that sets a limit in a shell and then runs the program.
fn limited(limit: &str, arguments: &[&str], bench: &Bench) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{limit} && exec \"$@\""), "sh"])
        .arg(bench.path("highwater"))
        .args(arguments)
        .args(["--dir", &bench.dir()])
        .stdin(Stdio::null());
    command
}

/// Creates a bench with a program that any user may run.
fn bench_for_all() -> Bench {
    let bench = Bench::new();
    let program = bench.path("highwater");
    fs::copy(env!("CARGO_BIN_EXE_highwater"), &program).unwrap();
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
    let is_root = rustix::process::getuid().is_root();
    // Limits do not apply to root. The number belongs to no user, and to this test alone.
    let user = 2_000_000_000 + std::process::id();
    let mut probe = Command::new(bench.path("highwater"));
    if is_root
        && !probe
            .arg("--version")
            .uid(user)
            .output()
            .is_ok_and(|it| it.status.success())
    {
        eprintln!("skipped: root may not run the program as another user here");
        return;
    }
    let mut refused = 0;
    for processes in 1..=5 {
        for threads in ["1", "2"] {
            let limit = format!("{{ ulimit -u {processes} 2>&- || ulimit -p {processes}; }}");
            let mut command = limited(&limit, &["replay", &trace, "--threads", threads], &bench);
            if is_root {
                command.uid(user);
            }
            let output = command.output().unwrap();
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
