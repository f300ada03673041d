//! Promise: six queries of two tenants, none of which fails alone within its tenant's maximum, do
//! not fail together, and return what they return with unlimited memory.
//!
//! `SCENARIO_RUNS` sets the number of seeds; the default is 2.

use highwater_datafusion_tests::{Answer, Pools, limit_for_fair_spill, passes_alone, scenario};

const ROWS: u64 = 40_000;

fn runs() -> u64 {
    let runs = std::env::var("SCENARIO_RUNS").ok();
    runs.map_or(2, |runs| runs.parse().expect("SCENARIO_RUNS is a number"))
}

async fn passes(max: u64, seed: u64) -> bool {
    let alone = passes_alone(max, ROWS, seed).await;
    alone.expect("no other failure than for lack of memory")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_query_fails_that_passes_alone() {
    for seed in 0..runs() {
        let unlimited = scenario(Pools::Unlimited, ROWS, seed)
            .await
            .expect("set up");
        let want: Vec<Answer> = unlimited
            .queries
            .iter()
            .map(|(query, answer, _)| {
                *answer
                    .as_ref()
                    .unwrap_or_else(|it| panic!("{}: {it}", query.name))
            })
            .collect();
        assert_eq!(want[0].rows, ROWS);
        println!("seed {seed}: {}", unlimited.describe(Pools::Unlimited));
        // The least maximum of a tenant in which each query passes alone, and passes again, and a
        // quarter more, because whether it passes also depends on the order of its threads; a third
        // more for both tenants.
        let mut max = unlimited.peak / 4;
        while !(passes(max, seed).await && passes(max, seed + 100).await) {
            max += max / 4;
        }
        max += max / 4;
        let limit = max * 4 / 3;
        for pools in [Pools::Greedy(limit), Pools::FairSpill(limit)] {
            let outcome = scenario(pools, ROWS, seed).await.expect("set up");
            println!("seed {seed}: {}", outcome.describe(pools));
        }
        let pools = Pools::Highwater { limit, max };
        let outcome = scenario(pools, ROWS, seed).await.expect("set up");
        println!("seed {seed}: {}", outcome.describe(pools));
        assert!(outcome.peak <= limit, "{} of {limit}", outcome.peak);
        for ((query, answer, _), want) in outcome.queries.iter().zip(want) {
            let answer = answer
                .as_ref()
                .unwrap_or_else(|error| panic!("{}: {error}", query.name));
            assert_eq!(*answer, want, "{}", query.name);
        }
    }
}

// Goal: where one `FairSpillPool` for all fails no query, neither does Highwater with the same
// limit for all and no other; it spills no more, and each query returns the same. Their times are
// compared by `benches/scenario.rs`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_query_fails_where_fair_spill_fails_none() {
    for seed in 0..runs() {
        let (limit, fair) = limit_for_fair_spill(ROWS, seed).await.expect("set up");
        let pools = Pools::Highwater { limit, max: limit };
        let outcome = scenario(pools, ROWS, seed).await.expect("set up");
        println!("seed {seed}: {}", fair.describe(Pools::FairSpill(limit)));
        println!("seed {seed}: {}", outcome.describe(pools));
        assert!(outcome.peak <= limit, "{} of {limit}", outcome.peak);
        assert!(outcome.spilled <= fair.spilled, "it spilled more");
        for ((query, answer, _), (_, want, _)) in outcome.queries.iter().zip(&fair.queries) {
            let answer = answer
                .as_ref()
                .unwrap_or_else(|error| panic!("{}: {error}", query.name));
            assert_eq!(Some(answer), want.as_ref().ok(), "{}", query.name);
        }
    }
}
