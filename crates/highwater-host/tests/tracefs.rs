//! Promise: binary trace buffers decode to the events that the kernel prints as text, no content
//! makes a decoder panic, and an instance is gone after use.
//!
//! `tracefs_6_18` was recorded on Linux 6.18 (x86-64, 2 CPUs): format files, `header_page`, the
//! pages of `per_cpu/cpuN/trace_pipe_raw`, and `per_cpu/cpuN/trace` of the same events, cut to task
//! number, time and message.
#![expect(clippy::unwrap_used, reason = "a failure fails the test")]

use std::fs;
use std::panic;
use std::path::{Path, PathBuf};
use std::process;

use highwater_host::tracefs::page::{LostBefore, PageLayout};
use highwater_host::tracefs::{EventFormat, FormatError, Lost, Tracefs, TracefsError};

const PAGE: usize = 4096;

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tracefs_6_18")
        .join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(recorded(name)).unwrap()
}

fn format(name: &str) -> EventFormat {
    EventFormat::parse(&text(&format!("{name}.format"))).unwrap()
}

fn layout() -> PageLayout {
    PageLayout::parse(&text("header_page")).unwrap()
}

fn number(event: &[u8], format: &EventFormat, field: &str) -> u64 {
    format.field(field).unwrap().unsigned(event).unwrap()
}

/// Prints an event as the kernel does.
fn printed(formats: &[EventFormat], time: u64, event: &[u8]) -> String {
    let id = u16::from_ne_bytes([event[0], event[1]]);
    let format = formats.iter().find(|format| format.id == id).unwrap();
    let get = |field| number(event, format, field);
    let device = |dev: u64| (dev >> 20, dev & ((1 << 20) - 1));
    let message = match format.name.as_str() {
        name @ ("mm_filemap_get_pages" | "mm_filemap_map_pages") => {
            let (major, minor) = device(get("s_dev"));
            let (first, last) = (get("index") << 12, (get("last_index") << 12) + 4095);
            let ino = get("i_ino");
            format!("{name}: dev={major}:{minor} ino={ino:x} ofs={first}-{last}")
        }
        name @ "mm_filemap_fault" => {
            let (major, minor) = device(get("s_dev"));
            let (ino, at) = (get("i_ino"), get("index") << 12);
            format!("{name}: dev={major}:{minor} ino={ino:x} ofs={at}")
        }
        name @ "ext4_da_write_end" => {
            let (major, minor) = device(get("dev"));
            let (ino, pos, len, copied) = (get("ino"), get("pos"), get("len"), get("copied"));
            format!("{name}: dev {major},{minor} ino {ino} pos {pos} len {len} copied {copied}")
        }
        name @ "sched_process_exec" => {
            let file = format.field("filename").unwrap().text(event).unwrap();
            let (pid, old) = (get("pid"), get("old_pid"));
            format!("{name}: filename={file} pid={pid} old_pid={old}")
        }
        name => panic!("{name} was not recorded"),
    };
    let us = (time + 500) / 1000;
    let task = format.field("common_pid").unwrap().signed(event).unwrap();
    format!("{task} {}.{:06} {message}", us / 1_000_000, us % 1_000_000)
}

/// Goal: binary pages hold what the kernel's text says: every event, field and time. Method: both
/// forms of the same buffers, as one kernel returned them.
#[test]
fn recorded_pages_decode_as_the_kernel_prints_them() {
    let formats = [
        "mm_filemap_get_pages",
        "mm_filemap_map_pages",
        "mm_filemap_fault",
        "ext4_da_write_end",
        "sched_process_exec",
    ]
    .map(format);
    for cpu in 0..2 {
        let pages = fs::read(recorded(&format!("cpu{cpu}.pages"))).unwrap();
        let mut lines = Vec::new();
        for page in pages.chunks(PAGE) {
            let events = layout().events(page).unwrap();
            assert_eq!(events.lost(), LostBefore::None);
            lines.extend(events.map(|event| {
                let event = event.unwrap();
                printed(&formats, event.time, event.bytes)
            }));
        }
        let expected = text(&format!("cpu{cpu}.txt"));
        assert_eq!(lines, expected.lines().collect::<Vec<_>>(), "CPU {cpu}");
    }
}

/// Goal: format files of other events parse by name. Method: arrays, signed numbers, dynamic text.
#[test]
fn fields_are_found_by_name() {
    let dirty = format("writeback_dirty_folio");
    let mut event = vec![0; 56];
    event[8..13].copy_from_slice(b"254:0");
    event[48] = 7;
    let name = dirty.field("name").unwrap();
    assert_eq!(
        (name.size, name.text(&event).unwrap().as_str()),
        (32, "254:0")
    );
    assert_eq!(number(&event, &dirty, "index"), 7);
    let missing = dirty.field("folio").unwrap_err();
    assert!(matches!(missing, FormatError::NoField { .. }), "{missing}");
    let write = format("xfs_file_buffered_write");
    let mut event = vec![0; 48];
    event[32..40].copy_from_slice(&(-5_i64).to_ne_bytes());
    assert_eq!(write.field("offset").unwrap().signed(&event), Some(-5));
    assert_eq!(write.field("offset").unwrap().signed(&event[..39]), None);
    let pid = write.field("common_pid").unwrap();
    event[4..8].copy_from_slice(&(-1_i32).to_ne_bytes());
    assert_eq!(
        (pid.signed(&event), pid.unsigned(&event)),
        (Some(-1), Some(0xffff_ffff))
    );
}

/// Builds a page from 32-bit words, with these flags in the commit word.
fn page(time: u64, flags: u64, words: &[u32]) -> Vec<u8> {
    let mut page = time.to_ne_bytes().to_vec();
    page.extend(((4 * words.len() as u64) | flags).to_ne_bytes());
    page.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
    page
}

fn times(page: &[u8]) -> Vec<u64> {
    let events = layout().events(page).unwrap();
    events.map(|event| event.unwrap().time).collect()
}

/// Goal: entries that a recording rarely holds. Method: pages built by the table in the module.
#[test]
fn time_extends_padding_and_lost_events_are_understood() {
    let event = |delta: u32| [delta << 5 | 1, 9];
    let of = |parts: &[[u32; 2]]| page(1_000, 0, &parts.concat());
    // 2^27 * 3 + 5 ns between two events.
    assert_eq!(
        times(&of(&[event(1), [5 << 5 | 30, 3], event(2)])),
        [1_001, 1_008 + (3 << 27)]
    );
    // An absolute time replaces the 59 lower bits.
    assert_eq!(times(&of(&[[7 << 5 | 31, 2], event(1)])), [(2 << 27) + 8]);
    let late = page((1 << 60) + 50, 0, &[[60 << 5 | 31, 0], event(0)].concat());
    assert_eq!(times(&late), [(1 << 60) + 60]);
    // A discarded event of two words takes its time; padding without a time ends the page.
    assert_eq!(
        times(&of(&[[4 << 5 | 29, 4], event(1), [29, 0], event(1)])),
        [1_005]
    );
    // A long event says its own length.
    let long = page(1, 0, &[2 << 5, 4 + 8, 0xa, 0xb]);
    let events: Vec<_> = layout()
        .events(&long)
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(
        (events.len(), events[0].time, events[0].bytes.len()),
        (1, 3, 8)
    );
    // Lost events: a flag, and perhaps their number after the committed bytes.
    let mut lost = page(1, 1 << 31, &event(1));
    assert_eq!(layout().events(&lost).unwrap().lost(), LostBefore::Unknown);
    lost[8..16].copy_from_slice(&(8_u64 | 3 << 30).to_ne_bytes());
    lost.extend(77_u64.to_ne_bytes());
    assert_eq!(
        layout().events(&lost).unwrap().lost(),
        LostBefore::Events(77)
    );
    // An entry beyond the committed bytes is an error, and the last answer.
    let broken = page(1, 0, &[2, 0]);
    let mut events = layout().events(&broken).unwrap();
    assert!(events.next().unwrap().is_err() && events.next().is_none());
    assert!(layout().events(&broken[..15]).is_err());
}

/// Goal: no bytes make a decoder panic or run on. Method: 20,000 mutations of each kind of file,
/// or as many as `HOST_MUTATIONS` says, from a fixed seed; every entry takes at least four bytes.
#[test]
fn mutated_pages_never_panic() {
    let mut random = fastrand::Rng::with_seed(0x7ace);
    let pages = fs::read(recorded("cpu0.pages")).unwrap();
    let header = text("header_page");
    let format_text = text("sched_process_exec.format");
    let format = format("sched_process_exec");
    let mutations = std::env::var("HOST_MUTATIONS").map_or(20_000, |count| count.parse().unwrap());
    for _ in 0..mutations {
        let mut page = pages[..PAGE].to_vec();
        mutate(&mut page, &mut random);
        if let Ok(events) = layout().events(&page) {
            let mut count = 0;
            for event in events.flatten() {
                count += 1;
                for field in &format.fields {
                    let _ = (field.text(event.bytes), field.signed(event.bytes));
                }
            }
            assert!(count <= PAGE / 4);
        }
        let mut mutated = format_text.clone().into_bytes();
        mutate(&mut mutated, &mut random);
        let _ = EventFormat::parse(&String::from_utf8_lossy(&mutated));
        let mut mutated = header.clone().into_bytes();
        mutate(&mut mutated, &mut random);
        let mutated = String::from_utf8_lossy(&mutated);
        if let Ok(layout) = PageLayout::parse(&mutated) {
            let _ = layout.events(&page).map(Iterator::count);
        }
        let _ = Lost::parse(&mutated);
    }
}

/// Changes up to 8 bytes, and sometimes cuts the end.
fn mutate(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..=8) {
        let at = random.usize(..bytes.len());
        bytes[at] = random.u8(..);
    }
    if random.u8(..8) == 0 {
        bytes.truncate(random.usize(1..=bytes.len()));
    }
}

#[test]
fn lost_events_are_read_from_the_stats() {
    let stats = "entries: 2\noverrun: 3\ncommit overrun: 5\nbytes: 9\ndropped events: 7\n";
    let lost = Lost::parse(stats);
    assert_eq!((lost.overrun, lost.commit_overrun, lost.dropped), (3, 5, 7));
    assert_eq!(lost.events(), 15);
}

/// Goal: a traced child's events arrive, in order, and the instance is gone after use and after a
/// panic. Method: a live kernel; skipped where tracing is refused.
#[test]
fn an_instance_records_and_is_removed() {
    let tracefs = match Tracefs::open() {
        Ok(tracefs) => tracefs,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let instance = match tracefs.instance() {
        Ok(instance) => instance,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let exec = match instance.enable("sched", "sched_process_exec", None) {
        Ok(exec) => exec,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let missing = instance.enable("sched", "no_such_event", None).unwrap_err();
    assert!(missing.is_no_event(), "{missing}");
    match instance.follow(&[process::id(), thread_number()]) {
        Err(error @ TracefsError::Namespace) => return eprintln!("skipped: {error}"),
        followed => followed.unwrap(),
    }
    let mut stream = instance.stream().unwrap();
    instance.start().unwrap();
    for _ in 0..5 {
        assert!(
            process::Command::new("/bin/true")
                .status()
                .unwrap()
                .success()
        );
    }
    instance.stop().unwrap();
    let mut times = Vec::new();
    let count = |event: highwater_host::tracefs::Event<'_>| {
        assert_eq!(event.id(), exec.id);
        times.push(event.time_ns);
    };
    stream.drain(count).unwrap();
    assert!(times.len() >= 5 && times.is_sorted(), "{times:?}");
    assert_eq!(
        (stream.late(), stream.lost_in_pages()),
        (0, LostBefore::None)
    );
    assert_eq!(instance.lost().unwrap(), Lost::default());
    let directory = instance.directory().to_owned();
    assert!(directory.is_dir());
    let panicked = panic::catch_unwind(panic::AssertUnwindSafe(move || {
        let _held = (stream, instance);
        panic!("while an instance is held");
    }));
    assert!(panicked.is_err() && !directory.exists());
}

/// Returns this thread's number.
fn thread_number() -> u32 {
    let link = fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().parse().unwrap()
}
