//! Interleavings of two or three threads with at most three preemptions, in the atomic regime and
//! with one item: `RUSTFLAGS="--cfg loom" cargo test --release -p highwater --lib stat::loom`.
//!
//! Restartable sequences differ in that they check and store in one step; the stress test of
//! `percpu::windowed` covers them. Before the threads begin, blocks exist and groups have their
//! numbers, because the locks behind those are not modelled.

use std::time::Duration;

use super::{StatItem, Tolerance};
use crate::group::{GroupNode, GroupTree, Limits};
use crate::sync::thread;
use crate::units::CpuId;

const ITEM: StatItem = StatItem::Anon;
const A: CpuId = CpuId(0);
const B: CpuId = CpuId(1);
const T: Duration = Duration::ZERO;

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 20_000;
    builder.check(test);
}

/// Returns a group below the root in which both CPUs have counted, 2 in all, and whose blocks are
/// closed.
fn child() -> GroupNode {
    let root = GroupTree::new(2).root();
    let child = root.child("g", Limits::default()).unwrap();
    child.at(A).add_stat(ITEM, 1);
    child.at(B).add_stat(ITEM, 1);
    assert_eq!(exact(&root), 2);
    child
}

fn exact(group: &GroupNode) -> i64 {
    group.read_stat(ITEM, Tolerance::EXACT, T).value
}

/// Returns the largest value that a read without a flush states as possible.
fn most(group: &GroupNode) -> i64 {
    let read = group.read_stat(ITEM, Tolerance::ANY, T);
    read.value + i64::try_from(read.staleness).unwrap()
}

fn root_of(group: &GroupNode) -> GroupNode {
    group.parent().unwrap()
}

// Goal: updates made while a block is closed are not lost. Method: updates of one CPU beside a
// flush of its group; one that stays in the window, and one that leaves it.
#[test]
fn no_update_is_lost_at_a_flush() {
    for second in [1, 40] {
        model(move || {
            let child = child();
            child.at(A).add_stat(ITEM, 1);
            let other = child.clone();
            let updater = thread::spawn(move || other.at(A).add_stat(ITEM, second));
            child.flush_subtree(T);
            updater.join().unwrap();
            assert!(most(&child) >= 3 + second, "the bound holds what is hidden");
            assert!(most(&root_of(&child)) >= 3 + second);
            assert_eq!(exact(&child), 3 + second);
            assert_eq!(exact(&root_of(&child)), 3 + second);
        });
    }
}

// Goal: an update that cancels the change which the flush has just read is not lost either: window
// and base have moved, and one of the two must notice.
#[test]
fn an_update_back_to_the_old_base_is_seen() {
    model(|| {
        let child = child();
        child.at(A).add_stat(ITEM, 30);
        let other = child.clone();
        let updater = thread::spawn(move || other.at(A).add_stat(ITEM, -30));
        child.flush_subtree(T);
        updater.join().unwrap();
        let read = child.read_stat(ITEM, Tolerance::ANY, T);
        assert!((read.value - 2).unsigned_abs() <= read.staleness);
        assert_eq!((exact(&child), exact(&root_of(&child))), (2, 2));
    });
}

// Goal: a flush from the root finds a group with updates, whatever was marked and taken before: the
// node that the kernel lost. Method: a flush of the root beside an update below it, then another.
#[test]
fn no_group_is_lost_to_the_flush_above() {
    model(|| {
        let child = child();
        let (root, other) = (root_of(&child), child.clone());
        let updater = thread::spawn(move || {
            other.at(A).add_stat(ITEM, 1);
            exact(&root_of(&other))
        });
        root.flush_subtree(T);
        let seen = updater.join().unwrap();
        assert_eq!(seen, 3, "a read covers what its thread has counted");
        assert_eq!(exact(&root), 3);
        child.at(A).add_stat(ITEM, 1);
        assert_eq!(exact(&root), 4);
    });
}

// Goal: an update that finds a block half open does not rely on steps that are not done yet.
// Method: two updates of one closed block, each followed by an exact read of the root.
#[test]
fn who_meets_an_opening_helps() {
    model(|| {
        let child = child();
        let other = child.clone();
        let updater = thread::spawn(move || {
            other.at(A).add_stat(ITEM, 1);
            assert!(most(&root_of(&other)) >= 3);
        });
        child.at(A).add_stat(ITEM, 1);
        assert!(exact(&root_of(&child)) >= 3);
        updater.join().unwrap();
        assert_eq!(exact(&root_of(&child)), 4);
    });
}

// Goal: a shared flush covers the reader that shares it. Method: two threads count on their own
// CPUs and read exactly.
#[test]
fn a_shared_flush_covers_the_reader() {
    model(|| {
        let child = child();
        let other = child.clone();
        let reader = thread::spawn(move || {
            other.at(B).add_stat(ITEM, 1);
            assert!(exact(&other) >= 3);
        });
        child.at(A).add_stat(ITEM, 1);
        assert!(exact(&child) >= 3);
        reader.join().unwrap();
        assert_eq!(exact(&child), 4);
    });
}

// Goal: the counts of a group are handed up at its end, by the thread that holds its lock then.
// Method: the last handle is dropped while the root is flushed.
#[test]
fn the_end_of_a_group_loses_nothing() {
    model(|| {
        let child = child();
        let root = root_of(&child);
        root.tree().remove(&child).unwrap();
        child.at(A).add_stat(ITEM, 5);
        let flusher = root.clone();
        let flusher = thread::spawn(move || exact(&flusher));
        drop(child);
        let seen = flusher.join().unwrap();
        assert_eq!(seen, 7, "counted before the read began");
        assert_eq!(exact(&root), 7);
    });
}
