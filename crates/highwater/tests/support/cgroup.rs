//! A memory cgroup of a test's own, and the test once more inside it.

#![allow(dead_code, reason = "each test file uses its own part")]
#![expect(clippy::print_stdout, reason = "a test that skips something says so")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use highwater::Bytes;

/// Set in the process that runs in the cgroup: its directory.
const GROUP: &str = "HIGHWATER_TEST_CGROUP";
/// The same: the name of the file of its limit.
const LIMIT: &str = "HIGHWATER_TEST_LIMIT";

/// The cgroup that this process has joined.
pub(crate) struct Inside {
    pub(crate) directory: PathBuf,
    pub(crate) limit: String,
}

impl Inside {
    /// Returns a line of `memory.stat`: the first of `names` that it has, in bytes.
    pub(crate) fn stat(&self, names: &[&str]) -> Bytes {
        let text = fs::read_to_string(self.directory.join("memory.stat")).expect("statistics");
        let mut pairs = text.lines().filter_map(|line| line.split_once(' '));
        let (_, value) = pairs
            .find(|(name, _)| names.contains(name))
            .expect("a line of that name");
        Bytes(value.parse().expect("a number"))
    }
}

/// Runs the test `name` again, in a process in a new cgroup with a limit, where `within` is called
/// and its result printed. Prints the reason if the system allows no such cgroup.
pub(crate) fn run_within(name: &str, limit: Bytes, within: impl FnOnce(&Inside) -> String) {
    if let Ok(directory) = env::var(GROUP) {
        let inside = Inside {
            directory: directory.into(),
            limit: env::var(LIMIT).expect("set beside the group"),
        };
        let processes = inside.directory.join("cgroup.procs");
        if let Err(error) = fs::write(&processes, std::process::id().to_string()) {
            return println!("cannot join {}: {error}", processes.display());
        }
        return println!("{}", within(&inside));
    }
    let group = match Group::new(limit) {
        Ok(group) => group,
        Err(reason) => return println!("skipped: no control group can be made: {reason}"),
    };
    let itself = env::current_exe().expect("a test has a path");
    let output = Command::new(itself)
        .args(["--exact", name, "--nocapture"])
        .env(GROUP, &group.directory)
        .env(LIMIT, group.limit)
        .output()
        .expect("the test runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains("cannot join") {
        return println!("skipped: {text}");
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    println!("{text}");
}

/// A cgroup below the process's own, removed at the end.
struct Group {
    directory: PathBuf,
    limit: &'static str,
}

impl Group {
    /// Creates one, or returns the reason why none can be created.
    fn new(bytes: Bytes) -> Result<Self, String> {
        let text = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let group_in = |is_it: fn(&str) -> bool| {
            let mut lines = text.lines().map(|line| line.splitn(3, ':').skip(1));
            lines.find_map(|mut line| Some((line.next()?, line.next()?)).filter(|it| is_it(it.0)))
        };
        let v1 = group_in(|controllers| controllers.split(',').any(|it| it == "memory"));
        let (root, limit, group) = match (v1, group_in(str::is_empty)) {
            (Some((_, group)), _) => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", group),
            (None, Some((_, group))) => ("/sys/fs/cgroup", "memory.max", group),
            (None, None) => return Err("the process is in no control group".to_owned()),
        };
        let name = format!("highwater-test-{}", std::process::id());
        let directory = Path::new(root)
            .join(group.trim_start_matches('/'))
            .join(name);
        let refused = |error| format!("{}: {error}", directory.display());
        fs::create_dir(&directory).map_err(refused)?;
        let group = Self { directory, limit };
        match fs::write(group.directory.join(limit), bytes.0.to_string()) {
            Ok(()) => Ok(group),
            Err(error) => Err(format!("{}: {error}", group.directory.display())),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Best effort: an empty cgroup costs little.
        _ = fs::remove_dir(&self.directory);
    }
}
