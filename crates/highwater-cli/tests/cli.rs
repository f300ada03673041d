//! Promise: `highwater replay` verifies every page it reads and writes, reports exactly the
//! documented fields, and ends with the documented exit status. Every test drives the built
//! program.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod support;

use std::process::{Command, Stdio};

use serde_json::Value;

use support::{Bench, CAPACITY, highwater, run, seed, text};

/// Goal: the program explains its use. Method: no arguments, and both helps.
#[test]
fn help_shows_how_to_start() {
    let alone = run(&[]);
    assert!(text(&alone.stderr).contains("Usage: highwater <COMMAND>"));
    let help = run(&["replay", "--help"]);
    assert_eq!(help.status.code(), Some(0));
    for word in [
        "Examples:",
        "--tenant",
        "Exit status:",
        "oracle-general",
        "--lenient",
    ] {
        assert!(text(&help.stdout).contains(word), "{word}");
    }
}

/// Checks that the program ends with status 2, prints only a message, and that it holds all
/// `words`.
fn assert_refused(arguments: &[&str], words: &[&str], dir: &str) {
    let mut command = highwater(arguments);
    if arguments.len() > 1 && !arguments.contains(&"--dir") {
        command.args(["--dir", dir]);
    }
    let output = command.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    for word in words {
        assert!(said.contains(word), "{arguments:?} lacks {word:?}: {said}");
    }
    let is_bug = said.contains("panicked") || said.contains("internal error");
    assert!(!is_bug, "{arguments:?}: {said}");
}

/// Goal: bad input ends with status 2, nothing on standard output, and a message that names the
/// value and what is expected. Method: one line for each kind of mistake.
#[test]
fn mistakes_are_named() {
    let bench = Bench::new();
    let trace = bench.write("a.lis", "0 8 0 0\n");
    let other = bench.write("a.trace", "0 8 0 0\n");
    let bad = bench.write("bad.lis", "0 8 0 0\n8 8 0 1\neight 8 0 2\n");
    let dir = bench.dir();
    let (missing, bad_tenant) = (bench.path("missing"), format!("a={trace},low=1MiB"));
    let (no_max, twice) = (format!("a={trace},max=0"), format!("a={other}"));
    let cases: [(&[&str], &[&str]); 16] = [
        (&["replai"], &["unrecognized subcommand", "replay"]),
        (
            &["replay", &missing],
            &["tenant `missing`", "cannot open the trace"],
        ),
        (
            &["replay", &bad, "--format", "arc"],
            &["bad.lis: record 3 at byte 16", "eight"],
        ),
        (
            &["replay", &trace, "--capacity", "lots"],
            &["`lots`", "64MiB"],
        ),
        (
            &["replay", &trace, "--capacity", "1KiB"],
            &["a capacity of 1 KiB", "give 64 KiB to"],
        ),
        (&["replay", &trace, "--threads", "0"], &["'0'", "1 to 1024"]),
        (
            &["replay", &trace, "--threads", "1025"],
            &["'1025'", "1 to 1024"],
        ),
        (&["replay", &trace, "--seed", "x"], &["'x'", "--seed"]),
        (
            &["replay", &trace, "--format", "zip"],
            &["'zip'", "oracle-general"],
        ),
        (
            &["replay", &trace, "--block-size", "0"],
            &["0 B", "--block-size", "1 B", "4294967295 B"],
        ),
        (
            &["replay", &trace, "--block-size", "4Kb"],
            &["4Kb", "--block-size", "whole number and a unit"],
        ),
        (
            &["replay", &trace, "--tenant", &twice],
            &["two tenants are named `a`", "--tenant"],
        ),
        (
            &["replay", "--tenant", &bad_tenant],
            &["`low=1MiB`", "max=SIZE"],
        ),
        (
            &["replay", "--tenant", &no_max],
            &["max=0", "at least 4KiB"],
        ),
        (&["replay", "--tenant", "a"], &["NAME=TRACE"]),
        (
            &["replay", &trace, "--dir", &missing],
            &["missing", "--dir"],
        ),
    ];
    for (arguments, words) in cases {
        assert_refused(arguments, words, &dir);
    }
    assert!(bench.left().is_empty());
}

/// Goal: the JSON has exactly the documented fields, in order, and its figures agree with a trace
/// of known figures. Method: 3 requests for 1, 2 and 2 pages, the last resident.
#[test]
fn json_has_exactly_the_documented_fields() {
    const FIELDS: &str = "version policy backend knobs readahead_pages seed threads in_flight machine requests page_accesses hits misses hit_ratio pages_read refaults pgscan pgsteal \
        elapsed_s accesses_per_s hit_latency_us miss_latency_us regime regime_reason \
        io io_reason kernel_cached_bytes capacity_bytes frames_peak_bytes rss_peak_bytes verify_failures leaked_frames \
        leaked_bytes tenants";
    const MACHINE_FIELDS: &str = "cpus_online cpu_model memory_bytes kernel_release architecture";
    const TRACE_FIELDS: &str = "name format block_bytes columns compression stored_bytes sha256 \
        bad_records cut_after_bytes empty_records recording";
    const TENANT_FIELDS: &str = "name trace requests page_accesses hits hit_ratio usage_bytes \
        usage_low_bytes usage_high_bytes usage_precise_bytes peak_bytes max_bytes max_events victims";
    let bench = Bench::new();
    let trace = bench.write("known.lis", "0 8 0 0\n8 16 0 1\n8 16 0 2\n");
    let tenant = format!("known={trace},max=1MiB");
    let output = run(&[
        "replay",
        "--tenant",
        &tenant,
        "--json",
        "--readahead",
        "0",
        "--dir",
        &bench.dir(),
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let report: Value = serde_json::from_str(&said).unwrap();
    let sorted = |fields: &str| {
        let mut fields: Vec<String> = fields.split_whitespace().map(str::to_owned).collect();
        fields.sort();
        fields
    };
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let tenant = &report["tenants"][0];
    assert_eq!(sorted(&keys(&report).join(" ")), sorted(FIELDS));
    assert_eq!(sorted(&keys(tenant).join(" ")), sorted(TENANT_FIELDS));
    assert_eq!(
        sorted(&keys(&report["machine"]).join(" ")),
        sorted(MACHINE_FIELDS)
    );
    assert_eq!(
        sorted(&keys(&tenant["trace"]).join(" ")),
        sorted(TRACE_FIELDS)
    );
    for latency in ["hit_latency_us", "miss_latency_us"] {
        assert_eq!(
            sorted(&keys(&report[latency]).join(" ")),
            sorted("p50 p99 p999 max")
        );
    }
    // Checks the order of the fields, which a map does not keep.
    let mut rest = said.as_str();
    for field in FIELDS.split_whitespace() {
        rest = rest.split_once(&format!("\"{field}\":")).unwrap().1;
    }
    assert_eq!(report["requests"], 3);
    assert_eq!(report["page_accesses"], 5);
    assert_eq!((&report["hits"], &report["misses"]), (&2.into(), &3.into()));
    assert_eq!(report["hit_ratio"], 0.4);
    assert_eq!(report["capacity_bytes"], 64 << 20);
    assert_eq!(report["leaked_frames"], 0);
    assert_eq!(tenant["name"], "known");
    assert_eq!(tenant["usage_precise_bytes"], 3 * 4096);
    assert_eq!(tenant["max_bytes"], 1 << 20);
}

/// Goal: a report records the configuration, so that the run can be repeated. Method: everything
/// other than the default, and the machine as other tools show it.
#[test]
fn json_says_what_was_run() {
    let bench = Bench::new();
    let trace = bench.write("known.lis", "0 8 0 0\n8 16 0 1\n5 0 0 2\nbad\n");
    let options = "--json --policy clock --backend sharded:2 --seed 9 --threads 2 --lenient \
        --in-flight 3 --capacity 8MiB --set pcp_batch_scale_max=0 --format arc";
    let mut command = highwater(&["replay", &trace, "--dir", &bench.dir()]);
    let output = command.args(options.split_whitespace()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["policy"], "clock");
    assert_eq!(report["backend"], "sharded:2");
    assert_eq!(report["seed"], 9);
    assert_eq!(report["threads"], 2);
    assert_eq!(report["in_flight"], 3);
    assert_eq!(report["capacity_bytes"], 8 << 20);
    assert_eq!(report["knobs"]["pcp_batch_scale_max"], 0);
    assert_eq!(report["knobs"]["watermark_scale_factor"], 10);
    let said = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().unwrap();
        text(&output.stdout).trim().to_owned()
    };
    let machine = &report["machine"];
    assert_eq!(machine["kernel_release"], said("uname", "-r"));
    assert_eq!(machine["architecture"], said("uname", "-m"));
    let online = said("getconf", "_NPROCESSORS_ONLN").parse::<u64>().unwrap();
    assert_eq!(machine["cpus_online"], online);
    let pages = said("getconf", "_PHYS_PAGES").parse::<u64>().unwrap();
    assert_eq!(machine["memory_bytes"], pages << 12);
    let replayed = &report["tenants"][0]["trace"];
    assert_eq!(replayed["name"], trace);
    assert_eq!(replayed["format"], "arc");
    assert_eq!(replayed["block_bytes"], 512);
    assert_eq!(replayed["columns"], Value::Null);
    assert_eq!(replayed["compression"], "plain");
    assert_eq!(replayed["stored_bytes"], 29);
    let digest = said("sha256sum", &trace);
    assert_eq!(replayed["sha256"], digest.split(' ').next().unwrap());
    assert_eq!(replayed["bad_records"], 1);
    assert_eq!(replayed["empty_records"], 1);
}

/// Goal: the program works without arguments, and prints a table for people.
#[test]
fn the_shipped_trace_is_replayed_by_default() {
    let bench = Bench::new();
    let output = run(&["replay", "--dir", &bench.dir()]);
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for word in [
        "page accesses",
        "data files",
        "cached by the kernel",
        "hit",
        "p99.9",
        "pgbench",
        "verify failures",
    ] {
        assert!(table.contains(word), "{word}: {table}");
    }
    assert!(table.lines().all(|line| line == line.trim_end()), "{table}");
    assert!(output.stderr.is_empty() && bench.left().is_empty());
}

/// Goal: the report fits a terminal of 80 columns, whatever tenants are called; every column is
/// there with `--wide`. Method: tenants with names and limits of all lengths, and bad records.
#[test]
fn the_report_fits_80_columns() {
    let bench = Bench::new();
    let trace = bench.write("small.lis", "0 8 0 0\neight 8 0 1\n8000 8000 0 2\n");
    let dir = bench.dir();
    let long = format!("{}={trace},max=999MiB", "tenant of many words ".repeat(6));
    let short = format!("a={trace},format=arc");
    let mut arguments = vec!["replay", "--tenant", &long, "--tenant", &short];
    arguments.extend(["--format", "arc", "--lenient", "--dir", &dir]);
    let narrow = run(&arguments);
    let table = text(&narrow.stdout);
    assert_eq!(narrow.status.code(), Some(0), "{}", text(&narrow.stderr));
    for line in table.lines() {
        assert!(line.chars().count() <= 80, "{line}\n{table}");
        assert_eq!(line, line.trim_end());
    }
    assert!(table.contains("more with --wide"), "{table}");
    arguments.push("--wide");
    let wide = text(&run(&arguments).stdout);
    for column in ["hit ratio", "max events", "victims", "usage between"] {
        assert!(wide.contains(column), "{column}: {wide}");
    }
    assert!(!wide.contains("more with --wide"), "{wide}");
    let list = text(&run(&["lab", "list"]).stdout);
    for line in list.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

/// Goal: `--lenient` skips bad records and reports their number.
#[test]
fn lenient_counts_bad_records() {
    let bench = Bench::new();
    let trace = bench.write("bad.lis", "0 8 0 0\neight 8 0 1\n8 8 0 2\n");
    let dir = bench.dir();
    let output = run(&[
        "replay",
        &trace,
        "--format",
        "arc",
        "--lenient",
        "--dir",
        &dir,
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("1 bad record"),
        "{}",
        text(&output.stdout)
    );
}

/// Goal: a lenient run says that its trace is cut short, and after how much. Method: two gzip
/// members, of which the second ends inside its only block.
#[test]
fn lenient_says_that_a_trace_is_cut_short() {
    // RFC 1952: no name, no time; then a stored block of `1,17\n`, its sum and its length.
    let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let block = b"\x01\x05\x00\xfa\xff1,17\n";
    let whole = [&head[..], block, &[0x20, 0xb0, 0xfc, 0xe5], &[5, 0, 0, 0]].concat();
    let bench = Bench::new();
    let trace = bench.path("cut.csv.gz");
    std::fs::write(&trace, [&whole[..], &head, &block[..4]].concat()).unwrap();
    let dir = bench.dir();
    let columns = ["--format", "csv", "--columns", "time=1,key=2"];
    let run_lenient = |more: &[&str]| {
        let command = ["replay", &trace, "--lenient", "--dir", &dir];
        let output = run(&[&command[..], &columns, more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let shown = run_lenient(&[]);
    assert!(shown.contains("cut short or corrupt after"), "{shown}");
    let report: Value = serde_json::from_str(&run_lenient(&["--json"])).unwrap();
    let trace = &report["tenants"][0]["trace"];
    assert_eq!(
        (&trace["bad_records"], &report["requests"]),
        (&1.into(), &1.into())
    );
    assert!(trace["cut_after_bytes"].as_u64().unwrap() > 0);
}

/// Goal: a file of the user's is not replaced by a report, picture or recording.
#[test]
fn no_output_replaces_a_file_of_another_kind() {
    let bench = Bench::new();
    let trace = bench.write("trace.csv", "time,key\n1,17\n");
    let before = std::fs::read(&trace).unwrap();
    let dir = bench.dir();
    let recording = bench.path("run.hwr");
    let report = bench.path("report.html");
    let run_to = |report: &str| {
        run(&[
            "replay", &trace, "--dir", &dir, "--record", &recording, "--report", report,
        ])
    };
    for _ in 0..2 {
        let output = run_to(&report);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    for kept in [&trace, &recording] {
        let output = run_to(kept);
        assert_eq!(output.status.code(), Some(2));
        let why = text(&output.stderr);
        assert!(
            why.contains("exists and is none") && why.contains(kept),
            "{why}"
        );
    }
    let to =
        |arguments: &[&str]| assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    to(&["top", &recording, "--svg", &recording]);
    to(&["report", &report, "-o", &trace]);
    assert_eq!(std::fs::read(&trace).unwrap(), before);
    assert_eq!(run(&["top", &recording, "--once"]).status.code(), Some(0));
}

// Symptom: the runs of `--runs` took the places of the earlier recording and of its `.old`.
#[test]
fn repeated_runs_are_not_recorded() {
    let bench = Bench::new();
    let trace = bench.write("trace.csv", "time,key\n1,17\n");
    let dir = bench.dir();
    let recording = bench.path("run.hwr");
    let record = |runs: &str| {
        let arguments = ["replay", &trace, "--dir", &dir, "--record", &recording];
        run(&[&arguments[..], &["--runs", runs]].concat())
    };
    assert_eq!(record("1").status.code(), Some(0));
    let before = std::fs::read(&recording).unwrap();
    let output = record("3");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(output.stdout.is_empty());
    for words in ["--record", "--runs 3", "leave out one"] {
        assert!(said.contains(words), "{words} is not in {said}");
    }
    assert_eq!(std::fs::read(&recording).unwrap(), before);
    assert!(!std::fs::exists(format!("{recording}.old")).unwrap());
}

/// Goal: threads and writes do not disturb each other. Method: two tenants, one of them limited, 4
/// threads, several seeds; the program itself verifies every page.
#[test]
fn four_threads_verify_with_every_seed() {
    let bench = Bench::new();
    let seed = seed();
    let first = bench.mixed_trace("first.csv", seed, 20_000);
    let second = bench.mixed_trace("second.csv", seed + 1, 20_000);
    let limited = format!("limited={second},max=2MiB");
    for seed in seed..seed + 5 {
        let output = run(&[
            "replay",
            &first,
            "--tenant",
            &limited,
            "--threads",
            "4",
            "--capacity",
            CAPACITY,
            "--json",
            "--seed",
            &seed.to_string(),
            "--dir",
            &bench.dir(),
        ]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "SEED={seed}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["requests"], 40_000, "SEED={seed}");
        let refaults = report["refaults"].as_u64().unwrap();
        assert!(
            refaults > 0,
            "SEED={seed}: the traces do not fit, so pages must come again"
        );
        let peak = report["tenants"][1]["peak_bytes"].as_u64().unwrap();
        assert!(peak <= 2 << 20, "SEED={seed}: a peak of {peak} bytes");
    }
    assert!(bench.left().is_empty());
}

/// Goal: one thread and one seed give one result.
#[test]
fn one_thread_repeats_itself() {
    let bench = Bench::new();
    let traces = [
        bench.mixed_trace("first.csv", seed(), 10_000),
        bench.mixed_trace("second.csv", seed() + 1, 10_000),
    ];
    let figures = |run_seed: &str| {
        let output = run(&[
            "replay",
            &traces[0],
            &traces[1],
            "--capacity",
            CAPACITY,
            "--json",
            "--seed",
            run_seed,
            "--dir",
            &bench.dir(),
        ]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        ["hits", "refaults", "pgscan", "pgsteal", "tenants"].map(|field| report[field].clone())
    };
    assert_eq!(figures("1"), figures("1"));
    assert_ne!(figures("1"), figures("2"), "the seed orders the tenants");
}

/// Goal: a closed pipe is not an error. Method: close the pipe before the report.
#[test]
fn a_closed_pipe_is_quiet() {
    let bench = Bench::new();
    let mut child = highwater(&["replay", "--dir", &bench.dir()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), text(&output.stderr).as_str()),
        (Some(0), "")
    );
}

/// Goal: a limit on file sizes is an error with a reason, not a crash. Method: `ulimit -f`.
#[test]
fn a_file_size_limit_is_an_error() {
    let bench = Bench::new();
    let trace = bench.write("far.trace", "1000000\n2000000\n");
    let script = "ulimit -f 1024 && exec \"$@\"";
    let output = Command::new("sh")
        .args([
            "-c",
            script,
            "sh",
            env!("CARGO_BIN_EXE_highwater"),
            "replay",
            &trace,
        ])
        .args(["--format", "lirs", "--dir", &bench.dir()])
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for words in ["page 1000000 does not fit a file of", "`ulimit -f`"] {
        assert!(said.contains(words), "{said}");
    }
    assert!(bench.left().is_empty());
}
