//! Processes that lack something for restartable sequences, and what they say of it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::harness::{run_unregistered, skipped};
use super::*;
use crate::topology::Topology;

const CHILD: &str = "percpu::regime_tests::child_says_its_regime";

/// What a process says that is started by `command`; none if it cannot be started so.
fn regime_of(command: &mut Command) -> Option<String> {
    let child = command.args(["--exact", CHILD, "--include-ignored", "--nocapture"]);
    let output = match child.output() {
        Ok(output) => output,
        Err(error) => {
            skipped(&format!("a process under a system call filter: {error}"));
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let said = text.lines().find_map(|line| line.split_once("regime is "));
    Some(said.expect("the child says its regime").1.to_owned())
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().expect("a test has a path"))
}

/// This program, to be started where the kernel answers the system call `number` by `errno`, as
/// sandboxes and kernels without it do.
fn refusing(number: libc::c_long, errno: i32) -> Command {
    let mut command = this_program();
    let install = move || refuse(number, errno);
    // SAFETY: the child makes two system calls between fork and exec, and allocates nothing.
    unsafe { command.pre_exec(install) };
    command
}

fn refuse(number: libc::c_long, errno: i32) -> io::Result<()> {
    const LOAD_NUMBER: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS, of the first field
    const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let wanted = u32::try_from(number).map_err(io::Error::other)?;
    let mut filter = [
        step(LOAD_NUMBER, 0, 0),
        step(JUMP_IF_EQUAL, 1, wanted),
        step(RETURN, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: takes its arguments by value.
    let mut rc = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if rc == 0 {
        let mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: reads the program and its four steps, which outlive the call.
        rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    }
    if rc == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
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
    assert_eq!(
        regime_of(&mut this_program()).as_deref(),
        Some("restartable")
    );
    let mut told_not_to = this_program();
    told_not_to.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let atomic = "atomic: the kernel refused rseq(2): Function not implemented (os error 38)";
    let counters = "restartable: only counters, the kernel refused membarrier(2): \
        Operation not permitted (os error 1)";
    for (mut command, said) in [
        (
            told_not_to,
            "atomic: the C library was told not to register for rseq(2)",
        ),
        (refusing(libc::SYS_rseq, libc::ENOSYS), atomic),
        (refusing(libc::SYS_membarrier, libc::EPERM), counters),
    ] {
        if let Some(regime) = regime_of(&mut command) {
            assert_eq!(regime, said);
        }
    }
}

#[test]
#[ignore = "run by a_process_without_restartable_sequences_says_why in a process of its own"]
fn child_says_its_regime() {
    let chosen = ChosenRegime::preferred(&Topology::detect());
    println!("regime is {chosen}");
    // What charges use, which the kernel has a say in.
    let is_restartable = Gates::new(chosen.regime, 2).regime() == Regime::Restartable;
    assert_eq!(is_restartable, chosen.reason.is_none());
}

// Goal: a thread that is not registered in a process that is gives its own reason, and what it asks
// for and cannot have is refused with it. Method: unregister one.
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

// Goal: what was asked for is no fallback, what was not is one. Method: each reason.
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
