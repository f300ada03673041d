//! Parsers on files of recorded machines with random damage.

use std::io::Read;
use std::path::Path;

use highwater_host::parse;

use super::{archives, tar_of};

type Parser = (&'static str, fn(&str));

/// Every parser, with the end of the names of the files that it is for.
const PARSERS: [Parser; 18] = [
    ("/stat", |text| drop(parse::stat(text))),
    ("/stat", |text| drop(parse::cpus_of_stat(text))),
    ("/statm", |text| drop(parse::statm(text))),
    ("/status", |text| drop(parse::status(text))),
    ("/smaps_rollup", |text| drop(parse::rollup(text))),
    ("/oom_score_adj", |text| drop(parse::oom_score_adj(text))),
    ("/vmstat", |text| drop(parse::counters(text))),
    ("/memory.stat", |text| drop(parse::counters(text))),
    ("/meminfo", |text| drop(parse::kilobytes(text))),
    ("/zoneinfo", |text| drop(parse::zoneinfo(text))),
    ("/memory", |text| drop(parse::pressure(text))),
    ("/cgroups", |text| drop(parse::memory_groups(text))),
    ("/cgroup", |text| drop(parse::memberships(text))),
    ("/mountinfo", |text| drop(parse::mounts(text))),
    ("/possible", |text| drop(parse::cpu_list(text))),
    ("/osrelease", |text| drop(parse::kernel_version(text))),
    ("/memory.max", |text| drop(parse::limit_bytes(text))),
    ("-cloud-amd64", |text| {
        let _ = parse::config_value(text, "CONFIG_PCP_BATCH_SCALE_MAX");
    }),
];

/// Longest file that is damaged, in bytes; a longer one is cut there, so that a million take
/// minutes.
const LENGTH_MAX: usize = 3000;

/// Reads the files of a recorded machine, without unpacking it.
fn files(path: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in tar::Archive::new(tar_of(path)).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_str().unwrap().to_owned();
        if entry.header().entry_type().is_file()
            && PARSERS.iter().any(|(end, _)| path.ends_with(end))
        {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            bytes.truncate(LENGTH_MAX);
            found.push((path, bytes));
        }
    }
}

/// Damages a file: bytes, numbers, lines.
fn mutate(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    const WORDS: [&[u8]; 12] = [
        b"-1",
        b"18446744073709551615",
        b"18446744073709551616",
        b"99999999999999999999999999",
        b"\n",
        b"\0",
        b"\xff\xfe",
        b" ",
        b")",
        b"max",
        b"0-4294967295",
        b"\xf0\x9f\x98\x80",
    ];
    for _ in 0..random.usize(1..6) {
        let at = random.usize(0..=bytes.len());
        let end = (at + random.usize(0..20)).min(bytes.len());
        match random.u8(0..5) {
            0 => drop(bytes.drain(at..end)),
            1 => drop(bytes.splice(at..end, random.choice(WORDS).unwrap().iter().copied())),
            2 => bytes.truncate(at),
            3 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => bytes[at..end]
                .iter_mut()
                .for_each(|byte| *byte ^= 1 << random.u8(0..8)),
        }
    }
}

/// Goal: no damage makes a parser panic. Method: a number of mutated files for each parser, from
/// the recorded machines; `PARSER_MUTATIONS=1000000` is the long run,
/// `SEED` another one.
#[test]
fn no_damaged_file_makes_a_parser_panic() {
    let count = std::env::var("PARSER_MUTATIONS").map_or(1000, |count| count.parse().unwrap());
    let seed = std::env::var("SEED").map_or(21, |seed| seed.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    let mut all = Vec::new();
    for path in archives() {
        files(&path, &mut all);
    }
    for (end, parser) in PARSERS {
        let of_parser: Vec<_> = all.iter().filter(|(path, _)| path.ends_with(end)).collect();
        assert!(!of_parser.is_empty(), "{end}");
        for _ in 0..count {
            let (_, bytes) = random.choice(&of_parser).unwrap();
            let mut bytes = bytes.clone();
            mutate(&mut bytes, &mut random);
            parser(&String::from_utf8_lossy(&bytes));
        }
    }
}
