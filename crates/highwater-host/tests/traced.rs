//! Counts of the kernel's events, from events made after the formats of Linux 6.18, and from the
//! kernel below where tracing is allowed.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use highwater_host::traced::{Flushes, LockClass, LockWaits, Symbols, Traced, ZoneTrips};
use highwater_host::tracefs::{Event, EventFormat, Tracefs};

const FIELDS_OF_ALL: &str = "\
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;
";

fn format(name: &str, id: u16, fields: &[&str]) -> EventFormat {
    let fields = fields.join("\n\t");
    let text =
        format!("name: {name}\nID: {id}\nformat:\n{FIELDS_OF_ALL}\n\t{fields}\n\nprint fmt: \"\"");
    EventFormat::parse(&text).unwrap()
}

/// Bytes of an event: the common fields, then these words.
fn event(id: u16, task: u32, words: &[u64]) -> Vec<u8> {
    let mut bytes = id.to_ne_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(task.to_ne_bytes());
    for word in words {
        bytes.extend(word.to_ne_bytes());
    }
    bytes
}

const BEGIN: u16 = 408;
const END: u16 = 407;
const STACK: u16 = 4;

/// Flags of a beginning.
const SPIN: u64 = 1;
const WRITE: u64 = 4;
const MUTEX: u64 = 32;

fn lock_waits() -> LockWaits {
    let lock = "field:void * lock_addr;\toffset:8;\tsize:8;\tsigned:0;";
    let flags = "field:unsigned int flags;\toffset:16;\tsize:4;\tsigned:0;";
    let size = "field:int size;\toffset:8;\tsize:4;\tsigned:1;";
    let caller = "field:unsigned long caller[8];\toffset:16;\tsize:64;\tsigned:0;";
    let ret = "field:int ret;\toffset:16;\tsize:4;\tsigned:1;";
    let symbols = "\
1000 T _raw_spin_lock_irqsave
2000 T rmqueue_bulk
3000 T folio_lruvec_lock_irqsave
4000 T down_read
5000 T rmap_walk_file
6000 T pipe_write
";
    LockWaits::from_formats(
        &format("contention_begin", BEGIN, &[lock, flags]),
        &format("contention_end", END, &[lock, ret]),
        Some(&format("kernel_stack", STACK, &[size, caller])),
        Symbols::parse(symbols),
    )
    .unwrap()
}

/// Gives events of `(time, CPU, bytes)` to a function.
fn replay(events: &[(u64, u32, Vec<u8>)], mut count: impl FnMut(&Event<'_>) -> bool) {
    for (time_ns, cpu, bytes) in events {
        let (time_ns, cpu) = (*time_ns, *cpu);
        assert!(count(&Event {
            time_ns,
            cpu,
            bytes
        }));
    }
}

/// Goal: each wait goes to the class of its stack, by task and lock. Method: waits that overlap on
/// two CPUs, one that an interrupt waits in, and one that begins again.
#[test]
fn waits_are_paired_and_classed() {
    let mut waits = lock_waits();
    let begin = |task, lock| event(BEGIN, task, &[lock, SPIN]);
    let mutex = |flags| event(BEGIN, 9, &[0xd, flags]);
    let end = |task, lock| event(END, task, &[lock, 0]);
    let stack = |task, callers: &[u64]| {
        let words: Vec<u64> = [&[callers.len() as u64], callers].concat();
        event(STACK, task, &words)
    };
    let task = std::process::id();
    let events = [
        (100, 0, begin(task, 0xa)),
        (101, 0, stack(task, &[0x1004, 0x2010])),
        (110, 1, begin(8, 0xb)),
        (111, 1, stack(8, &[0x1004, 0x3010])),
        // An interrupt of task 8, with a lock of its own.
        (115, 1, begin(8, 0xc)),
        (116, 1, stack(8, &[0x1004, 0x6010])),
        (120, 1, end(8, 0xc)),
        (150, 0, end(task, 0xa)),
        (310, 1, end(8, 0xb)),
        // It spins, sleeps, spins and sleeps again, and wakes on another CPU.
        (400, 0, mutex(MUTEX | SPIN)),
        (401, 0, stack(9, &[0x4004, 0x5010])),
        (450, 0, mutex(MUTEX)),
        (451, 0, stack(9, &[0x4004, 0x5010])),
        (500, 0, mutex(MUTEX | SPIN)),
        (501, 0, stack(9, &[0x4004, 0x5010])),
        (550, 0, mutex(MUTEX)),
        (551, 0, stack(9, &[0x4004, 0x5010])),
        (1400, 1, end(9, 0xd)),
        // Idle CPUs are not one task.
        (2000, 0, begin(0, 0xe)),
        (2000, 1, begin(0, 0xe)),
        (2010, 1, end(0, 0xe)),
        (2030, 0, end(0, 0xe)),
        // Its beginning was before the recording.
        (3000, 0, end(77, 0xf)),
        // It does not end within it.
        (3000, 0, begin(78, 0xf)),
    ];
    replay(&events, |event| waits.count(event));
    let waits = waits.finish();
    let of = |class| {
        let found = waits.of(class);
        (found.waits, found.waited_ns, found.longest_ns)
    };
    assert_eq!(of(LockClass::Zone), (1, 50, 50));
    assert_eq!(of(LockClass::Lru), (1, 200, 200));
    assert_eq!(of(LockClass::Rmap), (1, 1000, 1000));
    assert_eq!(of(LockClass::Memcg), (0, 0, 0));
    assert_eq!(of(LockClass::Other), (3, 5 + 10 + 30, 30));
    assert!(
        waits
            .of(LockClass::Zone)
            .most
            .ends_with(&format!("({task})"))
    );
    assert!(waits.has_symbols());
}

// Symptom: where an end was lost, the next wait of the task for that lock began with the one before
// it, and seconds between them counted as waited. Method: a lock that spins, one that sleeps, and a
// mutex whose earlier wait only spun.
#[test]
fn a_lost_end_makes_no_wait_longer() {
    for flags in [SPIN, WRITE, SPIN | MUTEX] {
        let mut waits = lock_waits();
        let begin = event(BEGIN, 9, &[0xd, flags]);
        let events = [
            (0, 0, begin.clone()),
            (4_000_000_000, 0, begin),
            (4_000_001_000, 1, event(END, 9, &[0xd, 0])),
        ];
        replay(&events, |event| waits.count(event));
        let found = waits.finish().of(LockClass::Other);
        assert_eq!((found.waits, found.waited_ns), (1, 1_000), "{flags}");
    }
}

#[test]
fn damaged_events_are_no_panic() {
    let mut waits = lock_waits();
    for id in [BEGIN, END, STACK] {
        for length in 0..20 {
            let bytes = &event(id, 1, &[2, 3])[..length];
            waits.count(&Event {
                time_ns: 5,
                cpu: 0,
                bytes,
            });
        }
    }
    assert_eq!(waits.finish().of(LockClass::Zone).waits, 0);
}

#[test]
fn pages_are_counted_by_order() {
    let order = "field:unsigned int order;\toffset:8;\tsize:4;\tsigned:0;";
    let formats = [10, 11, 12, 13].map(|id| format("of_pages", id, &[order]));
    let mut trips = ZoneTrips::from_formats(&formats).unwrap();
    let events = [
        (10, 0),
        (10, 9),
        (11, 3),
        (12, 0),
        (12, 1),
        (13, 0),
        (13, 0),
    ];
    let events = events.map(|(id, order)| (0, 0, event(id, 1, &[order])));
    replay(&events, |event| trips.count(event));
    let counted = [
        trips.allocated(),
        trips.from_zone(),
        trips.freed(),
        trips.drained(),
    ];
    assert_eq!(counted, [513, 8, 3, 2]);
    let other = event(14, 1, &[0]);
    assert!(!trips.count(&Event {
        time_ns: 0,
        cpu: 0,
        bytes: &other
    }));
}

#[test]
fn calls_that_flush_are_told_from_those_that_do_not() {
    let fields = [
        "field:u64 id;\toffset:8;\tsize:8;\tsigned:0;",
        "field:s64 stats_updates;\toffset:16;\tsize:8;\tsigned:1;",
        "field:bool force;\toffset:24;\tsize:1;\tsigned:0;",
        "field:bool needs_flush;\toffset:25;\tsize:1;\tsigned:0;",
    ];
    let mut flushes = Flushes::from_format(&format("memcg_flush_stats", 9, &fields)).unwrap();
    let task = std::process::id();
    let events = [(task, 1), (task, 0x100), (1, 0x101), (1, 0)];
    let events = events.map(|(task, flags)| (0, 0, event(9, task, &[7, 0, flags])));
    replay(&events, |event| flushes.count(event));
    assert_eq!((flushes.flushes(), flushes.skipped()), (3, 1));
    let (most, name) = flushes.most().unwrap();
    assert_eq!(most, 2);
    assert!(name.ends_with(&format!("({task})")), "{name}");
}

/// Returns the tracing instances of this process.
fn own_instances(tracefs: &Tracefs) -> usize {
    let names = std::fs::read_dir(tracefs.root().join("instances")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let process = format!("-{}-", std::process::id());
    names.filter(|name| name.contains(&process)).count()
}

/// Goal: a panic while events are recorded leaves no instance. Method: the closure that asks for an
/// end panics, with an instance there.
fn a_panic_leaves_no_instance(tracefs: &Tracefs) {
    let seen = std::cell::Cell::new(0);
    let panics = || {
        seen.set(own_instances(tracefs));
        panic!("while events are recorded");
    };
    let collect = || Traced::collect(tracefs, Duration::from_secs(60), &panics).is_ok();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(collect));
    assert!(panicked.is_err());
    assert_eq!((seen.get(), own_instances(tracefs)), (1, 0));
}

/// Goal: a recording of the kernel below counts this program's pages, and leaves nothing behind.
/// Method: threads touch memory meanwhile; skipped where tracing is refused.
#[test]
fn the_kernel_below_is_counted() {
    let tracefs = match Tracefs::open() {
        Ok(tracefs) => tracefs,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let rounds = std::cell::Cell::new(0_u32);
    let touch = || {
        // A page of zeros is allocated at the first write to it.
        let mut pages = vec![0_u8; 4 << 20];
        pages.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::hint::black_box(&pages);
        rounds.set(rounds.get() + 1);
        rounds.get() > 20
    };
    let traced = match Traced::collect(&tracefs, Duration::from_secs(60), &touch) {
        Ok(traced) => traced,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    assert_eq!(own_instances(&tracefs), 0, "the instance is removed");
    a_panic_leaves_no_instance(&tracefs);
    assert!(traced.cpus > 0 && traced.seconds > 0.0);
    match &traced.zone_trips {
        // 20 rounds of 1,024 pages, unless they are huge ones; the buffer may lose some.
        Ok(trips) => assert!(
            trips.allocated() > 1024 || traced.lost_events > 0,
            "{traced:?}"
        ),
        Err(error) => eprintln!("skipped: {error}"),
    }
    let missing = [
        traced.lock_waits.as_ref().err(),
        traced.flushes.as_ref().err(),
    ];
    for missing in missing.into_iter().flatten() {
        assert!(
            missing.is_no_event() || missing.is_permission(),
            "{missing}"
        );
    }
}
