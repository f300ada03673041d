//! The engines of asynchronous reads that the system has.

use highwater::{Builder, Manager};

/// Returns a builder for each engine. `probe` has read a page asynchronously, and tells whether the
/// system has io_uring; if not, that one is left out, and the reason printed.
pub(crate) fn engines(probe: &Manager) -> Vec<(&'static str, Builder)> {
    let mut engines = vec![("threads", Manager::builder().without_io_uring())];
    let shown = probe.snapshot().to_string();
    let line = shown.lines().find(|line| line.starts_with("io: "));
    let line = line.expect("the snapshot names the engine");
    if line.starts_with("io: io_uring") {
        engines.push(("io_uring", Manager::builder()));
    } else {
        eprintln!("skipped with io_uring: {line}");
    }
    engines
}
