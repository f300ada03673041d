//! Writes that fail: the program goes on, hears of it once, and loses those records alone.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber, subscriber};

use super::{Everything, Recorder, Recording};
use crate::manager::Manager;
use crate::sync::{Arc, StatCell};
use crate::units::Bytes;

/// Counts the recorder's warnings.
struct Warnings(Arc<StatCell>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().contains("recorder")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.add(1);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn replace_file(recorder: &Recorder, file: File) -> File {
    let mut scribe = recorder.scribe.lock();
    scribe.as_mut().unwrap().replace_file(file)
}

/// Records marks and moments to a file whose writes fail, then to the recording again.
fn loses_only_what_fails(broken: &Path, errno: i32) {
    let faulty = || OpenOptions::new().write(true).open(broken).unwrap();
    let refused = faulty().write_all_at(&[0; 64], 4096).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(errno), "{refused}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("flight.rec");
    let builder = Manager::builder().capacity(Bytes::mib(16));
    let hw = builder.recorder(&path, Bytes::mib(1)).build().unwrap();
    let recorder = hw.core().recorder.as_ref().unwrap();
    let nr_warnings = Arc::new(StatCell::default());
    subscriber::with_default(Warnings(Arc::clone(&nr_warnings)), || {
        hw.mark("before");
        hw.record_now(Everything::Yes);
        for outage in 1..=2 {
            let recording = replace_file(recorder, faulty());
            for _ in 0..3 {
                hw.mark("lost");
                hw.record_now(Everything::Yes);
                hw.record_now(Everything::No);
            }
            let charge = hw.root().charge(Bytes::mib(1)).unwrap();
            assert_eq!(nr_warnings.get(), outage, "one an outage");
            drop(replace_file(recorder, recording));
            hw.mark("after");
            hw.record_now(Everything::Yes);
            drop(charge);
        }
    });
    let recording = Recording::open(&path).unwrap();
    let marks: Vec<_> = recording.marks().iter().map(|mark| &*mark.text).collect();
    assert_eq!(marks, ["before", "after", "after"]);
    assert_eq!(recording.len(), 3, "each moment that was written");
    let last = recording.moment(recording.last().unwrap()).unwrap();
    assert!(last.is_whole);
    assert!(last.groups[0].usage.contains(Bytes::mib(1)));
}

#[test]
fn a_disk_without_room_costs_the_records_that_it_refuses() {
    const ENOSPC: i32 = 28;
    if !Path::new("/dev/full").exists() {
        println!("not tested: there is no /dev/full");
        return;
    }
    loses_only_what_fails(Path::new("/dev/full"), ENOSPC);
}

#[test]
fn a_broken_disk_costs_the_records_that_it_refuses() {
    // Method: the process's memory as a file. No page is mapped at the addresses of the ring's
    // first 60 KiB, so writes there are I/O errors, as of a broken disk.
    const EIO: i32 = 5;
    let memory = Path::new("/proc/self/mem");
    let probe = OpenOptions::new().write(true).open(memory);
    let refused = probe.and_then(|file| file.write_all_at(&[0; 64], 4096));
    if refused.as_ref().err().and_then(io::Error::raw_os_error) != Some(EIO) {
        println!("not tested: {} answers {refused:?}", memory.display());
        return;
    }
    loses_only_what_fails(memory, EIO);
}
