//! A manager reports its regime of per-CPU updates, and the reason if it is not the cheapest: on
//! request, in the snapshot, and by one warning if the program did not choose it.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a failure fails the test"
)]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use highwater::lab::percpu::{ChosenRegime, Regime, RegimeReason};
use highwater::{Builder, Manager, Topology};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, _: &Event<'_>) {
        // Relaxed: read by the same thread.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Returns the built manager, and the number of warnings meanwhile.
fn built(builder: Builder) -> (Manager, usize) {
    let warnings = Arc::new(AtomicUsize::new(0));
    let subscriber = Warnings(Arc::clone(&warnings));
    let manager = tracing::subscriber::with_default(subscriber, || builder.build().unwrap());
    (manager, warnings.load(Ordering::Relaxed))
}

// Goal: the program's own choice is reported, and causes no warning. Method: request atomics, and
// CPUs that do not exist.
#[test]
fn a_regime_that_was_asked_for_is_told_with_its_reason() {
    let requested = Manager::builder().regime(Regime::Atomic);
    let synthetic = Manager::builder().topology(Topology::flat(4));
    for (builder, reason, shown) in [
        (
            requested,
            RegimeReason::Requested,
            "regime: atomic: requested",
        ),
        (
            synthetic,
            RegimeReason::SyntheticTopology,
            "regime: atomic: the topology is synthetic",
        ),
    ] {
        let (manager, warnings) = built(builder);
        let ChosenRegime {
            regime,
            reason: why,
            ..
        } = manager.regime();
        assert_eq!((regime, why), (Regime::Atomic, Some(reason)));
        assert_eq!(warnings, 0, "{reason}");
        let snapshot = manager.snapshot();
        assert_eq!(snapshot.regime(), manager.regime());
        let text = snapshot.to_string();
        assert_eq!(text.lines().next(), Some(shown));
    }
}

// Goal: a manager that is slower than its program could expect warns once. Method: a process whose
// C library runs without rseq; and this one, with or without.
#[test]
fn a_fallback_that_nobody_asked_for_is_a_warning() {
    let (manager, warnings) = built(Manager::builder());
    let is_whole = manager.regime().reason.is_none();
    assert_eq!(warnings, usize::from(!is_whole), "{}", manager.regime());
    assert_eq!(is_whole, manager.regime().to_string() == "restartable");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_falls_back", "--include-ignored"])
        .env("GLIBC_TUNABLES", "glibc.pthread.rseq=0")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
#[ignore = "run by a_fallback_that_nobody_asked_for_is_a_warning in a process of its own"]
fn child_falls_back() {
    let (manager, warnings) = built(Manager::builder());
    assert_eq!(manager.regime().regime, Regime::Atomic);
    assert!(manager.regime().is_fallback());
    assert_eq!(warnings, 1);
    let refused = Manager::builder().regime(Regime::Restartable).build();
    let error = refused.unwrap_err().to_string();
    let reason = manager.regime().reason.unwrap();
    assert!(error.contains(&format!("({reason})")), "{error}");
}
