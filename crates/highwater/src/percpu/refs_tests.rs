//! Tests of references with real threads.

use super::{Gates, PercpuOwner, Regime};
use crate::percpu::harness::while_moved_around;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, LockClass, Mutex, Rank};
use crate::topology::Topology;

static STOCK: LockClass = LockClass::new("references of a test", Rank::Leaf);

/// Counts how often it is dropped, and has a part.
struct Noted(Arc<AtomicU64>, [u64; 2]);

impl Drop for Noted {
    fn drop(&mut self) {
        // Relaxed: read after the threads have ended, or where nothing else happens.
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

// Goal: references that are made on one CPU and dropped on another keep the value until the
// last one, whether that goes before the owner or after. Method: six threads that are migrated
// at random clone and drop references of a common stock, in the middle of which the owner ends.
#[test]
fn references_on_all_cpus_keep_the_value() {
    for regime in [Regime::Restartable, Regime::Atomic] {
        let drops = Arc::new(AtomicU64::new(0));
        let gates = Gates::new(regime, Topology::detect().nr_cpus());
        let owner = PercpuOwner::new(gates, Noted(Arc::clone(&drops), [3, 5]));
        let stock = Mutex::new(&STOCK, vec![owner.reference(); 100]);
        let owner = Mutex::new(&STOCK, Some(owner));
        while_moved_around(6, |thread| {
            let mut random = crate::seed::rng(thread);
            for nth in 0..5_000 {
                let mut stock = stock.lock();
                let at = random.usize(..stock.len());
                if random.bool() || stock.len() == 1 {
                    let clone = stock[at].clone();
                    stock.push(clone);
                } else {
                    let taken = stock.swap_remove(at);
                    drop(stock);
                    assert_eq!(taken.clone().view(|noted| (&noted.1[1], noted)).pow(2), 25);
                }
                if thread == 0 && nth == 2_500 {
                    drop(owner.lock().take());
                }
            }
        });
        // Relaxed: the threads have ended.
        assert_eq!(drops.load(Ordering::Relaxed), 0, "{regime:?}");
        drop(stock);
        // Relaxed: as above.
        assert_eq!(drops.load(Ordering::Relaxed), 1, "{regime:?}");
    }
}

// Goal: with no reference left, the value goes with the owner.
#[test]
fn the_owner_may_be_the_last() {
    let drops = Arc::new(AtomicU64::new(0));
    let gates = Gates::new(Regime::Atomic, 3);
    let owner = PercpuOwner::new(gates, Noted(Arc::clone(&drops), [3, 5]));
    let mut view = owner.reference().view(|noted| (&noted.1[0], &noted.1));
    view.turn(|noted| &noted.1[1]);
    assert_eq!((*view, view.whole().1[0], view.beside()), (5, 3, &[3, 5]));
    view.turn(|noted| &noted.1[0]);
    assert_eq!(*view.narrow(|three| three).clone(), 3);
    drop(view);
    // Relaxed: nothing else happens.
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    drop(owner);
    // Relaxed: as above.
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}
