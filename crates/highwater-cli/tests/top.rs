//! Promise: `highwater top` shows a recording as text, JSON, a picture and in a terminal, refuses
//! other files with a message that says why, and leaves the terminal as it was.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot set itself up has failed, and a skipped one says why"
)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use highwater::{Bytes, Limits, Manager};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use support::{Bench, CAPACITY, highwater, run, text};

/// Time limit of each wait: far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Records a tree of groups that hold memory, two marks, and an orderly end.
fn recorded(bench: &Bench) -> String {
    let path = bench.path("run.hwr");
    let manager = Manager::builder()
        .capacity(Bytes::mib(16))
        .recorder(&path, Bytes::mib(1))
        .build()
        .unwrap();
    let limits = Limits {
        low: Bytes::mib(2),
        ..Limits::max(Bytes::mib(8))
    };
    let tenant = manager.root().child("tenant-a", limits).unwrap();
    let query = tenant.child("query-42", Limits::default()).unwrap();
    let held = query.charge(Bytes::mib(3)).unwrap();
    manager.mark("load starts");
    manager.record_tick();
    manager.mark("deploy 41");
    manager.record_tick();
    drop(held);
    path
}

fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty());
    assert!(!said.contains("internal error"), "{said}");
    said
}

/// Goal: scripts get a screen, an object and a picture of the same recording.
#[test]
fn scripts_get_text_json_and_a_picture() {
    let bench = Bench::new();
    let file = recorded(&bench);
    let output = run(&["top", &file, "--once", "--charset", "ascii"]);
    let screen = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        screen.contains("ENDED") && screen.contains("query-42"),
        "{screen}"
    );
    assert_eq!(screen.lines().count(), 24);
    assert!(screen.is_ascii() && screen.lines().all(|line| line.len() <= 80));
    let marks = run(&[
        "top", &file, "--once", "--pane", "marks", "--size", "120x40",
    ]);
    let marks = text(&marks.stdout);
    assert!(
        marks.contains("deploy 41") && marks.lines().count() == 40,
        "{marks}"
    );

    let output = run(&["top", &file, "--json"]);
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    let groups = object["groups"].as_array().unwrap();
    let is_query = |group: &&Value| group["path"] == "/tenant-a/query-42";
    let query = groups.iter().find(is_query).unwrap();
    let used = &query["peak_bytes"];
    assert!(used["low"].as_u64() <= Some(3 << 20) && used["high"].as_u64() >= Some(3 << 20));
    assert_eq!(object["recording"]["has_ended"], true);

    let picture = bench.path("top.svg");
    let output = run(&["top", &file, "--svg", &picture]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(fs::read_to_string(picture).unwrap().starts_with("<svg"));
}

/// Goal: a file that is no recording, and a screen without a terminal, are told apart and told.
#[test]
fn other_files_and_no_terminal_are_refused() {
    let bench = Bench::new();
    let file = recorded(&bench);
    let missing = refused(&["top", &bench.path("missing")]);
    assert!(
        missing.contains("cannot open") && missing.contains("missing"),
        "{missing}"
    );
    let empty = refused(&["top", &bench.write("empty", "")]);
    assert!(empty.contains("is no recording"), "{empty}");
    let other = refused(&["top", &bench.write("trace.csv", "time,key\n0,1\n")]);
    assert!(other.contains("is no recording"), "{other}");
    let mut bytes = fs::read(&file).unwrap();
    // The version follows the eight bytes of the magic number.
    bytes[8] = 9;
    let version = refused(&["top", &bench.write("later.hwr", bytes)]);
    assert!(version.contains("version 9"), "{version}");
    refused(&["top", &bench.dir()]);
    let terminal = refused(&["top", &file]);
    assert!(
        terminal.contains("--once") && terminal.contains("no terminal"),
        "{terminal}"
    );
    let size = refused(&["top", &file, "--once", "--size", "80"]);
    assert!(size.contains("80x24"), "{size}");
    let at = refused(&["top", &file, "--json", "--at=-1"]);
    assert!(at.contains("seconds from 0 on"), "{at}");
    let picture = refused(&["top", &file, "--svg", &bench.path("none/top.svg")]);
    assert!(picture.contains("cannot write"), "{picture}");
}

/// Goal: a newcomer's two commands work together: a replay is recorded, and `top` reads it. Method:
/// a trace larger than the memory, so that there are refaults; the refaults of the recording are
/// those of the replay's own report.
#[test]
fn a_recorded_replay_is_shown() {
    let bench = Bench::new();
    let trace = bench.mixed_trace("web.csv", 7, 20_000);
    let dir = bench.dir();
    let file = bench.path("run.hwr");
    let output = run(&[
        "replay",
        &trace,
        "--record",
        &file,
        "--dir",
        &dir,
        "--capacity",
        CAPACITY,
        "--json",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_shown(&file, &report);
}

/// Checks that `top` shows a recording of the replay with this report.
fn assert_shown(file: &str, report: &Value) {
    let output = run(&["top", file, "--once", "--charset", "ascii"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let screen = text(&output.stdout);
    for part in ["ENDED", "web", "space plays from the start"] {
        assert!(screen.contains(part), "no {part:?} in\n{screen}");
    }

    let output = run(&["top", file, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["recording"]["has_ended"], true);
    let groups = object["groups"].as_array().unwrap();
    let web = groups.iter().find(|group| group["path"] == "/web").unwrap();
    assert!(web["peak_bytes"]["high"].as_u64() >= Some(4 << 20), "{web}");
    assert!(web["refaults"].as_u64() > Some(0), "{web}");
    assert_eq!(groups[0]["refaults"], report["refaults"]);
}

/// A terminal of 80x24 in a tmux server of its own.
struct Tmux {
    socket: String,
}

impl Tmux {
    /// `None`, with a printed reason, where tmux is missing.
    fn start(bench: &Bench, script: &str) -> Option<Self> {
        let tmux = Self {
            socket: bench.path("tmux"),
        };
        let command = format!("sh {script}");
        let size = ["-x", "80", "-y", "24"];
        let started = tmux
            .command(&["-f", "/dev/null", "new-session", "-d"])
            .args(size)
            .arg(command)
            .env("LC_ALL", "C.UTF-8")
            .output();
        match started {
            Ok(output) if output.status.success() => Some(tmux),
            Ok(output) => {
                println!("skipped: tmux does not start: {}", text(&output.stderr));
                None
            }
            Err(e) => {
                println!("skipped: tmux is not installed: {e}");
                None
            }
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.args(["-S", &self.socket]).args(arguments);
        command
    }

    fn screen(&self) -> String {
        let output = self.command(&["capture-pane", "-p"]).output().unwrap();
        text(&output.stdout)
    }

    fn press(&self, keys: &[&str]) {
        let mut command = self.command(&["send-keys"]);
        assert!(command.args(keys).status().unwrap().success());
    }

    fn wait_for(&self, wanted: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.screen().contains(wanted) {
            assert!(Instant::now() < end, "no {wanted:?} in\n{}", self.screen());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).output();
    }
}

/// Returns the file of a script that shows a recording, and says how it ended and whether the
/// terminal's state is the same. The process number of `top` is in the file `pid`.
fn script(bench: &Bench, option: &str) -> String {
    let file = recorded(bench);
    let program = highwater(&[]).get_program().to_str().unwrap().to_owned();
    let pid = bench.path("pid");
    let script = format!(
        "before=$(stty -g)\necho begin\n\
         sh -c 'echo $$ >\"{pid}\"; exec \"{program}\" top \"{file}\" {option}'\nstatus=$?\n\
         [ \"$(stty -g)\" = \"$before\" ] && state=restored || state=changed\n\
         echo \"status $status $state\"\nsleep 600\n"
    );
    bench.write("script.sh", script)
}

/// Stands for a signal among the keys.
const SIGTERM: &str = "SIGTERM";

/// Goal: keys work in a real terminal, and its state is the same after `q`, Ctrl-C, SIGTERM and a
/// panic. Method: a script in tmux that compares `stty -g` before and after.
#[test]
fn the_terminal_is_restored_after_every_end() {
    let cases: [(&str, &[&str], &str); 4] = [
        ("", &["q"], "status 0 restored"),
        ("", &["C-c"], "status 130 restored"),
        ("", &[SIGTERM], "status 143 restored"),
        ("--panic-at-key", &["x"], "status 2 restored"),
    ];
    for (option, keys, end) in cases {
        if !option.is_empty() && !cfg!(debug_assertions) {
            println!("not tested: a release has no {option}");
            continue;
        }
        let bench = Bench::new();
        let script = script(&bench, option);
        let Some(tmux) = Tmux::start(&bench, &script) else {
            return;
        };
        tmux.wait_for("query-42");
        if option.is_empty() {
            tmux.press(&["6"]);
            tmux.wait_for("deploy 41");
            tmux.press(&["1", "/", "query", "Enter"]);
            tmux.wait_for("/query (Esc clears)");
            tmux.press(&["?"]);
            tmux.wait_for("any key closes the help");
            tmux.press(&["x"]);
            tmux.wait_for("[1 groups]");
        }
        if keys == [SIGTERM] {
            let pid = fs::read_to_string(bench.path("pid")).unwrap();
            let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
            kill_process(pid, Signal::TERM).unwrap();
        } else {
            tmux.press(keys);
        }
        tmux.wait_for(end);
        let screen = tmux.screen();
        // The alternate screen is left: the shell's own lines are there again.
        assert!(
            screen.contains("begin") && !screen.contains("GROUP"),
            "{screen}"
        );
        assert_eq!(
            screen.contains("internal error"),
            !option.is_empty(),
            "{screen}"
        );
    }
}

/// Goal: `top` ends with its terminal, rather than reading its end for ever. (It once did, and used
/// a quarter of a CPU.) Method: the terminal is closed.
#[test]
fn top_ends_with_its_terminal() {
    let bench = Bench::new();
    let script = script(&bench, "");
    let Some(tmux) = Tmux::start(&bench, &script) else {
        return;
    };
    tmux.wait_for("query-42");
    let pid = fs::read_to_string(bench.path("pid")).unwrap();
    drop(tmux);
    let process = Path::new("/proc").join(pid.trim());
    let end = Instant::now() + PATIENCE;
    while process.exists() {
        assert!(Instant::now() < end, "top runs on without a terminal");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Goal: on a terminal without cursor addressing the screen is plain lines, and ends with the
/// recording.
#[test]
fn a_dumb_terminal_gets_lines() {
    let bench = Bench::new();
    let script = script(&bench, "");
    let script = bench.write("dumb.sh", format!("export TERM=dumb\nexec sh '{script}'\n"));
    let Some(tmux) = Tmux::start(&bench, &script) else {
        return;
    };
    tmux.wait_for("status 0 restored");
    let screen = tmux.screen();
    // No alternate screen, no block characters.
    assert!(
        screen.contains("query-42") && screen.contains("GROUP"),
        "{screen}"
    );
    assert!(screen.is_ascii(), "{screen}");
}
