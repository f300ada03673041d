//! Promise: the flight recorder's file says what the manager knew, until the last complete record,
//! also after the process was killed; and no file, however damaged, makes the reader panic.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use highwater::lab::recording::{Everything, Moment, Recording, RecordingError};
use highwater::{BuildError, Bytes, Limits, Manager};
use tempfile::TempDir;

#[path = "../src/seed.rs"]
mod seed;

/// The smallest ring.
const RING: Bytes = Bytes::mib(1);

fn recorded(dir: &TempDir) -> (Manager, PathBuf) {
    let path = dir.path().join("flight.rec");
    let hw = Manager::builder()
        .capacity(Bytes::mib(16))
        .recorder(&path, RING)
        .build()
        .unwrap();
    (hw, path)
}

fn last(recording: &Recording) -> Moment {
    recording.moment(recording.last().unwrap()).unwrap()
}

#[test]
fn a_moment_is_as_the_manager_shows_it() {
    // Goal: each number of a group, the frames, locks, files, counters, marks and victims are read
    // as the manager's own reads return them. Method: a tree at rest with limits, refusals, a
    // waiting charge, a file and a victim.
    let dir = tempfile::tempdir().unwrap();
    let (hw, path) = recorded(&dir);
    let limits = Limits {
        high: Bytes::mib(3),
        low: Bytes::mib(1),
        min: Bytes(4097),
        ..Limits::max(Bytes::mib(4))
    };
    let tenant = hw.root().child("tenant-a", limits).unwrap();
    let query = tenant.child("query-42", Limits::default()).unwrap();
    hw.root().on_exhausted(|_| ());
    let charge = query.charge(Bytes::mib(2)).unwrap();
    assert!(query.charge(Bytes::mib(8)).is_err(), "above its maximum");
    assert!(query.charge(Bytes::mib(3)).is_err(), "tells the victim");
    let source = dir.path().join("pages");
    fs::write(&source, vec![7; 5 * 4096]).unwrap();
    let file = hw.open(&source).unwrap();
    file.will_need(&hw.root(), 0..5);
    let mut waits = pin!(query.charge_async(Bytes::mib(3)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    hw.mark("deploy 41");
    hw.record_now(Everything::Yes);
    let recording = Recording::open(&path).unwrap();
    let moment = last(&recording);
    assert!(moment.is_whole);
    let snapshot = hw.snapshot();
    assert_eq!(moment.groups.len(), snapshot.groups.len());
    for (seen, group) in moment.groups.iter().zip(&snapshot.groups) {
        assert_eq!((seen.id, &seen.path), (group.id, &group.path));
        assert_eq!((seen.usage, seen.peak), (group.usage, group.peak));
        assert_eq!((seen.limits.min, seen.limits.low), (group.min, group.low));
        let set = |limit| (limit < Bytes::MAX).then_some(limit);
        let upper = (set(seen.limits.high), set(seen.limits.max));
        assert_eq!(upper, (group.high, group.max));
        assert_eq!(seen.events, group.events);
        let stalls = (seen.pressure.some.total_us, group.pressure.some.total_us);
        assert!(stalls.0 <= stalls.1, "{}: {stalls:?}", seen.path);
        let stat = group.stat.iter().find(|(name, _)| *name == "file").unwrap();
        let error = seen.stat.file.abs_diff(stat.1);
        assert!(error <= seen.stat_staleness, "{}: {error}", seen.path);
    }
    let parents: Vec<_> = moment.groups.iter().map(|group| group.parent).collect();
    assert_eq!(parents, [None, Some(0), Some(1)]);
    assert_eq!(moment.children(1).collect::<Vec<_>>(), [2]);
    let of_tenant = moment.group("/tenant-a").unwrap();
    let of_query = moment.group("/tenant-a/query-42").unwrap();
    let waiting = of_tenant.waiting.charges + of_query.waiting.charges;
    let bytes = of_tenant.waiting.bytes.max(of_query.waiting.bytes);
    assert_eq!((waiting, bytes), (1, Bytes::mib(3)));
    assert_eq!(moment.frames.managed, snapshot.frames.managed.0);
    assert_eq!(moment.frames.allocated, snapshot.frames.allocated.0);
    assert!(!moment.frames.lists.is_empty() && !moment.locks.is_empty());
    let counter = |name| moment.counters.iter().find(|(found, _)| found == name);
    assert_eq!(counter("oom_kill").unwrap().1, 1);
    let [of_file] = &moment.files[..] else {
        panic!("{:?}", moment.files);
    };
    assert_eq!(of_file.path, source.display().to_string());
    assert!(of_file.pages == 5 && of_file.resident.contains(Bytes(5 * 4096)));
    let marks: Vec<_> = recording.marks().iter().map(|mark| &mark.text).collect();
    assert_eq!(marks, ["deploy 41"]);
    let [victim] = recording.victims() else {
        panic!("{:?}", recording.victims());
    };
    assert_eq!(victim.victim, "/tenant-a/query-42");
    assert_eq!((victim.exact, victim.scanned), (Some(Bytes::mib(2)), 1));
    assert!(victim.text.starts_with("/tenant-a/query-42: 2 MiB"));
    assert_eq!(recording.nr_torn(), 0);
    drop(charge);
}

#[test]
fn changes_are_recorded_between_whole_moments() {
    // Goal: a moment holds the last whole one and all changes since; groups that have not changed
    // are not written. Method: charges between ticks, then each moment against what was used.
    let dir = tempfile::tempdir().unwrap();
    let (hw, path) = recorded(&dir);
    let groups: Vec<_> = ["a", "b", "c"]
        .map(|name| hw.root().child(name, Limits::default()).unwrap())
        .into();
    hw.record_now(Everything::Yes);
    let mut recording = Recording::open(&path).unwrap();
    hw.record_now(Everything::No);
    assert_eq!(recording.refresh().unwrap(), 0, "nothing has changed");
    let mut charges = Vec::new();
    for (round, group) in (1..=6).zip(groups.iter().cycle().skip(1)) {
        charges.push(group.charge(Bytes::mib(round)).ok());
        hw.record_now(Everything::No);
        assert_eq!(recording.refresh().unwrap(), 1);
    }
    let first = recording.first().unwrap();
    for (round, steps) in (0..=6).zip(0..) {
        let tick = recording.step(first, steps).unwrap();
        let moment = recording.moment(tick).unwrap();
        for (index, name) in (0..).zip(["/a", "/b", "/c"]) {
            let rounds = (1..=round).filter(|it| it % 3 == index);
            let refused_from = 6;
            let used = rounds.filter(|it| *it < refused_from).sum();
            let seen = moment.group(name).unwrap();
            let is_within = seen.usage.contains(Bytes::mib(used));
            assert!(is_within, "round {round}, {name}: {}", seen.usage);
        }
    }
    hw.record_now(Everything::No);
    assert_eq!(recording.refresh().unwrap(), 0);
    drop(charges);
    assert_eq!(recording.step(first, -1), Some(first));
    assert_eq!(recording.step(first, i64::MAX), recording.last());
    assert_eq!(recording.at_time(Duration::ZERO), Some(first));
    assert_eq!(recording.at_time(Duration::MAX), recording.last());
}

/// Passes the recording's path to the child.
const CHILD: &str = "HIGHWATER_TEST_RECORDING";
/// Children that are killed side by side.
const KILLED_AT_ONCE: usize = 4;

#[test]
fn child_records_until_it_is_killed() {
    // Goal: to be killed in the middle of a write. Method: records without a pause, with several
    // parts in each whole moment, and tells the parent each record that is complete.
    let Ok(path) = env::var(CHILD) else {
        return;
    };
    let builder = Manager::builder().capacity(Bytes::mib(64));
    let hw = builder.recorder(path, RING).build().unwrap();
    let groups: Vec<_> = (0..3000)
        .map(|nr| {
            let name = format!("a-tenant-with-a-long-name-{nr}");
            hw.root().child(&name, Limits::default()).unwrap()
        })
        .collect();
    for (nr, group) in (1_u64..).zip(groups.iter().cycle()) {
        let charge = group.charge(Bytes(nr)).unwrap();
        let everything = match nr % 8 {
            1 => Everything::Yes,
            _ => Everything::No,
        };
        hw.record_now(everything);
        drop(charge);
        hw.mark(&nr.to_string());
        // Fails if the parent has gone.
        if writeln!(std::io::stdout(), "\nmarked {nr}").is_err() {
            return;
        }
    }
}

/// Runs the child until it is killed; returns the last mark that it reported.
fn record_and_kill(path: &Path, marks: u64, longer: Duration) -> u64 {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "child_records_until_it_is_killed", "--nocapture"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut reported = lines.filter_map(|line| line.ok()?.strip_prefix("marked ")?.parse().ok());
    let seen = reported.find(|mark| *mark >= marks).unwrap_or(0);
    thread::sleep(longer);
    child.kill().unwrap();
    child.wait().unwrap();
    reported.last().unwrap_or(seen)
}

/// Kills a child at a random moment; checks all that it left.
fn kill_and_read(round: usize, rng: &mut fastrand::Rng) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flight.rec");
    let longer = Duration::from_micros(rng.u64(..3000));
    let reported = record_and_kill(&path, rng.u64(1..120), longer);
    let recording = Recording::open(&path).unwrap();
    assert!(reported > 0, "round {round}: the child reported nothing");
    let last: u64 = recording.marks().last().unwrap().text.parse().unwrap();
    assert!(last >= reported, "round {round}: {last} of {reported}");
    let marks = recording.marks().windows(2);
    let number = |text: &str| text.parse::<u64>().unwrap();
    for pair in marks {
        assert_eq!(number(&pair[0].text) + 1, number(&pair[1].text));
    }
    let mut tick = recording.first().unwrap();
    let end = recording.last().unwrap();
    let mut nr_read = 1;
    while tick < end {
        let moment = recording.moment(tick).unwrap();
        assert!(moment.is_whole, "round {round}, moment {tick}");
        assert_eq!(moment.groups.len(), 3001);
        tick = recording.step(tick, 1).unwrap();
        nr_read += 1;
    }
    assert!(recording.len() - nr_read <= 1, "all but one in progress");
    assert!(!recording.has_ended());
}

#[test]
fn a_killed_recording_is_readable() {
    // Goal: every record that was complete at the kill is readable, and every moment. Method: kill
    // a hundred children (`KILLS`) at random moments; the last mark that one reported must be
    // there, no number between the first and the last record may be missing, and all moments must
    // be read.
    let kills: usize = env::var("KILLS").map_or(100, |kills| kills.parse().unwrap());
    let mut rng = seed::rng(1);
    thread::scope(|scope| {
        for lane in 0..KILLED_AT_ONCE {
            let mut rng = rng.fork();
            let rounds = (lane..kills).step_by(KILLED_AT_ONCE);
            scope.spawn(move || rounds.for_each(|round| kill_and_read(round, &mut rng)));
        }
    });
}

#[test]
fn no_damage_makes_the_reader_panic() {
    // Goal: damage costs the records that it hits, and is never a panic. Method: flip, cut and
    // copy bytes of a recording that has wrapped, a thousand times; read every moment.
    let dir = tempfile::tempdir().unwrap();
    let (hw, path) = recorded(&dir);
    let groups: Vec<_> = (0..40)
        .map(|nr| {
            hw.root()
                .child(&format!("g{nr}"), Limits::default())
                .unwrap()
        })
        .collect();
    for (nr, group) in (0_u64..1200).zip(groups.iter().cycle()) {
        let _charge = group.charge(Bytes(nr + 1)).unwrap();
        hw.record_now(match nr % 2 {
            1 => Everything::Yes,
            _ => Everything::No,
        });
        hw.mark("again");
    }
    drop((groups, hw));
    let whole = Recording::open(&path).unwrap();
    assert!(whole.has_ended() && whole.first() > Some(1), "it wrapped");
    assert!(whole.newest_record() > 600 + 1200);
    let bytes = fs::read(&path).unwrap();
    let damaged = dir.path().join("damaged.rec");
    let mut rng = seed::rng(2);
    for round in 0..60 {
        let mut bytes = bytes.clone();
        for _ in 0..rng.usize(1..200) {
            let start = if round % 3 == 0 { 0 } else { 4096 };
            let at = rng.usize(start..bytes.len());
            match rng.u32(..3) {
                0 => bytes[at] ^= 1 << rng.u32(..8),
                1 => {
                    let from = rng.usize(start..bytes.len() - 4096);
                    let to = rng.usize(start..bytes.len() - 4096);
                    bytes.copy_within(from..from + rng.usize(..4096), to);
                }
                _ => bytes[at] = rng.u8(..),
            }
        }
        if rng.u32(..4) == 0 {
            bytes.truncate(rng.usize(..bytes.len()));
        }
        fs::write(&damaged, &bytes).unwrap();
        let Ok(recording) = Recording::open(&damaged) else {
            continue;
        };
        let mut tick = recording.first();
        while let Some(now) = tick {
            let _: Result<Moment, _> = recording.moment(now);
            tick = recording.step(now, 1).filter(|next| *next > now);
        }
    }
}

#[test]
fn other_files_are_refused_by_name() {
    // Goal: each wrong file is an error of its own kind, and building overwrites none. Method: no
    // file, an empty one, another one, another version, a damaged header, a directory.
    let dir = tempfile::tempdir().unwrap();
    let (hw, path) = recorded(&dir);
    drop(hw);
    let open = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        Recording::open(&path).unwrap_err()
    };
    let missing = Recording::open(dir.path().join("none")).unwrap_err();
    assert!(matches!(missing, RecordingError::Open { .. }));
    let empty = open("empty", &[]);
    assert!(matches!(empty, RecordingError::NotARecording { .. }));
    let other = open("other", b"a text");
    assert!(matches!(other, RecordingError::NotARecording { .. }));
    let mut bytes = fs::read(&path).unwrap();
    bytes[20] ^= 1;
    let damaged = open("damaged", &bytes);
    assert!(matches!(damaged, RecordingError::Damaged { .. }));
    bytes[8] = 9;
    let version = open("version", &bytes);
    assert!(matches!(version, RecordingError::Version { found: 9, .. }));
    for wrong in [dir.path().join("other"), dir.path().to_path_buf()] {
        let builder = Manager::builder().recorder(&wrong, RING);
        let refused = builder.build().unwrap_err();
        assert!(matches!(refused, BuildError::Recorder { .. }), "{refused}");
    }
    assert_eq!(fs::read(dir.path().join("other")).unwrap(), b"a text");
    let builder = Manager::builder().recorder(&path, Bytes(1));
    let refused = builder.build().unwrap_err();
    assert!(matches!(refused, BuildError::RecorderSize { .. }));
    // What a process of this number left behind when it was killed.
    let left = dir
        .path()
        .join(format!("flight.rec.{}.new", std::process::id()));
    fs::write(left, [0; 100]).unwrap();
    let builder = Manager::builder().recorder(&path, RING);
    drop(builder.build().unwrap());
    let old = Recording::open(dir.path().join("flight.rec.old")).unwrap();
    assert!(old.has_ended() && !old.is_empty());
    // A file of another kind under the name of the older one is not replaced, and the recording
    // stays.
    fs::write(dir.path().join("flight.rec.old"), b"a text").unwrap();
    let builder = Manager::builder().recorder(&path, RING);
    let refused = builder.build().unwrap_err();
    assert!(matches!(refused, BuildError::Recorder { .. }), "{refused}");
    let kept = fs::read(dir.path().join("flight.rec.old")).unwrap();
    assert_eq!(kept, b"a text");
    assert!(Recording::open(&path).is_ok());
    let names = fs::read_dir(dir.path()).unwrap();
    let is_new = |name: &OsStr| name.to_string_lossy().ends_with(".new");
    assert!(!names.into_iter().any(|it| is_new(&it.unwrap().file_name())));
}

#[test]
fn a_recording_is_read_while_it_is_written() {
    // Goal: a reader beside the writer sees moments in order, each whole, also when the ring laps
    // it. Method: a writer without a pause, with moments of several parts.
    let dir = tempfile::tempdir().unwrap();
    let (hw, path) = recorded(&dir);
    for nr in 0..2000 {
        let name = format!("a-tenant-with-a-long-name-{nr}");
        drop(hw.root().child(&name, Limits::default()).unwrap());
    }
    let groups = hw.snapshot().groups.len();
    let writer = thread::spawn(move || {
        for _ in 0..200 {
            hw.record_now(Everything::Yes);
        }
    });
    let mut recording = Recording::open(&path).unwrap();
    let (mut newest, mut nr_read) = (0, 0);
    loop {
        let is_done = writer.is_finished();
        recording.refresh().unwrap();
        let Some(tick) = recording.last() else {
            continue;
        };
        assert!(tick >= newest, "moment {tick} after {newest}");
        newest = tick;
        match recording.moment(tick) {
            Ok(moment) if moment.is_whole => {
                assert_eq!(moment.groups.len(), groups);
                nr_read += 1;
            }
            // The first of several parts, if the writer was stopped between them.
            Ok(moment) => assert!(moment.groups.len() < groups),
            Err(RecordingError::Overwritten { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        if is_done {
            break;
        }
    }
    writer.join().unwrap();
    assert!(nr_read > 0 && recording.newest_record() > 200);
}

#[test]
fn ten_thousand_groups_are_recorded() {
    // Goal: a tree larger than a record, and larger than the ring remembers for long. Method: the
    // last moment of 10,001 groups.
    let dir = tempfile::tempdir().unwrap();
    let (hw, path) = recorded(&dir);
    for nr in 0..10_000 {
        drop(
            hw.root()
                .child(&format!("g{nr}"), Limits::default())
                .unwrap(),
        );
    }
    for _ in 0..3 {
        hw.record_now(Everything::Yes);
    }
    let moment = last(&Recording::open(&path).unwrap());
    assert!(moment.is_whole);
    assert_eq!(moment.groups.len(), 10_001);
    assert!(
        moment
            .groups
            .iter()
            .skip(1)
            .all(|group| group.parent == Some(0))
    );
}

// Symptom: a manager that could not be built put an empty recording in the place of the last one,
// and at the second attempt also of the one kept beside it. Method: managers fill the address
// space; one more, with a recorder, is refused.
#[test]
fn a_manager_that_cannot_be_built_leaves_the_last_recording() {
    let dir = tempfile::tempdir().unwrap();
    let (hw, path) = recorded(&dir);
    hw.mark("before the crash");
    hw.record_now(Everything::Yes);
    drop(hw);
    let largest = || Manager::builder().capacity(Bytes(Bytes::gib(16 << 10).0 - (12 << 10)));
    let mut all = Vec::new();
    while let Ok(hw) = largest().build() {
        all.push(hw);
        assert!(all.len() < 64, "a process has 128 TiB");
    }
    for _ in 0..2 {
        let refused = largest().recorder(&path, Bytes::mib(1)).build();
        assert!(matches!(refused, Err(BuildError::Map(_))), "{refused:?}");
    }
    let recording = Recording::open(&path).unwrap();
    let marks: Vec<_> = recording.marks().iter().map(|mark| &mark.text).collect();
    assert_eq!(marks, ["before the crash"]);
}
