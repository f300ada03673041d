//! Promise: an RSS trace is read as the kernel recorded it: separate lifetimes of spaces, exact
//! changes, the space that is active on each CPU. The shipped traces add up to their table, and
//! damage is an error with a line, never a panic.
//!
//! The recorded traces of version 1 are not part of the project. The test looks for them in the
//! folder that `HIGHWATER_TRACES` names, then in `shared/traces` beside the workspace; without them
//! it says so and passes.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![expect(
    clippy::print_stderr,
    reason = "a skipped test says why, a failed one prints its seed"
)]

mod shared_traces;

use std::collections::HashMap;
use std::io::{Cursor, Read};

use highwater_lab::rss_trace::{
    Member, RssEventKind, RssTally, RssTrace, RssTraceError, Shipped, SpaceId,
};
use ruzstd::decoding::StreamingDecoder;
use shared_traces::shared_traces;

/// A parent forks a child, which replaces its image, is preempted by a foreign task, and exits.
const VERSION_2: &str = "\
# rss-trace 2 unit_ns=1000 cpus=2 events=17
K 5
R 0 1 10 ff 1 1 40
R 1 1 10 10 0 1 10
N 2 1 10 11 1200000
S 3 1 10 1 11
R 4 1 11 10 1 0 2
R 5 1 11 11 0 1 1
X 6 1 11
R 7 1 11 10 0 0 0
R 8 1 11 10 0 1 0
R 9 1 11 11 1 1 2
S 10 1 11 256 5
R 11 1 5 11 0 1 1
S 12 1 5 128 99
S 14 1 99 1 11
Z 15 1 11 1
R 16 1 11 11 0 1 0
R 17 1 10 11 0 3 8
";

/// The same without what version 1 lacks, with two events of the page allocator and one of others.
const VERSION_1: &str = "\
# t0_mono_ns=4949136355148
R 0 1 10 ff 1 1 40
A 0 1 10 13d50d 0 140dca 1
R 1000 1 10 10 0 1 10
S 3000 1 10 1 11
R 4000 1 11 10 1 0 2
F 4500 1 11 13d50d
E 4600 1 11 mm_lru_insertion
R 5000 1 11 11 0 1 1
R 7000 1 11 10 0 0 0
R 8000 1 11 10 0 1 0
R 9000 1 11 11 1 1 2
S 10000 1 11 256 5
R 11000 1 5 11 0 1 1
S 12000 1 5 128 11
R 16000 1 11 11 0 1 0
R 17000 1 10 11 0 3 8
";

/// Returns one line for each event: its kind, then the active space.
fn summary(text: &'static str) -> Vec<String> {
    let trace = RssTrace::from_reader("sample", text.as_bytes()).unwrap();
    let lines = trace.map(|event| {
        let event = event.unwrap();
        let what = match event.kind {
            RssEventKind::Rss(change) => {
                let delta = change
                    .delta_pages
                    .map_or("from".to_owned(), |delta| format!("{delta:+}"));
                let first = if change.is_first { " first" } else { "" };
                let empty = if change.is_empty { " empty" } else { "" };
                let SpaceId(space) = change.space;
                let member = change.member;
                assert_eq!(Member::ALL[member.index()], member);
                format!("{space} {member:?} {delta} {}{first}{empty}", change.size.0)
            }
            RssEventKind::Switch { next } => format!("switch {next}"),
            RssEventKind::Fork { child, is_sharing } => format!("fork {child} {is_sharing}"),
            RssEventKind::Exec => "exec".to_owned(),
            RssEventKind::Exit { is_last } => format!("exit {is_last}"),
        };
        let active = event
            .active
            .map_or("-".to_owned(), |space| space.0.to_string());
        let micros = event.time_ns / 1000;
        format!("{micros} {}/{}: {what} | {active}", event.cpu, event.pid)
    });
    lines.collect()
}

// Goal: every kind of line, and every rule about spaces, in both versions. Method: a short history
// written by hand, and its expected events.
#[test]
fn histories_are_followed() {
    let in_both = [
        "0 1/10: 0 Anon from 40 first | 0",
        "1 1/10: 1 Anon +10 10 first | 0",
        "2 1/10: fork 11 false | 0",
        "3 1/10: switch 11 | 1",
        "4 1/11: 1 File +2 2 | 1",
        "5 1/11: 2 Anon +1 1 first | 1",
        "6 1/11: exec | 1",
        "7 1/11: 1 File -2 0 | 2",
        "8 1/11: 1 Anon -10 0 empty | 2",
        "9 1/11: 2 Anon +1 2 | 2",
        "10 1/11: switch 5 | 2",
        "11 1/5: 2 Anon -1 1 | 2",
    ];
    let then = [
        "12 1/5: switch 99 | -",
        "14 1/99: switch 11 | 2",
        "15 1/11: exit true | 2",
        "16 1/11: 2 Anon -1 0 empty | 2",
        "17 1/10: 3 Shmem +8 8 first | 0",
    ];
    assert_eq!(summary(VERSION_2), [&in_both[..], &then].concat());

    // Without a fork, the child's own first change is the first sign of its space.
    let mut expected = in_both.to_vec();
    expected.retain(|line| !line.contains("fork") && !line.contains("exec"));
    expected[2] = "3 1/10: switch 11 | 0";
    expected.extend([
        "12 1/5: switch 11 | 2",
        "16 1/11: 2 Anon -1 0 empty | 2",
        "17 1/10: 3 Shmem +8 8 first | 0",
    ]);
    assert_eq!(summary(VERSION_1), expected);

    // The counts, and the switch to task 10 that is not in the trace.
    let mut trace = RssTrace::from_reader("sample", VERSION_2.as_bytes()).unwrap();
    let tally = RssTally {
        rss_events: 10,
        switches: 4,
        inferred_switches: 1,
        forks: 1,
        execs: 1,
        exits: 1,
        spaces: 4,
        span_ns: 17_000,
        hits: 5,
        misses: 5,
        activations: 5,
        flushes: 4,
    };
    assert_eq!(RssTally::of(&mut trace).unwrap(), tally);
    assert_eq!(trace.active(1), Some(SpaceId(0)));
    assert_eq!((trace.active(0), trace.active(9)), (None, None));
}

// Goal: threads and the children of `vfork` share a space; an exiting thread leaves it active; a
// space that falls to zero under a task that goes on is the same space. Method: histories by hand.
#[test]
fn shared_spaces_are_one_space() {
    let threads = "\
# rss-trace 2 unit_ns=1 cpus=2 events=9
R 0 0 10 ff 1 1 40
N 1 0 10 11 3d0f00
S 2 1 0 0 11
R 3 1 11 ff 1 1 41
Z 4 1 11 0
S 5 1 11 32 0
R 6 0 10 ff 1 1 0
R 7 0 10 ff 1 1 1
R 8 0 10 ff 1 0 1
";
    let tail = [
        "0 1/0: switch 11 | 0",
        "0 1/11: 0 Anon +1 41 | 0",
        "0 1/11: exit false | 0",
        "0 1/11: switch 0 | 0",
        "0 0/10: 0 Anon -41 0 empty | 0",
        "0 0/10: 0 Anon +1 1 | 0",
        "0 0/10: 0 File from 1 | 0",
    ];
    assert_eq!(summary(threads)[2..], tail);
    let vfork = "\
# rss-trace 2 unit_ns=1 cpus=1 events=9
R 0 0 10 ff 1 1 40
N 1 0 10 11 4100
S 2 0 10 2 11
R 3 0 11 1a 0 1 1
X 4 0 11
S 5 0 11 0 10
S 6 0 10 1 11
R 7 0 11 1a 1 0 16
R 8 0 10 ff 1 1 41
";
    let tail = [
        "0 0/10: switch 11 | 0",
        "0 0/11: 1 Anon +1 1 first | 0",
        "0 0/11: exec | 0",
        "0 0/11: switch 10 | 0",
        "0 0/10: switch 11 | 1",
        "0 0/11: 1 File +16 16 | 1",
        "0 0/10: 0 Anon +1 41 | 0",
    ];
    assert_eq!(summary(vfork)[2..], tail);
}

/// Returns the error of a version 2 text with these lines, which `events` counts.
fn error_of(head: &str, lines: &str) -> String {
    let text = format!("{head}\n{lines}");
    let trace = RssTrace::from_reader("bad", Cursor::new(text.into_bytes()));
    let error = trace.and_then(|mut trace| {
        let error = trace.find_map(Result::err).map_or(Ok(()), Err);
        assert!(trace.next().is_none(), "nothing follows an error");
        error
    });
    error.map_or_else(|error| error.to_string(), |()| "none".to_owned())
}

// Goal: an error in a line names its number, the content found and the content expected. Method:
// one mistake at a time.
#[test]
fn bad_lines_are_named() {
    let two = "# rss-trace 2 unit_ns=1000 cpus=2 events=2";
    let one = "# t0_mono_ns=5";
    let fine = "R 5 1 10 ff 1 1 40\n";
    let cases = [
        (two, "R 5 1 10 ff 1 1 40 7", "expected `R t cpu pid mm_id"),
        (two, "R 5 1 10 ff 1 1", "expected `R t cpu pid mm_id"),
        (two, "R 5 1 10 fg 1 1 40", "expected `R t cpu pid mm_id"),
        (two, "R 5 1 10 1ffffffff 1 1 4", "expected `R t cpu"),
        (two, "R 5 1 10 ff 2 1 40", "expected `R t cpu pid mm_id"),
        (two, "R 5 1 10 ff 1 4 40", "expected `R t cpu pid mm_id"),
        (two, "R 5 1 10 ff 1 1 -4", "expected `R t cpu pid mm_id"),
        (two, "R 5 1 10 ff 1 1 17592186044416", "expected `R t cpu"),
        (two, "R 5 2 10 ff 1 1 40", "expected `R t cpu pid mm_id"),
        (two, "R 5 1 4194305 ff 1 1 40", "expected `R t cpu pid"),
        (two, "R 4 1 10 ff 1 1 40", "expected a time not before"),
        (two, "R 18446744073709552 1 1 ff 1 1 4", "less than 2^64 ns"),
        (two, "S 6 1 10 R 11", "expected `S t cpu prev_pid"),
        (two, "N 6 1 10 11", "expected `N t cpu pid child flags`"),
        (two, "X 6 1 10 11", "expected `X t cpu pid`"),
        (two, "Z 6 1 10 true", "expected `Z t cpu pid is_last`"),
        (two, "K 6", "expected kernel threads before the first event"),
        (two, "K six", "expected `K pid`"),
        (
            two,
            "A 6 1 10 13d50d 0 0 1",
            "begins with R, S, N, X, Z or K",
        ),
        (two, "", "begins with R, S, N, X, Z or K"),
        (one, "N 6 1 10 11 0", "begins with R, S, A, F, B, D or E"),
        (one, "D 6 8192 10", "expected `A|F|B|D|E t cpu pid ...`"),
    ];
    for (head, line, expected) in cases {
        let error = error_of(head, &format!("{fine}{line}\n"));
        assert!(error.starts_with("bad: line 3: found `"), "{line}: {error}");
        assert!(error.contains(expected), "{line}: {error}");
    }
    let long = format!("{fine}{}\n", "R".repeat(300_000));
    let error = error_of(two, &long);
    assert!(
        error.contains("line 3") && error.contains("256 KiB"),
        "{error}"
    );
    let error = error_of(two, &format!("{fine}{fine}{fine}"));
    assert!(
        error.contains("line 4") && error.contains("fewer events"),
        "{error}"
    );
    for head in [
        "",
        "# rss-trace 3 unit_ns=1 cpus=1 events=0",
        "# rss-trace 2 unit_ns=0 cpus=1 events=0",
        "# rss-trace 2 unit_ns=1 cpus=8193 events=0",
        "# rss-trace 2 unit_ns=1 cpus=1",
        "# rss-trace 2 unit_ns=1 cpus=1 events=0 more=1",
        "# t0_mono_ns=x",
    ] {
        let error = error_of(head, "");
        assert!(error.starts_with("bad: line 1: found `"), "{head}: {error}");
        assert!(
            error.contains("expected `# rss-trace 2 unit_ns="),
            "{error}"
        );
    }
}

// Goal: a truncated trace is never taken for a short one. Method: every prefix of a text of version
// 2, and a shipped trace that breaks off.
#[test]
fn truncated_traces_are_noticed() {
    for length in 0..VERSION_2.len() {
        let cut = &VERSION_2[..length];
        let trace = RssTrace::from_reader("cut", Cursor::new(cut.as_bytes().to_vec()));
        let error = trace.and_then(|trace| trace.collect::<Result<Vec<_>, _>>());
        match error.unwrap_err() {
            RssTraceError::Truncated {
                found, promised, ..
            } => assert!(found < promised),
            RssTraceError::BadLine { line, expected, .. } => {
                assert!(
                    line == 1 || expected.contains("truncated"),
                    "{length}: {expected}"
                );
            }
            other => panic!("{other}"),
        }
    }
    let bytes = Shipped::Server.bytes();
    for length in [bytes.len() - 1, bytes.len() / 2, 20] {
        let trace = RssTrace::from_reader("cut", &bytes[..length]);
        let error = trace.and_then(|trace| trace.collect::<Result<Vec<_>, _>>());
        assert!(
            matches!(error, Err(RssTraceError::Stream { .. })),
            "{error:?}"
        );
    }
}

// Goal: no content makes the reader panic or run on. Method: random damage to both samples.
#[test]
fn mutations_never_panic_and_always_end() {
    let seed = std::env::var("SEED").map_or(20_261_121, |seed| seed.parse().unwrap());
    eprintln!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for sample in [VERSION_1, VERSION_2] {
        for _ in 0..4_000 {
            let mut bytes = sample.as_bytes().to_vec();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(0..bytes.len());
                match random.u8(0..4) {
                    0 => bytes[at] = b"0123456789 \nRSNXZKAabf-"[random.usize(0..23)],
                    1 => bytes.insert(at, random.u8(..)),
                    2 => bytes[at] ^= 1 << random.u8(0..8),
                    _ => bytes.extend_from_within(at..),
                }
            }
            let lines = bytes.len();
            if let Ok(mut trace) = RssTrace::from_reader("mutant", Cursor::new(bytes)) {
                assert!(trace.by_ref().take(lines).filter(Result::is_err).count() <= 1);
                assert!(trace.next().is_none());
            }
        }
    }
}

/// Returns a row of the table in `traces/README.md`: the figures of the two traces.
fn row(label: &str) -> [u64; 2] {
    let readme = include_str!("../../../traces/README.md");
    let start = format!("| {label} |");
    let line = readme.lines().find_map(|line| line.strip_prefix(&start));
    let cells = line.unwrap_or_else(|| panic!("no row `{label}`"));
    let figures: Vec<u64> = cells
        .split('|')
        .filter_map(|cell| cell.trim().replace(',', "").parse().ok())
        .collect();
    figures.try_into().unwrap()
}

// Goal: the shipped traces are complete, and add up to their documentation: figures that the
// recording script counted on its own. Method: compare every count with its row.
#[test]
fn shipped_traces_match_their_table() {
    for (index, shipped) in Shipped::ALL.into_iter().enumerate() {
        let tally = RssTally::of(&mut shipped.open().unwrap()).unwrap();
        eprintln!("{}: {tally:?}", shipped.name());
        let size = shipped.bytes().len() as u64;
        let rows = [
            ("compressed bytes", size),
            ("rss events", tally.rss_events),
            ("switches", tally.switches),
            ("switches inferred", tally.inferred_switches),
            ("forks", tally.forks),
            ("execs", tally.execs),
            ("exits", tally.exits),
            ("spaces", tally.spaces),
            ("span, us", tally.span_ns / 1000),
            ("hits", tally.hits),
            ("misses", tally.misses),
            ("activations", tally.activations),
            ("flushes", tally.flushes),
        ];
        for (label, got) in rows {
            assert_eq!(got, row(label)[index], "{}: {label}", shipped.name());
        }
        assert!(size <= 350_000, "{}: {size} bytes", shipped.name());
    }
}

/// Returns the lines of a compressed trace, without the reader.
fn lines_of(bytes: &[u8]) -> Vec<String> {
    let mut text = String::new();
    let mut decoder = StreamingDecoder::new(bytes).unwrap();
    decoder.read_to_string(&mut text).unwrap();
    text.lines().map(str::to_owned).collect()
}

// Goal: changes are those that the kernel counted. Method: align the changes of each shipped trace
// with its `R` lines, and sum them: for every space and member the sum is the last size; a space
// has one `mm_id`, and of one `mm_id` only the newest space changes.
#[test]
fn changes_sum_to_the_last_size() {
    for shipped in Shipped::ALL {
        let lines = lines_of(shipped.bytes());
        let mut told = lines.iter().filter(|line| line.starts_with("R "));
        let mut sums: HashMap<(SpaceId, usize), i64> = HashMap::new();
        let mut sizes = HashMap::new();
        let mut newest: HashMap<String, SpaceId> = HashMap::new();
        let mut named: HashMap<SpaceId, String> = HashMap::new();
        for event in shipped.open().unwrap() {
            let event = event.unwrap();
            let RssEventKind::Rss(change) = event.kind else {
                continue;
            };
            let fields: Vec<&str> = told.next().unwrap().split(' ').collect();
            let (mm_id, size) = (fields[4].to_owned(), fields[7].parse::<i64>().unwrap());
            assert_eq!(change.member.index().to_string(), fields[6]);
            let newest = newest.entry(mm_id.clone()).or_insert(change.space);
            assert_eq!(change.is_first, !named.contains_key(&change.space));
            assert!(
                *newest == change.space || change.is_first,
                "an older space changes"
            );
            *newest = change.space;
            assert_eq!(*named.entry(change.space).or_insert(mm_id.clone()), mm_id);

            let place = (change.space, change.member.index());
            let sum = match change.delta_pages {
                Some(delta) => sums.get(&place).copied().unwrap_or(0) + delta,
                None => {
                    assert!(!sums.contains_key(&place), "a size once known stays known");
                    size
                }
            };
            sums.insert(place, sum);
            sizes.insert(place, size);
        }
        assert!(told.next().is_none() && !sums.is_empty());
        assert_eq!(sums, sizes, "{}", shipped.name());
    }
}

// Goal: at most one space is active on a CPU, the one that the kernel says is current; a task runs
// on one CPU at a time. Method: follow both shipped traces and compare with the events.
#[test]
fn active_spaces_agree_with_the_kernel() {
    for shipped in Shipped::ALL {
        let mut trace = shipped.open().unwrap();
        let mut active: HashMap<u32, Option<SpaceId>> = HashMap::new();
        let mut running: HashMap<u32, u32> = HashMap::new();
        let mut owners = std::collections::HashSet::new();
        let mut nr_current = 0;
        while let Some(event) = trace.next() {
            let event = event.unwrap();
            active.insert(event.cpu, event.active);
            for (&cpu, &space) in &active {
                assert_eq!(trace.active(cpu), space, "another CPU's active space moved");
            }
            let now = match event.kind {
                RssEventKind::Switch { next } => next,
                RssEventKind::Rss(change) if change.is_current => {
                    assert_eq!(event.active, Some(change.space));
                    nr_current += 1;
                    owners.insert(event.pid);
                    event.pid
                }
                _ => event.pid,
            };
            running.insert(event.cpu, now);
            let nr_here = running.values().filter(|&&pid| pid == now).count();
            assert!(
                nr_here == 1 || !owners.contains(&now),
                "task {now} runs on two CPUs"
            );
        }
        assert!(nr_current > 10_000, "{}: {nr_current}", shipped.name());
    }
}

// Goal: version 1 loses little. Method: remove from the shipped traces what version 1 lacks: the
// spaces stay the same, and so do the misses, except for those after a preemption by processes that
// version 1 does not know.
#[test]
fn version_1_finds_the_same_spaces() {
    for shipped in Shipped::ALL {
        let whole = RssTally::of(&mut shipped.open().unwrap()).unwrap();
        let mut text = "# t0_mono_ns=0\n".to_owned();
        for line in lines_of(shipped.bytes()) {
            if line.starts_with(['R', 'S']) {
                text.push_str(&line);
                text.push('\n');
            }
        }
        let mut trace = RssTrace::from_reader("version 1", Cursor::new(text)).unwrap();
        let tally = RssTally::of(&mut trace).unwrap();
        eprintln!("{}: {tally:?}", shipped.name());
        assert_eq!(
            (tally.spaces, tally.rss_events, tally.switches),
            (whole.spaces, whole.rss_events, whole.switches)
        );
        let expected = match shipped {
            Shipped::Build => (199, 114),
            Shipped::Server => (1_310, 1_310),
        };
        assert_eq!((whole.misses, tally.misses), expected);
    }
}

/// File, rss events, switches, spaces, hits, misses.
const RECORDED: [(&str, [u64; 5]); 5] = [
    (
        "compile_cargo_rss_sched",
        [124_873, 2_242, 35, 123_936, 937],
    ),
    (
        "compile_gcc48_rss_sched",
        [149_363, 1_951, 259, 146_560, 2_803],
    ),
    ("pgbench_rss_sched", [53_333, 263_042, 39, 50_051, 3_282]),
    ("full_cwo", [150_052, 1_824, 259, 147_517, 2_535]),
    ("full_pgw", [58_211, 288_353, 39, 55_099, 3_112]),
];

// Goal: foreign recordings of version 1 are read completely. Method: the counts of events that the
// traces' description states; the other figures are this reader's own, so that a change shows.
#[test]
fn recorded_traces_have_the_stated_counts() {
    let Some(folder) = shared_traces() else {
        return;
    };
    for (name, expected) in RECORDED {
        let mut trace = RssTrace::open(folder.join(format!("kernel-mm/{name}.txt.zst"))).unwrap();
        let tally = RssTally::of(&mut trace).unwrap();
        eprintln!("{name}: {tally:?}");
        let got = [
            tally.rss_events,
            tally.switches,
            tally.spaces,
            tally.hits,
            tally.misses,
        ];
        assert_eq!(got, expected, "{name}");
    }
}
