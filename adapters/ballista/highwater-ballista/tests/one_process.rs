//! Promise: results are those of plain DataFusion; a tenant above its maximum fails with the text
//! that names it, and no other does; a foreign pool is noticed; all memory is returned.

#[path = "../examples/cluster/roles.rs"]
#[expect(dead_code, reason = "processes are another test's")]
mod roles;

use std::sync::Arc;
use std::time::Duration;

use ballista_core::RuntimeProducer;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::{BallistaCodec, BallistaLogicalExtensionCodec};
use ballista_core::utils::{default_config_producer, default_session_builder};
use ballista_executor::executor_process::ExecutorProcessConfig;
use ballista_executor::new_standalone_executor_from_builder;
use ballista_scheduler::standalone::new_standalone_scheduler_with_builder;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::error::Result;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::SessionContext;
use highwater::Manager;
use highwater_ballista::{Executors, InForce, config_producer};
use roles::{AGGREGATE, JOIN, SORT};

const ROWS: u64 = 60_000;

/// Starts a scheduler in this process; returns its port.
async fn scheduler() -> u16 {
    let address = new_standalone_scheduler_with_builder(
        Arc::new(default_session_builder),
        config_producer(Arc::new(default_config_producer)),
        BallistaCodec::default(),
    );
    address.await.expect("a scheduler").port()
}

/// Starts an executor in this process, as [`Executors::configure`] has it, or with another runtime.
async fn executor(scheduler: u16, executors: &Executors, foreign: Option<RuntimeProducer>) {
    let mut config = ExecutorProcessConfig::default();
    executors
        .configure(&mut config)
        .expect("no pool of its own");
    let connection = SchedulerGrpcClient::connect(format!("http://localhost:{scheduler}"));
    let runtimes = foreign.or(config.override_runtime_producer);
    let logical = Arc::new(BallistaLogicalExtensionCodec::default());
    let physical = config.override_physical_codec.expect("configured");
    new_standalone_executor_from_builder(
        connection.await.expect("a scheduler"),
        2,
        config.override_config_producer.expect("configured"),
        runtimes.expect("configured"),
        BallistaCodec::new(logical, physical),
        Default::default(),
    )
    .await
    .expect("an executor");
}

async fn text(context: &SessionContext, sql: &str) -> Result<String> {
    let batches = context.sql(sql).await?.collect().await?;
    Ok(pretty_format_batches(&batches)?.to_string())
}

async fn assert_all_returned(hw: &Manager) {
    let groups = || -> usize {
        let tenants = hw.root().children();
        tenants.iter().map(|it| it.children().len()).sum()
    };
    for _ in 0..200 {
        if groups() == 0 && hw.root().usage_precise().0 == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!(
        "{} groups, {} after 10 s",
        groups(),
        hw.root().usage_precise()
    );
}

// Goal: the promise. Method: a scheduler, two executors, and sessions of two tenants and of one
// that no executor knows, at once.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_tenant_above_its_maximum_fails() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("lines");
    roles::write_table(&data, ROWS).await.expect("written");
    let plain = SessionContext::new();
    roles::register(&plain, &data).await.expect("a table");

    let port = scheduler().await;
    let managers = [(); 2].map(|()| roles::manager());
    let executors = managers.each_ref().map(roles::executors);
    for it in &executors {
        executor(port, it, None).await;
    }
    let [a, b, stranger] = ["a", "b", "stranger"];
    let [a, b, stranger] = [
        roles::session(port, a, &data).await.expect("a session"),
        roles::session(port, b, &data).await.expect("a session"),
        roles::session(port, stranger, &data)
            .await
            .expect("a session"),
    ];
    for sql in [SORT, AGGREGATE, JOIN] {
        let expected = text(&plain, sql).await.expect("plain DataFusion passes");
        let (a, b, refused) = tokio::join!(text(&a, sql), text(&b, sql), text(&stranger, sql));
        assert_eq!(a.expect("passes"), expected, "{sql}");
        assert_eq!(b.expect("passes"), expected, "{sql}");
        let refused = refused.expect_err("more than its maximum").to_string();
        assert!(refused.contains("/default"), "{sql}: {refused}");
    }
    for (hw, executors) in managers.iter().zip(&executors) {
        assert_eq!(executors.watch().in_force(), InForce::Highwater);
        assert_all_returned(hw).await;
        assert!(executors.tenant("a").counts().queries > 0);
    }
}

// Goal: a pool that is not Highwater's is noticed at the first task, which does not run. Method: an
// executor with DataFusion's unlimited pool.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_pool_is_noticed() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("lines");
    roles::write_table(&data, 1_000).await.expect("written");
    let port = scheduler().await;
    let hw = roles::manager();
    let executors = roles::executors(&hw);
    assert_eq!(executors.watch().in_force(), InForce::Unknown);
    let unlimited = Arc::new(RuntimeEnv::default());
    let foreign: RuntimeProducer = Arc::new(move |_| Ok(Arc::clone(&unlimited)));
    executor(port, &executors, Some(foreign)).await;
    let context = roles::session(port, "a", &data).await.expect("a session");
    let refused = text(&context, AGGREGATE)
        .await
        .expect_err("refused")
        .to_string();
    assert!(refused.contains("not Highwater's"), "{refused}");
    assert!(!executors.watch().is_healthy());
    let InForce::Foreign(pool) = executors.watch().in_force() else {
        panic!("{:?}", executors.watch());
    };
    assert!(refused.contains(&pool), "{pool}: {refused}");
}
