//! Promise: a replay drives every request through the manager, verifies every byte that it reads,
//! detects damage and lost writes, and reports failures without losing memory.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use highwater::Backing;
use highwater::frame::Tunables;
use highwater::lab::reclaim::policy::PolicyKind;
use highwater::units::{Bytes, FilePage, PAGE_SIZE, Pages};
use highwater_lab::control::Control;
use highwater_lab::models::Lru;
use highwater_lab::replay::{
    DataIo, Failure, Leaks, Outcome, Replay, ReplayConfig, ReplayError, Table, TenantConfig,
    TraceInput,
};
use highwater_lab::trace::{Format, ReaderOptions};

/// Smaller than the traces here, so that reclaim has work.
const CAPACITY: Bytes = Bytes::mib(8);

/// The seed of a test: `SEED` from the environment, or a fixed one.
fn seed() -> u64 {
    std::env::var("SEED").map_or(30, |seed| seed.parse().unwrap())
}

/// Returns a configuration of one thread without tenants.
fn config(dir: &Path) -> ReplayConfig {
    ReplayConfig {
        tenants: Vec::new(),
        capacity: CAPACITY,
        threads: 1,
        in_flight: 1,
        backend: None,
        policy: PolicyKind::default(),
        tunables: Tunables::default(),
        readahead: Pages(0),
        io: DataIo::Buffered,
        seed: seed(),
        dir: dir.to_path_buf(),
    }
}

/// Returns a tenant with a trace of the given text, in `dir`.
fn tenant(dir: &Path, name: &str, format: Format, text: &str) -> TenantConfig {
    let path = dir.join(format!("{name}.txt"));
    fs::write(&path, text).unwrap();
    TenantConfig {
        name: name.to_owned(),
        trace: TraceInput::File(path),
        options: ReaderOptions {
            format: Some(format),
            ..ReaderOptions::default()
        },
        max: None,
    }
}

/// Reads of page numbers, as a `lirs` trace.
fn reads(pages: impl IntoIterator<Item = u64>) -> String {
    pages.into_iter().map(|page| format!("{page}\n")).collect()
}

/// Reads and writes of random keys among `keys`, as a `csv` trace. Each key has one page, and the
/// first keys come first, so that key and page number are the same.
fn mixed(seed: u64, keys: u64, requests: usize) -> String {
    let mut rng = Rng::with_seed(seed);
    let mut text = String::from("time,key,size,op\n");
    let touch_all = (0..keys).map(|key| (key, "read"));
    let random = (0..requests).map(|_| {
        let op = if rng.bool() { "read" } else { "write" };
        (rng.u64(..keys), op)
    });
    for (key, op) in touch_all.chain(random.collect::<Vec<_>>()) {
        text += &format!("0,{key},4096,{op}\n");
    }
    text
}

/// A layer's action instead of reading or writing a page.
enum Instead {
    /// The requested operation.
    Nothing,
    /// The system's error `EIO`.
    Fail,
    /// Moves only so many bytes.
    Only(usize),
    /// Changes one byte on the way.
    Flip(usize),
    /// Claims success and does nothing.
    Lose,
}

/// Selects the action by page number.
type Decide = Box<dyn Fn(u64) -> Instead + Send + Sync>;

/// A layer over a tenant's data file that injects faults.
struct Layer {
    under: Arc<dyn Backing>,
    on_read: Decide,
    on_write: Decide,
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.under.fmt(f)
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl Backing for Layer {
    fn len(&self) -> u64 {
        self.under.len()
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        match (self.on_read)(page) {
            Instead::Nothing | Instead::Lose => self.under.read_page(FilePage(page), buf),
            Instead::Fail => Err(eio()),
            Instead::Only(bytes) => Ok(self.under.read_page(FilePage(page), buf)?.min(bytes)),
            Instead::Flip(offset) => {
                let read = self.under.read_page(FilePage(page), buf)?;
                buf[offset] ^= 1;
                Ok(read)
            }
        }
    }

    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> io::Result<usize> {
        match (self.on_write)(page) {
            Instead::Nothing => self.under.write_page(FilePage(page), buf),
            Instead::Fail => Err(eio()),
            Instead::Only(bytes) => Ok(bytes),
            Instead::Lose => Ok(buf.len()),
            Instead::Flip(offset) => {
                let mut changed = buf.to_vec();
                changed[offset] ^= 1;
                self.under.write_page(FilePage(page), &changed)
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.under.sync()
    }
}

fn nothing() -> Decide {
    Box::new(|_| Instead::Nothing)
}

fn on_page(number: u64, instead: fn() -> Instead) -> Decide {
    Box::new(move |page| {
        if page == number {
            instead()
        } else {
            Instead::Nothing
        }
    })
}

fn run(config: &ReplayConfig) -> Result<Outcome, Failure> {
    Replay::prepare(config).unwrap().run(&Control::default())
}

/// Runs a single tenant's trace over a faulty layer.
fn run_over(
    tenant: TenantConfig,
    dir: &Path,
    on_read: Decide,
    on_write: Decide,
) -> Result<Outcome, Failure> {
    let mut config = config(dir);
    config.tenants.push(tenant);
    let mut decide = Some((on_read, on_write));
    let replay = Replay::prepare_with(&config, |_, under| {
        let (on_read, on_write) = decide.take().unwrap();
        Arc::new(Layer {
            under,
            on_read,
            on_write,
        })
    });
    replay.unwrap().run(&Control::default())
}

/// Goal: counts are those of the trace, and the hit ratio is about that of an exact LRU of the same
/// size, or better. Method: Zipf-like reads of more pages than the capacity holds.
#[test]
fn hits_come_close_to_an_exact_lru() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::with_seed(seed());
    let pages: Vec<u64> = (0..60_000)
        .map(|_| rng.u64(1..=8_000) * rng.u64(1..=8_000) / 8_000)
        .collect();
    let mut config = config(dir.path());
    let trace = reads(pages.iter().copied());
    config
        .tenants
        .push(tenant(dir.path(), "zipf", Format::Lirs, &trace));
    let outcome = run(&config).unwrap();
    let mut lru = Lru::new(usize::try_from(CAPACITY.pages_floor().0).unwrap());
    let expected = pages.iter().filter(|page| lru.access(**page)).count();
    let report = outcome.report;
    assert!(report.is_clean());
    assert_eq!((report.requests, report.page_accesses), (60_000, 60_000));
    assert_eq!(report.hits + report.misses, 60_000);
    let ratio = f64::from(u32::try_from(expected).unwrap()) / 60_000.0;
    let found = report.hit_ratio;
    assert!(
        found >= ratio - 0.03,
        "SEED={}: {found} against an LRU's {ratio}",
        seed()
    );
    assert!(report.refaults > 0 && report.pgsteal > 0 && report.pgscan >= report.pgsteal);
    assert!(report.frames_peak_bytes <= CAPACITY.0);
    assert!(
        report.frames_peak_bytes > CAPACITY.0 / 2,
        "bytes, not pages"
    );
}

/// Goal: counts do not depend on the way of the pages, and a direct run leaves nothing in the
/// kernel's cache. Method: the same trace both ways, in a directory of the build; where its file
/// system has no direct I/O, the report says so.
#[test]
fn counts_do_not_depend_on_the_way_of_the_pages() {
    let outcomes = [DataIo::Direct, DataIo::Buffered].map(|io| {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut config = config(dir.path());
        (config.io, config.readahead) = (io, Pages(32));
        let text = mixed(seed(), 4_000, 10_000);
        let tenant = tenant(dir.path(), "mixed", Format::Csv, &text);
        config.tenants.push(tenant);
        run(&config).unwrap()
    });
    let counts = |outcome: &Outcome| {
        let report = &outcome.report;
        assert!(report.is_clean(), "SEED={} {outcome:?}", seed());
        let counts = [report.hits, report.misses, report.refaults, report.pgsteal];
        (counts, outcome.laid_out_pages)
    };
    let [direct, buffered] = &outcomes;
    assert_eq!(counts(direct), counts(buffered), "SEED={}", seed());
    let (direct, buffered) = (&direct.report, &buffered.report);
    assert_eq!(
        (buffered.io, &buffered.io_reason),
        (DataIo::Buffered, &None)
    );
    if buffered.kernel_cached_bytes.is_none_or(|bytes| bytes == 0) {
        return println!("skipped: the kernel does not tell how much it caches");
    }
    match &direct.io_reason {
        Some(reason) => println!("skipped: {reason}"),
        None => assert_eq!(
            (direct.io, direct.kernel_cached_bytes),
            (DataIo::Direct, Some(0))
        ),
    }
}

/// Goal: pages that were read ahead do not count as the trace's. Method: a trace of one page, read
/// with a window both ways, and in order a hundred pages without one.
#[test]
fn pages_laid_out_are_not_called_a_footprint() {
    for (pages, readahead, least, most) in [(1, 32, 1, 64), (100, 0, 100, 100)] {
        for io in [DataIo::Direct, DataIo::Buffered] {
            let dir = tempfile::tempdir().unwrap();
            let mut config = config(dir.path());
            (config.io, config.readahead) = (io, Pages(readahead));
            let tenant = tenant(dir.path(), "loop", Format::Lirs, &reads(0..pages));
            config.tenants.push(tenant);
            let outcome = run(&config).unwrap();
            let laid_out = outcome.laid_out_pages;
            assert!((least..=most).contains(&laid_out), "{laid_out} pages");
            let table = Table::new(&outcome).to_string();
            assert!(table.contains("laid out in the data files"), "{table}");
            assert!(!table.contains("footprint"), "{table}");
        }
    }
}

/// Goal: written pages survive eviction and are verified at the end. Method: random reads and
/// writes of three times the capacity, with one thread and with four.
#[test]
fn written_pages_keep_their_versions() {
    for (threads, io) in [
        (1, DataIo::Direct),
        (1, DataIo::Buffered),
        (4, DataIo::Buffered),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        (config.threads, config.io) = (threads, io);
        let text = mixed(seed(), 6_000, 30_000);
        config
            .tenants
            .push(tenant(dir.path(), "mixed", Format::Csv, &text));
        let outcome = run(&config).unwrap();
        assert!(outcome.report.is_clean(), "SEED={} {outcome:?}", seed());
        assert_eq!(outcome.report.page_accesses, 36_000);
        assert_eq!(outcome.laid_out_pages, 6_000);
    }
}

/// Goal: with one thread the cache sees each tenant's requests in trace order, and a tenant's whole
/// trace does not follow its first batch. Method: record the pages that are read.
#[test]
fn requests_leave_in_trace_order_and_tenants_take_turns() {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = Rng::with_seed(seed());
    let mut pages: Vec<u64> = (0..1_000).collect();
    rng.shuffle(&mut pages);
    let mut config = config(dir.path());
    for name in ["a", "b"] {
        let trace = reads(pages.iter().copied());
        config
            .tenants
            .push(tenant(dir.path(), name, Format::Lirs, &trace));
    }
    let seen: Arc<Mutex<Vec<(String, u64)>>> = Arc::default();
    let replay = Replay::prepare_with(&config, |name, under| {
        let (seen, name) = (Arc::clone(&seen), name.to_owned());
        let on_read = Box::new(move |page| {
            seen.lock().unwrap().push((name.clone(), page));
            Instead::Nothing
        });
        Arc::new(Layer {
            under,
            on_read,
            on_write: nothing(),
        })
    });
    assert!(
        replay
            .unwrap()
            .run(&Control::default())
            .unwrap()
            .report
            .is_clean()
    );
    let seen = seen.lock().unwrap();
    for name in ["a", "b"] {
        let of_tenant = seen.iter().filter(|(tenant, _)| tenant == name);
        assert!(
            of_tenant.map(|(_, page)| *page).eq(pages.iter().copied()),
            "SEED={}",
            seed()
        );
    }
    let turns = seen
        .windows(2)
        .filter(|pair| pair[0].0 != pair[1].0)
        .count();
    assert!(turns > 4, "SEED={}: {turns} turns", seed());
}

/// Goal: one wrong byte in one page is a verify failure that names the page.
#[test]
fn a_flipped_byte_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let tenant = tenant(dir.path(), "t", Format::Lirs, &reads(0..100));
    let flip = on_page(42, || Instead::Flip(PAGE_SIZE - 1));
    let outcome = run_over(tenant, dir.path(), flip, nothing()).unwrap();
    assert_eq!(outcome.report.verify_failures, 1);
    assert!(!outcome.report.is_clean());
    assert!(
        outcome.mismatches[0].contains("page 42 must be at version 0"),
        "{outcome:?}"
    );
}

/// Goal: a written page that does not reach the file, or reaches it damaged, is found, at the
/// latest at the end. Method: write a page once, lose or change the write-back.
#[test]
fn lost_and_damaged_writes_are_found() {
    let losses: [fn() -> Instead; 2] = [|| Instead::Lose, || Instead::Flip(2_000)];
    for loss in losses {
        let dir = tempfile::tempdir().unwrap();
        let text = "time,key,size,op\n0,7,4096,read\n0,8,4096,write\n0,9,4096,write\n";
        let tenant = tenant(dir.path(), "t", Format::Csv, text);
        let outcome = run_over(tenant, dir.path(), nothing(), on_page(1, loss)).unwrap();
        assert_eq!(outcome.report.verify_failures, 1, "{outcome:?}");
        assert!(
            outcome.mismatches[0].contains("page 1 must be at version 1"),
            "{outcome:?}"
        );
    }
}

/// Goal: a page that cannot be read, or only in part, ends the run with an error that names it, and
/// all memory is returned.
#[test]
fn failed_and_short_reads_end_the_run() {
    let faults: [fn() -> Instead; 2] = [|| Instead::Fail, || Instead::Only(100)];
    for fault in faults {
        for threads in [1, 3] {
            let dir = tempfile::tempdir().unwrap();
            let mut config = config(dir.path());
            config.threads = threads;
            config
                .tenants
                .push(tenant(dir.path(), "t", Format::Lirs, &reads(0..10_000)));
            let replay = Replay::prepare_with(&config, |_, under| {
                let (on_read, on_write) = (on_page(5_000, fault), nothing());
                Arc::new(Layer {
                    under,
                    on_read,
                    on_write,
                })
            });
            let failure = replay.unwrap().run(&Control::default()).unwrap_err();
            assert_eq!(failure.leaks, Leaks::default());
            let message = failure.error.to_string();
            assert!(
                message.starts_with("tenant `t`: a read failed: "),
                "{message}"
            );
            assert!(message.contains("page 5000"), "{message}");
        }
    }
}

/// Goal: dirty pages that cannot be written back end the run with an error, not with a verify
/// failure.
#[test]
fn failed_write_back_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let tenant = tenant(dir.path(), "t", Format::Csv, &mixed(seed(), 100, 1_000));
    let fail = on_page(50, || Instead::Fail);
    let failure = run_over(tenant, dir.path(), nothing(), fail).unwrap_err();
    let ReplayError::WriteBack { tenant, .. } = &failure.error else {
        panic!("SEED={}: {:?}", seed(), failure.error);
    };
    assert_eq!(tenant, "t");
    let message = failure.error.to_string();
    assert!(message.contains("page 50"), "{message}");
    assert_eq!(
        failure.leaks,
        Leaks::default(),
        "a page that stays dirty is not lost"
    );
}

/// Goal: a temporary failure of write-back loses nothing. Method: every write of the first hundred
/// fails; the pages stay dirty, are written later, and verify.
#[test]
fn write_back_that_recovers_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tenant = tenant(dir.path(), "t", Format::Csv, &mixed(seed(), 6_000, 20_000));
    let writes = AtomicU64::new(0);
    let fail_first = Box::new(move |_| match writes.fetch_add(1, Ordering::Relaxed) {
        0..100 => Instead::Fail,
        _ => Instead::Nothing,
    });
    let outcome = run_over(tenant, dir.path(), nothing(), fail_first).unwrap();
    assert!(outcome.report.is_clean(), "SEED={}: {outcome:?}", seed());
}

/// Goal: a run that is told to stop ends early and returns all memory.
#[test]
fn a_stopped_run_is_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config
        .tenants
        .push(tenant(dir.path(), "t", Format::Lirs, &reads(0..1_000)));
    let control = Control::default();
    control.stop();
    let failure = Replay::prepare(&config).unwrap().run(&control).unwrap_err();
    assert!(matches!(failure.error, ReplayError::Interrupted));
    assert_eq!(failure.leaks, Leaks::default());
}

/// Goal: nothing is left in the directory, after a success and after a failure.
#[test]
fn nothing_is_left_in_the_directory() {
    let (traces, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut config = config(data.path());
    config.tenants.push(tenant(
        traces.path(),
        "t",
        Format::Csv,
        &mixed(seed(), 100, 1_000),
    ));
    let left = || fs::read_dir(data.path()).unwrap().count();
    let replay = Replay::prepare(&config).unwrap();
    assert_eq!(left(), 0, "the files have no names");
    replay.run(&Control::default()).unwrap();
    assert_eq!(left(), 0);
    config.tenants.push(config.tenants[0].clone());
    config.tenants[1].name = "u".to_owned();
    config.tenants[1].trace = TraceInput::File("/nonexistent/trace".into());
    Replay::prepare(&config).unwrap_err();
    assert_eq!(left(), 0);
}

/// Goal: with reads in flight, every access is counted and verified, and counts mean the same.
/// Method: a file that is read once in order, so that each access is a miss; and random reads and
/// writes, whose accesses block.
#[test]
fn reads_in_flight_are_counted_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let pages = 3 * CAPACITY.0 / 4096;
    let scan = reads(0..pages);
    for threads in [1, 2] {
        let mut config = config(dir.path());
        (config.threads, config.in_flight) = (threads, 16);
        config.tenants = vec![
            tenant(dir.path(), "scan", Format::Lirs, &scan),
            tenant(dir.path(), "mixed", Format::Csv, &mixed(seed(), 500, 2000)),
        ];
        let replay = Replay::prepare(&config).unwrap();
        let outcome = replay.run(&Control::default()).unwrap();
        let report = &outcome.report;
        assert_eq!(report.verify_failures, 0, "{:?}", outcome.mismatches);
        assert_eq!(report.manifest.in_flight, 16);
        let [scan, mixed] = &report.tenants[..] else {
            panic!("two tenants");
        };
        assert_eq!((scan.page_accesses, scan.hits), (pages, 0));
        assert_eq!((mixed.page_accesses, mixed.requests), (2500, 2500));
    }
}

/// Goal: invalid configurations are refused by name.
#[test]
fn bad_configurations_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let one = tenant(dir.path(), "one", Format::Lirs, "1\n");
    let refused = |change: &dyn Fn(&mut ReplayConfig)| {
        let mut config = config(dir.path());
        config.tenants.push(one.clone());
        change(&mut config);
        Replay::prepare(&config).unwrap_err().to_string()
    };
    type Change<'a> = &'a dyn Fn(&mut ReplayConfig);
    let cases: [(Change<'_>, &str); 7] = [
        (&|c| c.tenants.clear(), "no trace to replay"),
        (&|c| c.threads = 0, "0 threads: expected 1 to 1024"),
        (&|c| c.threads = 1025, "1025 threads"),
        (
            &|c| c.in_flight = 0,
            "0 reads in flight: expected 1 to 1024",
        ),
        (
            &|c| c.tenants.push(c.tenants[0].clone()),
            "two tenants are named `one`",
        ),
        (
            &|c| c.tenants[0].max = Some(Bytes(4_095)),
            "max=4095 B holds no page",
        ),
        (&|c| c.capacity = Bytes(0), "capacity"),
    ];
    for (change, words) in cases {
        let message = refused(change);
        assert!(message.contains(words), "{message}");
    }
}
