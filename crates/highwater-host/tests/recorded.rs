//! Every check on recorded machines: kernels 5.10, 6.1, 6.12, 6.18 and 7.2 with 2, 64 and 128 CPUs,
//! each with a process that makes its cheap counters wrong (`trees/README.md`).
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use highwater_host::{CHECKS, Effort, Finding, GroupVersion, Machine, ProcessTable, Root, Verdict};

mod mutated;

/// A recorded machine, unpacked.
struct Recorded {
    name: String,
    dir: tempfile::TempDir,
}

impl Recorded {
    fn machine(&self) -> Machine {
        let mut machine = Machine::open(Root::at(self.dir.path()).unwrap()).unwrap();
        machine.end_interval();
        machine
    }

    /// A number of the line that the recorded process printed about itself.
    fn printed(&self, name: &str) -> i64 {
        let line = self.meta("line");
        let value = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix(name));
        value.unwrap().trim_start_matches('=').parse().unwrap()
    }

    fn meta(&self, name: &str) -> String {
        let text = fs::read_to_string(self.dir.path().join("meta.json")).unwrap();
        let meta: serde_json::Value = serde_json::from_str(&text).unwrap();
        match &meta[name] {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    fn cpus(&self) -> u64 {
        self.meta("cpus").parse().unwrap()
    }

    /// Kernels before 6.2 have a cache in each task, later ones in each CPU.
    fn has_task_caches(&self) -> bool {
        self.name.starts_with("5.10") || self.name.starts_with("6.1-")
    }
}

fn tar_of(path: &Path) -> impl std::io::Read {
    ruzstd::decoding::StreamingDecoder::new(File::open(path).unwrap()).unwrap()
}

/// Unpacks a recorded machine: into memory where that is possible, because thousands of small files
/// take a busy disk longer than everything else here.
fn unpacked(path: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.unwrap();
    let mut archive = tar::Archive::new(tar_of(path));
    archive.set_preserve_mtime(false);
    archive.unpack(dir.path()).unwrap();
    dir
}

/// The recorded machines, as files.
fn archives() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir("trees")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "zst"))
        .collect();
    paths.sort();
    paths
}

fn recorded(path: &Path) -> Recorded {
    let name = path.file_name().unwrap().to_str().unwrap();
    Recorded {
        name: name.trim_end_matches(".tar.zst").to_owned(),
        dir: unpacked(path),
    }
}

fn findings(machine: &Machine) -> BTreeMap<u8, Finding> {
    let run = |check: &'static highwater_host::Check| (check.nr, (check.run)(machine));
    CHECKS.into_iter().map(run).collect()
}

/// Goal: each recorded machine is read whole, and its known defect named. Method: see the two
/// functions; here that no kernel, number of CPUs or version of groups is missing.
#[test]
fn every_recorded_machine_is_diagnosed() {
    let mut seen = Vec::new();
    let mut versions = Vec::new();
    for path in archives() {
        let tree = recorded(&path);
        let machine = tree.machine();
        every_check_that_applies_has_a_result(&tree, &machine);
        if tree.cpus() >= 64 {
            the_kernel_is_caught_at_its_known_defect(&tree, &machine);
        }
        versions.push(machine.groups().unwrap().version);
        seen.push(tree.name.clone());
    }
    for kernel in ["5.10", "6.1", "6.12", "6.18", "7.2"] {
        for cpus in [2, 64, 128] {
            assert!(seen.contains(&format!("{kernel}-{cpus}")), "{seen:?}");
        }
    }
    assert!(versions.contains(&GroupVersion::V1) && versions.contains(&GroupVersion::V2));
}

/// Goal: every check says something about every machine. Method: each has a sentence, and those
/// that need no live machine have a result.
fn every_check_that_applies_has_a_result(tree: &Recorded, machine: &Machine) {
    let name = &tree.name;
    assert_eq!(machine.cpus_possible().unwrap(), tree.cpus(), "{name}");
    assert!(
        tree.meta("kernel")
            .starts_with(name.split('-').next().unwrap())
    );
    for (nr, finding) in findings(machine) {
        assert!(!finding.says.is_empty(), "{name}: check {nr}");
        let applies = match nr {
            1..=3 | 5 | 6 | 15 => true,
            // A scale of the kernel's build from 6.7 on.
            7 => !tree.has_task_caches(),
            16 => tree.meta("groups") == "v2",
            // One machine was booted without PSI.
            17 => name != "5.10-64",
            18 => !name.starts_with("5.10"),
            _ => false,
        };
        let is_missing = finding.verdict == Verdict::NotMeasurable;
        assert!(!(applies && is_missing), "{name}: {nr}: {}", finding.says);
    }
}

/// Goal: the known defect of each kernel is named on many CPUs. Method: the error of the recorded
/// process in the table of processes is the one that it printed itself, to one page, and check 1 or
/// 2 is bad.
fn the_kernel_is_caught_at_its_known_defect(tree: &Recorded, machine: &Machine) {
    let name = &tree.name;
    let table = ProcessTable::read(machine, Effort::Whole).unwrap();
    let pid = u32::try_from(tree.printed("pid")).unwrap();
    let process = table
        .processes
        .iter()
        .find(|process| process.pid == pid)
        .unwrap();
    let error = process.error_pages().unwrap();
    assert!(
        (error - tree.printed("error_pages")).abs() <= 1,
        "{name}: {error}"
    );
    let findings = findings(machine);
    let is_bad = |nr| findings[&nr].verdict == Verdict::Bad;
    assert!(
        is_bad(1) || is_bad(2),
        "{name}: {}, {}",
        findings[&1].says,
        findings[&2].says
    );
    // The one process that is far off, by name.
    assert!(
        findings[&2].says.contains(&process.comm),
        "{name}: {}",
        findings[&2].says
    );
    if tree.has_task_caches() {
        // 43 of 1,323 MB.
        let (shown, exact) = (process.counter_pages * 4, process.exact.unwrap().pages * 4);
        assert!((43_000..44_000).contains(&shown), "{name}: {shown} kB");
        assert!(
            (1_323_000..1_324_000).contains(&exact),
            "{name}: {exact} kB"
        );
    } else {
        let exact = i64::try_from(process.exact.unwrap().pages).unwrap();
        assert!(error * 2 < -exact, "{name}: {error} of {exact}");
    }
}

/// Checks that need time to pass, which a recorded machine does not have.
const LIVE: [u8; 2] = [4, 13];

/// Checks that need the kernel's events, and root.
const TRACED: [u8; 3] = [8, 9, 14];

/// Removes the files that the kernel shows to root alone. All recorded processes are root's.
fn without_root(tree: &Recorded) {
    let proc = tree.dir.path().join("proc");
    for entry in fs::read_dir(&proc).unwrap() {
        let rollup = entry.unwrap().path().join("smaps_rollup");
        if rollup.exists() {
            fs::remove_file(rollup).unwrap();
        }
    }
    for name in ["pagetypeinfo", "slabinfo", "vmallocinfo", "kpagecount"] {
        let path = proc.join(name);
        if path.exists() {
            fs::remove_file(path).unwrap();
        }
    }
}

/// Goal: an ordinary machine needs no root for 15 of the 18 checks. Method: recorded machines with
/// cgroup v2 and a kernel whose `statm` is exact, without the files of root: only the checks that
/// need time or the kernel's events lack a result, and those that need time need no root.
#[test]
fn fifteen_checks_need_no_root() {
    let mut seen = 0;
    for path in archives() {
        let tree = recorded(&path);
        if tree.has_task_caches() {
            continue;
        }
        without_root(&tree);
        let findings = findings(&tree.machine());
        let missing = findings
            .iter()
            .filter(|(_, finding)| finding.verdict == Verdict::NotMeasurable);
        let missing: Vec<u8> = missing.map(|(nr, _)| *nr).collect();
        let mut expected = [&LIVE[..], &TRACED].concat();
        expected.sort_unstable();
        assert_eq!(missing, expected, "{}", tree.name);
        for nr in LIVE {
            assert!(findings[&nr].says.contains("a live machine"), "check {nr}");
        }
        seen += 1;
    }
    assert!(seen >= 6, "{seen} machines");
}
