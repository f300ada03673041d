//! Promise: bytes whose charge was disowned are counted and limited as those of charges are, until
//! they are uncharged on any thread; and a charge that only tries asks nothing of other groups.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use highwater::lab::percpu::Regime;
use highwater::{Bytes, Charge, Group, Limits, Manager};

fn managed(regime: Regime, max: Bytes) -> (Manager, Group) {
    let built = Manager::builder()
        .capacity(Bytes::mib(64))
        .frames(Bytes::ZERO)
        .regime(regime);
    let hw = built.build().unwrap();
    let group = hw.root().child("query", Limits::max(max)).unwrap();
    (hw, group)
}

#[test]
fn threads_share_bytes_that_no_charge_counts() {
    // Goal: the group stays within its maximum, and nothing is lost. Method: four threads take and
    // return bytes of one balance, so that most are uncharged by another thread than charged them;
    // a fifth reads the exact usage.
    const MAX: Bytes = Bytes(3_000_001);
    for regime in [Regime::Restartable, Regime::Atomic] {
        let (hw, group) = managed(regime, MAX);
        let (balance, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let work = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..20_000 {
                let bytes = random.u64(1..300_000);
                if random.bool() {
                    let charged = match random.bool() {
                        true => group.try_charge_disowned(Bytes(bytes)).is_ok(),
                        false => group.try_charge(Bytes(bytes)).map(Charge::disown).is_ok(),
                    };
                    if charged {
                        // Relaxed: returned bytes were added before, by the same word.
                        balance.fetch_add(bytes, Ordering::Relaxed);
                    }
                } else {
                    let less = |held: u64| Some(held - held.min(bytes));
                    let (set, got) = (Ordering::Relaxed, Ordering::Relaxed);
                    let before = balance.fetch_update(set, got, less).unwrap();
                    group.uncharge(Bytes(before.min(bytes)));
                }
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|seed| scope.spawn(move || work(seed))).collect();
            let watch = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let usage = group.usage_precise();
                    assert!(usage <= MAX, "{usage} of {MAX}");
                }
            });
            workers.into_iter().for_each(|it| it.join().unwrap());
            is_over.store(true, Ordering::Relaxed);
            watch.join().unwrap();
        });
        let left = Bytes(balance.into_inner());
        assert_eq!(group.usage_precise(), left, "{regime:?}");
        group.remove().unwrap();
        group.uncharge(left);
        assert_eq!(
            hw.root().usage_precise(),
            Bytes::ZERO,
            "also of a removed group"
        );
    }
}

#[test]
fn a_charge_that_only_tries_asks_nothing_of_others() {
    // Goal: no spill handler is called, no victim is told, and the charge that does ask is granted.
    for regime in [Regime::Restartable, Regime::Atomic] {
        let (hw, group) = managed(regime, Bytes::mib(1));
        let asked = std::sync::Arc::new(AtomicU64::new(0));
        let neighbour = group.child("neighbour", Limits::default()).unwrap();
        let held = neighbour.charge(Bytes::mib(1)).unwrap();
        let held = std::sync::Mutex::new(Some(held));
        let calls = std::sync::Arc::clone(&asked);
        neighbour.on_reclaim(move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
            drop(held.lock().unwrap().take());
            Bytes::mib(1)
        });
        hw.root().on_exhausted(|victim| panic!("{victim:?}"));
        assert!(group.try_charge(Bytes(1)).is_err());
        assert!(group.try_charge_disowned(Bytes(1)).is_err());
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        drop(group.charge(Bytes(1)).unwrap());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        drop(group.try_charge(Bytes::mib(1)).unwrap());
    }
}

#[test]
fn groups_in_turn_are_charged_without_a_charge_to_keep() {
    // Goal: with more groups than a CPU has chain words, each step of a disowned charge and of its
    // return finds the right words, and no tenth byte is granted where there is room for nine.
    // Method: rounds over 40 groups of nine bytes each, which fill and empty them.
    for regime in [Regime::Restartable, Regime::Atomic] {
        let (hw, parent) = managed(regime, Bytes::mib(1));
        let groups: Vec<_> = (0..40)
            .map(|nth| {
                parent
                    .child(&format!("{nth}"), Limits::max(Bytes(9)))
                    .unwrap()
            })
            .collect();
        for round in 0..1_000_u64 {
            let bytes = Bytes(1 + round % 9);
            for group in &groups {
                group.try_charge_disowned(bytes).unwrap();
                assert!(group.try_charge_disowned(Bytes(10 - bytes.0)).is_err());
            }
            assert_eq!(parent.usage_precise(), Bytes(40 * bytes.0), "{regime:?}");
            groups.iter().for_each(|group| group.uncharge(bytes));
        }
        let group = &groups[0];
        group.try_charge_disowned(Bytes(5)).unwrap();
        group.remove().unwrap();
        assert!(
            group.try_charge_disowned(Bytes(1)).is_err(),
            "it is removed"
        );
        group.uncharge(Bytes(5));
        assert_eq!(hw.root().usage_precise(), Bytes::ZERO, "{regime:?}");
    }
}

#[test]
fn the_effective_maximum_is_the_least_on_the_way() {
    let (hw, group) = managed(Regime::Atomic, Bytes::mib(8));
    let child = group.child("child", Limits::max(Bytes::mib(16))).unwrap();
    assert_eq!(hw.root().effective_max(), Bytes::mib(64));
    assert_eq!(child.effective_max(), Bytes::mib(8));
    group.set_max(Bytes::mib(32)).unwrap();
    assert_eq!(child.effective_max(), Bytes::mib(16));
    hw.set_capacity(Bytes::mib(4)).unwrap();
    assert_eq!(child.effective_max(), Bytes::mib(4));
    child.remove().unwrap();
    group.remove().unwrap();
    assert_eq!(group.effective_max(), Bytes::ZERO);
}
