//! Where tests get their randomness: from a seed that a failure shows and that `SEED=` replays.

/// A generator seeded with `SEED` from the environment, else with `default`.
#[expect(clippy::print_stdout, reason = "shown with a failing test's output")]
pub(crate) fn rng(default: u64) -> fastrand::Rng {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(default);
    println!("SEED={seed}");
    fastrand::Rng::with_seed(seed)
}
