//! The promise: a maximum that is set below usage holds from then on. Reclaim meets it, or the call
//! reports the excess; it is never silently exceeded.

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use highwater::group::MaxError;
use highwater::{Access, Backing, Bytes, Limits, Pages};
use support::{TestFile, assert_empty, manager};

#[test]
fn a_maximum_lowered_under_load_is_met_or_reported() {
    // Goal: a maximum below usage is installed, reclaimed for and reported, and never silently
    // exceeded. Method: two threads stream pages and one charges up to 100 pages elsewhere, until
    // they use 300; then the maximum is lowered to a random one below that; after Ok no read of the
    // usage is above it, and an error has the excess, which reclaim alone could not have removed:
    // no more than charges, borrowed pages and faults in progress.
    let hw = manager(1024);
    let tenant = hw.root().child("tenant", Limits::default()).unwrap();
    let backing = TestFile::new(800) as Arc<dyn Backing>;
    let file = hw.open_backing(backing, Access::ReadOnly).unwrap();
    let map = hw.space(&tenant).map_file(&file, 0..800).unwrap();
    let is_over = AtomicBool::new(false);
    let mut refused = 0;
    thread::scope(|scope| {
        for begin in [0, 400] {
            let (map, is_over, hw) = (&map, &is_over, &hw);
            scope.spawn(move || {
                for page in (0..800).cycle().skip(begin) {
                    // Refused if charges leave no room.
                    let _ = map.read(&hw.enter(), page);
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut held = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                held.extend(tenant.charge(Pages(10).bytes()).ok());
                if held.len() >= 10 {
                    held.clear();
                }
            }
        });
        let mut rng = seed::rng(7);
        for _ in 0..60 {
            tenant.set_max(Pages(700).bytes()).unwrap();
            while tenant.usage_precise() < Pages(300).bytes() {
                thread::yield_now();
            }
            let max = Bytes(rng.u64(80_000..1_000_000));
            match tenant.set_max(max) {
                Ok(()) => {}
                Err(MaxError::BelowUsage { over, .. }) => {
                    refused += 1;
                    assert!(over <= Pages(100 + 2 * 16).bytes(), "{over} over {max}");
                    assert_eq!(tenant.limits().max, max, "installed all the same");
                    let before = tenant.usage_precise();
                    assert!(tenant.usage_precise() <= before.max(max), "it grew above");
                    continue;
                }
                Err(error) => panic!("{error}"),
            }
            for _ in 0..50 {
                assert!(tenant.usage().high <= max, "{} of {max}", tenant.usage());
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(refused < 60, "reclaim met no maximum");
    tenant.set_max(Pages(600).bytes()).unwrap();
    drop((map, file));
    assert_empty(&hw);
}
