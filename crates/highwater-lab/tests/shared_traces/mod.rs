//! Location of the recorded traces, which are not part of the project.

use std::path::{Path, PathBuf};

/// Returns the folder of the recorded traces; without one, prints the reason and returns `None`.
pub(crate) fn shared_traces() -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let named = std::env::var_os("HIGHWATER_TRACES").map(PathBuf::from);
    let beside = ["../shared/traces", "../../../shared/traces"].map(|path| workspace.join(path));
    let mut places = named.into_iter().chain(beside);
    let found = places.find(|place| place.join("block-io").is_dir());
    if found.is_none() {
        eprintln!("skipped: no recorded traces; set HIGHWATER_TRACES to their folder");
    }
    found
}
