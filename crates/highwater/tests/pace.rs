//! Promise: a program can do background reclaim in a thread of its own, and a pacer is called for
//! every scan, while reclaim holds nothing that other threads need.

#![expect(clippy::unwrap_used, reason = "a failure shows where it was")]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use highwater::frame::Tunables;
use highwater::lab::reclaim::policy::KernelLists;
use highwater::lab::reclaim::{Actor, Pacer, RmapConfig, RmapPolicy, RmapQuirks};
use highwater::{Access, Background, Builder, File, Manager, Mapping, Pages};
use support::TestFile;

const POOL: u64 = 512;

/// Counts scans, and makes the lock's holder release it.
#[derive(Debug)]
struct Told {
    in_background: AtomicU64,
    directly: AtomicU64,
    contended: AtomicU64,
    /// Shared by the lock's holder and the thread that needs it.
    lets_go: Barrier,
}

impl Default for Told {
    fn default() -> Self {
        Self {
            in_background: AtomicU64::new(0),
            directly: AtomicU64::new(0),
            contended: AtomicU64::new(0),
            lets_go: Barrier::new(2),
        }
    }
}

impl Pacer for Told {
    fn looked(&self, actor: Actor, pages: u64) {
        let looks = match actor {
            Actor::Background => &self.in_background,
            _ => &self.directly,
        };
        looks.fetch_add(pages, Ordering::Relaxed);
    }

    fn contended(&self) {
        if self.contended.fetch_add(1, Ordering::Relaxed) == 0 {
            self.lets_go.wait();
        }
        thread::yield_now();
    }
}

fn builder() -> Builder {
    Manager::builder()
        .capacity(Pages(POOL).bytes())
        .decided_by(Arc::new(KernelLists {
            loses_contended: true,
            ..KernelLists::default()
        }))
        .background(Background::Off)
}

/// A file of twice the pool, mapped whole.
fn map(hw: &Manager) -> (File, Mapping) {
    let file = hw.open_backing(TestFile::new(2 * POOL), Access::ReadOnly);
    let file = file.unwrap();
    let map = hw.space(&hw.root()).map_file(&file, 0..2 * POOL).unwrap();
    (file, map)
}

#[test]
fn a_program_reclaims_by_itself() {
    // Goal: a thread that balances in time never makes others reclaim. Method: a pool is read
    // through twice its size; when it is short, it is balanced. The watermarks are far enough apart
    // for a window of readahead.
    let tunables = Tunables::default()
        .with("watermark_scale_factor", 1000)
        .unwrap();
    let hw = builder().tunables(tunables).build().unwrap();
    let (_file, map) = map(&hw);
    let mut balanced = 0;
    for page in 0..2 * POOL {
        map.read(&hw.enter(), page).unwrap();
        if hw.is_short() {
            hw.reclaim_ahead();
            assert!(!hw.is_short(), "page {page}");
            balanced += 1;
        }
    }
    let counts = hw.snapshot();
    assert!(balanced > 1, "{balanced}");
    assert_eq!(counts.counter("pageoutrun"), balanced);
    let freed = counts.counter("pgsteal_kswapd");
    assert!(freed >= POOL, "{freed} freed in {balanced} runs");
    assert_eq!(counts.counter("pgsteal_direct"), 0);
    hw.check_invariants();
}

#[test]
fn a_pacer_is_told_of_every_look() {
    // Goal: the pacer's count is complete. Method: some of the work is direct reclaim, some
    // background reclaim.
    let told = Arc::new(Told::default());
    let hw = builder().pacer(Arc::clone(&told) as _).build().unwrap();
    let (_file, map) = map(&hw);
    for page in 0..2 * POOL {
        map.read(&hw.enter(), page).unwrap();
        if page % 256 == 255 {
            hw.reclaim_ahead();
        }
    }
    let counts = hw.snapshot();
    let inactive = [&told.in_background, &told.directly].map(|looks| looks.load(Ordering::Relaxed));
    let counted = ["pgscan_kswapd", "pgscan_direct"].map(|name| counts.counter(name));
    assert!(counted.iter().all(|looks| *looks > 0), "{counted:?}");
    assert_eq!(
        inactive.iter().sum::<u64>(),
        counted.iter().sum::<u64>() + counts.counter("pgrefill")
    );
    assert_eq!(told.contended.load(Ordering::Relaxed), 0);
}

#[test]
fn a_pacer_waits_in_the_place_of_reclaim() {
    // Goal: a pacer that simulates time decides when a held lock is free. Method: a thread holds it
    // until the pacer learns of the first reclaimer that needs it.
    let told = Arc::new(Told::default());
    let rmap = RmapConfig {
        policy: RmapPolicy::Blocking,
        quirks: RmapQuirks::KernelFaithful,
    };
    let hw = builder().rmap(rmap).pacer(Arc::clone(&told) as _);
    let hw = hw.build().unwrap();
    let (file, map) = map(&hw);
    let mut page = 0;
    while !hw.is_short() {
        map.read(&hw.enter(), page).unwrap();
        page += 1;
    }
    let held = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            file.hold_rmap(|| {
                held.wait();
                told.lets_go.wait();
            });
        });
        held.wait();
        hw.reclaim_ahead();
    });
    assert!(told.contended.load(Ordering::Relaxed) > 0);
    assert_eq!(
        hw.rmap_times().contended(),
        0,
        "it was told, and did not wait"
    );
    assert!(!hw.is_short());
    hw.check_invariants();
}
