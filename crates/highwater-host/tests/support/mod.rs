//! Machines made for a test: a directory with the files that a check reads.

use std::fs;

use highwater_host::{Machine, Root};

/// A recorded machine. Files are added one by one; what is missing a check cannot measure.
pub(crate) struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    /// A machine with an empty `proc`.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        Self { dir }
    }

    /// A machine with this kernel and so many CPUs.
    pub(crate) fn of(kernel: &str, cpus: u64) -> Self {
        let online = format!("0-{}\n", cpus - 1);
        Self::new()
            .file("proc/sys/kernel/osrelease", &format!("{kernel}\n"))
            .file("sys/devices/system/cpu/online", &online)
    }

    /// Adds a file.
    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Adds a symbolic link.
    pub(crate) fn link(self, path: &str, target: &str) -> Self {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
        self
    }

    /// Adds a process with resident pages by counter, `statm` and `smaps_rollup`.
    pub(crate) fn process(self, pid: u32, comm: &str, threads: u64, pages: [u64; 3]) -> Self {
        let [counter, statm, exact] = pages;
        let zeros = "0 ".repeat(15);
        let stat = format!("{pid} ({comm}) S {zeros}0 {threads} 0 7 4096 {counter} 0 0\n");
        let at = format!("proc/{pid}");
        self.file(&format!("{at}/stat"), &stat)
            .file(
                &format!("{at}/statm"),
                &format!("{exact} {statm} 0 0 0 0 0\n"),
            )
            .file(
                &format!("{at}/smaps_rollup"),
                &format!("Rss: {} kB\n", exact * 4),
            )
            .file(&format!("{at}/oom_score_adj"), "0\n")
            .file(&format!("{at}/status"), &format!("Threads:\t{threads}\n"))
    }

    /// Adds a zone with a list of `count`, `high` and `batch` on each of `cpus`, and the limits of
    /// tuned lists.
    pub(crate) fn zone(
        self,
        managed: u64,
        cpus: usize,
        [count, high, batch]: [u64; 3],
        tuned: Option<[u64; 2]>,
    ) -> Self {
        let tuned = tuned.map_or(String::new(), |[min, max]| {
            format!("              high_min: {min}\n              high_max: {max}\n")
        });
        let mut text = format!(
            "Node 0, zone   Normal\n  pages free     1\n        high     9999999\n        \
             managed  {managed}\n  pagesets\n"
        );
        for cpu in 0..cpus {
            text += &format!(
                "    cpu: {cpu}\n              count:    {count}\n              \
                 high:     {high}\n              batch:    {batch}\n{tuned}"
            );
        }
        self.file("proc/zoneinfo", &text)
    }

    /// Adds two samples of `vmstat`, ten seconds apart.
    pub(crate) fn sampled(self, before: &str, after: &str) -> Self {
        self.file("proc/vmstat", before)
            .file("proc/vmstat.after", after)
            .file("meta.json", "{\"interval_s\": 10}\n")
    }

    /// Adds a group of cgroup v2, the root for an empty path.
    pub(crate) fn group_v2(self, path: &str, files: &[(&str, &str)]) -> Self {
        let at = format!("sys/fs/cgroup/{path}");
        let mut tree = self.file(&format!("{at}/cgroup.controllers"), "cpu memory\n");
        for (name, text) in files {
            tree = tree.file(&format!("{at}/{name}"), text);
        }
        tree
    }

    /// Opens the machine, both samples taken.
    pub(crate) fn machine(&self) -> Machine {
        let root = Root::at(self.dir.path()).unwrap();
        let mut machine = Machine::open(root).unwrap();
        machine.begin_interval();
        machine.end_interval();
        machine
    }
}
