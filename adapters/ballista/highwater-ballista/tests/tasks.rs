//! Promise: a task's pool is of its session's tenant; a task that is stopped as a victim runs again
//! a bounded number of times, and one that is refused memory does not.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use ballista_core::error::BallistaError;
use ballista_core::extension::SessionConfigHelperExt;
use ballista_core::serde::protobuf::{FailedTask, failed_task::FailedReason};
use ballista_executor::executor_process::ExecutorProcessConfig;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::SessionConfig;
use highwater::{Bytes, Limits, Manager};
use highwater_ballista::{Executors, TaskPool, TenantPolicy, config_producer, tenant, tenant_of};
use highwater_datafusion::{OnFull, Options};

fn cluster() -> (Manager, Executors) {
    cluster_with(Options::default())
}

fn cluster_with(options: Options) -> (Manager, Executors) {
    let books = Manager::builder()
        .capacity(Bytes::mib(64))
        .frames(Bytes::ZERO);
    let hw = books.build().expect("memory for the books");
    let policy = TenantPolicy::new(Limits::max(Bytes::mib(1)))
        .tenant("a", Limits::max(Bytes::mib(8)))
        .tenant("b", Limits::max(Bytes::mib(16)))
        .options(options);
    let executors = Executors::new(&hw, policy).expect("the names are free");
    (hw, executors)
}

/// Returns the pool of a task of a session.
fn task(executors: &Executors, config: &SessionConfig) -> Arc<dyn MemoryPool> {
    let base = Arc::new(RuntimeEnv::default());
    let producer = executors.runtime_producer(Arc::new(move |_| Ok(Arc::clone(&base))));
    let runtime = producer(config).expect("a runtime");
    Arc::clone(&runtime.memory_pool)
}

fn outcome(error: DataFusionError) -> FailedTask {
    FailedTask::from(BallistaError::from(error))
}

// Goal: the tenant decides the limit; without a known one, the default's holds. Method: sessions
// whose names travelled as settings do.
#[test]
fn a_task_has_the_limit_of_its_tenant() {
    let (hw, executors) = cluster();
    let limit = |name: &str| {
        let entries = tenant(SessionConfig::new(), name).options().entries();
        let mut travelled = config_producer(Arc::new(SessionConfig::new))();
        for entry in entries.iter().filter(|it| it.key.starts_with("highwater.")) {
            let Some(value) = entry.value.as_deref() else {
                continue;
            };
            let set = travelled.options_mut().set(&entry.key, value);
            set.expect("the setting is known");
        }
        assert_eq!(tenant_of(&travelled), name);
        match task(&executors, &travelled).memory_limit() {
            MemoryLimit::Finite(bytes) => bytes >> 20,
            _ => panic!("a limit"),
        }
    };
    assert_eq!(["a", "b", "", "c"].map(limit), [8, 16, 1, 1]);
    // A process that does not know the setting.
    let MemoryLimit::Finite(bytes) = task(&executors, &SessionConfig::new()).memory_limit() else {
        panic!("a limit");
    };
    assert_eq!(bytes >> 20, 1);
    assert!(
        hw.root()
            .children()
            .iter()
            .all(|it| it.children().is_empty())
    );
}

// Goal: a refusal ends the job, by Highwater's text. Method: Ballista's own classification.
#[test]
fn a_refused_task_is_not_run_again() {
    let (_hw, executors) = cluster();
    let pool = task(&executors, &tenant(SessionConfig::new(), "a"));
    assert!(pool.is::<TaskPool>());
    let join = MemoryConsumer::new("join").register(&pool);
    let refused = join.try_grow(9 << 20).expect_err("above the maximum");
    assert!(matches!(refused, DataFusionError::ResourcesExhausted(_)));
    let failed = outcome(refused);
    assert!(
        !failed.retryable && failed.error.contains("/a is full"),
        "{failed:?}"
    );
}

// Goal: a victim runs again, and each time counts. Method: a pool that is stopped while it holds
// memory; Ballista's own classification.
#[test]
fn a_victim_is_run_again_and_counted() {
    let (hw, executors) = cluster();
    let pool = task(&executors, &tenant(SessionConfig::new(), "a"));
    let join = MemoryConsumer::new("join").register(&pool);
    join.try_grow(1 << 20).expect("below the maximum");
    pool.downcast_ref::<TaskPool>()
        .expect("a task's")
        .pool()
        .stop();
    let failed = outcome(join.try_grow(1).expect_err("stopped"));
    assert!(failed.retryable && failed.count_to_failures, "{failed:?}");
    assert!(matches!(
        failed.failed_reason,
        Some(FailedReason::IoError(_))
    ));
    assert!(
        failed
            .error
            .contains("was stopped so that others have memory"),
        "{failed:?}"
    );
    drop(join);
    drop(pool);
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
}

// Goal: a victim learns of it at its next request, and keeps what it holds if its operator does not
// pass the error on, as documented. Method: a task with a build side and a shuffle writer, which
// spills what it has and goes on; another task of the tenant needs that room.
#[test]
fn a_victim_whose_operator_keeps_the_error_holds_its_memory() {
    let mut options = Options::default();
    options.on_full = OnFull::Victim;
    let (_hw, executors) = cluster_with(options);
    let session = tenant(SessionConfig::new(), "b");
    let [victim, other] = [(); 2].map(|()| task(&executors, &session));
    let build = MemoryConsumer::new("HashJoinInput").register(&victim);
    build.try_grow(12 << 20).expect("there is room");
    let shuffle = MemoryConsumer::new("SortShuffleWriter").with_can_spill(true);
    let shuffle = shuffle.register(&victim);
    let join = MemoryConsumer::new("join").register(&other);
    let stopped = || {
        let pool = victim.downcast_ref::<TaskPool>();
        pool.is_some_and(|pool| pool.pool().is_stopped())
    };
    let refused = thread::scope(|scope| {
        let asks = scope.spawn(|| join.try_grow(8 << 20));
        while !stopped() && !asks.is_finished() {
            thread::yield_now();
        }
        while !asks.is_finished() {
            let error = shuffle.try_grow(1).expect_err("its task was stopped");
            assert!(matches!(error, DataFusionError::IoError(_)), "{error}");
        }
        asks.join().expect("no panic")
    });
    let refused = refused.expect_err("nothing was returned");
    assert!(matches!(refused, DataFusionError::ResourcesExhausted(_)));
    assert!(stopped());
    assert_eq!((victim.reserved(), other.reserved()), (12 << 20, 0));
    drop((build, shuffle));
    join.try_grow(8 << 20).expect("the victim has ended");
}

// Goal: no setting leaves Ballista's pool above ours in silence. Method: each value.
#[test]
fn a_pool_of_ballistas_own_is_refused() {
    let (_hw, executors) = cluster();
    for (size, is_accepted) in [(None, true), (Some(0), true), (Some(1 << 30), false)] {
        let mut config = ExecutorProcessConfig {
            memory_pool_size: size,
            ..ExecutorProcessConfig::default()
        };
        match executors.configure(&mut config) {
            Ok(()) => {
                assert!(is_accepted && config.memory_pool_size == Some(0));
                assert_eq!(config.session_runtime_cache_capacity, 0);
                let producer = config.override_runtime_producer.expect("configured");
                let runtime = producer(&SessionConfig::new()).expect("a runtime");
                assert!(runtime.memory_pool.is::<TaskPool>());
            }
            Err(error) => {
                let text = error.to_string();
                assert!(
                    !is_accepted && text.contains("memory_pool_size is 1073741824"),
                    "{text}"
                );
                assert!(
                    config.override_runtime_producer.is_none(),
                    "nothing changed"
                );
            }
        }
    }
}

// Symptom: a tenant that was wrong left the groups before it behind, so that the corrected policy
// found their names in use.
#[test]
fn a_policy_that_is_refused_leaves_no_group() {
    let books = Manager::builder()
        .capacity(Bytes::mib(64))
        .frames(Bytes::ZERO);
    let hw = books.build().expect("memory for the books");
    let policy = || TenantPolicy::new(Limits::default()).tenant("a", Limits::default());
    let wrong = policy().tenant("b/c", Limits::default());
    assert!(Executors::new(&hw, wrong).is_err());
    assert!(hw.root().children().is_empty());
    assert!(Executors::new(&hw, policy()).is_ok());
}

// Symptom: the tenant in the settings of an executor was overwritten by the default one.
#[test]
fn the_tenant_of_an_executors_settings_stays() {
    for (base, wanted) in [
        (tenant(SessionConfig::new(), "a"), "a"),
        (SessionConfig::new(), ""),
    ] {
        let producer = config_producer(Arc::new(move || base.clone()));
        assert_eq!(tenant_of(&producer()), wanted);
        // Symptom: the settings of a session without a tenant overwrote it.
        let session = config_producer(Arc::new(SessionConfig::new))();
        let travelled = session.to_key_value_pairs();
        let of_task = producer().update_from_key_value_pair(&travelled);
        assert_eq!(tenant_of(&of_task), wanted);
    }
}

// Symptom: all tenants had one directory and one budget to spill; and when Ballista's cleaner had
// removed the directory, in which nothing had been written for a while, no task could spill again.
#[test]
fn each_tenant_spills_on_its_own_and_finds_its_directory() {
    let (_hw, executors) = cluster();
    let work_dir = tempfile::tempdir().expect("a directory");
    let mut config = ExecutorProcessConfig {
        work_dir: work_dir.path().to_str().map(str::to_owned),
        ..ExecutorProcessConfig::default()
    };
    executors
        .configure(&mut config)
        .expect("no memory_pool_size");
    let producer = config.override_runtime_producer.expect("it is set");
    let disk_of = |name: &str| {
        let runtime = producer(&tenant(SessionConfig::new(), name)).expect("a runtime");
        Arc::clone(&runtime.disk_manager)
    };
    let [of_a, of_b] = ["a", "b"].map(disk_of);
    assert!(!Arc::ptr_eq(&of_a, &of_b), "each has a budget");
    assert!(Arc::ptr_eq(&of_a, &disk_of("a")), "all its tasks have it");
    assert!(Arc::ptr_eq(&disk_of(""), &disk_of("unknown")));
    for entry in std::fs::read_dir(work_dir.path()).expect("it is there") {
        std::fs::remove_dir_all(entry.expect("a name").path()).expect("it can be removed");
    }
    for name in ["a", "b", ""] {
        let file = disk_of(name).create_tmp_file("a sort");
        file.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

// Goal: an executor that could not spill does not start, and its configuration stays as it was.
// Method: working directories at and below a regular file, and then a good one.
#[test]
fn a_spill_directory_that_cannot_be_used_is_refused() {
    let (_hw, executors) = cluster();
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("written");
    let good = dir.path().join("work");
    std::fs::create_dir(&good).expect("a directory");
    let text = |path: &Path| path.to_str().map(str::to_owned);
    let mut config = ExecutorProcessConfig::default();
    let capacity = config.session_runtime_cache_capacity;
    for unusable in [file.clone(), file.join("below")] {
        config.work_dir = text(&unusable);
        assert!(executors.configure(&mut config).is_err(), "{unusable:?}");
        assert_eq!(config.work_dir, text(&unusable));
        assert_eq!(config.memory_pool_size, None);
        assert_eq!(config.session_runtime_cache_capacity, capacity);
        assert!(config.override_runtime_producer.is_none());
        assert!(config.override_config_producer.is_none());
        assert!(config.override_physical_codec.is_none());
    }
    config.work_dir = text(&good);
    executors.configure(&mut config).expect("it can be used");
    let producer = config.override_runtime_producer.expect("it is set");
    let runtime = producer(&tenant(SessionConfig::new(), "a")).expect("a runtime");
    let spilled = runtime.disk_manager.create_tmp_file("a sort");
    let spilled = spilled.expect("a file");
    let path = spilled.path().expect("it is on a disk");
    assert!(path.starts_with(&good), "{path:?}");
}

// Symptom: a client could have any number of bytes kept and logged, after which a tenant that an
// executor lacked was told nowhere.
#[test]
fn tasks_of_unknown_tenants_are_counted() {
    let (_hw, executors) = cluster();
    for nth in 0..200 {
        let name = format!("{nth}{}", "x".repeat(100_000));
        drop(task(&executors, &tenant(SessionConfig::new(), &name)));
    }
    drop(task(&executors, &tenant(SessionConfig::new(), "a")));
    drop(task(&executors, &SessionConfig::new()));
    assert_eq!(executors.nr_unknown(), 200);
}
