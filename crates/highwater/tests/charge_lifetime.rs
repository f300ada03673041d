//! "A charge may be sent to another thread and may outlive every handle": the manager lives until
//! the last charge is dropped, on any thread, and ends then.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Arc, Barrier, Weak};
use std::thread;

use highwater::lab::percpu::Regime;
use highwater::{Background, Bytes, Charge, Group, Limits, Manager};

const REGIMES: [Regime; 2] = [Regime::Restartable, Regime::Atomic];

fn managed(regime: Regime, background: Background) -> Manager {
    Manager::builder()
        .capacity(Bytes::mib(16))
        .background(background)
        .regime(regime)
        .build()
        .unwrap()
}

/// Returns a group with data that lives as long as the group, and a weak reference to the data.
fn watched(hw: &Manager) -> (Group, Weak<()>) {
    let group = hw
        .root()
        .child("query", Limits::max(Bytes::mib(8)))
        .unwrap();
    let data = Arc::new(());
    let watch = Arc::downgrade(&data);
    group.set_data(data).unwrap();
    (group, watch)
}

/// Does what a program does with a charge before it drops it.
fn use_up(mut charge: Charge, nth: u64) {
    for step in 0..50 {
        let more = Bytes(1 + (nth * 7919 + step * 977) % 300_000);
        if charge.grow(more).is_ok() {
            let part = charge.split(Bytes(more.0 / 2));
            charge.shrink(more - part.bytes());
            drop(part);
        }
    }
}

#[test]
fn the_manager_goes_with_the_last_charge_on_whichever_thread() {
    // Goal: no charge accesses a manager that has ended, and none keeps it for ever. Method: four
    // threads use charges up while the last handles are dropped; the group's data, which ends with
    // the tree, is there as long as a charge is, and gone with the last.
    for round in 0..40 {
        let regime = REGIMES[round % 2];
        let background = [Background::Off, Background::Thread][round / 2 % 2];
        let hw = managed(regime, background);
        let (group, watch) = watched(&hw);
        let begin = Arc::new(Barrier::new(5));
        let threads: Vec<_> = (0..4)
            .map(|nth| {
                let charges: Vec<_> = (0..20).map(|_| group.charge(Bytes(100)).unwrap()).collect();
                let (begin, watch) = (Arc::clone(&begin), watch.clone());
                thread::spawn(move || {
                    begin.wait();
                    for charge in charges {
                        assert!(watch.upgrade().is_some(), "a charge keeps its group");
                        use_up(charge, nth);
                    }
                })
            })
            .collect();
        begin.wait();
        drop(hw);
        drop(group);
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(watch.upgrade().is_none(), "nothing keeps the group");
    }
}

#[test]
fn charges_of_a_group_that_is_removed_meanwhile_are_refused_or_given_back() {
    // Goal: a charge is made in a live group, or not at all, and is given back to the ancestors,
    // also when another group has the number. Method: threads charge one group after another while
    // each is removed under them, and drop their charges only later.
    for regime in REGIMES {
        let hw = managed(regime, Background::Off);
        let mut late = Vec::new();
        for nth in 0..100 {
            let (group, _watch) = watched(&hw);
            let begin = Barrier::new(4);
            thread::scope(|scope| {
                let threads: Vec<_> = (0..3)
                    .map(|_| {
                        let (begin, group) = (&begin, &group);
                        scope.spawn(move || {
                            begin.wait();
                            let mut last = None;
                            while let Ok(charge) = group.charge(Bytes(700)) {
                                last = Some(charge);
                            }
                            assert!(group.is_removed(), "there is room");
                            last
                        })
                    })
                    .collect();
                begin.wait();
                group.remove().unwrap();
                late.extend(threads.into_iter().filter_map(|it| it.join().unwrap()));
            });
            if nth % 10 == 9 {
                let held: u64 = late.iter().map(|charge| charge.bytes().0).sum();
                assert_eq!(hw.root().usage_precise(), Bytes(held), "{regime:?}");
                late.clear();
            }
        }
        assert_eq!(hw.root().usage_precise(), Bytes::ZERO, "{regime:?}");
        hw.check_invariants();
    }
}
