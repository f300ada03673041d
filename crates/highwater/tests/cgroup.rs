//! Promise: a manager stays below the memory limit of its cgroup. Uses a real cgroup if one can be
//! created, and otherwise prints the reason and skips. Directory trees test the rules
//! (`manager/cgroup/tests.rs`).

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use highwater::{BuildError, Bytes, Manager};

/// Set in the process that runs in the cgroup: its directory.
const GROUP: &str = "HIGHWATER_TEST_CGROUP";

/// A cgroup below the process's own, removed at the end.
struct Group {
    directory: PathBuf,
    limit: &'static str,
}

impl Group {
    /// Creates one, or returns the reason why none can be created.
    fn new() -> Result<Self, String> {
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
        match fs::write(group.directory.join(limit), Bytes::mib(256).0.to_string()) {
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

#[test]
fn a_real_limit_is_found_and_followed() {
    if let Ok(directory) = env::var(GROUP) {
        return println!("{}", within(Path::new(&directory)));
    }
    let group = match Group::new() {
        Ok(group) => group,
        Err(reason) => return println!("skipped: no control group can be made: {reason}"),
    };
    let itself = env::current_exe().expect("a test has a path");
    let output = Command::new(itself)
        .args([
            "--exact",
            "a_real_limit_is_found_and_followed",
            "--nocapture",
        ])
        .env(GROUP, &group.directory)
        .env("HIGHWATER_TEST_LIMIT", group.limit)
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

/// The part of the test that runs in the cgroup; returns its result.
fn within(directory: &Path) -> String {
    let processes = directory.join("cgroup.procs");
    if let Err(error) = fs::write(&processes, std::process::id().to_string()) {
        return format!("cannot join {}: {error}", processes.display());
    }
    let name = env::var("HIGHWATER_TEST_LIMIT").expect("set beside the group");
    let builder = || Manager::builder().capacity(Bytes::mib(512));
    let refused = builder().build().expect_err("twice the limit");
    assert!(
        matches!(&refused, BuildError::AboveCgroup { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains(&name), "{refused}");

    let hw = builder().follow_cgroup().build().expect("below the limit");
    assert_eq!(hw.capacity(), Bytes::mib(224));
    // Three times the limit is written, and the process lives.
    let pages = Bytes::mib(200).pages_floor();
    for _ in 0..4 {
        let scratch = hw.space(&hw.root()).map_anon(pages).expect("memory");
        for page in 0..pages.0 {
            scratch.write(page).expect("room")[0] = 1;
        }
    }
    // The limit can only fall to current usage: the frames go first.
    hw.set_capacity(Bytes::mib(32)).expect("nothing is in use");
    hw.trim();
    fs::write(directory.join(&name), Bytes::mib(128).0.to_string()).expect("less is in use");
    hw.set_capacity(Bytes::mib(512)).expect("within the range");
    assert_eq!(hw.cgroup_tick(), Ok(Bytes::mib(112)));
    format!("{refused}; followed down to {}", hw.capacity())
}
