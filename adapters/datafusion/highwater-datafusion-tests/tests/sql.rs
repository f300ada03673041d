//! Promise: a session cannot leave its tenant's pool by a statement that passes `guard_sql`.

use std::sync::Arc;

use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::SessionContext;
use highwater::group::Limits;
use highwater::{Bytes, Manager};
use highwater_datafusion::{HighwaterPool, Options, Tenant, guard_sql, runtime_for};
use highwater_datafusion_tests::context;

fn session() -> SessionContext {
    let built = Manager::builder()
        .capacity(Bytes::mib(64))
        .frames(Bytes::ZERO)
        .build();
    let hw = built.expect("a manager without frames");
    let group = hw
        .root()
        .child("a", Limits::max(Bytes::mib(16)))
        .expect("the name is free");
    let pool = Tenant::new(group, Options::default())
        .query()
        .build()
        .expect("no limits");
    let base = RuntimeEnvBuilder::new().build().expect("the default");
    let runtime = runtime_for(&base, pool).expect("a runtime");
    context(runtime, 100, 0).expect("tables")
}

fn pool(session: &SessionContext) -> Arc<dyn MemoryPool> {
    Arc::clone(&session.runtime_env().memory_pool)
}

#[tokio::test]
async fn a_statement_that_replaces_the_pool_is_refused() {
    let session = session();
    for sql in [
        "set datafusion.runtime.memory_limit = '100G'",
        "SET DataFusion.Runtime.Memory_Limit = '100G'",
        "reset datafusion.runtime.memory_limit",
    ] {
        let plan = session
            .state()
            .create_logical_plan(sql)
            .await
            .expect("it is SQL");
        let refused = guard_sql(&plan).expect_err(sql).to_string();
        assert!(
            refused
                .to_lowercase()
                .contains("datafusion.runtime.memory_limit"),
            "{refused}"
        );
    }
    let harmless = ["set datafusion.execution.batch_size = 100", "select 1"];
    for sql in harmless {
        let plan = session
            .state()
            .create_logical_plan(sql)
            .await
            .expect("it is SQL");
        guard_sql(&plan).expect(sql);
    }
    assert!(pool(&session).is::<HighwaterPool>());
}

#[tokio::test]
async fn without_the_guard_the_pool_is_gone() {
    let session = session();
    let set = session
        .sql("set datafusion.runtime.memory_limit = '100G'")
        .await;
    set.expect("a statement")
        .collect()
        .await
        .expect("it is executed");
    assert!(
        !pool(&session).is::<HighwaterPool>(),
        "then guard_sql is not needed any more"
    );
}
