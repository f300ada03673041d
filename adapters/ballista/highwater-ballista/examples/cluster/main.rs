//! A scheduler and two executors as processes on loopback; sessions of three tenants, one of which
//! no executor knows. Prints what became of each query, and what the executors used.
//!
//! ```sh
//! cargo run --example cluster
//! ```

#[expect(dead_code, reason = "tests use the rest")]
mod roles;

use std::time::Instant;

use datafusion::error::Result;
use roles::{AGGREGATE, ExecutorProcess, JOIN, SORT};

const ROWS: u64 = 40_000;

#[tokio::main]
async fn main() -> Result<()> {
    roles::become_executor().await;

    let dir = tempfile::tempdir()?;
    let data = dir.path().join("lines");
    roles::write_table(&data, ROWS).await?;
    let scheduler = roles::start_scheduler().await;
    let mut executors = ["one", "two"].map(|name| {
        let work_dir = dir.path().join(name);
        std::fs::create_dir(&work_dir).expect("the name is free");
        ExecutorProcess::start(scheduler, &work_dir, &[])
    });
    println!(
        "2 executors of 2 vcores; each tenant at most {} on each, others {} together\n",
        roles::TENANT_MAX,
        roles::DEFAULT_MAX
    );

    for name in ["a", "b", "stranger"] {
        let session = roles::session(scheduler, name, &data).await?;
        for (query, sql) in [("sort", SORT), ("aggregate", AGGREGATE), ("join", JOIN)] {
            let begun = Instant::now();
            let outcome = match session.sql(sql).await?.collect().await {
                Ok(batches) => {
                    let rows: usize = batches.iter().map(|it| it.num_rows()).sum();
                    format!("{rows} rows in {:.1} s", begun.elapsed().as_secs_f64())
                }
                Err(error) => format!("failed: {}", reason(&error.to_string())),
            };
            println!("{name:<9} {query:<10} {outcome}");
        }
    }

    println!();
    for (nth, executor) in (1..).zip(&mut executors) {
        let report = executor.settled().await;
        let [peak, now] = [report.peak, report.used].map(|bytes| bytes >> 10);
        let pools = if report.is_healthy { "ours" } else { "foreign" };
        println!("executor {nth}: peak {peak} KiB, now {now} KiB, pools {pools}");
    }
    Ok(())
}

/// Returns what was asked for and why it was refused, of an error that Ballista wrapped.
fn reason(error: &str) -> &str {
    let from = error.find("Failed to allocate").unwrap_or(0);
    let error = &error[from..];
    error.split(['"', '\n']).next().unwrap_or_default()
}
