//! Six queries of two tenants in less memory than they like: under `GreedyMemoryPool`, under
//! `FairSpillPool`, and under Highwater.
//!
//! `cargo run --example tenants [ROWS]`; 40,000 rows take some seconds.

use datafusion::error::Result;
use highwater_datafusion_tests::{Outcome, Pools, scenario};

const MIB: f64 = (1 << 20) as f64;

fn print(pools: Pools, outcome: &Outcome) {
    println!("\n{pools}");
    for (query, answer, time) in &outcome.queries {
        let time = time.as_secs_f64();
        match answer {
            Ok(answer) => println!("  {:12} {time:5.1} s  {} rows", query.name, answer.rows),
            Err(error) => {
                let text = error.find_root().to_string();
                let reason = text.lines().last().unwrap_or_default();
                let shown: String = reason.chars().take(110).collect();
                println!("  {:12} {time:5.1} s  FAILED: {shown}", query.name);
            }
        }
    }
    println!(
        "  {} failed; {:.1} s, at most {:.1} MiB reserved, {:.1} MiB spilled, {} waited",
        outcome.failed().len(),
        outcome.elapsed.as_secs_f64(),
        outcome.peak as f64 / MIB,
        outcome.spilled as f64 / MIB,
        outcome.waited
    );
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let rows = std::env::args().nth(1).map(|rows| rows.parse());
    let Ok(rows) = rows.unwrap_or(Ok(40_000)) else {
        println!("usage: tenants [ROWS], such as 40000");
        std::process::exit(2);
    };
    let unlimited = scenario(Pools::Unlimited, rows, 0).await?;
    print(Pools::Unlimited, &unlimited);
    let limit = unlimited.peak / 2;
    let max = limit * 3 / 4;
    for pools in [
        Pools::Greedy(limit),
        Pools::FairSpill(limit),
        Pools::Highwater { limit, max },
    ] {
        print(pools, &scenario(pools, rows, 0).await?);
    }
    Ok(())
}
