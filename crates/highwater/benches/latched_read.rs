//! Question: what does reading a resident page of a writable file cost, under its latch and
//! optimistically, beside one of a read-only file under a guard?
//!
//! Command: `cargo bench -p highwater --bench latched_read`. Prints nanoseconds per read as the
//! median over interleaved rounds of one thread. Medians and ratios carry over to other machines,
//! single times do not. Without `--bench` (as under `cargo test --benches`) it does a hundredth of
//! the reads, to show that it works.
//!
//! Pages of 4 KiB are drawn by a Zipf law of exponent 0.9 over a file of 128 MiB, all of which is
//! resident. Each read looks at eight bytes of a line of the page that is drawn too, each line as
//! often. An array of the same pages is the bound: no translation, no marks.
//!
//! The program fails when one of these is broken:
//!
//! - an optimistic read takes at most 1.5 times as long as a read under a guard;
//! - a latched read takes at most twice as long as a read under a guard;
//! - two threads that read one page optimistically read at least 1.9 times as much as one (CPU
//!   time; module `gain`).
//!
//! What would change our mind: optimistic reads that cost as much as latched ones are not worth
//! their restarts.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod gain;
mod numbers;
#[expect(dead_code, reason = "another bench reads a file of the system")]
mod places;
mod promise;
#[expect(dead_code, reason = "of a few threads, another module says more")]
mod timing;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use highwater::{Access, Bytes, Manager, Mapping};
use numbers::Numbers;
use places::{Page, Place, content, zipf_over};
use promise::Promise;
use timing::{is_bench, print_figure};

const ROUNDS: usize = 11;
const READS: u32 = 400_000;
/// 128 MiB.
const COUNT: u32 = 32_768;
/// Promised time of an optimistic read, as a ratio to a read under a guard.
const OPTIMISTIC_MAX: f64 = 1.5;
/// Promised time of a latched read, likewise.
const LATCHED_MAX: f64 = 2.0;
/// Promised reads of two threads from one page, as a ratio to those of one.
const GAIN_MIN: f64 = 1.9;

/// Maps all of a file, resident.
fn mapped(hw: &Manager, access: Access) -> Mapping {
    let file = hw
        .open_backing(Arc::new(Numbers(COUNT)), access)
        .expect("a file");
    let space = hw.space(&hw.root());
    let map = space.map_file(&file, 0..u64::from(COUNT));
    let map = map.expect("the whole file");
    for page in 0..u64::from(COUNT) {
        match access {
            Access::ReadOnly => _ = map.read(&hw.enter(), page).expect("the pool holds it"),
            Access::ReadWrite => _ = map.read_latched(page).expect("the pool holds it"),
        }
    }
    assert_eq!(file.resident_precise(), i64::from(COUNT));
    map
}

fn optimistic(map: &Mapping, place: Place) -> u64 {
    loop {
        let read = map.read_optimistic(u64::from(place.page));
        let read = read.expect("resident, and nobody writes");
        let word = u64::from_le_bytes(read.array_at(place.offset as usize));
        if read.validate() {
            return word;
        }
    }
}

fn latched(map: &Mapping, place: Place) -> u64 {
    let read = map.read_latched(u64::from(place.page));
    place.word_of(&read.expect("a resident page"))
}

type Read<'a> = Box<dyn Fn(&[Place]) -> u64 + 'a>;

fn way<'a>(read: impl Fn(Place) -> u64 + 'a) -> Read<'a> {
    Box::new(move |places: &[Place]| places.iter().map(|&it| black_box(read(it))).sum())
}

/// Returns the medians of each way to read, in nanoseconds for each read.
fn times(ways: &[(&str, Read<'_>)], places: &[Place]) -> Vec<f64> {
    let want: u64 = places.iter().map(|place| u64::from(place.page)).sum();
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for ((name, read), times) in ways.iter().zip(&mut times) {
            let start = Instant::now();
            assert_eq!(read(places), want, "{name}");
            times.push(start.elapsed());
        }
    }
    let median = |times: &mut Vec<std::time::Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e9 / places.len() as f64
    };
    times.iter_mut().map(median).collect()
}

fn main() -> ExitCode {
    let reads = if is_bench() { READS } else { READS / 100 };
    let hw = Manager::builder()
        .capacity(Bytes::mib(264))
        .build()
        .expect("264 MiB of memory");
    let (fixed, changing) = (
        mapped(&hw, Access::ReadOnly),
        mapped(&hw, Access::ReadWrite),
    );
    let array: Vec<Page> = (0..COUNT).map(content).collect();
    let ways = [
        (
            "array of pages (bound)",
            way(|place| place.word_of(&array[place.page as usize])),
        ),
        (
            "read-only file, guard",
            way(|place| {
                let guard = hw.enter();
                let page = fixed.read(&guard, u64::from(place.page));
                place.word_of(page.expect("a resident page"))
            }),
        ),
        (
            "writable file, optimistic",
            way(|place| optimistic(&changing, place)),
        ),
        (
            "writable file, latched",
            way(|place| latched(&changing, place)),
        ),
    ];
    let times = times(&ways, &zipf_over(COUNT, reads, 1));
    println!("{:36} {:>9}", "variant", "ns/read");
    for ((name, _), ns) in ways.iter().zip(&times) {
        println!("{name:36} {ns:9.1}");
        print_figure(name, 1, *ns);
    }
    let middle = Place {
        page: COUNT / 2,
        offset: 0,
    };
    let gain = gain::of_second_thread(reads, &|times| {
        for _ in 0..times {
            black_box(optimistic(&changing, black_box(middle)));
        }
    });
    promise::report(Ok(&[
        Promise::new(
            "optimistic read, of the time of one under a guard",
            times[2] / times[1],
            ..=OPTIMISTIC_MAX,
        ),
        Promise::new(
            "latched read, of the time of one under a guard",
            times[3] / times[1],
            ..=LATCHED_MAX,
        ),
        Promise::new(
            "one page read optimistically by two threads, of what one reads",
            gain,
            GAIN_MIN..,
        ),
    ]))
}
