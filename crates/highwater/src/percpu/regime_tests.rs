//! Processes that lack a feature for restartable sequences, and the regime that they report.

use std::process::Command;

use super::harness::{run_unregistered, skipped};
use super::*;
use crate::memmap::sandbox::{MEMBARRIER, refuse};
use crate::sync::thread;
use crate::topology::Topology;

const CHILD: &str = "percpu::regime_tests::child_says_its_regime";

/// Returns the regime reported by a process that `command` starts.
fn regime_of(mut command: Command) -> String {
    let child = command.args(["--exact", CHILD, "--include-ignored", "--nocapture"]);
    let output = child.output().expect("the test program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let said = text.lines().find_map(|line| line.split_once("regime is "));
    said.expect("the child says its regime").1.to_owned()
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().expect("a test has a path"))
}

/// Returns the regime reported by a process to which the kernel refuses `call`, as sandboxes and
/// kernels without it do. The filter of a thread also applies to the processes that it starts.
fn regime_without(call: libc::c_long, errno: i32) -> Option<String> {
    let start = || refuse(&[call], errno).then(|| regime_of(this_program()));
    let said = thread::scope(|scope| scope.spawn(start).join().expect("the child says it"));
    if said.is_none() {
        skipped("this system does not filter system calls");
    }
    said
}

// Goal: a fallback is never silent: the reason is the true one, with the kernel's error.
// Method: processes from which one thing each is taken away, on a system that has all of them.
#[test]
fn a_process_without_restartable_sequences_says_why() {
    let whole = ChosenRegime::preferred(&Topology::detect());
    if whole.reason.is_some() {
        skipped(&format!("the regime is {whole} here in any case"));
        return;
    }
    assert_eq!(regime_of(this_program()), "restartable");
    let mut told_not_to = this_program();
    told_not_to.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    assert_eq!(
        regime_of(told_not_to),
        "atomic: the C library was told not to register for rseq(2)"
    );
    let atomic = "atomic: the kernel refused rseq(2): Function not implemented (os error 38)";
    let counters = "restartable: only counters, the kernel refused membarrier(2): \
        Operation not permitted (os error 1)";
    for (call, errno, said) in [
        (libc::SYS_rseq, libc::ENOSYS, atomic),
        (MEMBARRIER, libc::EPERM, counters),
    ] {
        if let Some(regime) = regime_without(call, errno) {
            assert_eq!(regime, said);
        }
    }
}

#[test]
#[ignore = "run by a_process_without_restartable_sequences_says_why in a process of its own"]
fn child_says_its_regime() {
    let chosen = ChosenRegime::preferred(&Topology::detect());
    println!("regime is {chosen}");
    // The regime of charges, which depends on the kernel.
    let is_restartable = Gates::new(chosen.regime, 2).regime() == Regime::Restartable;
    assert_eq!(is_restartable, chosen.reason.is_none());
}

// Goal: an unregistered thread in a registered process reports its own reason, and a request for an
// unavailable regime is refused with it. Method: unregister one.
#[test]
fn an_unregistered_thread_is_told_apart() {
    let machine = Topology::detect();
    if !has_restartable_sequences() {
        skipped("no restartable sequences here");
        return;
    }
    run_unregistered(|| {
        let reason = RegimeReason::ThreadUnregistered;
        assert_eq!(ChosenRegime::preferred(&machine).reason, Some(reason));
        let refused = ChosenRegime::choose(Some(Regime::Restartable), &machine);
        assert_eq!(refused, Err(reason));
    });
}

// Goal: a requested regime is no fallback, a missing feature is one. Method: each reason.
#[test]
fn only_what_the_system_lacks_is_a_fallback() {
    let chosen = |reason| ChosenRegime {
        regime: Regime::Atomic,
        reason,
    };
    for reason in [RegimeReason::Requested, RegimeReason::SyntheticTopology] {
        assert!(!chosen(Some(reason)).is_fallback(), "{reason}");
    }
    assert!(!chosen(None).is_fallback());
    for reason in [
        RegimeReason::Platform,
        RegimeReason::NoArea,
        RegimeReason::TurnedOff,
        RegimeReason::RseqRefused { errno: 38 },
        RegimeReason::ThreadUnregistered,
        RegimeReason::MembarrierRefused { errno: 1 },
    ] {
        assert!(chosen(Some(reason)).is_fallback(), "{reason}");
    }
}
