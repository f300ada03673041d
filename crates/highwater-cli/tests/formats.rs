//! Promise: `highwater formats` documents every trace format with examples that replay as it says,
//! traces come from files or standard input, and other input is refused with a reason.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod support;

use std::fs::File;
use std::process::{Command, Output, Stdio};

use highwater_lab::trace::Format;
use serde_json::Value;

use support::{Bench, highwater, run, text};

/// Runs a shell command in which `highwater` is the program under test.
fn shell(line: &str, bench: &Bench) -> Output {
    let script = format!("highwater() {{ \"$HIGHWATER\" \"$@\"; }}\n{line}");
    Command::new("sh")
        .args(["-c", &script])
        .env("HIGHWATER", env!("CARGO_BIN_EXE_highwater"))
        .env("TMPDIR", bench.dir())
        .output()
        .unwrap()
}

/// Goal: the printed examples can be pasted. Method: replay each example, and compare with the
/// figures under it.
#[test]
fn every_documented_example_replays_as_it_says() {
    let bench = Bench::new();
    let formats = run(&["formats"]);
    let guide = text(&formats.stdout);
    assert_eq!(formats.status.code(), Some(0));
    assert!(guide.contains("2^20") && guide.contains("standard input"));
    let mut lines = guide.lines();
    let mut replayed = String::new();
    while let Some(line) = lines.next() {
        let command = line.trim();
        if !command.starts_with("printf ") {
            continue;
        }
        let said = lines.next().unwrap().trim().replace(',', "");
        let figures: Vec<u64> = said
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let output = shell(&format!("{command} --json"), &bench);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{command}: {complaint}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = ["requests", "page_accesses"].map(|field| report[field].as_u64().unwrap());
        assert_eq!(found, *figures, "{command}");
        replayed += report["tenants"][0]["trace"]["format"].as_str().unwrap();
        replayed.push(' ');
    }
    for format in Format::ALL {
        assert!(replayed.contains(format.name()), "{format} has no example");
        let alone = run(&["formats", format.name()]);
        assert!(guide.contains(&text(&alone.stdout)), "{format}");
    }
    assert!(bench.left().is_empty());
}

/// Goal: a pipe is replayed as the file is, compressed or not, and has the same digest.
#[test]
fn standard_input_is_replayed_as_the_file_is() {
    let bench = Bench::new();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/pgbench.hwt.zst");
    let replay = |trace: &str| {
        let mut command = highwater(&[
            "replay",
            "--buffered",
            trace,
            "--json",
            "--dir",
            &bench.dir(),
        ]);
        let output = command
            .stdin(File::open(shipped).unwrap())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let figures = ["requests", "hits", "pgscan"].map(|field| report[field].clone());
        (figures, report["tenants"][0].clone())
    };
    let (piped, tenant) = replay("-");
    let (from_file, of_file) = replay(shipped);
    assert_eq!(piped, from_file);
    assert_eq!(tenant["trace"]["sha256"], of_file["trace"]["sha256"]);
    assert_eq!(tenant["trace"]["stored_bytes"], 782_539);
    assert_eq!(tenant["name"], "stdin");
    assert_eq!(tenant["trace"]["name"], "standard input");
    let twice = run(&["replay", "-", "--tenant", "again=-", "--dir", &bench.dir()]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(text(&twice.stderr).contains("standard input"));
}

/// Goal: `--columns` names the columns of a table without a header.
#[test]
fn columns_without_a_header_are_named_on_the_command_line() {
    let bench = Bench::new();
    let trace = bench.write(
        "table.csv",
        "0,user:1,4096,get\n1,user:2,4097,put\n2,user:1,1,get\n",
    );
    let replay = |options: &[&str]| {
        let mut command = highwater(&[
            "replay",
            "--buffered",
            "--readahead",
            "0",
            &trace,
            "--json",
            "--dir",
            &bench.dir(),
        ]);
        command.args(options).stdin(Stdio::null()).output().unwrap()
    };
    let columns = "time=1,key=2,size=3,op=4";
    let output = replay(&["--columns", columns]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["tenants"][0]["trace"]["columns"], columns);
    assert_eq!(
        (&report["page_accesses"], &report["hits"]),
        (&4.into(), &1.into())
    );
    for (options, word) in [
        (&[][..], "--columns"),
        (&["--columns", "key=2,ttl=5"], "no such name"),
        (&["--columns", "size=3"], "the key is missing"),
        (&["--columns", "key=2", "--format", "arc"], "csv"),
    ] {
        let output = replay(options);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said}");
        assert!(said.contains(word), "{options:?}: {said}");
    }
}

/// Goal: a trace without a record is an error. Method: traces without a record, in several formats.
#[test]
fn a_trace_without_a_record_is_an_error() {
    let bench = Bench::new();
    for (name, content, format) in [
        ("header.csv", "time,key,size,op\n", "csv"),
        ("nothing.arc", "", "arc"),
        ("marks.lirs", "*\n*\n", "lirs"),
        ("empty.arc", "5 0 0 0\n", "arc"),
    ] {
        let trace = bench.write(name, content);
        let output = run(&["replay", &trace, "--format", format, "--dir", &bench.dir()]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        assert!(output.stdout.is_empty());
        assert!(
            said.contains("no record to replay") && said.contains(name),
            "{said}"
        );
    }
    let bad = bench.write("bad.arc", "one\ntwo\n");
    let output = run(&[
        "replay",
        &bad,
        "--format",
        "arc",
        "--lenient",
        "--dir",
        &bench.dir(),
    ]);
    let said = text(&output.stderr);
    assert!(said.contains("2 bad records skipped"), "{said}");
    assert_eq!(output.status.code(), Some(2));
}

/// Goal: a trace of thirty bytes cannot keep the program busy for hours. Method: one record of 2^32
/// pages.
#[test]
fn a_record_of_four_billion_pages_is_refused_with_its_number() {
    let bench = Bench::new();
    let mut huge = b"HWTRACE1".to_vec();
    huge.extend(1_u64.to_le_bytes());
    huge.extend((1_u64 << 32).to_le_bytes());
    huge.extend([0, 0xff, 0xff, 0xff, 0xff, 0x0f]);
    assert_eq!(huge.len(), 30);
    let trace = bench.write("huge.hwt", huge);
    let output = run(&["replay", &trace, "--dir", &bench.dir()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for word in ["huge.hwt", "record 1", "4294967295", "2^20 pages"] {
        assert!(said.contains(word), "lacks {word}: {said}");
    }
}

/// Goal: a size with a small `b`, which may mean bits, is refused.
#[test]
fn a_size_in_small_b_is_refused() {
    for size in ["4Mb", "64mb", "1Gb"] {
        let output = run(&["replay", "--capacity", size]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        for word in [size, "B, KiB, MiB, GiB, TiB", "bits"] {
            assert!(said.contains(word), "{size} lacks {word}: {said}");
        }
    }
}
