//! Random seeds of tests: a failure shows the seed, and `SEED=` replays it. The files of `tests/`
//! include this one.

#![allow(dead_code, reason = "each test file uses its own part")]

/// Returns a generator seeded with `SEED` from the environment, or with `default`.
pub(crate) fn rng(default: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed(default))
}

/// Returns `SEED` from the environment, or `default`.
pub(crate) fn seed(default: u64) -> u64 {
    show(given().unwrap_or(default))
}

/// Returns `SEED` from the environment.
pub(crate) fn given() -> Option<u64> {
    let seed = std::env::var("SEED").ok()?;
    Some(seed.parse().expect("SEED is a number"))
}

/// Prints the seed that a test continues with: the last one that a failing test prints is the one
/// to replay.
#[expect(clippy::print_stdout, reason = "shown with a failing test's output")]
pub(crate) fn show(seed: u64) -> u64 {
    println!("SEED={seed}");
    seed
}
