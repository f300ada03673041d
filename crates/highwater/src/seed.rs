//! Where tests get their randomness: from a seed that a failure shows and that `SEED=` replays. The
//! files of `tests/` include this one.

#![allow(dead_code, reason = "each test file uses its own part")]

/// A generator seeded with `SEED` from the environment, else with `default`.
pub(crate) fn rng(default: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(seed(default))
}

/// `SEED` from the environment, else `default`.
pub(crate) fn seed(default: u64) -> u64 {
    show(given().unwrap_or(default))
}

/// `SEED` from the environment.
pub(crate) fn given() -> Option<u64> {
    let seed = std::env::var("SEED").ok()?;
    Some(seed.parse().expect("SEED is a number"))
}

/// Says with which seed a test goes on: the last one that a failing test shows is the one to
/// replay.
#[expect(clippy::print_stdout, reason = "shown with a failing test's output")]
pub(crate) fn show(seed: u64) -> u64 {
    println!("SEED={seed}");
    seed
}
