//! Promise: `highwater lab` runs the experiments by name, prints published figures beside its own,
//! keeps its JSON contract, and its exit status says whether every check holds. Every test drives
//! the built program; the runs are the quick ones.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use support::{highwater, run, text};

/// Goal: the program explains its use. Method: the help, and the list in both forms.
#[test]
fn experiments_can_be_found() {
    let help = run(&["lab", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    for word in [
        "Examples:",
        "rss-hop",
        "--topology",
        "Exit status:",
        "--quick",
        "--judge",
    ] {
        assert!(text(&help.stdout).contains(word), "{word}");
    }
    let list = run(&["lab", "list"]);
    assert_eq!(list.status.code(), Some(0));
    assert!(text(&list.stdout).contains("rss-hop"));
    let list = run(&["lab", "list", "--json"]);
    for line in text(&list.stdout).lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        for field in ["experiment", "thread", "summary"] {
            assert!(entry[field].is_string(), "{field} of {line}");
        }
    }
}

/// Goal: bad input ends with status 2, nothing on standard output, and a message that names the
/// value and what is expected. Method: one line for each kind of mistake.
#[test]
fn mistakes_are_named() {
    let cases: [(&[&str], &[&str]); 16] = [
        (
            &["lab", "rss-hop", "--judge", "times"],
            &["'times'", "all, counts", "--judge"],
        ),
        (
            &["lab", "rss-hop", "--trace", "a"],
            &["`rss-hop`", "--trace"],
        ),
        (
            &["lab", "rss-hits", "--quick", "--trace", "/no/such"],
            &["/no/such", "cannot open"],
        ),
        (
            &["lab", "rss-theft", "--real", "--threads", "0"],
            &["'0'", "1 to 1000000", "--threads"],
        ),
        (&["lab", "rss-theft", "--threads", "9"], &["--real"]),
        (&["lab"], &["<NAME>"]),
        (&["lab", "rss"], &["'rss'", "rss-hop"]),
        (
            &["lab", "rss-hop", "--cpus", "0"],
            &["'0'", "1 to 65536", "--cpus"],
        ),
        (
            &["lab", "rss-hop", "--cpus", "70000"],
            &["'70000'", "1 to 65536"],
        ),
        (
            &["lab", "rss-hop", "--cpus", "16384"],
            &["`rss-hop` on 16384 CPUs", "2 to 8192", "--topology"],
        ),
        (
            &["lab", "rss-hop", "--topology", "2x2"],
            &["`2x2`", "2x12x8x2"],
        ),
        (
            &["lab", "rss-hop", "--topology", "2x12x8x2", "--cpus", "2"],
            &["--cpus", "--topology"],
        ),
        (&["lab", "rss-hop", "--real"], &["`rss-hop`", "--real"]),
        (
            &["lab", "flush-mixed", "--kernel"],
            &["`flush-mixed`", "--kernel"],
        ),
        (&["lab", "rss-hop", "--matrix"], &["`rss-hop`", "--matrix"]),
        (
            &["lab", "pcp-exit", "--cpus", "1"],
            &["`pcp-exit` on 1 CPUs", "2 to 8192"],
        ),
    ];
    for (arguments, words) in cases {
        let output = run(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        for word in words {
            assert!(said.contains(word), "{arguments:?} lacks {word:?}: {said}");
        }
        let is_bug = said.contains("panicked") || said.contains("internal error");
        assert!(!is_bug, "{arguments:?}: {said}");
    }
}

/// Goal: the verdict covers the requested checks, and a quick run judges no times. Method: an
/// experiment with checks of both kinds, with every choice, as JSON and as a table.
#[test]
fn the_checks_that_decide_can_be_chosen() {
    let choices: [(&[&str], bool); 3] = [
        (&[], false),
        (&["--judge", "counts"], false),
        (&["--judge", "all"], true),
    ];
    for (choice, judges_times) in choices {
        let arguments = [&["lab", "rss-cost", "--quick", "--json"], choice].concat();
        let output = run(&arguments);
        let outcome: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
        let checks = outcome["checks"].as_array().unwrap();
        for basis in ["counts", "times"] {
            let is_of = |check: &&Value| check["decided_by"] == basis;
            assert!(checks.iter().any(|check| is_of(&check)), "{basis}");
        }
        for check in checks {
            let is_counted = check["decided_by"] == "counts";
            assert_eq!(check["judged"], is_counted || judges_times, "{check}");
        }
        let fails = |check: &&Value| check["judged"] == true && check["pass"] == false;
        let failed = checks.iter().filter(fails).count();
        assert_eq!(outcome["pass"], failed == 0, "{outcome}");
        assert_eq!(output.status.code(), Some(i32::from(failed > 0)));
        assert!(judges_times || failed == 0, "{outcome}");
    }
    let table = run(&["lab", "rss-cost", "--quick", "--judge", "counts"]);
    assert!(text(&table.stdout).contains("decided by times and not judged"));
}

/// Runs a quick run and returns its outcome as JSON; checks its counts and its fields.
fn outcome(arguments: &[&str]) -> Value {
    let mut all = vec!["lab", "--quick", "--json"];
    all.extend(arguments);
    let output = run(&all);
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(
        output.status.code(),
        Some(0),
        "{arguments:?}: {said} {errors}"
    );
    assert!(errors.is_empty(), "{errors}");
    let outcome: Value = serde_json::from_str(&said).unwrap();
    let fields = [
        "experiment",
        "thread",
        "config",
        "rows",
        "published",
        "checks",
        "pass",
    ];
    let mut rest = said.as_str();
    for field in fields {
        rest = rest.split_once(&format!("\"{field}\":")).unwrap().1;
    }
    assert_eq!(outcome.as_object().unwrap().len(), fields.len());
    for row in ["rows", "published"].map(|rows| outcome[rows].as_array().unwrap()) {
        assert!(!row.is_empty());
        assert!(row.iter().all(|row| row["variant"].is_string()));
    }
    let checks = outcome["checks"].as_array().unwrap();
    assert!(!checks.is_empty());
    for check in checks {
        let words = ["name", "want", "got"];
        assert!(
            words.iter().all(|field| check[*field].is_string()),
            "{check}"
        );
        let is_counted = check["decided_by"] == "counts";
        assert!(is_counted || check["decided_by"] == "times", "{check}");
        assert_eq!(check["judged"], is_counted, "{check}");
        assert!(!is_counted || check["pass"] == true, "{check}");
    }
    assert_eq!(outcome["pass"], true);
    assert_eq!(outcome["config"]["quick"], true);
    outcome
}

/// Goal: the published figures are reproduced and ours are as documented, on the published machine
/// and on others, and one seed gives one outcome.
#[test]
fn rss_hop_holds_on_every_machine() {
    let thread = outcome(&["rss-hop"]);
    assert_eq!(thread["thread"], "hierarchical-rss-counters-2026");
    assert_eq!(thread["config"]["cpus"], 384);
    assert_eq!(thread, outcome(&["rss-hop", "--cpus", "384"]));
    for machine in ["1x1x3x1", "4x4x8x2"] {
        outcome(&["rss-hop", "--topology", machine]);
    }
}

/// Goal: the published figures are reproduced, simulated on any machine and with real threads, and
/// one seed gives one outcome.
#[test]
fn rss_theft_holds_simulated_and_real() {
    let simulated = outcome(&["rss-theft"]);
    assert_eq!(simulated["thread"], "rfc-2022-per-cpu-rss-cache");
    assert_eq!(simulated["config"]["cpus"], 16);
    assert_eq!(simulated, outcome(&["rss-theft", "--cpus", "16"]));
    outcome(&["rss-theft", "--cpus", "3", "--seed", "2"]);
    let real = outcome(&["rss-theft", "--real", "--threads", "100"]);
    assert_eq!(real["config"]["real_touched_pages"], 3200);
}

/// Goal: the published ratios are reproduced on the published machine and others, and recorded
/// traces are replayed, also those of the request. Method: a trace of two processes, in which the
/// first writes to the second, which is then switched to.
#[test]
fn rss_hits_holds_drawn_and_recorded() {
    let drawn = outcome(&["rss-hits"]);
    assert_eq!(drawn["config"]["cpus"], 16);
    assert_eq!(drawn, outcome(&["rss-hits", "--cpus", "16"]));
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("two.txt");
    let lines =
        "# t0_mono_ns=0\nR 0 1 7 ab 1 1 40\nR 9 1 7 cd 0 1 3\nS 10 1 7 0 8\nR 11 1 8 cd 1 1 4\n";
    fs::write(&trace, lines).unwrap();
    let trace = trace.to_str().unwrap();
    let replayed = outcome(&["rss-hits", "--cpus", "2", "--trace", trace]);
    let rows = replayed["rows"].as_array().unwrap();
    let is_it = |row: &&Value| row["variant"] == trace && row["hits"].is_u64();
    let row = rows.iter().find(is_it).unwrap();
    assert_eq!((&row["hits"], &row["misses"]), (&2.into(), &1.into()));
}

/// Goal: shared writes are as documented on the published machine and others, and the published
/// rows are there by name. Times are shown only.
#[test]
fn rss_cost_holds_on_every_machine() {
    let thread = outcome(&["rss-cost"]);
    assert_eq!(thread["config"]["cpus"], 192);
    let published = thread["published"].as_array().unwrap();
    for name in [
        "page_fault1_threads -s 100 -t 96",
        "pts/pgbench",
        "hackbench",
        "kernel build",
    ] {
        let holds = |row: &Value| row["variant"].as_str().unwrap().contains(name);
        assert!(published.iter().any(holds), "{name}");
    }
    for machine in ["1x1x1x2", "4x4x8x2"] {
        outcome(&["rss-cost", "--topology", machine]);
    }
}

/// Goal: what the CPUs park is within the bound on the published machine and others, whatever the
/// number of groups, and the kernel's groups are read or skipped with a reason. Times are shown
/// only.
#[test]
fn charge_many_holds_on_every_machine() {
    let shown = outcome(&["charge-many"]);
    assert_eq!(shown["config"]["cpus"], 384);
    for machine in ["1x1x1x1", "1x1x8x2"] {
        outcome(&["charge-many", "--topology", machine]);
    }
    let kernel = outcome(&["charge-many", "--cpus", "2", "--kernel"]);
    let rows = kernel["rows"].as_array().unwrap();
    let is_read = rows.iter().any(|row| row["source"] == "kernel");
    let is_skipped = kernel["config"]["note_kernel"].is_string();
    assert!(is_read != is_skipped, "{kernel}");
}

/// Goal: no design loses a page, the published memory is reproduced, and the library's is within
/// its bound, on the published machine and others. Times are shown only.
#[test]
fn space_churn_holds_on_every_machine() {
    let shown = outcome(&["space-churn"]);
    assert_eq!(shown["config"]["cpus"], 384);
    for machine in ["1x1x1x2", "1x1x8x2", "2x1x100x1"] {
        outcome(&["space-churn", "--topology", machine]);
    }
}

/// Goal: the right victim, the published figures and the published search's failures, on the
/// published machine and others. Times are shown only.
#[test]
fn victim_holds_on_every_machine() {
    let thread = outcome(&["victim"]);
    assert_eq!(thread["config"]["cpus"], 256);
    let published = thread["published"].as_array().unwrap();
    let of = |name: &str| {
        let holds = |row: &&Value| row["variant"].as_str().unwrap().contains(name);
        let rows = published.iter().filter(holds);
        rows.map(|row| row["median_us"].as_f64().unwrap()).collect()
    };
    let times: [Vec<f64>; 2] = ["40 processes", "10,000 processes"].map(of);
    assert_eq!(times, [[500.0, 300.0], [80_000.0, 7_900.0]]);
    for machine in ["1x1x1x2", "1x1x3x1", "2x12x8x2"] {
        outcome(&["victim", "--topology", machine]);
    }
}

/// Goal: under every rule groups have the right counts at the end and none exceeds its maximum, and
/// stated bounds hold, on the published machine and others. Times are shown only.
#[test]
fn flush_mixed_holds_on_every_machine() {
    let thread = outcome(&["flush-mixed"]);
    assert_eq!(thread["thread"], "memcg-subtree-flush-2023");
    assert_eq!(thread["config"]["cpus"], 384);
    for machine in ["1x1x1x2", "1x1x3x1"] {
        outcome(&["flush-mixed", "--topology", machine]);
    }
}

/// Goal: a storm of readers is served by schedule on the published machine and others, groups have
/// the right counts at the end, and the published figures are there. Times are shown only.
#[test]
fn flush_reads_holds_on_every_machine() {
    let thread = outcome(&["flush-reads"]);
    assert_eq!(thread["config"]["cpus"], 384);
    let published = thread["published"].as_array().unwrap();
    assert_eq!(published[0]["within_50_us_percent"], 99.9);
    let typed = |row: &&Value| row["variant"] == "Linux, typed reads by kernel functions";
    assert_eq!(
        published.iter().find(typed).unwrap()["system_time_us"],
        2.45
    );
    outcome(&["flush-reads", "--topology", "1x1x3x1"]);
}

/// Goal: tenants exit under every policy, drain and back end without losing a frame or a charge,
/// with a CPU for each of them and with few, and the published histograms are there in their
/// buckets. Times are shown only.
#[test]
fn pcp_exit_holds_on_every_machine() {
    let thread = outcome(&["pcp-exit"]);
    assert_eq!(thread["thread"], "pcp-batch-scale-review-2024");
    assert_eq!(thread["config"]["cpus"], 19);
    let calls = |bucket: &str, column: &str| {
        let published = thread["published"].as_array().unwrap();
        let found = published
            .iter()
            .find(|row| row["variant"] == bucket && !row[column].is_null());
        found.unwrap()[column].as_u64().unwrap()
    };
    let bucket = "1048576 -> 2097151 ns";
    let columns = ["a_visits", "b_visits", "c_visits", "d_visits"];
    assert_eq!(
        columns.map(|column| calls(bucket, column)),
        [284, 122, 714, 19]
    );
    assert_eq!(calls(bucket, "v2_scale_5_visits"), 73_567);
    outcome(&["pcp-exit", "--cpus", "2"]);
}

/// Goal: pages that are allocated on all CPUs and freed on two cost at most a visit to the back end
/// for 512 in both directions, are conserved under every design, and the published figures are
/// there. Times are shown only.
#[test]
fn pcp_remote_holds_on_every_machine() {
    let thread = outcome(&["pcp-remote"]);
    assert_eq!(thread["config"]["cpus"], 20);
    let published = thread["published"].as_array().unwrap();
    let fleet = published.iter().find(|row| !row["drained_pages"].is_null());
    assert_eq!(fleet.unwrap()["drained_pages"], 2000);
    outcome(&["pcp-remote", "--cpus", "32"]);
}

/// Goal: beside background threads no reader waits for write-back of another's page while clean
/// ones are left, on the simulated clock; without such threads readers do. (Of real threads one may
/// find no clean page that it can hold.) Pages have the right bytes, and the published figures are
/// there. Times are shown only.
#[test]
fn dirty_read_holds() {
    let series = outcome(&["dirty-read"]);
    let rows = series["rows"].as_array().unwrap();
    let simulated = |variant: &str| {
        let part = rows[0]["part"].as_str().unwrap();
        assert!(part.starts_with("on a simulated clock"), "{part}");
        let is_it = |row: &&Value| row["part"] == part && row["variant"] == variant;
        rows.iter().find(is_it).unwrap()["waiting_reads"].as_u64()
    };
    assert_eq!(simulated("Highwater"), Some(0));
    assert!(simulated("without threads: Highwater") > Some(0));
    let published = series["published"].as_array().unwrap();
    assert_eq!(published[0]["throughput_percent"], 130);
}

/// Goal: auto-tuned lists save visits, decay, and follow every knob, and the published tables are
/// there; one seed gives one outcome except for the times of the last part.
#[test]
fn pcp_tune_holds_on_every_machine() {
    let thread = outcome(&["pcp-tune"]);
    assert_eq!(thread["config"]["cpus"], 8);
    let published = thread["published"].as_array().unwrap();
    let kbuild = published
        .iter()
        .find(|row| row["variant"] == "kernel build, p9")
        .unwrap();
    assert_eq!(kbuild["alloc_zone_percent"], 20.0);
    let counts = |outcome: &Value| {
        let rows = outcome["rows"].as_array().unwrap();
        let counted = rows.iter().filter(|row| row["frames_per_s"].is_null());
        (
            counted.cloned().collect::<Vec<_>>(),
            outcome["checks"].clone(),
        )
    };
    assert_eq!(
        counts(&thread),
        counts(&outcome(&["pcp-tune", "--cpus", "8"]))
    );
    outcome(&["pcp-tune", "--cpus", "3", "--seed", "2"]);
}

/// Goal: the kernel's own groups are read if possible, else the reason is shown; either way none
/// are left. Method: a run, then a search for directories with its process number where control
/// groups are mounted.
#[test]
fn flush_reads_leaves_no_groups_of_the_kernel() {
    let child = highwater(&["lab", "flush-reads", "--quick", "--kernel", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let own = format!("highwater-lab-{}", child.id());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let outcome: Value = serde_json::from_str(&text(&output.stdout)).unwrap();
    let config = &outcome["config"];
    assert!(config["kernel"].is_string() != config["kernel_skipped"].is_string());
    let is_kernel = |row: &Value| row["variant"] == config["kernel"];
    let rows = outcome["rows"].as_array().unwrap();
    let read = rows.iter().filter(|row| is_kernel(row)).count();
    assert_eq!(read, if config["kernel"].is_string() { 2 } else { 0 });
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let groups = mounts.lines().filter(|line| line.contains(" cgroup"));
    for top in groups.filter_map(|line| line.split(' ').nth(1)) {
        assert!(!Path::new(top).join(&own).exists(), "{top}");
    }
}

/// Goal: a table shows the published rows, those of kernels marked as such, and the verdict.
#[test]
fn tables_hold_published_rows_and_checks() {
    let output = run(&["lab", "rss-hop", "--quick", "--cpus", "2"]);
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{table}");
    for word in [
        "hierarchical",
        "thread",
        "6.12, 384 CPUs",
        "kernel",
        "checks hold",
    ] {
        assert!(table.contains(word), "{word}: {table}");
    }
    assert!(table.lines().all(|line| line == line.trim_end()), "{table}");
    assert!(output.stderr.is_empty());
}

/// Goal: Ctrl-C ends a run at once, with its exit status, and nothing is printed as a result.
#[test]
fn a_signal_ends_a_run() {
    let child = highwater(&["lab", "rss-hop"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // SIGINT is signal 2.
    while support::signals_of(child.id(), "SigCgt:") & 0b10 == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(text(&output.stderr).trim(), "highwater: interrupted");
    assert!(output.stdout.is_empty());
}

/// Goal: reclaim beside a tenant that holds the lock of the reverse map loses no byte under any
/// policy, with one reader and with two, and the published tables are there. Efficiency is checked
/// in full runs only.
#[test]
fn rmap_experiments_hold() {
    for (name, elapsed_s) in [("rmap-mapped", 24.64), ("rmap-read", 27.24)] {
        let thread = outcome(&[name]);
        assert_eq!(thread["thread"], "lru-rmap-lock-throttle-2022");
        let published = thread["published"].as_array().unwrap();
        assert_eq!(published[0]["elapsed_s"], elapsed_s);
        let figures = ["pgscan_direct", "pgmajfault", "workingset_refault_file"];
        let rows = thread["rows"].as_array().unwrap();
        for figure in figures {
            assert!(published[0][figure].is_u64(), "{figure}");
            assert!(rows[0][figure].is_number(), "{figure}");
        }
        let tenants = rows.iter().filter(|row| !row["a_refaults"].is_null());
        assert_eq!(tenants.count(), 8);
    }
}

/// Goal: the table of every experiment fits 80 columns, begins with its conclusion and ends with
/// its checks; all columns are there with `--wide`; the report of all of them keeps its bound, and
/// has a section for each. Method: a quick run of all on a small machine.
#[test]
fn tables_fit_80_columns_and_begin_with_the_conclusion() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("all.html");
    let path = report.to_str().unwrap();
    let output = run(&[
        "lab", "all", "--quick", "--judge", "counts", "--report", path,
    ]);
    let mut rest = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{rest}");
    let html = fs::read_to_string(&report).unwrap();
    assert!(html.len() <= 1 << 20, "{} bytes", html.len());
    let list = text(&run(&["lab", "list", "--json"]).stdout);
    let listed = list
        .lines()
        .map(|line| -> Value { serde_json::from_str(line).unwrap() });
    let names: Vec<String> = listed
        .map(|experiment| experiment["experiment"].as_str().unwrap().to_owned())
        .collect();
    for (at, name) in names.iter().enumerate() {
        let next = names.get(at + 1).map(|next| format!("\n\n{next} ("));
        let end = next.map_or(rest.len(), |next| rest.find(&next).unwrap());
        let table = rest[..end].trim().to_owned();
        rest = rest.split_off(end);
        assert!(table.starts_with(name), "{name}: {table}");
        assert!(html.contains(&format!("<h2>{name}</h2>")), "{name}");
        for line in table.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
            assert_eq!(line, line.trim_end(), "{name}");
        }
        let head: Vec<&str> = table.lines().take(6).collect();
        let conclusion = head.iter().position(|line| line.is_empty()).unwrap();
        let conclusion = head[1..conclusion].join(" ");
        let says = |word: &str| conclusion.contains(word);
        assert!(
            says(": ")
                && ["less", "more", "fewer", "as much", "as many"]
                    .into_iter()
                    .any(says),
            "{name}: {table}"
        );
        let verdict = table.lines().last().unwrap();
        assert!(verdict.contains("checks hold"), "{name}: {verdict}");
    }
    let wide = text(&run(&["lab", "rss-hop", "--quick", "--wide"]).stdout);
    assert!(wide.lines().any(|line| line.chars().count() > 80), "{wide}");
    assert!(
        wide.contains("error rms") && wide.contains("resident peak"),
        "{wide}"
    );
    assert!(!wide.contains("more with --wide"), "{wide}");
}
