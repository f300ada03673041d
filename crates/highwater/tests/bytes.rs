//! The promise: amounts are bytes, and exact to the byte, in any sequence of steps.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;

use highwater::group::ChargeError;
use highwater::{Background, Bytes, Charge, Group, Limits, Manager};

fn manager() -> Manager {
    let builder = Manager::builder().capacity(Bytes::mib(16));
    builder.background(Background::Off).build().unwrap()
}

fn query(hw: &Manager, max: Bytes) -> Group {
    hw.root().child("query", Limits::max(max)).unwrap()
}

// Goal: steps cancel. Method: grow and shrink a charge of a page by 100 bytes, a thousand times,
// which once left a thousand pages charged.
#[test]
fn growing_and_shrinking_by_the_same_leaves_nothing() {
    let hw = manager();
    let query = query(&hw, Bytes::mib(8));
    let mut charge = query.charge(Bytes::kib(4)).unwrap();
    for _ in 0..1000 {
        charge.grow(Bytes(100)).unwrap();
        assert_eq!(query.usage_precise(), Bytes(4196));
        charge.shrink(Bytes(100));
    }
    assert_eq!(
        (charge.bytes(), query.usage_precise()),
        (Bytes(4096), Bytes(4096))
    );
}

// Goal: many small steps cost their sum. Method: a hundred times 100 bytes, which once
// charged a hundred pages.
#[test]
fn a_hundred_small_steps_are_not_a_hundred_pages() {
    let hw = manager();
    let query = query(&hw, Bytes::mib(8));
    let mut charge = query.charge(Bytes::ZERO).unwrap();
    for _ in 0..100 {
        charge.grow(Bytes(100)).unwrap();
    }
    assert_eq!(
        (
            charge.bytes(),
            query.usage_precise(),
            hw.root().usage_precise()
        ),
        (Bytes(10_000), Bytes(10_000), Bytes(10_000))
    );
}

// Goal: limits as small as those in the tests of other engines' pools. Method: at 20, 100 and 1,000
// bytes, fill to the last byte in random steps; one byte more is refused, with these numbers.
#[test]
fn limits_of_a_few_bytes_are_exact() {
    let hw = manager();
    let mut rng = seed::rng(1);
    for max in [20, 100, 1000].map(Bytes) {
        let query = query(&hw, max);
        let mut held: Vec<Charge> = Vec::new();
        let mut left = max;
        while left > Bytes::ZERO {
            let step = Bytes(rng.u64(1..=left.0));
            held.push(query.charge(step).unwrap());
            left -= step;
        }
        let refused = query.charge(Bytes(1)).unwrap_err().refusal;
        let expected = ChargeError::OverMax {
            group: query.path(),
            requested: Bytes(1),
            max,
            usage: max,
            escrowed: Bytes::ZERO,
        };
        assert_eq!(refused, expected);
        held.pop();
        drop(query.charge(Bytes(1)).unwrap());
        drop(held);
        query.remove().unwrap();
    }
}

// Goal: charges of every shape add up. Method: grow, shrink, resize, split, merge and transfer at
// random beside a sum kept by hand, in two groups below one maximum.
#[test]
fn random_resizes_splits_and_merges_add_up_to_the_byte() {
    let hw = manager();
    let mut rng = seed::rng(2);
    let top = hw
        .root()
        .child("top", Limits::max(Bytes(1_000_003)))
        .unwrap();
    let groups = ["a", "b"].map(|name| top.child(name, Limits::default()).unwrap());
    let mut held = groups
        .each_ref()
        .map(|group| vec![group.charge(Bytes(7)).unwrap()]);
    for _ in 0..20_000 {
        let (at, amount) = (rng.usize(..2), Bytes(rng.u64(..100_000)));
        let before = held[at].pop().unwrap();
        let mut charge = before;
        let part = Bytes(rng.u64(..=charge.bytes().0));
        match rng.u8(..6) {
            0 => _ = charge.grow(amount),
            1 => charge.shrink(part),
            2 => _ = charge.resize(amount),
            3 => held[at].push(charge.split(part)),
            4 => match held[at].pop() {
                Some(other) => charge.merge(other).unwrap(),
                None => drop(charge.merge(groups[1 - at].charge(Bytes(1)).unwrap())),
            },
            _ => held[1 - at].extend(charge.transfer(&groups[1 - at], part).ok()),
        }
        held[at].push(charge);
        let sums = held
            .each_ref()
            .map(|charges| charges.iter().map(Charge::bytes).sum());
        assert_eq!(groups.each_ref().map(Group::usage_precise), sums);
        assert_eq!(top.usage_precise(), sums[0] + sums[1]);
        assert!(sums[0] + sums[1] <= Bytes(1_000_003));
    }
}

// Goal: pages of the cache and bytes of charges share one maximum. Method: all but a page less one
// byte is charged; no page fits; one byte less, and one does.
#[test]
fn a_page_needs_its_4096_bytes() {
    let hw = manager();
    let query = query(&hw, Bytes::kib(64));
    let mut charge = query.charge(Bytes::kib(60) + Bytes(1)).unwrap();
    let scratch = hw.space(&query).map_anon(highwater::Pages(1)).unwrap();
    assert!(scratch.write(0).is_err(), "4,095 bytes are left");
    charge.shrink(Bytes(1));
    scratch.write(0).unwrap()[0] = 1;
    assert_eq!(query.usage_precise(), Bytes::kib(64));
    assert!(charge.grow(Bytes(1)).is_err());
}
