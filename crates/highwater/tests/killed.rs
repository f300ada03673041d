//! Promise: synced data survives any end of the process.
//!
//! The test starts itself again as a child, which writes and syncs a file in rounds, and kills it
//! (SIGKILL) at a random moment.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use highwater::frame::Tunables;
use highwater::{Background, Manager, Pages};

#[path = "../src/seed.rs"]
mod seed;

const PAGES: u64 = 96;
/// Passes the file's name to the child.
const CHILD: &str = "HIGHWATER_TEST_KILLED_FILE";

/// Returns whether a round writes a page.
fn writes(round: u64, page: u64) -> bool {
    let hash = (round << 32 | page).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash >> 62 == 0
}

/// Returns the last round up to `round` that wrote a page; 0 for none.
fn last_written(round: u64, page: u64) -> u64 {
    (1..=round)
        .rev()
        .find(|round| writes(*round, page))
        .unwrap_or(0)
}

#[test]
fn child_writes_until_it_is_killed() {
    // Goal: to be killed. Method: rounds of writes to a file of twice the pool, so that reclaim
    // writes back as well, and the thread writes pages that are a few milliseconds old; each round
    // ends in a sync, which is reported to the parent.
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let quick = Tunables::default()
        .with("dirty_writeback_centisecs", 1)
        .and_then(|tunables| tunables.with("dirty_expire_centisecs", 0));
    let hw = Manager::builder()
        .capacity(Pages(PAGES / 2).bytes())
        .tunables(quick.expect("in range"))
        .background(Background::Thread)
        .build()
        .expect("a small manager");
    let file = hw.open_writable(path).expect("the parent made it");
    let space = hw.space(&hw.root());
    let map = space.map_file(&file, 0..PAGES).expect("the whole file");
    for round in 1_u64.. {
        for page in (0..PAGES).filter(|page| writes(round, *page)) {
            let mut bytes = map.write(page).expect("there is memory");
            bytes.as_chunks_mut::<8>().0.fill(round.to_le_bytes());
        }
        file.sync().expect("the disk is well");
        let line = format!("\nsynced {round}\n");
        // Fails if the parent has gone.
        if std::io::stdout().write_all(line.as_bytes()).is_err() {
            return;
        }
    }
}

/// Runs the child on a file until it has synced `rounds` times and a little longer; returns the
/// last round that it reported.
fn run_and_kill(path: &Path, rounds: u64, longer: Duration) -> u64 {
    let mut child = Command::new(std::env::current_exe().expect("this test is running"))
        .args(["--exact", "child_writes_until_it_is_killed", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut synced = 0;
    let mut next_round = || {
        lines.by_ref().map_while(Result::ok).find_map(|line| {
            let round = line.strip_prefix("synced ")?;
            round.parse::<u64>().ok()
        })
    };
    while synced < rounds {
        synced = next_round().expect("the child goes on until it is killed");
    }
    std::thread::sleep(longer);
    child.kill().expect("it is there");
    child.wait().expect("it was killed");
    // Its output before it died.
    while let Some(round) = next_round() {
        synced = round;
    }
    synced
}

#[test]
fn synced_pages_are_there_after_sigkill() {
    // Goal: a page holds, completely, its contents of the last sync or later ones. Method: kill the
    // child at random, read the file.
    let mut rng = seed::rng(72);
    let dir = tempfile::tempdir().expect("a directory");
    for run in 0..8 {
        let path = dir.path().join(format!("run-{run}"));
        std::fs::write(
            &path,
            vec![0; Pages(PAGES).bytes().0.try_into().expect("small")],
        )
        .expect("a small file");
        let longer = Duration::from_micros(rng.u64(..3000));
        let synced = run_and_kill(&path, rng.u64(1..40), longer);
        let bytes = std::fs::read(&path).expect("it is there");
        for (page, bytes) in (0..).zip(bytes.as_chunks::<4096>().0) {
            let words = bytes.as_chunks::<8>().0;
            let found = u64::from_le_bytes(words[0]);
            assert!(
                words.iter().all(|word| *word == words[0]),
                "run {run}: page {page} is torn"
            );
            let least = last_written(synced, page);
            let is_newer = found == synced + 1 && writes(found, page);
            assert!(
                found == least || is_newer,
                "run {run}: page {page} is of round {found}, but {least} was synced in round {synced}"
            );
        }
    }
}
