//! The same on memory control groups of the running kernel: a thread moves from group to group and
//! writes a few pages of a file in memory in each, which charges them, and empties the file.
//!
//! Timed are the writes alone, which copy the pages too. What stays charged to the groups' parent
//! after the file is empty is parked, but for what else the kernel charged to them meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::thread;

use highwater::units::PAGE_SIZE;

use crate::baselines::flush::Shape;
use crate::control::Control;
use crate::experiments::clock::thread_ns;
use crate::experiments::memcg::{KernelGroups, NoGroups};
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::to_f64;
use crate::report::{Row, Source};

const PART: &str = "control groups of the running kernel, one thread";
const GROUPS: [usize; 4] = [1, 7, 8, 32];
/// Pages written in each turn.
const PAGES: usize = 4;
/// A file system in memory.
const MEMORY: &str = "/dev/shm";

/// Returns the rows of the kernel's groups, or why there are none although they were asked for.
pub(super) fn rows(
    setup: &Setup,
    control: &Control,
) -> Result<(Vec<Row>, Option<String>), ExperimentError> {
    let mut rows = Vec::new();
    if !setup.options.is_kernel {
        return Ok((rows, None));
    }
    for count in GROUPS {
        let groups = match KernelGroups::make(&Shape::of(1, count), control) {
            Ok(groups) => groups,
            Err(NoGroups::Skipped(reason)) => return Ok((rows, Some(reason))),
            Err(NoGroups::Interrupted) => return Err(ExperimentError::Interrupted),
        };
        // A thread of its own: it leaves the groups when it ends.
        let turns = setup.pick(100, 10);
        let ran = thread::scope(|scope| {
            let run = || in_turn(&groups, count, turns);
            let run = thread::Builder::new().spawn_scoped(scope, run)?;
            run.join().expect("the thread does not panic")
        });
        let description = groups.description();
        groups.remove()?;
        match ran {
            Ok((page_ns, parked)) => rows.push(
                Row::new(
                    PART,
                    Source::Kernel,
                    format!("{description}, {count} groups"),
                )
                .with("page_ns", page_ns)
                .with("parked_pages", parked),
            ),
            Err(e) => {
                return Ok((
                    rows,
                    Some(format!("cannot charge the kernel's groups: {e}")),
                ));
            }
        }
    }
    Ok((rows, None))
}

/// Returns the time for each page, and the pages that stay charged at the parent.
fn in_turn(groups: &KernelGroups, count: usize, turns: usize) -> io::Result<(f64, u64)> {
    let parent = groups.leaf(0).parent().expect("a leaf has a parent");
    let mut file = tempfile::tempfile_in(MEMORY)?;
    let page = [1_u8; PAGE_SIZE];
    let mut tasks = Vec::with_capacity(count);
    for leaf in 0..count {
        // Of version 1: a thread can be moved alone.
        let path = groups.leaf(leaf).join("tasks");
        tasks.push(OpenOptions::new().write(true).open(path)?);
    }
    let before = usage(parent)?;
    let mut ns = 0;
    for _ in 0..turns {
        for tasks in &mut tasks {
            // The thread that writes it.
            tasks.write_all(b"0")?;
            ns += write_pages(&mut file, &page)?;
            file.set_len(0)?;
        }
    }
    let parked = usage(parent)?.saturating_sub(before) / PAGE_SIZE as u64;
    let pages = to_f64((turns * count * PAGES) as u64);
    Ok((to_f64(ns) / pages, parked))
}

fn write_pages(file: &mut File, page: &[u8]) -> io::Result<u64> {
    use std::os::unix::fs::FileExt;
    let begin = thread_ns();
    for nth in 0..PAGES {
        file.write_all_at(page, (nth * page.len()) as u64)?;
    }
    Ok(thread_ns() - begin)
}

fn usage(group: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(group.join("memory.usage_in_bytes"))?;
    let bytes = text.trim().parse();
    bytes.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the usage is no number"))
}
