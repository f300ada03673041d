//! Question: what does it cost to allocate a page frame and to free it?
//!
//! Command: `cargo bench -p highwater --bench frame_alloc`. Prints nanoseconds of CPU time for each
//! frame, out and back, as medians over interleaved rounds, on one thread and on two, for the work
//! that the module `blocks` describes, without and with a write to each frame, and the resident
//! memory that the rounds left behind in all; and percentiles of what one frame costs a bystander
//! beside a thread that takes many out and gives them back. It does so for a pool and
//! one in the atomic regime; beside them what else one would take: the program's allocator
//! for 4 KiB aligned to 4 KiB, a vector of free frames behind a lock, and the floor, a vector that
//! each thread has for itself and that knows nothing else. `benches-external/allocators` has
//! jemalloc, mimalloc, snmalloc, tcmalloc and LLFree. Medians and ratios carry over to other
//! machines, single times do not. Without `--bench` (as under `cargo test --benches`) it does a
//! thousandth of the work and promises nothing.
//!
//! Fails if one of these is broken:
//!
//! - a hot pair and churn take at most six times as long as on the floor, which waits for its own
//!   stores, so that a busy hardware thread beside it hardly slows it down, as it does a pool;
//! - two threads do at least 1.8 times as much churn as one that runs beside another with a pool of
//!   its own: two virtual CPUs may be one core, which gives two threads less than twice of what it
//!   gives one, whatever they do;
//! - frames that one thread allocates and another frees take at most twice as long as on one,
//!   beside another as above;
//! - 64 Ki out and back are at least twice as fast as with the program's allocator;
//! - work whose frames are written is as fast as with the program's allocator, and so are the 99th
//!   and the 99.9th percentile of a bystander beside it.
//!
//! What would change our mind: lists that cost as much as a lock would not be worth their rules.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod blocks;
mod promise;
#[expect(
    dead_code,
    reason = "rounds are timed with a state, which no variant has by itself"
)]
mod timing;

use std::cell::Cell;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use highwater::frame::{FramePool, PoolConfig};
use highwater::lab::memmap::{Frame, FrameMemory};
use highwater::lab::percpu::{Regime, has_restartable_sequences};
use highwater::topology::Topology;
use highwater::units::Bytes;

use blocks::{Access, Latency, Source, Work, bystander, resident_mib};
use promise::Promise;
use timing::{Medians, ROUNDS, Round, Variant, is_bench, measure};

/// Twice what two threads have out at a time.
const CAPACITY: Bytes = Bytes::gib(1);

const POOL: &str = "pool";
const ALLOCATOR: &str = "the program's allocator";
const FLOOR: &str = "a vector for each thread";
/// Not for all work: a frame goes back to the pool that it came from.
const OWN: &str = "a pool for each thread";

/// Maximum time of a hot pair and churn, in the floor's time.
const OF_FLOOR: f64 = 6.0;
/// How much more two threads do than one.
const GAIN: f64 = 1.8;
/// Maximum time of handing over, in the time that one thread takes beside another.
const HANDED: f64 = 2.0;
/// How much faster than the program's allocator many out and back are.
const FASTER: f64 = 2.0;

struct Pool(FramePool);

impl Pool {
    fn new(regime: Regime) -> Self {
        let memory = FrameMemory::new(CAPACITY.pages_floor()).expect("there is address space");
        let config = PoolConfig {
            regime,
            ..PoolConfig::new(Topology::detect().nr_cpus())
        };
        let pool = FramePool::with_config(Arc::new(memory), config);
        Self(pool.expect("a pool of the usual kind"))
    }
}

impl Source for Pool {
    type Block = Frame;
    type Local = ();

    fn local(&self) {}

    #[inline]
    fn alloc(&self, (): &mut ()) -> Frame {
        let frame = self.0.alloc();
        frame.expect("there are free frames")
    }

    #[inline]
    fn write(&self, (): &mut (), frame: &mut Frame) {
        self.0.memory().bytes_mut(frame)[0] = 1;
    }

    #[inline]
    fn free(&self, (): &mut (), frame: Frame) {
        self.0.free(frame);
    }
}

/// A pool for each thread, which shares nothing: it shows the processor's own limit of two threads.
struct Own(Arc<Mutex<Vec<Pool>>>);

/// A pool of one thread, until this is dropped.
struct Lent {
    pool: Option<Pool>,
    home: Arc<Mutex<Vec<Pool>>>,
}

impl Lent {
    fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("lent until dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let pool = self.pool.take();
        self.home.lock().expect("no thread panicked").extend(pool);
    }
}

impl Source for Own {
    type Block = Frame;
    type Local = Lent;

    const IS_SHARED: bool = false;

    fn local(&self) -> Lent {
        let pool = self.0.lock().expect("no thread panicked").pop();
        Lent {
            pool: Some(pool.expect("as many pools as threads")),
            home: Arc::clone(&self.0),
        }
    }

    #[inline]
    fn alloc(&self, lent: &mut Lent) -> Frame {
        lent.pool().alloc(&mut ())
    }

    #[inline]
    fn write(&self, lent: &mut Lent, frame: &mut Frame) {
        lent.pool().write(&mut (), frame);
    }

    #[inline]
    fn free(&self, lent: &mut Lent, frame: Frame) {
        lent.pool().free(&mut (), frame);
    }
}

/// 4 KiB, aligned to 4 KiB.
#[repr(align(4096))]
struct Page {
    bytes: [MaybeUninit<u8>; 4096],
}

/// The default allocator of Rust programs.
struct Allocator;

impl Source for Allocator {
    type Block = Box<MaybeUninit<Page>>;
    type Local = ();

    fn local(&self) {}

    fn alloc(&self, (): &mut ()) -> Self::Block {
        Box::new_uninit()
    }

    fn write(&self, (): &mut (), block: &mut Self::Block) {
        // Uninitialized bytes are not stored.
        let bytes = [MaybeUninit::uninit(); 4096];
        black_box(block.write(Page { bytes }).bytes[0].write(1));
    }

    fn free(&self, (): &mut (), block: Self::Block) {
        drop(block);
    }
}

/// All free frames behind one lock.
struct Locked(Mutex<Vec<u32>>);

impl Source for Locked {
    type Block = u32;
    type Local = ();

    const IS_MEMORY: bool = false;

    fn local(&self) {}

    fn write(&self, (): &mut (), _: &mut u32) {}

    fn alloc(&self, (): &mut ()) -> u32 {
        let mut free = self.0.lock().expect("no thread panicked");
        free.pop().expect("there are free frames")
    }

    fn free(&self, (): &mut (), block: u32) {
        self.0.lock().expect("no thread panicked").push(block);
    }
}

/// A free list for each thread: a thread allocates again only the frames that it freed.
struct Floor;

impl Source for Floor {
    type Block = u32;
    type Local = Vec<u32>;

    const IS_MEMORY: bool = false;

    fn write(&self, _: &mut Vec<u32>, _: &mut u32) {}

    fn local(&self) -> Vec<u32> {
        (0..1 << 17).collect()
    }

    #[inline]
    fn alloc(&self, free: &mut Vec<u32>) -> u32 {
        // A thread that only allocates runs out of its own frames.
        free.pop().unwrap_or_default()
    }

    #[inline]
    fn free(&self, free: &mut Vec<u32>, block: u32) {
        free.push(block);
    }
}

/// A source that is timed.
struct Timed {
    name: &'static str,
    /// Whether its blocks can be written.
    is_memory: bool,
    /// Times a round.
    time: Rc<dyn Fn(Work, Access, u32, u32) -> Round>,
    /// Times a bystander beside one thread that churns; a part of the usual turns.
    bystander: Box<dyn Fn(Access, u32) -> Latency>,
}

fn timed<S: Source + 'static>(name: &'static str, source: S) -> Timed {
    let source = Rc::new(source);
    let timed = Rc::clone(&source);
    Timed {
        name,
        is_memory: S::IS_MEMORY,
        time: Rc::new(move |work: Work, access, threads, times| {
            work.time(access, &*timed, threads, times)
        }),
        bystander: Box::new(move |access, part| bystander(access, &*source, 1, part)),
    }
}

fn sources() -> Vec<Timed> {
    let machine = Topology::detect();
    let preferred = Regime::preferred(&machine);
    let own = [preferred; 2].map(Pool::new).into();
    vec![
        timed(POOL, Pool::new(preferred)),
        timed("atomic regime", Pool::new(Regime::Atomic)),
        timed(ALLOCATOR, Allocator),
        timed(
            "a vector behind a lock",
            Locked(Mutex::new((0..1 << 18).collect())),
        ),
        timed(FLOOR, Floor),
        timed(OWN, Own(Arc::new(Mutex::new(own)))),
    ]
}

fn main() -> ExitCode {
    println!(
        "{}; {ROUNDS} interleaved rounds; medians of CPU time, ns for each frame, out and back",
        Topology::detect()
    );
    let sources = sources();
    let rows = Access::ALL.map(|access| Work::ALL.map(|work| (work, access)));
    let promises: Vec<Promise> = rows
        .into_iter()
        .flatten()
        .flat_map(|(work, access)| run(work, access, &sources))
        .chain(
            Access::ALL
                .into_iter()
                .flat_map(|access| run_bystander(access, &sources)),
        )
        .collect();
    let here = has_restartable_sequences().then_some(&promises[..]);
    promise::report(here.ok_or("no restartable sequences"))
}

/// Measures some work; returns its promises.
fn run(work: Work, access: Access, sources: &[Timed]) -> Vec<Promise> {
    let title = format!("{}{}", work.name(), access.suffix());
    println!(
        "\n{title:44}{:>10}{:>10}{:>10}",
        "1 thread", "2 threads", "left MiB"
    );
    let fits = |source: &&Timed| match access {
        Access::Untouched => source.name != OWN || has_own(work),
        Access::Written => source.is_memory && source.name != OWN,
    };
    let sources: Vec<(&Timed, Rc<Cell<f64>>)> = sources
        .iter()
        .filter(fits)
        .map(|timed| (timed, Rc::default()))
        .collect();
    let [alone, together] = [1, 2].map(|threads| {
        let variant = |(source, left): &(&Timed, Rc<Cell<f64>>)| {
            let (time, left) = (Rc::clone(&source.time), Rc::clone(left));
            Variant::timed_by(source.name, work.times(), move |threads, times| {
                let before = resident_mib();
                let round = time(work, access, threads, times);
                left.set(left.get() + resident_mib() - before);
                round
            })
        };
        let variants: Vec<Variant> = sources.iter().map(variant).collect();
        measure(&variants, threads)
    });
    for (((name, alone), (_, together)), (_, left)) in alone.iter().zip(&together).zip(&sources) {
        println!("  {name:42}{alone:10.2}{together:10.2}{:10.0}", left.get());
    }
    match access {
        Access::Untouched => promises(work, &alone, &together),
        Access::Written => promises_of_writes(&title, &alone, &together),
    }
}

/// Measures the bystander; returns its promises.
fn run_bystander(access: Access, sources: &[Timed]) -> Vec<Promise> {
    let title = format!("bystander beside one that churns{}", access.suffix());
    println!("\n{title:44}{:>10}{:>10}{:>10}", "p50", "p99", "p99.9");
    let fits =
        |source: &&Timed| source.name != OWN && (access == Access::Untouched || source.is_memory);
    let sources: Vec<&Timed> = sources.iter().filter(fits).collect();
    let (nr_rounds, part) = if is_bench() { (ROUNDS, 1) } else { (1, 100) };
    let mut rounds: Vec<Vec<Latency>> = sources.iter().map(|_| Vec::new()).collect();
    for _ in 0..nr_rounds {
        for (source, rounds) in sources.iter().zip(&mut rounds) {
            rounds.push((source.bystander)(access, part));
        }
    }
    let medians = rounds.iter().map(|rounds| Latency::medians(rounds));
    let medians: Vec<(&str, Latency)> = sources
        .iter()
        .map(|source| source.name)
        .zip(medians)
        .collect();
    for (name, Latency { p50, p99, p99_9 }) in &medians {
        println!("  {name:42}{p50:10.0}{p99:10.0}{p99_9:10.0}");
    }
    if access == Access::Untouched {
        return Vec::new();
    }
    let latency = |wanted| {
        let found = medians.iter().find(|(name, _)| *name == wanted);
        &found.expect("it was measured").1
    };
    let [ours, theirs] = [POOL, ALLOCATOR].map(latency);
    // The median of a short turn is within the resolution of the clock.
    let tail = Latency::PERCENTILES[1..].iter();
    tail.map(|(percentile, of)| {
        let name = format!("{title}, {percentile}: as fast as the program's allocator");
        Promise::new(name, Latency::faster(of(ours), of(theirs)), 1.0..)
    })
    .collect()
}

/// The medians of a source.
fn of(medians: &Medians, wanted: &str) -> f64 {
    let found = medians.iter().find(|(name, _)| *name == wanted);
    found.expect("it was measured").1
}

/// The promises of work whose frames are written.
fn promises_of_writes(title: &str, alone: &Medians, together: &Medians) -> Vec<Promise> {
    let both = [("one thread", alone), ("two threads", together)];
    let promise = |(threads, medians): (&str, &Medians)| {
        let name = format!("{title}, {threads}: as fast as the program's allocator");
        Promise::new(name, of(medians, ALLOCATOR) / of(medians, POOL), 1.0..)
    };
    both.map(promise).into()
}

/// Whether some work is also compared with threads that share nothing.
fn has_own(work: Work) -> bool {
    matches!(work, Work::Churn | Work::HandedOver)
}

/// The promises of some work.
fn promises(work: Work, alone: &Medians, together: &Medians) -> Vec<Promise> {
    let [ours, ours_together] = [alone, together].map(|medians| of(medians, POOL));
    let name = work.name();
    match work {
        Work::HotPair | Work::Churn => {
            let of_floor = Promise::new(
                format!("{name}: of the floor's time"),
                ours / of(alone, FLOOR),
                ..=OF_FLOOR,
            );
            if work == Work::HotPair {
                return vec![of_floor];
            }
            println!(
                "  two threads do {:.2} times what one does alone",
                2.0 * ours / ours_together
            );
            let gain = Promise::new(
                format!("{name}: two threads, of one beside one that shares nothing"),
                2.0 * of(together, OWN) / ours_together,
                GAIN..,
            );
            vec![of_floor, gain]
        }
        Work::HandedOver => {
            println!(
                "  two threads take {:.2} times as long as one alone",
                ours_together / ours
            );
            let name = format!("{name}: of the time of one beside one that shares nothing");
            let ratio = ours_together / of(together, OWN);
            vec![Promise::new(name, ratio, ..=HANDED)]
        }
        Work::OutAndBack => [
            ("one thread", alone, ours),
            ("two threads", together, ours_together),
        ]
        .map(|(threads, medians, ours)| {
            let name = format!("{name}, {threads}: faster than the program's allocator");
            Promise::new(name, of(medians, ALLOCATOR) / ours, FASTER..)
        })
        .into(),
    }
}
