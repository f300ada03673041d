//! Promise: a replay that ends by a signal, by SIGKILL or with damaged data has the documented exit
//! status, leaves nothing behind, and does not affect the next run. Every test drives the built
//! program.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod support;

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use support::{Bench, CAPACITY, CSV_HEADER, csv_line, highwater, run, seed, text};

/// Time limit of each wait: far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Goal: a signal ends a run at once, with its exit status, and nothing stays behind.
#[test]
fn signals_end_a_run_and_leave_nothing() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let bench = Bench::new();
        let mut endless = Endless::start(&bench.dir(), "2");
        endless.wait_until_running();
        endless.signal(signal);
        let (ended, said) = endless.finish();
        assert_eq!((ended, said.trim()), (code, "highwater: interrupted"));
        assert!(bench.left().is_empty());
    }
}

/// Goal: a signal also ends a run that waits for its input, whether it has seen any or not.
/// Method: standard input that stays open, and a named pipe without a writer.
#[test]
fn signals_end_a_run_that_waits_for_input() {
    for command in ["replay", "curve"] {
        for beginning in ["", "16 8 0 0\n16 8 0 1\n"] {
            let bench = Bench::new();
            let pipe = bench.path("pipe");
            mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
            for trace in ["-", &pipe] {
                let arguments = [command, trace, "--format", "arc", "--dir", &bench.dir()];
                let mut child = start(&arguments);
                let mut stdin = child.stdin.take().unwrap();
                stdin.write_all(beginning.as_bytes()).unwrap();
                wait_until_caught(&child, Signal::INT);
                kill_process(Pid::from_child(&child), Signal::INT).unwrap();
                let (ended, said) = finish(child);
                assert_eq!((ended, said.trim()), (130, "highwater: interrupted"));
                assert!(bench.left().is_empty());
            }
        }
    }
}

// Symptom: `nohup highwater ...` ended with 129 when its terminal closed. Method: a shell ignores
// the signal, or not, and becomes the program; a run that has not ended by the signal ends with its
// input.
#[test]
fn a_signal_that_is_ignored_from_the_start_stays_ignored() {
    support::heed_signals();
    for (name, signal, code) in [("HUP", Signal::HUP, 129), ("INT", Signal::INT, 130)] {
        for (trap, want) in [("''", 0), ("-", code)] {
            let bench = Bench::new();
            let script = format!("trap {trap} {name}; exec \"$@\"");
            let mut command = Command::new("sh");
            command.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_highwater")]);
            command.args(["replay", "-", "--format", "arc", "--dir", &bench.dir()]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(b"16 8 0 0\n").unwrap();
            // The last handler that is installed, and one that no shell has ignored.
            wait_until_caught(&child, Signal::XFSZ);
            kill_process(Pid::from_child(&child), signal).unwrap();
            if want == 0 {
                // An end by the signal, which must not come, needs time to begin.
                thread::sleep(Duration::from_millis(200));
                drop(stdin);
            }
            let (ended, said) = finish(child);
            assert_eq!(ended, want, "trap {trap} {name}: {said}");
        }
    }
}

/// Waits until the program handles a signal itself.
fn wait_until_caught(child: &Child, signal: Signal) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "no handler was installed");
        let caught = support::signals_of(child.id(), "SigCgt:");
        if caught >> (signal.as_raw() - 1) & 1 == 1 {
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Goal: SIGKILL at any moment does not affect the next run. Method: kill at random moments, from
/// the very start on; then a run must succeed and leave the directory empty.
#[test]
fn a_killed_run_does_not_hurt_the_next() {
    let bench = Bench::new();
    let seed = seed();
    let mut rng = Rng::with_seed(seed);
    let trace = bench.mixed_trace("small.csv", seed, 500);
    for round in 0..12 {
        let endless = Endless::start(&bench.dir(), "2");
        thread::sleep(Duration::from_micros(rng.u64(..60_000)));
        endless.signal(Signal::KILL);
        let (ended, said) = endless.finish();
        assert_eq!(ended, 137, "SEED={seed} round {round}: {said}");
        let output = run(&["replay", &trace, "--threads", "2", "--dir", &bench.dir()]);
        let said = text(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(0),
            "SEED={seed} round {round}: {said}"
        );
        assert!(
            bench.left().is_empty(),
            "SEED={seed} round {round}: {:?}",
            bench.left()
        );
    }
}

// Symptom: help that could not be written, as on a full disk, ended with status 0.
#[test]
fn help_that_cannot_be_written_is_an_error() {
    for arguments in [&["--help"][..], &["curve", "--help"], &["--version"]] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = highwater(arguments).stdout(full).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("No space left"), "{arguments:?}: {said}");
    }
}

/// Goal: damage to the data file is found and ends with status 1. Method: the trace cycles through
/// more pages than fit the capacity; while the run waits for the second round, overwrite a byte of
/// every page of its data file.
#[test]
fn damaged_data_is_a_verify_failure() {
    const PAGES: u64 = 4_096;
    let bench = Bench::new();
    let dir = bench.dir();
    let arguments = [
        "replay",
        "/dev/stdin",
        "--format",
        "lirs",
        "--capacity",
        CAPACITY,
        "--json",
        "--dir",
        &dir,
    ];
    let mut child = start(&arguments);
    let mut stdin = child.stdin.take().unwrap();
    let round: String = (0..PAGES).map(|page| format!("{page}\n")).collect();
    stdin.write_all(round.as_bytes()).unwrap();
    let mut endless = Endless {
        child,
        feeder: thread::spawn(|| ()),
    };
    let file = endless.wait_until_running();
    let damaged = OpenOptions::new().write(true).open(file).unwrap();
    for page in 0..PAGES {
        damaged
            .write_all_at(b"damage", page * 4096 + 3_000)
            .unwrap();
    }
    stdin.write_all(round.as_bytes()).unwrap();
    drop(stdin);
    let output = endless.child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("verify failure: tenant `stdin`: page"),
        "{said}"
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["verify_failures"].as_u64().unwrap() > 0);
}

/// The program while it replays an endless trace of reads and writes from its standard input.
struct Endless {
    child: Child,
    feeder: JoinHandle<()>,
}

impl Endless {
    fn start(dir: &str, threads: &str) -> Self {
        let arguments = [
            "replay",
            "/dev/stdin",
            "--format",
            "csv",
            "--capacity",
            CAPACITY,
            "--threads",
            threads,
            "--dir",
            dir,
        ];
        let mut child = start(&arguments);
        let mut stdin = child.stdin.take().unwrap();
        let feeder = thread::spawn(move || {
            let mut rng = Rng::with_seed(3);
            let mut chunk = String::from(CSV_HEADER);
            // Ends when the program does and closes the pipe.
            while stdin.write_all(chunk.as_bytes()).is_ok() {
                chunk = (0..100).map(|_| csv_line(&mut rng)).collect();
            }
        });
        Self { child, feeder }
    }

    /// Waits until the run has laid out pages of its data file; returns the file's path.
    fn wait_until_running(&mut self) -> PathBuf {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "no data file was laid out");
            if let Some(file) = self.data_file().filter(|file| has_data(file)) {
                return file;
            }
            assert!(self.child.try_wait().unwrap().is_none(), "ended early");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the unlinked data file, through the program's table of open files.
    fn data_file(&self) -> Option<PathBuf> {
        let table = format!("/proc/{}/fd", self.child.id());
        let files = fs::read_dir(table).ok()?.filter_map(Result::ok);
        let leads_to_data = |file: &PathBuf| {
            fs::read_link(file).is_ok_and(|target| target.to_string_lossy().contains("/data-0"))
        };
        files.map(|file| file.path()).find(leads_to_data)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    /// As [`finish`], and the trace has ended too.
    fn finish(self) -> (i32, String) {
        let ended = finish(self.child);
        self.feeder.join().unwrap();
        ended
    }
}

/// Starts the program with pipes for its input and output.
fn start(arguments: &[&str]) -> Child {
    let mut command = highwater(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end: exit status or 128 + signal, and standard error.
fn finish(mut child: Child) -> (i32, String) {
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("the program did not end");
        }
        thread::sleep(Duration::from_millis(2));
    };
    let mut said = String::new();
    let mut stderr = child.stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    (code.unwrap(), said)
}

fn has_data(file: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(file).is_ok_and(|metadata| metadata.blocks() > 64)
}
