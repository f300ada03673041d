//! Question: how many groups can be created, charged and removed in a second?
//!
//! Command: `cargo bench -p highwater --bench group_churn`. Prints the CPU time for creating a
//! group, charging a page to it, uncharging that and removing the group, as medians over
//! interleaved rounds on one thread: in both regimes, beside a thousand other groups, of a manager,
//! and with charges by a second thread on another CPU, whose tokens have to be stolen from that
//! CPU. Then the same of two threads below one tenant, each with groups of its own names. Fails if
//! on one thread it is fewer than 100,000 a second, of a manager or of a tree.
//! Medians carry over to other machines roughly. Without `--bench` (as under `cargo test
//! --benches`) it does a thousandth of the work and promises nothing.
//!
//! What would change our mind: below 100,000 a second, a group for each query is too expensive for
//! short queries.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod promise;
mod timing;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;

use highwater::Manager;
use highwater::group::{GroupNode, GroupTree, Limits};
use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::Pages;
use promise::Promise;
use timing::{Medians, ROUNDS, Variant, measure};

const TIMES: u32 = 20_000;
const PER_SECOND: f64 = 100_000.0;
const OF_A_MANAGER: &str = "of a manager";
const OF_A_TREE: &str = "one thread";

/// A tenant in a tree of this machine. The tree's handle keeps those of groups cheap.
struct Tenant {
    tree: GroupTree,
    node: GroupNode,
}

fn tenant(regime: Regime) -> Tenant {
    let tree = GroupTree::with_regime(regime, Topology::detect().nr_cpus());
    let limits = Limits::max(Pages(1 << 20).bytes());
    let node = tree.root().child("tenant", limits);
    let node = node.expect("a name that is free");
    Tenant { tree, node }
}

thread_local! {
    /// The thread's own.
    static NAME: String = format!("query {:?}", thread::current().id());
}

fn query(tenant: &Tenant) -> GroupNode {
    let query = NAME.with(|name| tenant.node.child(name, Limits::default()));
    query.expect("the one before was removed")
}

fn remove(tenant: &Tenant, group: &GroupNode) {
    let removed = tenant.tree.remove(group);
    removed.expect("it has no children");
}

fn alone(name: &'static str, tenant: Tenant) -> Variant {
    Variant::new(name, TIMES, move |times| {
        for _ in 0..times {
            let query = query(&tenant);
            let charge = query.try_charge(black_box(Pages(1).bytes()));
            drop(charge.expect("there is room"));
            remove(&tenant, &query);
        }
    })
}

/// The groups of a manager's user, without pages. The manager is kept, as a program keeps it.
fn of_a_manager(name: &'static str) -> Variant {
    let hw = Manager::builder().build().expect("a small manager");
    let tenant = hw.root().child("tenant", Limits::default());
    let tenant = tenant.expect("a name that is free");
    Variant::new(name, TIMES, move |times| {
        let _kept = &hw;
        for _ in 0..times {
            let query = NAME.with(|name| tenant.child(name, Limits::default()));
            let query = query.expect("the one before was removed");
            let charge = query.charge(black_box(Pages(1).bytes()));
            drop(charge.expect("there is room"));
            query.remove().expect("it has no children");
        }
    })
}

/// Another thread charges to each group too, so that tokens are left on its CPU.
fn beside_another(name: &'static str, tenant: Tenant) -> Variant {
    Variant::new(name, TIMES / 20, move |times| {
        let (to_other, groups) = mpsc::channel::<GroupNode>();
        let (to_us, done) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                for group in groups {
                    drop(group.try_charge(Pages(1).bytes()).expect("there is room"));
                    to_us.send(()).expect("it is waited for");
                }
            });
            for _ in 0..times {
                let query = query(&tenant);
                to_other.send(query.clone()).expect("the other lives");
                drop(query.try_charge(Pages(1).bytes()).expect("there is room"));
                done.recv().expect("the other lives");
                remove(&tenant, &query);
            }
            drop(to_other);
        });
    })
}

fn variants() -> Vec<Variant> {
    let preferred = Regime::preferred(&Topology::detect());
    let crowded = tenant(preferred);
    for nth in 0..1_000 {
        let sibling = crowded
            .node
            .child(&format!("sibling-{nth}"), Limits::default());
        drop(
            sibling
                .expect("a name that is free")
                .try_charge(Pages(1).bytes()),
        );
    }
    vec![
        alone(OF_A_TREE, tenant(preferred)),
        alone("one thread, atomic regime", tenant(Regime::Atomic)),
        alone("beside 1,000 groups", crowded),
        of_a_manager(OF_A_MANAGER),
        beside_another("charged by two threads", tenant(preferred)),
    ]
}

fn of_two_threads() -> Vec<Variant> {
    let tenant = tenant(Regime::preferred(&Topology::detect()));
    vec![
        alone("two threads", tenant),
        of_a_manager("two threads, of a manager"),
    ]
}

fn main() -> ExitCode {
    println!(
        "{}; {ROUNDS} interleaved rounds; medians of CPU time",
        Topology::detect()
    );
    let medians: Medians = measure(&variants(), 1);
    let per_second = |ns: f64| 1e9 / ns;
    let show = |medians: &Medians| {
        println!("\n{:28}ns each   groups a second", "");
        for (name, ns) in medians {
            println!("  {name:26}{ns:7.0}  {:16.0}", per_second(*ns));
        }
    };
    show(&medians);
    show(&measure(&of_two_threads(), 2));
    let promises = [OF_A_MANAGER, OF_A_TREE].map(|wanted| {
        let found = medians.iter().find(|(name, _)| *name == wanted);
        let (_, ns) = found.expect("it was measured");
        let name = format!("groups created, charged and removed in a second, {wanted}");
        Promise::new(name, per_second(*ns), PER_SECOND..)
    });
    promise::report(Ok(&promises))
}
