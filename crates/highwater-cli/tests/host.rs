//! Promise: `highwater host` checks the machine that it runs on, or a recorded one, and says by its
//! exit status whether something is bad; bad input is refused with a reason.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod support;

use std::process::{Output, Stdio};
use std::time::Duration;
use std::{fs, thread};

use highwater_host::tracefs::Tracefs;
use serde_json::Value;

use support::{Bench, highwater, run, text};

/// A recorded machine: 64 CPUs, kernel 6.12, a process with the given resident pages by the cheap
/// counter, `statm` and `smaps_rollup`.
fn recorded(bench: &Bench, [counter, statm, exact]: [u64; 3]) -> String {
    let root = bench.path("machine");
    let file = |path: &str, text: &str| {
        let path = format!("{root}/{path}");
        fs::create_dir_all(std::path::Path::new(&path).parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let zeros = "0 ".repeat(15);
    file("proc/sys/kernel/osrelease", "6.12.107\n");
    file("sys/devices/system/cpu/online", "0-63\n");
    file(
        "proc/7/stat",
        &format!("7 (hop) S {zeros}0 1 0 7 4096 {counter} 0 0\n"),
    );
    file("proc/7/statm", &format!("{statm} {statm} 0 0 0 0 0\n"));
    file("proc/7/smaps_rollup", &format!("Rss: {} kB\n", exact * 4));
    file(
        "proc/pressure/memory",
        "some avg10=0.00 avg60=6.00\nfull avg10=0.00 avg60=0.00\n",
    );
    root
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The check of this number in a report.
fn check(report: &Value, nr: u64) -> &Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["nr"] == nr).unwrap()
}

#[test]
fn this_machine_is_checked_without_an_error() {
    let output = run(&["host", "--seconds", "1", "--json"]);
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{}",
        text(&output.stderr)
    );
    let report = json(&output);
    assert_eq!(report["checks"].as_array().unwrap().len(), 18);
    assert_eq!(report["is_live"], true);
    let is_bad = report["bad_count"].as_u64().unwrap() > 0;
    assert_eq!(output.status.code(), Some(i32::from(is_bad)));
    for check in report["checks"].as_array().unwrap() {
        let says = check["says"].as_str().unwrap();
        assert!(!says.starts_with("cannot parse"), "{check}");
    }
}

#[test]
fn a_recorded_machine_is_judged_worst_first() {
    let bench = Bench::new();
    let root = recorded(&bench, [3_075, 6_863, 6_863]);
    let output = run(&["host", "--root", &root]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let page = text(&output.stdout);
    let verdicts: Vec<&str> = page
        .lines()
        .skip(2)
        .take(18)
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    let rank = |verdict: &&str| {
        ["bad", "warn", "ok", "-"]
            .iter()
            .position(|own| own == verdict)
    };
    assert!(
        verdicts.iter().all(|verdict| rank(verdict).is_some()),
        "{page}"
    );
    assert!(verdicts.is_sorted_by_key(rank), "{page}");
    assert!(page.contains("hop (7): 3,788 pages too few"), "{page}");
    assert!(page.contains("\nAdvice\n"), "{page}");
    assert!(
        page.contains("not measurable here: needs /proc/zoneinfo"),
        "{page}"
    );

    let report = json(&run(&["host", "--root", &root, "--json"]));
    assert_eq!(check(&report, 2)["rss_error_pages"], -3_788);
    assert_eq!(check(&report, 17)["verdict"], "warn");
    assert_eq!(check(&report, 17)["warn_percent"], 5.0);
    assert_eq!(check(&report, 4)["verdict"], "not_measurable");
    assert_eq!(report["is_live"], false);
}

#[test]
fn a_machine_with_nothing_bad_has_status_0() {
    let bench = Bench::new();
    let root = recorded(&bench, [3_000_000, 3_000_000, 3_000_000]);
    let output = run(&["host", "--root", &root]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

/// Goal: the report has each check once in table and cards, worst first, and is drawn again to the
/// same bytes.
#[test]
fn a_report_has_every_check_worst_first() {
    let bench = Bench::new();
    let root = recorded(&bench, [3_075, 6_863, 6_863]);
    let file = bench.path("host.html");
    let output = run(&["host", "--root", &root, "--json", "--report", &file]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let html = fs::read_to_string(&file).unwrap();
    let checks = json(&output)["checks"].as_array().unwrap().clone();
    let mut rest = html.split("<tbody>").nth(1).unwrap();
    for (order, check) in checks.iter().enumerate() {
        let link = format!("<a href=\"#check-{}\">", check["nr"]);
        rest = rest
            .split_once(&link)
            .unwrap_or_else(|| panic!("row {order}"))
            .1;
        let id = format!("id=\"check-{}\"", check["nr"]);
        assert_eq!(html.matches(&id).count(), 1, "{check}");
    }
    assert_eq!(checks.len(), html.matches("<article ").count());
    assert!(html.contains("<p class=\"verdict bad\">"));
    assert_eq!(html.matches("<li>").count(), 3, "three figures");
    let output = run(&["report", &file]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(fs::read_to_string(&file).unwrap() == html);
}

#[test]
fn an_explanation_has_this_machines_numbers() {
    let bench = Bench::new();
    let root = recorded(&bench, [3_075, 6_863, 6_863]);
    let output = run(&["host", "--root", &root, "--explain", "2"]);
    assert_eq!(output.status.code(), Some(1));
    let page = text(&output.stdout);
    for part in [
        "Mechanism",
        "|3,075 - 6,863| pages",
        "Thresholds",
        "Kernels",
        "Discussion",
    ] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    assert!(!page.contains("Check 3"));
}

#[test]
fn the_table_of_processes_shows_error_and_order() {
    let bench = Bench::new();
    let root = recorded(&bench, [3_075, 6_863, 6_863]);
    let output = run(&["host", "rss", "--root", &root]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = text(&output.stdout);
    assert!(page.contains("-3,788") && page.contains("24,576"), "{page}");
    let report = json(&run(&["host", "rss", "--root", &root, "--json"]));
    assert_eq!(report["exact_by"], "statm");
    assert_eq!(report["processes"][0]["error_pages"], -3_788);
    // This machine, by every order.
    for sort in ["exact", "counter", "error", "bound"] {
        let output = run(&["host", "rss", "--sort", sort, "--top", "3", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(json(&output)["processes"].as_array().unwrap().len() <= 3);
    }
}

// Symptom: the name of a group or of a program sent escape sequences to the terminal.
#[test]
fn names_send_no_escape_sequence_to_the_terminal() {
    let bench = Bench::new();
    let root = recorded(&bench, [3_075, 6_863, 6_863]);
    let stat = fs::read_to_string(format!("{root}/proc/7/stat")).unwrap();
    let stat = stat.replace("(hop)", "(hop\x1b[2J)");
    fs::write(format!("{root}/proc/7/stat"), stat).unwrap();
    let groups = format!("{root}/sys/fs/cgroup");
    let group = format!("{groups}/a\x1b[2J");
    fs::create_dir_all(&group).unwrap();
    fs::write(format!("{groups}/cgroup.controllers"), "memory\n").unwrap();
    fs::write(format!("{group}/memory.max"), "8388608\n").unwrap();
    for arguments in [
        &["host"][..],
        &["host", "--explain", "2"],
        &["host", "--explain", "15"],
        &["host", "rss"],
    ] {
        let output = run(&[arguments, &["--root", &root]].concat());
        let page = text(&output.stdout) + &text(&output.stderr);
        assert!(
            page.contains("hop?[2J") || page.contains("/a?[2J"),
            "{page}"
        );
        let is_obeyed = |c: char| c.is_control() && c != '\n';
        assert!(!page.contains(is_obeyed), "{arguments:?}: {page:?}");
    }
}

#[test]
fn bad_input_is_refused() {
    let bench = Bench::new();
    let empty = bench.dir();
    let root = recorded(&bench, [1, 1, 1]);
    fs::write(format!("{root}/meta.json"), "{\"interval_s\": -1}").unwrap();
    for (arguments, reason) in [
        (vec!["host", "--root", &empty], "proc cannot be listed"),
        (vec!["host", "--root", &root], "`interval_s` is -1"),
        (vec!["host", "--explain", "19"], "1 to 18"),
        (vec!["host", "--seconds", "0"], "1 to 3600"),
        (
            vec!["host", "--json", "--explain", "2"],
            "cannot be used with",
        ),
        (
            vec!["host", "--watch", "1", "--report", "r.html"],
            "cannot be used with",
        ),
        (
            vec!["host", "--root", &root, "--report", "/absent/r.html"],
            "cannot write the report /absent/r.html",
        ),
        (vec!["host", "rss", "--sort", "x"], "possible values"),
        (
            vec!["host", "rss", "--root", &empty],
            "proc cannot be listed",
        ),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let complaint = text(&output.stderr);
        assert!(complaint.contains(reason), "{arguments:?}: {complaint}");
    }
}

#[test]
fn watching_repeats_until_a_signal() {
    let mut child = highwater(&["host", "--watch", "1", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    for _ in 0..2 {
        let report: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert!(report["interval_s"].as_f64().unwrap() >= 1.0);
    }
    thread::sleep(Duration::from_millis(100));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// Returns the tracing instances of a process.
fn instances_of(tracefs: &Tracefs, pid: u32) -> usize {
    let names = fs::read_dir(tracefs.root().join("instances")).unwrap();
    let process = format!("-{pid}-");
    names
        .filter(|name| {
            let name = name.as_ref().unwrap().file_name();
            name.to_str().is_some_and(|name| name.contains(&process))
        })
        .count()
}

/// Goal: Ctrl-C during `--trace` leaves no tracing instance. Method: the signal is sent while the
/// instance exists; skipped where tracing is refused.
#[test]
fn ctrl_c_removes_the_tracing_instance() {
    let tracefs = match Tracefs::open() {
        Ok(tracefs) => tracefs,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    if let Err(error) = tracefs.instance() {
        return eprintln!("skipped: {error}");
    }
    let mut child = highwater(&["host", "--trace", "--explain", "8"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while instances_of(&tracefs, child.id()) == 0 {
        assert_eq!(child.try_wait().unwrap(), None, "it ended without tracing");
        thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(instances_of(&tracefs, child.id()), 0);
}
