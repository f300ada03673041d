//! Promise: `highwater record` makes a trace of a program's page-cache accesses that `replay`
//! takes, whole after Ctrl-C, readable after SIGKILL, and leaves no tracing behind.
//!
//! The tests that record need root and tracefs, and say so where they are skipped.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot set itself up has failed, or says why it is skipped"
)]

mod support;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use highwater_host::tracefs::Tracefs;
use highwater_lab::trace::{ReaderOptions, TraceReader};
use serde_json::Value;

use support::{Bench, run, text};

/// Bytes of the file that the recorded commands read: 256 pages, the last of one byte.
const BYTES: usize = 255 * 4096 + 1;
const PAGES: u64 = 256;

fn highwater() -> Command {
    support::highwater(&[])
}

/// Returns a path in the test's directory.
fn path_in(bench: &Bench, name: &str) -> PathBuf {
    Path::new(&bench.dir()).join(name)
}

/// Returns whether this machine can record; says why not.
fn can_record() -> bool {
    let able = Tracefs::open().and_then(|tracefs| {
        tracefs.format("filemap", "mm_filemap_get_pages")?;
        // Refused in a PID namespace of its own.
        tracefs.instance()?.follow(&[std::process::id()])
    });
    match able {
        Ok(()) => true,
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

/// Creates the file, in the kernel's cache.
fn data(bench: &Bench) -> PathBuf {
    let path = path_in(bench, "data file");
    fs::write(&path, vec![7; BYTES]).unwrap();
    path
}

fn record(bench: &Bench, options: &[&str], command: &[&str]) -> (Output, PathBuf) {
    let trace = path_in(bench, "trace.hwt.zst");
    let output = highwater()
        .args(["record", "--json", "-o"])
        .arg(&trace)
        .args(options)
        .arg("--")
        .args(command)
        .current_dir(bench.dir())
        .output()
        .unwrap();
    (output, trace)
}

fn summary(output: &Output) -> Value {
    assert!(!output.stdout.is_empty(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the summary's entry of a file.
fn of_file<'a>(summary: &'a Value, path: &Path) -> &'a Value {
    let path = fs::canonicalize(path).unwrap();
    let files = summary["files"].as_array().unwrap();
    let found = files
        .iter()
        .find(|file| file["name"].as_str() == path.to_str());
    found.unwrap_or_else(|| panic!("no {} in {summary}", path.display()))
}

fn replay(trace: &Path, options: &[&str]) -> Output {
    let arguments = ["replay", "--json", "--capacity", "8MiB", "--buffered"];
    let mut command = highwater();
    command.args(arguments).args(options).arg(trace);
    command.output().unwrap()
}

/// Returns how many tracing instances this program's runs have left. That of the recorder that
/// another test kills is there until its next recording.
fn instances() -> usize {
    let begin = Instant::now();
    loop {
        let left = instances_now();
        if left == 0 || begin.elapsed() > Duration::from_secs(60) {
            return left;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn instances_now() -> usize {
    let tracefs = Tracefs::open().unwrap();
    let entries = fs::read_dir(tracefs.root().join("instances")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    let of_dead = |name: &str| {
        let process = name
            .strip_prefix("highwater-")
            .and_then(|name| name.split('-').next());
        process.is_some_and(|process| fs::metadata(format!("/proc/{process}")).is_err())
    };
    names
        .filter(|name| name.to_str().is_some_and(of_dead))
        .count()
}

/// Goal: a recording has exactly the pages that a program read and wrote, under the files' names,
/// and replays. Method: `cat` of a file with a buffer that reaches beyond its end.
#[test]
fn a_command_is_recorded_page_by_page() {
    if !can_record() {
        return;
    }
    let bench = Bench::new();
    let (path, copy) = (data(&bench), path_in(&bench, "copy"));
    let script = r#"cat "data file" > copy; cat "data file" > /dev/null"#;
    let (output, trace) = record(&bench, &["--strict"], &["sh", "-c", script]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let summary = summary(&output);
    assert_eq!(of_file(&summary, &path)["read_pages"], 2 * PAGES);
    assert_eq!(of_file(&summary, &copy)["written_pages"], PAGES);
    assert_eq!(summary["lost_events"], 0);
    assert_eq!(summary["unknown_events"], 0);
    let replayed = replay(&trace, &[]);
    assert_eq!(
        replayed.status.code(),
        Some(0),
        "{}",
        text(&replayed.stderr)
    );
    let report: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    assert_eq!(report["page_accesses"], summary["page_accesses"]);
    let recording = &report["tenants"][0]["trace"]["recording"];
    assert_eq!(recording["lost_events"], 0);
    assert_eq!(of_file(recording, &path)["page_accesses"], 2 * PAGES);
    let mut reader = TraceReader::open(&trace, &ReaderOptions::default()).unwrap();
    assert!(reader.by_ref().all(|request| request.is_ok()));
    let recording = reader.recording().unwrap();
    assert!(recording.is_complete() && recording.about().contains("mm_filemap_get_pages"));
    let path = fs::canonicalize(&path).unwrap();
    let mut names = recording.files().iter().map(|file| file.name.as_str());
    assert!(names.any(|name| Some(name) == path.to_str()));
    assert_eq!(instances(), 0);
}

/// Goal: the command's failure is the recording's, and the trace is whole.
#[test]
fn a_failed_command_is_reported() {
    if !can_record() {
        return;
    }
    let bench = Bench::new();
    let (output, trace) = record(&bench, &[], &["sh", "-c", "exit 3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("ended with status 3"));
    assert_eq!(replay(&trace, &[]).status.code(), Some(0));
}

/// Goal: lost events are counted, stored in the trace, and an error with `--strict`. Method: the
/// smallest buffer, and a million lookups.
#[test]
fn lost_events_are_counted_and_stored() {
    if !can_record() {
        return;
    }
    let bench = Bench::new();
    data(&bench);
    let command = ["dd", "if=data file", "of=/dev/null", "bs=1", "status=none"];
    let options = ["--strict", "--buffer", "64KiB"];
    let (output, trace) = record(&bench, &options, &command);
    let summary = summary(&output);
    let lost = summary["lost_events"].as_u64().unwrap();
    if lost == 0 {
        return eprintln!("skipped: the recorder was as fast as a million lookups");
    }
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("events were lost"));
    let mut reader = TraceReader::open(&trace, &ReaderOptions::default()).unwrap();
    assert!(reader.by_ref().all(|request| request.is_ok()));
    assert_eq!(reader.recording().unwrap().lost_events(), lost);
}

/// Starts a recording of a shell loop that reads the file until it is killed, and waits until the
/// trace holds accesses.
fn start_loop(bench: &Bench, trace: &Path) -> Child {
    data(bench);
    let script = r#"echo $$ > pid; while :; do cat "data file"; done > /dev/null"#;
    let child = highwater()
        .args(["record", "--json", "-o"])
        .arg(trace)
        .args(["--", "sh", "-c", script])
        .current_dir(bench.dir())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let has_accesses = || {
        let length = fs::metadata(trace).map_or(0, |metadata| metadata.len());
        length > 2_000
    };
    while !has_accesses() {
        assert!(
            begin.elapsed() < Duration::from_secs(120),
            "no access was written"
        );
        thread::sleep(Duration::from_millis(20));
    }
    child
}

fn signal(name: &str, process: &str) {
    let status = Command::new("kill").args([name, process]).status().unwrap();
    assert!(status.success());
}

/// Goal: Ctrl-C ends the recording and the command, and the trace is whole.
#[test]
fn ctrl_c_leaves_a_whole_trace() {
    if !can_record() {
        return;
    }
    let bench = Bench::new();
    let trace = path_in(&bench, "trace.hwt");
    let child = start_loop(&bench, &trace);
    signal("-INT", &child.id().to_string());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(replay(&trace, &[]).status.code(), Some(0));
    let loop_process = fs::read_to_string(path_in(&bench, "pid")).unwrap();
    assert!(fs::metadata(format!("/proc/{}", loop_process.trim())).is_err());
    assert_eq!(instances(), 0);
}

/// Goal: SIGKILL leaves a readable prefix, and the next recording removes the instance. Method:
/// kill the recorder after its first seconds; replay strictly and leniently.
#[test]
fn a_killed_recording_leaves_a_readable_prefix() {
    if !can_record() {
        return;
    }
    let bench = Bench::new();
    let trace = path_in(&bench, "trace.hwt.zst");
    let mut child = start_loop(&bench, &trace);
    child.kill().unwrap();
    child.wait().unwrap();
    let loop_process = fs::read_to_string(path_in(&bench, "pid")).unwrap();
    signal("-KILL", loop_process.trim());
    let strict = replay(&trace, &[]);
    assert_eq!(strict.status.code(), Some(2));
    let lenient = replay(&trace, &["--lenient"]);
    assert_eq!(lenient.status.code(), Some(0), "{}", text(&lenient.stderr));
    let report: Value = serde_json::from_slice(&lenient.stdout).unwrap();
    assert!(report["page_accesses"].as_u64().unwrap() >= PAGES);
    let (output, _) = record(&bench, &[], &["true"]);
    assert_eq!((output.status.code(), instances()), (Some(0), 0));
}

/// Goal: a running process is recorded with its children, for a time. Method: a shell that waits
/// for a line, and then reads the file.
#[test]
fn a_process_is_recorded_with_its_children() {
    if !can_record() {
        return;
    }
    let bench = Bench::new();
    let path = data(&bench);
    let mut shell = Command::new("sh")
        .args(["-c", r#"while :; do cat "data file"; sleep 0.05; done"#])
        .current_dir(bench.dir())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let trace = path_in(&bench, "trace.hwt");
    let pid = shell.id().to_string();
    let output = highwater()
        .args(["record", "--json", "--seconds", "1.5", "--pid", &pid, "-o"])
        .arg(&trace)
        .output()
        .unwrap();
    shell.kill().unwrap();
    shell.wait().unwrap();
    let summary = summary(&output);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let pages = of_file_by_end(&summary, path.file_name().unwrap().to_str().unwrap());
    assert!(pages >= PAGES, "{summary}");
    assert_eq!(replay(&trace, &[]).status.code(), Some(0));
}

/// A control group that is removed in the end, with the one below it.
struct Group(PathBuf);

impl Group {
    /// Returns a new group in each hierarchy that this process may change: of version 2, and of
    /// version 1.
    fn all() -> Vec<Self> {
        let roots = [
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup/memory",
        ];
        let name = format!("highwater-test-{}", std::process::id());
        let dirs = roots.map(|root| Path::new(root).join(&name));
        // On a tmpfs that only holds hierarchies, a new directory has no files.
        let is_made = |dir: &PathBuf| {
            let is_group = fs::create_dir(dir).is_ok() && dir.join("cgroup.procs").exists();
            if !is_group {
                let _ = fs::remove_dir(dir);
            }
            is_group && fs::create_dir(dir.join("below")).is_ok()
        };
        dirs.into_iter().filter(is_made).map(Self).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group keeps its tasks until they have been reaped.
        for _ in 0..100 {
            let _ = fs::remove_dir(self.0.join("below"));
            if fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Goal: the tasks of a control group are recorded, those of groups below it and those that move
/// there later, and the recording ends with the group. Method: a shell that moves below the group
/// while it is recorded, and is then killed; in each version of control groups that there is.
#[test]
fn a_control_group_is_recorded_until_it_is_removed() {
    if !can_record() {
        return;
    }
    let groups = Group::all();
    if groups.is_empty() {
        eprintln!("skipped: no control group can be made here");
    }
    for group in groups {
        let bench = Bench::new();
        let path = data(&bench);
        let trace = path_in(&bench, "trace.hwt");
        let recorder = highwater()
            .args(["record", "--json", "--seconds", "600", "--cgroup"])
            .arg(&group.0)
            .arg("-o")
            .arg(&trace)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let script =
            r#"echo $$ > "$1/below/cgroup.procs"; while :; do cat "data file"; sleep 0.05; done"#;
        let mut shell = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&group.0)
            .current_dir(bench.dir())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Tasks that move are found within a second, and the trace grows within another.
        let grown = || fs::metadata(&trace).is_ok_and(|trace| trace.len() > 4096);
        for _ in 0..300 {
            if grown() {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        shell.kill().unwrap();
        shell.wait().unwrap();
        drop(group);
        let output = recorder.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let summary = summary(&output);
        // It ended with the group: its time was not up, by far.
        assert!(summary["elapsed_s"].as_f64().unwrap() < 600.0, "{summary}");
        let pages = of_file_by_end(&summary, path.file_name().unwrap().to_str().unwrap());
        assert!(pages >= PAGES, "{summary}");
    }
}

/// Goal: a full disk is an error that says so, and leaves neither the command nor an instance
/// behind. Method: a file that takes no byte, and one that takes 4 KiB, so that the command runs.
#[test]
fn a_full_disk_is_an_error() {
    if !can_record() {
        return;
    }
    let bench = Bench::new();
    data(&bench);
    let traces = [
        ("/dev/full", "No space left on device"),
        ("trace.hwt", "`ulimit -f`"),
    ];
    for (trace, reason) in traces {
        let output = Command::new("sh")
            .args(["-c", r#"ulimit -f 8; exec "$@""#, "sh"])
            .arg(highwater().get_program())
            .args(["record", "-o", trace, "--", "sh", "-c"])
            .arg(
                r#"trap 'echo told > told; exit' TERM; echo $$ > pid
                while :; do cat "data file" > /dev/null; done"#,
            )
            .current_dir(bench.dir())
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(reason), "{said}");
        assert_eq!(instances(), 0);
    }
    let shell = fs::read_to_string(path_in(&bench, "pid")).unwrap();
    let process = Path::new("/proc").join(shell.trim());
    assert!(!process.exists(), "the command runs on");
    let told = fs::read_to_string(path_in(&bench, "told")).unwrap();
    assert_eq!(told, "told\n", "it could end by itself");
}

// Symptom: Ctrl-C at a terminal, which all processes in its foreground get, was sent to the command
// a second time, and programs take that for the wish to end at once.
#[test]
fn the_command_gets_one_ctrl_c_of_a_terminal() {
    if !can_record() {
        return;
    }
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: no program `script`, which makes a terminal");
        return;
    }
    let bench = Bench::new();
    data(&bench);
    let command = r#"
        trap 'echo told >> told; told=1' INT; echo $$ > pid
        while [ -z "$told" ]; do cat "data file" > /dev/null; done
        for second in 1 2 3 4 5 6 7 8; do sleep 0.5; done"#;
    fs::write(path_in(&bench, "command"), command).unwrap();
    let program = highwater().get_program().to_owned();
    let recording = format!(
        "'{}' record -o trace.hwt -- sh command",
        program.to_str().unwrap()
    );
    let mut terminal = Command::new("script")
        .args(["-qec", &recording, "/dev/null"])
        .current_dir(bench.dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while !path_in(&bench, "pid").exists() {
        assert!(begin.elapsed() < Duration::from_secs(120), "it never began");
        thread::sleep(Duration::from_millis(20));
    }
    let keys = terminal.stdin.as_mut().unwrap();
    keys.write_all(b"\x03").unwrap();
    terminal.wait().unwrap();
    let told = fs::read_to_string(path_in(&bench, "told")).unwrap();
    assert_eq!(told, "told\n");
    assert_eq!(instances(), 0);
}

// Symptom: in a PID namespace of its own, the recorder followed the processes of the machine that
// had the same numbers, mostly none, and said nothing.
#[test]
fn a_pid_namespace_of_its_own_is_refused() {
    if !can_record() {
        return;
    }
    let bench = Bench::new();
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(highwater().get_program())
        .args(["record", "-o", "trace.hwt", "--", "true"])
        .current_dir(bench.dir())
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: no program `unshare`");
        return;
    };
    let said = text(&output.stderr);
    if said.contains("unshare:") {
        eprintln!("skipped: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("PID namespace"), "{said}");
    assert!(!path_in(&bench, "trace.hwt").exists());
    // Its own number is not one of this namespace, so that the next recording may keep it.
    assert_eq!(instances(), 0);
}

/// Returns the pages read of the file whose name ends so, or, if it was never open when the
/// recorder looked, of the unnamed file that was read most.
fn of_file_by_end(summary: &Value, end: &str) -> u64 {
    let files = summary["files"].as_array().unwrap();
    let named = files
        .iter()
        .find(|file| file["name"].as_str().unwrap().ends_with(end));
    named.unwrap_or(&files[0])["read_pages"].as_u64().unwrap()
}

/// Goal: bad input is refused with the reason, and leaves no file.
#[test]
fn bad_input_is_refused() {
    let bench = Bench::new();
    let trace = path_in(&bench, "trace.hwt");
    let trace = trace.to_str().unwrap();
    let cases: [(&[&str], &str); 6] = [
        (&["record", "-o", trace], "--pid"),
        (&["record", "--", "true"], "--output"),
        (&["record", "-o", trace, "--pid", "0"], "--pid"),
        (
            &["record", "-o", trace, "--buffer", "1KiB", "--", "true"],
            "64KiB to 1GiB",
        ),
        (
            &["record", "-o", trace, "--seconds", "nan", "--", "true"],
            "0.1 to 1000000",
        ),
        (
            &["record", "-o", trace, "--pid", "1", "--", "true"],
            "cannot be used",
        ),
    ];
    for (arguments, expected) in cases {
        let output = run(arguments);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(complaint.contains(expected), "{arguments:?}: {complaint}");
    }
    assert!(File::open(trace).is_err());
    if can_record() {
        for (target, expected) in [
            (&["--cgroup", "/proc"][..], "control group"),
            (&["--pid", "4194304"], "no process"),
            (&["--", "no-such-command"], "no-such-command"),
        ] {
            let output = run(&[&["record", "-o", trace], target].concat());
            let complaint = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{target:?}");
            assert!(complaint.contains(expected), "{target:?}: {complaint}");
        }
        assert!(File::open(trace).is_err());
    }
}
