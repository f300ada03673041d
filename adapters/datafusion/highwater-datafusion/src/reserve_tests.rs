//! Tests of [`reserve`](crate::reserve) with real threads.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::reserve::Reserve;

/// Grows and shrinks at random, and then returns everything.
fn churn(seed: u64, grow: impl Fn(u64) -> Result<(), ()>, shrink: impl Fn(u64)) {
    let mut state = seed + 1;
    let mut held = 0;
    for _ in 0..20_000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        let bytes = (state >> 33) % 700;
        if state >> 63 == 0 {
            held += grow(bytes).map_or(0, |()| bytes);
        } else {
            let bytes = bytes.min(held);
            shrink(bytes);
            held -= bytes;
        }
    }
    shrink(held);
}

// Goal: what is charged in the end is the larger of reserve and use; and what is used, if the
// reserve has ended beside calls. Method: four threads grow and shrink at random; every charge and
// uncharge is counted.
#[test]
fn the_larger_of_reserve_and_use_is_charged() {
    const RESERVE: u64 = 1000;
    for ends in [false, true] {
        let reserve = Reserve::new(RESERVE);
        let total = AtomicI64::new(RESERVE.cast_signed());
        let change = |bytes: i64| _ = total.fetch_add(bytes, Ordering::SeqCst);
        let uncharge = |less: u64| change(-less.cast_signed());
        let charge = |more: u64| {
            if more >= 500 {
                return Err(());
            }
            change(more.cast_signed());
            Ok(())
        };
        let grow = |bytes| reserve.grow(bytes, charge, uncharge);
        let shrink = |bytes| reserve.shrink(bytes, uncharge);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || churn(seed, grow, shrink));
            }
            if ends {
                churn(4, grow, shrink);
                reserve.end(uncharge);
                reserve.end(|_| unreachable!("it has ended"));
            }
        });
        let left = if ends { 0 } else { RESERVE };
        assert_eq!((reserve.used(), reserve.bytes()), (0, left));
        assert_eq!(total.into_inner(), left.cast_signed());
    }
    let total = AtomicI64::new(0);
    let alone = Reserve::new(100);
    let charge = |more: u64| {
        total.fetch_add(more.cast_signed(), Ordering::SeqCst);
        Ok::<(), ()>(())
    };
    alone
        .grow(70, charge, |_| unreachable!())
        .expect("reserved");
    assert_eq!(total.load(Ordering::SeqCst), 0);
    alone.grow(70, charge, |_| unreachable!()).expect("granted");
    assert_eq!(total.load(Ordering::SeqCst), 40);
    alone.shrink(90, |less| assert_eq!(less, 40));
    alone.end(|less| assert_eq!(less, 50, "the rest is used"));
    assert_eq!((alone.used(), alone.unused()), (50, 0));
    alone.shrink(50, |less| assert_eq!(less, 50));
    assert_eq!(alone.used(), 0);
}
