//! Question: what does reading a resident page cost, beside `pread` of the same file from the
//! kernel's page cache?
//!
//! Command: `cargo bench -p highwater --bench resident_read`. Prints nanoseconds per read as the
//! median over interleaved rounds of one thread, and the throughput as a ratio to `pread`. Medians
//! and ratios carry over to other machines, single times do not. Without `--bench` (as under
//! `cargo test --benches`) it does a hundredth of the reads, to show that it works.
//!
//! Pages of 4 KiB are drawn by a Zipf law of exponent 0.9 over a file of 64 MiB, which is resident
//! in both caches. Each read looks at eight bytes of a line of the page that is drawn too, each
//! line as often; the row that says "copy" takes all of the page into a buffer, as `pread` does.
//!
//! The program fails when one of these is broken:
//!
//! - a read with a guard of its own has at least 15 times `pread`'s throughput;
//! - two threads that read one page read at least 1.9 times as much as one (CPU time; module
//!   `gain`).
//!
//! How long it takes beside one of the mapped file is shown. At most 2.5 times is the aim;
//! `benches-external/caches` fails above it.
//!
//! What would change our mind: below 5 times `pread`'s throughput a cache of our own is not worth
//! its complexity. The mapped file is the bound: it has no index, no guard and no marks.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]
#![expect(unsafe_code, reason = "maps the file, as the bound to compare with")]

mod gain;
mod places;
mod promise;
#[expect(dead_code, reason = "of a few threads, another module says more")]
mod timing;

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use highwater::units::{PAGE_BYTES, PAGE_SIZE};
use highwater::{Bytes, Manager, Mapping};
use places::{COUNT, Place, zipf};
use promise::Promise;
use timing::{is_bench, print_figure};

const ROUNDS: usize = 11;
const READS: u32 = 400_000;
/// Promised throughput, as a ratio to `pread`'s.
const RATIO_MIN: f64 = 15.0;
/// Promised throughput of two threads that read one page, as a ratio to that of one.
const GAIN_MIN: f64 = 1.9;

/// The file mapped by the kernel.
struct Mapped(*const u8);

impl Mapped {
    fn new(file: &File) -> io::Result<Self> {
        let len = COUNT as usize * PAGE_SIZE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self(start.cast()))
        }
    }

    fn word(&self, place: Place) -> u64 {
        let Place { page, offset } = place;
        assert!(page < COUNT, "page {page}");
        let at = page as usize * PAGE_SIZE + offset as usize;
        // SAFETY: within the mapping, which lasts as long as the process.
        let word = unsafe { self.0.add(at) }.cast::<u64>();
        // SAFETY: mapped, aligned to a line, and the file is not written meanwhile.
        unsafe { word.read_volatile() }
    }
}

type ReadAll<'a> = dyn Fn(&[Place]) -> u64 + 'a;

/// One way to read: sums the words at the given places.
struct Variant<'a> {
    name: &'static str,
    read: Box<ReadAll<'a>>,
}

impl<'a> Variant<'a> {
    fn new(name: &'static str, read: impl Fn(Place) -> u64 + 'a) -> Self {
        let sum = move |places: &[Place]| places.iter().map(|&it| black_box(read(it))).sum();
        Self {
            name,
            read: Box::new(sum),
        }
    }
}

fn variants<'a>(
    hw: &'a Manager,
    map: &'a Mapping,
    file: &'a File,
    mapped: &'a Mapped,
) -> Vec<Variant<'a>> {
    let pread = move |place: Place| {
        let mut buf = [0; PAGE_SIZE];
        file.read_exact_at(&mut buf, u64::from(place.page) * PAGE_BYTES)
            .expect("a resident page");
        place.word_of(&buf)
    };
    let read = move |place: Place| {
        let guard = hw.enter();
        let page = map.read(&guard, u64::from(place.page));
        place.word_of(page.expect("a resident page"))
    };
    let read_copy = move |place: Place| {
        let guard = hw.enter();
        let page = map.read(&guard, u64::from(place.page));
        let page = page.expect("a resident page");
        let page: &[u8; PAGE_SIZE] = page.try_into().expect("one page");
        let copy = *page;
        place.word_of(black_box(&copy))
    };
    let eight_a_guard = move |places: &[Place]| {
        let read_eight = |places: &[Place]| -> u64 {
            let guard = hw.enter();
            let read = |place: &Place| {
                let page = map.read(&guard, u64::from(place.page));
                black_box(place.word_of(page.expect("a resident page")))
            };
            places.iter().map(read).sum()
        };
        places.chunks(8).map(read_eight).sum()
    };
    vec![
        Variant::new("pread", pread),
        Variant::new("highwater, a guard for each read", read),
        Variant {
            name: "highwater, a guard for eight reads",
            read: Box::new(eight_a_guard),
        },
        Variant::new("highwater, copy", read_copy),
        Variant::new("mapped file (bound)", |place| mapped.word(place)),
    ]
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns the medians of each way to read, in the order of `variants`, in nanoseconds for each
/// read.
fn times(variants: &[Variant<'_>], places: &[Place]) -> Vec<f64> {
    let want: u64 = places.iter().map(|place| u64::from(place.page)).sum();
    let mut times = vec![Vec::new(); variants.len()];
    for _ in 0..ROUNDS {
        for (variant, times) in variants.iter().zip(&mut times) {
            let start = Instant::now();
            assert_eq!((variant.read)(places), want, "{}", variant.name);
            times.push(start.elapsed());
        }
    }
    let ns = |times: &mut Vec<_>| median(times).as_secs_f64() * 1e9 / places.len() as f64;
    times.iter_mut().map(ns).collect()
}

/// Returns how much more of one page two threads read than one.
fn gain_of_a_second_thread(hw: &Manager, map: &Mapping, reads: u32) -> f64 {
    let place = Place {
        page: COUNT / 2,
        offset: 0,
    };
    let run = |times| {
        for _ in 0..times {
            let guard = hw.enter();
            let read = map.read(&guard, u64::from(black_box(place).page));
            black_box(place.word_of(read.expect("a resident page")));
        }
    };
    gain::of_second_thread(reads, &run)
}

/// Measures; returns the promises.
fn run(hw: &Manager, map: &Mapping, variants: &[Variant<'_>], places: &[Place]) -> [Promise; 2] {
    let times = times(variants, places);
    println!(
        "{:36} {:>9} {:>18}",
        "variant", "ns/read", "throughput/pread"
    );
    for (variant, ns) in variants.iter().zip(&times) {
        let ratio = times[0] / ns;
        println!("{:36} {ns:9.1} {ratio:18.2}", variant.name);
        print_figure(variant.name, 1, *ns);
    }
    let (pread, ours, mapped) = (times[0], times[1], times[times.len() - 1]);
    let faster = pread / ours;
    println!("{:.2} times as long as of the mapped file", ours / mapped);
    let reads = u32::try_from(places.len()).expect("a few hundred thousand");
    let gain = gain_of_a_second_thread(hw, map, reads);
    [
        Promise::new(
            "pread's throughput with a guard for each read",
            faster,
            RATIO_MIN..,
        ),
        Promise::new(
            "one page read by two threads, of what one reads",
            gain,
            GAIN_MIN..,
        ),
    ]
}

fn main() -> ExitCode {
    let reads = if is_bench() { READS } else { READS / 100 };
    let file = places::file().expect("64 MiB of disk");
    let mapped = Mapped::new(&file).expect("a mapping");

    let hw = Manager::builder()
        .capacity(Bytes::mib(72))
        .build()
        .expect("72 MiB of memory");
    let backing = highwater::FileBacking::new(file.try_clone().expect("a descriptor"));
    let opened = hw.open_backing(
        std::sync::Arc::new(backing.expect("a file has a length")),
        highwater::Access::ReadOnly,
    );
    let opened = opened.expect("one file");
    let map = hw
        .space(&hw.root())
        .map_file(&opened, 0..u64::from(COUNT))
        .expect("the whole file");
    for page in 0..u64::from(COUNT) {
        map.read(&hw.enter(), page)
            .expect("the pool holds the file");
    }
    assert_eq!(opened.resident_precise(), i64::from(COUNT));

    let places = zipf(reads, 1);
    let variants = variants(&hw, &map, &file, &mapped);
    promise::report(Ok(&run(&hw, &map, &variants, &places)))
}
