//! A cluster on loopback: a scheduler in this process, and executors as processes.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use ballista::prelude::SessionContextExt;
use ballista_core::config::TaskSchedulingPolicy;
use ballista_core::extension::SessionConfigExt;
use ballista_core::utils::default_config_producer;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::error::Result;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use highwater::{Bytes, Limits, Manager};
use highwater_ballista::{Executors, TenantPolicy, config_producer, tenant};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Variables by which a process learns that it is an executor.
const SCHEDULER: &str = "CLUSTER_SCHEDULER";
const WORK_DIR: &str = "CLUSTER_WORK_DIR";

/// Maximum of each named tenant on an executor, and of `default`.
pub const TENANT_MAX: Bytes = Bytes::mib(64);
pub const DEFAULT_MAX: Bytes = Bytes::kib(256);
/// The tenants that have a maximum of their own.
pub const TENANTS: [&str; 2] = ["a", "b"];

pub fn executors(hw: &Manager) -> Executors {
    let policy = TenantPolicy::new(Limits::max(DEFAULT_MAX));
    let policy = TENANTS.into_iter().fold(policy, |policy, name| {
        policy.tenant(name, Limits::max(TENANT_MAX))
    });
    Executors::new(hw, policy).expect("the names are free")
}

pub fn manager() -> Manager {
    let books = Manager::builder()
        .capacity(Bytes::mib(128))
        .frames(Bytes::ZERO);
    books.build().expect("memory for the books")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Runs this process as an executor if its parent said so; then it never returns.
pub async fn become_executor() {
    let [Ok(scheduler), Ok(work_dir)] = [SCHEDULER, WORK_DIR].map(std::env::var) else {
        return;
    };
    let hw = manager();
    let executor = executors(&hw);
    let mut config = ExecutorProcessConfig {
        port: free_port(),
        grpc_port: free_port(),
        scheduler_host: "127.0.0.1".into(),
        scheduler_port: scheduler.parse().expect("a port"),
        scheduler_connect_timeout_seconds: 20,
        external_host: Some("127.0.0.1".into()),
        vcores: 2,
        work_dir: Some(work_dir),
        task_scheduling_policy: TaskSchedulingPolicy::PushStaged,
        executor_heartbeat_interval_seconds: 1,
        ..ExecutorProcessConfig::default()
    };
    executor.configure(&mut config).expect("no pool of its own");
    tokio::spawn(answer(hw, executor));
    let ended = start_executor_process(Arc::new(config)).await;
    panic!("the executor ended: {ended:?}");
}

/// Answers each line of the standard input by a line, and ends the process with its input.
async fn answer(hw: Manager, executor: Executors) {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(_)) = lines.next_line().await {
        let running: u64 = ["", "a", "b"]
            .map(|name| executor.tenant(name).counts().running)
            .into_iter()
            .sum();
        let groups: usize = hw
            .root()
            .children()
            .iter()
            .map(|it| it.children().len())
            .sum();
        let used = hw.root().usage_precise().0;
        let peak = hw.root().peak().high.0;
        let is_healthy = executor.watch().is_healthy();
        println!("REPORT {running} {groups} {used} {peak} {is_healthy}");
    }
    std::process::exit(0);
}

/// An executor's answer.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Tasks that run.
    pub running: u64,
    /// Groups of tasks.
    pub groups: usize,
    /// Bytes charged, and the most that ever were.
    pub used: u64,
    pub peak: u64,
    /// Whether no task had a foreign pool.
    pub is_healthy: bool,
}

/// An executor in a process of its own. Killed when it is dropped.
pub struct ExecutorProcess {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl ExecutorProcess {
    /// Starts this program again, which must call [`become_executor`].
    pub fn start(scheduler: u16, work_dir: &Path, args: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(args)
            .env(SCHEDULER, scheduler.to_string())
            .env(WORK_DIR, work_dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("a process");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self {
            child,
            input,
            output,
        }
    }

    pub async fn report(&mut self) -> Report {
        self.input
            .write_all(b"\n")
            .await
            .expect("the executor runs");
        while let Some(line) = self.output.next_line().await.expect("text") {
            let Some((_, numbers)) = line.split_once("REPORT ") else {
                continue;
            };
            let mut words = numbers.split(' ');
            let mut next = || words.next().expect("five words");
            let number = |word: &str| word.parse::<u64>().expect("a number");
            return Report {
                running: number(next()),
                groups: number(next()) as usize,
                used: number(next()),
                peak: number(next()),
                is_healthy: next() == "true",
            };
        }
        panic!("the executor ended");
    }

    /// Returns a report after the last task ended, or of the moment 10 s later.
    pub async fn settled(&mut self) -> Report {
        let mut report = self.report().await;
        for _ in 0..200 {
            if (report.running, report.groups, report.used) == (0, 0, 0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            report = self.report().await;
        }
        report
    }

    /// Ends it as the kernel does when memory is gone.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("it runs");
    }
}

/// Starts a scheduler; returns its port.
pub async fn start_scheduler() -> u16 {
    let port = free_port();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let config = SchedulerConfig {
        bind_host: "127.0.0.1".into(),
        bind_port: port,
        external_host: "127.0.0.1".into(),
        scheduling_policy: TaskSchedulingPolicy::PushStaged,
        executor_timeout_seconds: 6,
        expire_dead_executor_interval_seconds: 2,
        no_executors_grace_period_seconds: 6,
        override_config_producer: Some(config_producer(Arc::new(default_config_producer))),
        ..SchedulerConfig::default()
    };
    let cluster = BallistaCluster::new_from_config(&config).await;
    let cluster = cluster.expect("a cluster in memory");
    tokio::spawn(start_server(cluster, address, Arc::new(config)));
    while tokio::net::TcpStream::connect(address).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    port
}

/// Returns a client's session of a tenant.
pub async fn session(scheduler: u16, name: &str, data: &Path) -> Result<SessionContext> {
    let config = SessionConfig::new_with_ballista().with_target_partitions(4);
    let state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(tenant(config, name))
        .build();
    let url = format!("df://127.0.0.1:{scheduler}");
    let context = SessionContext::remote_with_state(&url, state).await?;
    register(&context, data).await?;
    Ok(context)
}

pub async fn register(context: &SessionContext, data: &Path) -> Result<()> {
    let path = data.to_str().expect("a path in UTF-8");
    let options = ParquetReadOptions::default();
    context.register_parquet("lines", path, options).await
}

/// Writes a table of `rows` rows, in four files.
pub async fn write_table(data: &Path, rows: u64) -> Result<()> {
    let config = SessionConfig::new().with_target_partitions(4);
    let context = SessionContext::new_with_config(config);
    let sql = format!(
        "select value as k, (value * 7919) % 100003 as price, \
         concat('a line of text with the number ', value) as text \
         from generate_series(1, {rows})"
    );
    let path = data.to_str().expect("a path in UTF-8");
    let table = context.sql(&sql).await?;
    let table = table.repartition(datafusion::logical_expr::Partitioning::RoundRobinBatch(4))?;
    table
        .write_parquet(path, DataFrameWriteOptions::new(), None)
        .await?;
    Ok(())
}

/// A sort of the whole table: each task of it asks for memory.
pub const SORT: &str = "select price, text from lines order by price, text limit 100000";
/// Groups as many as rows.
pub const AGGREGATE: &str =
    "select text, max(price) as price from lines group by text order by text limit 20";
/// A join, whose build side cannot spill.
pub const JOIN: &str = "select count(*), sum(l.price) from lines l join lines r on l.k = r.price";
