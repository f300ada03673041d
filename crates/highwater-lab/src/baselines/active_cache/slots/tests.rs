//! Tests of claims against parkers that are interrupted at the worst moments. `active_cache::tests`
//! tests the spaces' use of slots.

use std::num::NonZeroU32;

use super::*;
use highwater::lab::percpu::harness::{
    SETAFFINITY, allowed_cpus, attempts, refuse_membarrier, run_on, skipped, while_moved_around,
};
use highwater::lab::sync::OnceLock;
use highwater::lab::sync::atomic::{AtomicBool, AtomicI64};
use highwater::topology::Topology;

/// The error number of a call that is not permitted.
const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();
/// Turns of the loops inside the sequence: most interrupts hit it then.
const DELAY: u32 = 3_000;

fn owner() -> Owner {
    Owner(NonZeroU32::MIN)
}

fn this_machine() -> Option<OwnedSlots> {
    let slots = OwnedSlots::new(Regime::Restartable, Topology::detect().nr_cpus(), 1 << 30);
    if slots.regime() == Regime::Atomic {
        skipped("no sequences here that other CPUs can restart");
        return None;
    }
    for slot in 0..slots.nr_cpus() {
        let claim = slots.claim_as(slot).expect("it is not held");
        claim.settle(Some(owner()), |_| ());
    }
    Some(slots)
}

/// Returns the additions that 6 threads have parked while `claim` settles each CPU repeatedly.
fn park_among(slots: &OwnedSlots, claim: impl Fn(CpuId) -> Option<()> + Sync) -> i64 {
    let parked = AtomicI64::new(0);
    let is_over = AtomicBool::new(false);
    let cpus = allowed_cpus();
    thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: ends the loop, and publishes nothing.
            while !is_over.load(Ordering::Relaxed) {
                for &cpu in &cpus {
                    claim(cpu);
                }
                thread::yield_now();
            }
        });
        while_moved_around(6, |_| {
            for _ in 0..300 {
                if let Place::Parked = slots.park_or_claim_delayed::<DELAY>(owner(), 1, 1) {
                    // Relaxed: read after the threads have ended.
                    parked.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        is_over.store(true, Ordering::Relaxed);
    });
    parked.into_inner()
}

/// Settles a claim for the same owner, into `total`.
fn settle(claim: Claim<'_>, total: &AtomicI64) {
    claim.settle(Some(owner()), |parked| {
        // Relaxed: read after the threads have ended.
        total.fetch_add(parked[1], Ordering::Relaxed);
    });
}

fn found(slots: &OwnedSlots, total: AtomicI64) -> i64 {
    let total = [0, total.into_inner(), 0, 0];
    let sums = slots.read(owner(), 0..slots.nr_cpus(), || total);
    sums.expect("nothing is settled")[1]
}

// Goal: no claim meets a parker half-way, from another CPU or from its own. Method: parkers that
// spend most of their time between reading the tenure and storing.
#[test]
fn claims_meet_no_parker_half_way() {
    let Some(slots) = this_machine() else { return };
    let (mut parked, total) = (0, AtomicI64::new(0));
    // On a busy machine, claims may come in between each time.
    for _ in 0..100 {
        parked += park_among(&slots, |cpu| {
            let claim = slots.claim_from_afar(cpu, |_| true)?;
            settle(claim, &total);
            settle(slots.claim()?, &total);
            Some(())
        });
        if parked > 0 {
            break;
        }
    }
    assert!(parked > 0);
    assert_eq!(found(&slots, total), parked);
}

// Goal: the same if membarrier is refused once the slots are in use, and claimers visit their CPUs
// instead; if they may not, a claim from afar panics, and leaves the slot to its owner.
#[test]
fn claims_meet_no_parker_half_way_without_membarrier() {
    let Some(slots) = this_machine() else { return };
    let (mut refused, total) = (OnceLock::new(), AtomicI64::new(0));
    let mut parked = 0;
    // A slot is held while its CPU is visited, with parking in between: each round for a while.
    for _ in 0..100 {
        refused.take();
        parked += park_among(&slots, |cpu| {
            refused.get_or_init(|| refuse_membarrier(&[], EPERM));
            settle(slots.claim_from_afar(cpu, |_| true)?, &total);
            thread::sleep(Duration::from_millis(1));
            Some(())
        });
        if parked > 2_000 {
            break;
        }
    }
    assert!(parked > 0);
    assert_eq!(found(&slots, total), parked);
    let claim = || {
        let claim = || drop(slots.claim_from_afar(allowed_cpus()[0], |_| true));
        let claim = std::panic::AssertUnwindSafe(claim);
        assert!(
            !refuse_membarrier(&[SETAFFINITY], EPERM) || std::panic::catch_unwind(claim).is_err()
        );
    };
    thread::scope(|scope| scope.spawn(claim).join().expect("a panic that it catches"));
    assert_eq!(slots.check_invariants().count(), slots.nr_cpus());
}

// Goal: that traffic detects claims that do not stop parkers. Method: the tenure is exchanged from
// any CPU, and no sequence is restarted.
#[test]
fn the_same_traffic_finds_claims_that_stop_nobody() {
    for () in attempts() {
        let Some(slots) = this_machine() else { return };
        let total = AtomicI64::new(0);
        let parked = park_among(&slots, |cpu| {
            settle(slots.claim_as(cpu.index())?, &total);
            Some(())
        });
        if found(&slots, total) != parked {
            return;
        }
    }
    panic!("no claim ever met a parker half-way");
}

// Goal: a claim in a sequence is made on the slot's own CPU or not at all, and reports a lost race.
// Method: the sequence itself, for the thread's CPU and for others; then with a stale tenure.
#[test]
fn a_claim_in_a_sequence_needs_the_cpu() {
    let Some(slots) = this_machine() else { return };
    let seen = Tenure::of(Some(owner()));
    for here in allowed_cpus() {
        run_on(here, || {
            for other in (0..slots.nr_cpus()).filter(|&other| other != here.index()) {
                let claim = slots.attempt_claim(CpuId::from_index(other), seen);
                assert!(matches!(claim, Attempted::Interrupted));
            }
            let claim = slots.attempt_claim(here, seen);
            assert!(matches!(claim, Attempted::Claimed(_)));
            let again = slots.attempt_claim(here, seen);
            assert!(matches!(again, Attempted::Lost));
        });
        assert_eq!(slots.check_invariants().count(), slots.nr_cpus());
    }
}

// Goal: a settler that unwinds leaves a slot that can be read and settled. Method: one does; the
// parked amount is found once.
#[test]
fn a_settler_that_unwinds_leaves_the_slot_at_rest() {
    for regime in [Regime::Restartable, Regime::Atomic] {
        let slots = OwnedSlots::new(regime, 1, 100);
        let claim = || slots.claim_as(0).expect("it is not held");
        claim().settle(Some(owner()), |_| ());
        slots.slots[0].store(1, 7);
        let unwinds = std::panic::AssertUnwindSafe(|| claim().settle(None, |_| panic!("as told")));
        assert!(std::panic::catch_unwind(unwinds).is_err());
        assert_eq!(slots.check_invariants().next(), Some(Some(owner())));
        assert_eq!(slots.read(owner(), 0..1, || [0; WORDS]), Some([0, 7, 0, 0]));
        let total = AtomicI64::new(0);
        settle(claim(), &total);
        assert_eq!(found(&slots, total), 7);
    }
}

// Goal: words never exceed their limit, for any addition, and nothing wraps into it. Method: the
// edges, in both regimes; the sequence and the plain code must agree.
#[test]
fn words_stay_within_their_limit() {
    let cpu = allowed_cpus()[0];
    for regime in [Regime::Restartable, Regime::Atomic] {
        run_on(cpu, || {
            let slots = OwnedSlots::new(regime, cpu.index() + 1, 100);
            let claim = slots.claim_as(cpu.index()).expect("it is not held");
            claim.settle(Some(owner()), |_| ());
            for (delta, fits) in [
                (i64::MAX, false),
                (i64::MIN, false),
                (101, false),
                (-101, false),
                (100, true),
                (1, false),
                (i64::MAX, false),
                (-200, true),
                (-1, false),
                (i64::MIN, false),
                (0, true),
            ] {
                let place = slots.park_or_claim(owner(), 3, delta);
                assert_eq!(matches!(place, Place::Parked), fits, "{delta}");
                assert_eq!(matches!(place, Place::Full(_)), !fits, "{delta}");
            }
            assert_eq!(slots.slots[cpu.index()].word(3), -100);
            assert!(slots.stats().hits >= 3);
        });
    }
}
