//! Promise: an executor that dies while a query runs its first tasks yields the right result or an
//! error that names the cause, never a wrong result; the tenants' limits hold on the others, and
//! all memory is returned. Of later stages nothing is promised: Ballista 55.0.0 is reported to keep
//! outputs of a stage that it rolls back (apache/datafusion-ballista#2677).

#[path = "../examples/cluster/roles.rs"]
mod roles;

use std::time::Duration;

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;
use roles::{AGGREGATE, ExecutorProcess, JOIN, Report, SORT};
use tokio::time::{sleep, timeout};

const ROWS: u64 = 60_000;

/// The test of this binary that a child process runs.
const ROLE: [&str; 4] = ["--exact", "role_of_an_executor", "--ignored", "--nocapture"];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs in the processes that the tests start"]
async fn role_of_an_executor() {
    roles::become_executor().await;
}

async fn text(context: &SessionContext, sql: &str) -> Result<String> {
    let batches = context.sql(sql).await?.collect().await?;
    Ok(pretty_format_batches(&batches)?.to_string())
}

async fn assert_all_returned(executor: &mut ExecutorProcess) {
    let report = executor.settled().await;
    let Report {
        running,
        groups,
        used,
        peak,
        is_healthy,
    } = report;
    assert_eq!((running, groups, used), (0, 0, 0), "{report:?}");
    assert!(is_healthy && (1..=128 << 20).contains(&peak), "{report:?}");
}

// Goal: the promise. Method: two executors as processes, one of which is killed as soon as it runs
// a task; results of plain DataFusion.
#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_is_killed_changes_no_result() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("lines");
    roles::write_table(&data, ROWS).await.expect("written");
    let plain = SessionContext::new();
    roles::register(&plain, &data).await.expect("a table");
    let sorted = text(&plain, SORT).await.expect("sorted");
    let aggregated = text(&plain, AGGREGATE).await.expect("aggregated");
    let joined = text(&plain, JOIN).await.expect("joined");

    let scheduler = roles::start_scheduler().await;
    let [mut doomed, mut other] = ["one", "two"].map(|name| {
        let work_dir = dir.path().join(name);
        std::fs::create_dir(&work_dir).expect("a directory");
        ExecutorProcess::start(scheduler, &work_dir, &ROLE)
    });
    let context = roles::session(scheduler, "a", &data)
        .await
        .expect("a session");
    assert_eq!(text(&context, AGGREGATE).await.expect("passes"), aggregated);
    assert_eq!(text(&context, JOIN).await.expect("passes"), joined);
    assert_all_returned(&mut doomed).await;
    assert_all_returned(&mut other).await;

    let query = tokio::spawn({
        let context = context.clone();
        async move { text(&context, SORT).await }
    });
    while doomed.report().await.running == 0 && !query.is_finished() {
        sleep(Duration::from_millis(2)).await;
    }
    assert!(!query.is_finished(), "the executor is killed in mid-query");
    doomed.kill().await;
    let outcome = timeout(Duration::from_secs(120), query).await;
    match outcome.expect("it ends").expect("no panic") {
        Ok(result) => assert_eq!(result, sorted),
        Err(error) => {
            let text = error.to_string();
            println!("the query failed: {text}");
            let names_cause = ["executor", "Executor", "connect", "transport", "fetch"];
            assert!(names_cause.iter().any(|it| text.contains(it)), "{text}");
        }
    }

    // The scheduler has noticed by now, or does within its timeout.
    let after = roles::session(scheduler, "b", &data)
        .await
        .expect("a session");
    let after = timeout(Duration::from_secs(120), text(&after, AGGREGATE)).await;
    assert_eq!(after.expect("it ends").expect("passes"), aggregated);
    assert_all_returned(&mut other).await;
}
