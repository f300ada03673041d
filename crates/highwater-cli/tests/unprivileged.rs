//! Promise: without root, `highwater host` gives each check a result or says what it needs. On an
//! ordinary machine 15 of the 18 have one; a container with hidden processes and without control
//! groups is no error.
//!
//! The environments are made with `unshare` and `setpriv`, by root or in a user namespace. Where
//! the system refuses that, the test says so and is skipped.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot set itself up has failed, or says why it is skipped"
)]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use support::text;

/// Exit status of a script that could not make its environment.
const REFUSED: i32 = 77;

/// Checks that need the kernel's events.
const TRACED: [u64; 3] = [8, 9, 14];

/// Checks that read control groups.
const OF_GROUPS: [u64; 3] = [13, 15, 16];

/// Becomes a user without rights. The program lies in a directory that this user can reach.
const AS_NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups \
    --bounding-set=-all --inh-caps=-all --no-new-privs --";

/// The same in a user namespace, which has one user.
const WITHOUT_RIGHTS: &str = "setpriv --bounding-set=-all --inh-caps=-all --no-new-privs --";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a script in mount and process namespaces of its own; `$0` is the program, and `drop` the
/// command that gives up all rights.
fn in_namespaces(script: &str) -> Option<Output> {
    let (namespaces, drop) = if is_root() {
        (&["--mount", "--pid", "--fork"][..], AS_NOBODY)
    } else {
        let own = &["--user", "--map-root-user", "--mount", "--pid", "--fork"][..];
        (own, WITHOUT_RIGHTS)
    };
    let script = format!("drop=\"{drop}\"\n{script}");
    let output = Command::new("unshare")
        .args(namespaces)
        .args(["--", "sh", "-c", &script, env!("CARGO_BIN_EXE_highwater")])
        .output();
    match output {
        Err(error) => eprintln!("skipped: cannot run unshare: {error}"),
        // 1: `unshare` itself was refused, and nothing was printed.
        Ok(output) if output.status.code() == Some(REFUSED) || output.stdout.is_empty() => {
            eprintln!("skipped: no namespaces: {}", text(&output.stderr));
        }
        Ok(output) => return Some(output),
    }
    None
}

/// Returns the checks of a report. Every one has a result, or says what it needs; none is an error.
fn honest_checks(output: &Output) -> Vec<Value> {
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{}",
        text(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap().clone();
    assert_eq!(checks.len(), 18);
    for check in &checks {
        let says = check["says"].as_str().unwrap();
        let is_honest = !is_missing(check) || says.starts_with("needs ");
        assert!(is_honest && !says.contains("cannot parse"), "{check}");
    }
    checks
}

fn is_missing(check: &Value) -> bool {
    check["verdict"] == "not_measurable"
}

/// Returns the numbers of the checks without a result.
fn missing(checks: &[Value]) -> Vec<u64> {
    let missing = checks.iter().filter(|check| is_missing(check));
    let mut numbers: Vec<u64> = missing.map(|check| check["nr"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

/// Goal: in a container with hidden processes and without control groups, no check is an error, and
/// at least 12 have a result or say what they need. Method: processes of another user behind
/// `hidepid`, an empty directory over the control groups, no rights.
#[test]
fn a_container_is_no_error() {
    let script = r#"
        { mount -t proc -o hidepid=2 proc /proc &&
          mount -t tmpfs -o mode=755 none /sys/fs/cgroup &&
          mount -t tmpfs -o mode=755 none /mnt &&
          cp "$0" /mnt/highwater; } || exit 77
        sleep 60 &
        exec $drop /mnt/highwater host --seconds 1 --json
    "#;
    let Some(output) = in_namespaces(script) else {
        return;
    };
    let checks = honest_checks(&output);
    let missing = missing(&checks);
    for nr in [&TRACED[..], &OF_GROUPS].concat() {
        assert!(missing.contains(&nr), "check {nr}: {missing:?}");
    }
    // Every kernel shows these files to all users, or to a process about itself.
    for nr in [1, 2, 5, 6, 10, 11, 12] {
        assert!(!missing.contains(&nr), "check {nr}: {missing:?}");
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    if is_root() {
        // The shell and its `sleep` belong to another user.
        assert_eq!(report["processes_count"], 1);
        let says = |nr: u64| checks.iter().find(|check| check["nr"] == nr).unwrap()["says"].clone();
        let hidden = says(2).as_str().unwrap().contains("are hidden");
        assert!(hidden, "{}", says(2));
    }
}

/// Goal: on an ordinary machine (control groups of version 2, an exact `statm`, pressure, a
/// configuration that can be read) 15 checks have a result without root. Method: a user without
/// rights; a check that needs more than this machine has is left out, and named.
#[test]
fn an_ordinary_user_needs_no_root() {
    let script = r#"
        { mount -t proc proc /proc &&
          mount -t tmpfs -o mode=755 none /mnt &&
          cp "$0" /mnt/highwater; } || exit 77
        exec $drop /mnt/highwater host --seconds 1 --json
    "#;
    let Some(output) = in_namespaces(script) else {
        return;
    };
    let missing = missing(&honest_checks(&output));
    let mut expected = TRACED.to_vec();
    if !has_exact_statm() {
        expected.push(4);
    }
    if !Path::new("/proc/config.gz").exists() && !has_boot_config() {
        expected.push(7);
    }
    if !has_groups("cgroup.controllers") {
        expected.push(16);
        if !has_groups("memory/memory.limit_in_bytes") {
            expected.extend([13, 15]);
        }
    }
    if !Path::new("/proc/pressure/memory").exists() {
        expected.push(17);
    }
    for nr in &missing {
        assert!(expected.contains(nr), "check {nr}: {missing:?}");
    }
    if missing.len() > TRACED.len() {
        eprintln!("this machine lacks what checks {missing:?} need");
    }
}

/// Returns whether the memory controller's hierarchy has this file.
fn has_groups(file: &str) -> bool {
    let text = fs::read_to_string(Path::new("/sys/fs/cgroup").join(file));
    text.is_ok_and(|text| file != "cgroup.controllers" || text.contains("memory"))
}

fn has_boot_config() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    fs::File::open(format!("/boot/config-{}", release.trim())).is_ok()
}

/// Since 6.12; distributions may have it earlier.
fn has_exact_statm() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|part| part.trim().parse());
    let version: (u32, u32) = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => return false,
    };
    version >= (6, 12)
}
