//! The promise: amounts are bytes, and exact to the byte, in any sequence of steps.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

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

/// Asserts that a call panics, with this text in its message.
#[track_caller]
fn panics<T>(text: &str, call: impl FnOnce() -> T) {
    let panicked = catch_unwind(AssertUnwindSafe(call)).err();
    let payload = panicked.expect("a panic");
    let message = payload.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| payload.downcast_ref::<&str>().copied());
    let message = message.expect("a message");
    assert!(message.contains(text), "{message}");
}

// Goal: a charge never gives, splits off or moves more than it holds, nor to the group of another
// manager; after the panic it is as before. Method: one byte more than it holds, and all bytes that
// there are.
#[test]
fn a_charge_gives_no_more_than_it_holds() {
    let (hw, elsewhere) = (manager(), manager());
    let query = query(&hw, Bytes(1000));
    let other = hw.root().child("other", Limits::default()).unwrap();
    let same_number = elsewhere.root().child("query", Limits::default());
    let same_number = same_number.unwrap();
    assert_eq!(same_number.id(), query.id());
    let mut charge = query.charge(Bytes(600)).unwrap();
    for bytes in [Bytes(601), Bytes::MAX] {
        let text = format!("a charge of 600 B does not hold {bytes}");
        panics(&text, || charge.shrink(bytes));
        panics(&text, || charge.split(bytes));
        panics(&text, || charge.transfer(&other, bytes));
        assert_eq!(charge.bytes(), Bytes(600));
        assert_eq!(query.usage_precise(), Bytes(600));
    }
    for bytes in [Bytes(0), Bytes(1)] {
        panics("moves within its tree", || {
            charge.transfer(&same_number, bytes)
        });
    }
    assert_eq!(
        same_number.usage_precise() + other.usage_precise(),
        Bytes(0)
    );
    charge.grow(Bytes(400)).unwrap();
    assert_eq!(
        charge.transfer(&other, Bytes(1000)).unwrap().bytes(),
        Bytes(1000)
    );
    assert_eq!(
        (charge.bytes(), hw.root().usage_precise()),
        (Bytes(0), Bytes(0))
    );
    hw.check_invariants();
}

// Goal: charges merge only within one group, and one that does not fit comes back as it was.
// Method: a charge of a sibling, of the group above, and of a group of the same number and name in
// another manager, whose bytes would be given back to the wrong one.
#[test]
fn a_charge_of_another_group_comes_back_from_a_merge() {
    let (hw, elsewhere) = (manager(), manager());
    let here = query(&hw, Bytes::mib(8));
    let there = query(&elsewhere, Bytes::mib(8));
    assert_eq!((here.id(), here.path()), (there.id(), there.path()));
    let sibling = hw.root().child("sibling", Limits::default()).unwrap();
    let mut charge = here.charge(Bytes(600)).unwrap();
    for group in [&sibling, &hw.root(), &there] {
        let other = group.charge(Bytes(5)).unwrap();
        let other = charge.merge(other).expect_err("of another group");
        assert_eq!((other.bytes(), other.group()), (Bytes(5), group.path()));
        assert_eq!(
            (charge.bytes(), here.usage_precise()),
            (Bytes(600), Bytes(600))
        );
        assert!(group.usage_precise() >= Bytes(5));
        drop(other);
    }
    assert_eq!(
        (hw.root().usage_precise(), there.usage_precise()),
        (Bytes(600), Bytes(0))
    );
    let old = here.charge(Bytes(7)).unwrap();
    here.remove().unwrap();
    charge
        .merge(old)
        .expect("of one group, though it is removed");
    assert_eq!(charge.bytes(), Bytes(607));
}

// Goal: a delay stays with the charge that incurred it: a part that is split off or moved has none,
// a merge adds both, and growth adds its own. Method: charges above `high`, which incur 2 s each.
#[test]
fn a_delay_stays_with_its_charge() {
    const MOST: Duration = Duration::from_secs(2);
    let hw = manager();
    let limits = Limits {
        high: Bytes::kib(4),
        ..Limits::default()
    };
    let slow = hw.root().child("slow", limits).unwrap();
    let free = hw.root().child("free", Limits::default()).unwrap();
    let mut charge = slow.charge(Bytes::mib(1)).unwrap();
    assert_eq!(charge.throttle_delay(), MOST);
    let part = charge.split(Bytes::kib(512));
    let moved = charge.transfer(&free, Bytes(5)).unwrap();
    let delays = [&charge, &part, &moved].map(Charge::throttle_delay);
    assert_eq!(delays, [MOST, Duration::ZERO, Duration::ZERO]);
    charge.merge(part).unwrap();
    assert_eq!(charge.throttle_delay(), MOST);
    charge.grow(Bytes::mib(1)).unwrap();
    charge.merge(slow.charge(Bytes::mib(1)).unwrap()).unwrap();
    assert_eq!(charge.throttle_delay(), 3 * MOST);
    charge.shrink(Bytes::mib(1));
    assert!(charge.grow(Bytes::mib(64)).is_err());
    let other = free.charge(Bytes::mib(1)).unwrap();
    let other = other.throttle_delay() + charge.merge(other).unwrap_err().throttle_delay();
    assert_eq!((charge.throttle_delay(), other), (3 * MOST, Duration::ZERO));
    // Forced charges and moves are not slowed down.
    assert_eq!(
        slow.force_charge(Bytes::mib(4)).throttle_delay(),
        Duration::ZERO
    );
    let mut moved = free.charge(Bytes::mib(1)).unwrap();
    let moved = moved.transfer(&slow, Bytes::mib(1)).unwrap();
    assert_eq!(moved.throttle_delay(), Duration::ZERO);
}

// Goal: growth that is refused leaves a charge as it was, to the byte, also in a group that is
// removed, where all of it can still be given back; zero bytes are always had. Method: every amount
// from one too many to all bytes that there are.
#[test]
fn refused_growth_changes_nothing() {
    let hw = manager();
    let query = query(&hw, Bytes::mib(1));
    let mut charge = query.charge(Bytes(600)).unwrap();
    let left = Bytes::mib(1) - Bytes(600);
    let refused = |charge: &mut Charge, bytes: Bytes| {
        let failed = charge.grow(bytes).unwrap_err();
        assert!(charge.resize(Bytes(600) + bytes).is_err());
        assert_eq!(
            (charge.bytes(), query.usage_precise()),
            (Bytes(600), Bytes(600))
        );
        assert_eq!(hw.root().usage_precise(), Bytes(600));
        failed.refusal
    };
    for shift in 0..63 {
        let bytes = left + Bytes(1 << shift);
        let refusal = refused(&mut charge, bytes);
        let says = matches!(refusal, ChargeError::OverMax { requested, usage, .. }
            if requested == bytes && usage == Bytes(600));
        assert!(says, "{refusal}");
    }
    charge.grow(left).unwrap();
    charge.grow(Bytes(0)).unwrap();
    charge.resize(Bytes(600)).unwrap();
    assert_eq!(query.usage_precise(), Bytes(600));
    query.remove().unwrap();
    let refusal = refused(&mut charge, Bytes(1));
    assert!(matches!(refusal, ChargeError::Removed { .. }), "{refusal}");
    let mut rest = charge.split(Bytes(100));
    assert!(rest.transfer(&query, Bytes(100)).is_err(), "to itself");
    drop(rest.transfer(&hw.root(), Bytes(100)).unwrap());
    charge.shrink(Bytes(100));
    assert_eq!(hw.root().usage_precise(), Bytes(400));
    query.uncharge(charge.disown());
    assert_eq!(hw.root().usage_precise(), Bytes(0));
    hw.check_invariants();
}
