//! Promise: no input makes a parser of `/proc` or `/sys` panic.
//!
//! Real text is mutated: bytes, cuts, numbers at their limits, lines doubled and swapped. Each
//! parser reads 10,000 mutations; `HOST_MUTATIONS=1000000` asks for as many. `SEED` selects others.

use std::env;
use std::hint::black_box;

use fastrand::Rng;
use highwater_host::parse;

const STAT: &str = "6436 (a) b (c) R 6433 6433 32579 0 -1 4194304 103 0 0 0 0 0 0 0 20 0 1 0 \
    1473713 3133440 412 18446744073709551615 94583030861824 94583030881705 140722534879424 0 0\n";
const STATUS: &str = "Name:\thead\nState:\tR (running)\nVmRSS:\t    1760 kB\nVmPTE:\t      48 kB\n\
    VmSwap:\t       0 kB\nThreads:\t1\nCpus_allowed_list:\t0-1\n";
const ROLLUP: &str = "5605d3f4b000-7ffc84b43000 ---p 00000000 00:00 0    [rollup]\n\
    Rss:                1764 kB\nPss:                 805 kB\n";
const PRESSURE: &str = "some avg10=0.00 avg60=0.09 avg300=0.04 total=2068196\n\
    full avg10=0.00 avg60=0.05 avg300=0.02 total=340515\n";
const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
    35 31 0:32 /a /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
    22 28 0:20 / /proc rw - proc proc rw,hidepid=2\n";
const CGROUPS: &str = "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t4\t13\t1\n";
const CONFIG: &str = "CONFIG_PSI=y\nCONFIG_PCP_BATCH_SCALE_MAX=5\n# CONFIG_LRU_GEN is not set\n";

/// What is parsed, the real text, and the parser; its result is of no interest.
type Target = (&'static str, &'static str, fn(&str));

/// Every parser that takes the text of a file.
const TARGETS: &[Target] = &[
    ("vmstat", include_str!("fixtures/vmstat-6.18.txt"), |text| {
        black_box(parse::counters(text).is_ok());
    }),
    (
        "old vmstat",
        include_str!("fixtures/vmstat-node_exporter.txt"),
        |text| {
            black_box(parse::counters(text).is_ok());
        },
    ),
    (
        "zoneinfo",
        include_str!("fixtures/zoneinfo-6.18.txt"),
        |text| {
            black_box(parse::zoneinfo(text).is_ok());
        },
    ),
    (
        "old zoneinfo",
        include_str!("fixtures/zoneinfo-node_exporter.txt"),
        |text| {
            black_box(parse::zoneinfo(text).is_ok());
        },
    ),
    ("stat", STAT, |text| {
        black_box(parse::stat(text).is_ok());
    }),
    ("statm", "765 441 412 5 0 123 0\n", |text| {
        black_box(parse::statm(text).is_ok());
    }),
    ("status", STATUS, |text| {
        black_box(parse::status(text).is_ok());
    }),
    ("smaps_rollup", ROLLUP, |text| {
        black_box(parse::rollup(text).is_ok());
    }),
    ("oom_score_adj", "-1000\n", |text| {
        black_box(parse::oom_score_adj(text).is_ok());
    }),
    (
        "meminfo",
        "MemTotal:  24622120 kB\nHugePages_Total:   7\n",
        |text| {
            black_box(parse::kilobytes(text).is_ok());
        },
    ),
    ("pressure", PRESSURE, |text| {
        black_box(parse::pressure(text).is_ok());
    }),
    ("mountinfo", MOUNTS, |text| {
        black_box(parse::mounts(text).is_ok());
    }),
    (
        "cgroup",
        "9:name=systemd:/\n4:memory:/a:b\n0::/\n",
        |text| {
            black_box(parse::memberships(text).is_ok());
        },
    ),
    ("cgroups", CGROUPS, |text| {
        black_box(parse::memory_groups(text).is_ok());
    }),
    ("limit", "9223372036854771712\n", |text| {
        black_box(parse::limit_bytes(text).is_ok());
    }),
    ("cpu list", "0-3,8,10-11\n", |text| {
        black_box(parse::cpu_list(text).is_ok());
    }),
    (
        "cpus of stat",
        "cpu  1 2\ncpu0 1 2\ncpu1 1 2\nintr 5\n",
        |text| {
            black_box(parse::cpus_of_stat(text).is_ok());
        },
    ),
    (
        "version",
        "Linux version 6.1.0-18-amd64 (debian-kernel) #1\n",
        |text| {
            black_box(parse::kernel_version(text).is_ok());
        },
    ),
    ("config", CONFIG, |text| {
        black_box(parse::config_value(text, "CONFIG_PSI").is_some());
    }),
];

/// Pieces that a mutation inserts.
const PIECES: &[&str] = &[
    "18446744073709551616",
    "18446744073709551615",
    "9223372036854775808",
    "-1",
    "-9223372036854775809",
    "NaN",
    "1e400",
    "(",
    ")",
    ":",
    ",",
    "-",
    "=",
    "\n",
    "\n\n",
    " ",
    "\t",
    "kB",
    "Node ",
    "cpu: ",
    "#",
    "\\040",
    " - ",
    "é",
    "\u{0}",
    "ſ",
];

#[test]
fn no_mutation_makes_a_parser_panic() {
    let number =
        |name: &str, default| env::var(name).map_or(default, |text| text.parse::<u64>().unwrap());
    let (mutations, seed) = (number("HOST_MUTATIONS", 10_000), number("SEED", 21));
    println!("SEED={seed} HOST_MUTATIONS={mutations}");
    for (name, text, parser) in TARGETS {
        let mut rng = Rng::with_seed(seed);
        for index in 0..mutations {
            let mutated = mutated(&mut rng, text);
            let result = std::panic::catch_unwind(|| parser(&mutated));
            assert!(result.is_ok(), "{name}, mutation {index}: {mutated:?}");
        }
    }
}

#[test]
fn the_real_texts_are_parsed() {
    for text in [
        include_str!("fixtures/vmstat-6.18.txt"),
        include_str!("fixtures/vmstat-node_exporter.txt"),
    ] {
        let vmstat = parse::counters(text).unwrap();
        assert!(vmstat.get("nr_dirty").is_some());
        assert!(vmstat.len() > 100);
    }
    assert_eq!(parse::stat(STAT).unwrap().rss_pages, 412);
    assert_eq!(parse::status(STATUS).unwrap().vm_pte_kib, 48);
    assert_eq!(parse::rollup(ROLLUP).unwrap(), 1764);
}

/// Returns `text` after one to four changes. Long texts are cut first, so that a change meets what
/// is read.
fn mutated(rng: &mut Rng, text: &str) -> String {
    const WINDOW: usize = 1200;
    let start = rng.usize(..text.len().saturating_sub(WINDOW).max(1));
    let end = text.len().min(start + WINDOW);
    let mut bytes = text.as_bytes()[start..end].to_vec();
    if start > 0 && rng.bool() {
        let head = text.lines().next().unwrap_or_default();
        bytes.splice(..0, format!("{head}\n").into_bytes());
    }
    for _ in 0..rng.usize(1..=4) {
        let at = rng.usize(..=bytes.len());
        let to = at + rng.usize(..=(bytes.len() - at).min(16));
        match rng.u32(..5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..to)),
            2 => {
                let piece = PIECES[rng.usize(..PIECES.len())];
                bytes.splice(at..to, piece.bytes());
            }
            3 => {
                let part = bytes[at..to].to_vec();
                bytes.splice(at..at, part);
            }
            _ => bytes.splice(at..to, [rng.u8(..)]).for_each(drop),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
