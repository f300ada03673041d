//! The tree: descent without latches, and splits.
//!
//! Readers take no latch. They read a node optimistically, note the child, and check the node again
//! once they have begun to read the child: a path that passes is one that existed. After some
//! failures they latch the nodes instead, one after the other.
//!
//! Writers descend in the same way, latch the leaf, and check its parent once more. A leaf without
//! room is split beforehand, with all full nodes above it, each split as a log record of its own
//! that changes no value; one thread splits at a time, from the root downwards. The root stays in
//! its page: when it is full, its entries move to a page below it. Leaves that become empty stay.
//!
//! Order of latches: inner nodes from the root downwards, then leaves from left to right, page 0
//! and new pages last. A thread that holds leaves never waits for an inner node: it gives up.

use std::sync::Mutex;

use highwater::{Mapping, OptimisticRead, PAGE_SIZE, PageWrite, ReadError};

use super::log::{Change, Log};
use super::node::{self, KEYS_MAX, LEAF, META, Node, Page, ROOT, Words};
use super::store::StoreError;

/// Attempts without latches. More would only compete with the writer that fails them.
const ATTEMPTS: usize = 8;

impl Words for OptimisticRead<'_> {
    fn word(&self, offset: usize) -> u64 {
        u64::from_le_bytes(self.array_at(offset))
    }
}

pub(crate) struct Tree {
    map: Mapping,
    /// Held while nodes are split.
    splitting: Mutex<()>,
}

/// A page that is latched for writing, and its number.
pub(crate) struct Held<'a> {
    pub(crate) number: u64,
    pub(crate) page: PageWrite<'a>,
}

impl Held<'_> {
    /// Notes the record that changes the page: in the page, for recovery, and in its frame, so that
    /// it is not written back before the record is durable.
    pub(crate) fn stamp(&mut self, lsn: u64) {
        node::set_lsn(&mut self.page, lsn);
        self.page.set_lsn(lsn);
    }

    pub(crate) fn image(&self) -> (u64, Change) {
        (self.number, Change::Image(self.page[..].into()))
    }
}

/// The leaf of a key, as its parent has it.
struct Place<'a> {
    leaf: u64,
    /// The root has none.
    parent: Option<OptimisticRead<'a>>,
    /// First key after the leaf.
    end: Option<u64>,
}

fn is_unchanged(parent: &Option<OptimisticRead<'_>>) -> bool {
    parent.as_ref().is_none_or(OptimisticRead::validate)
}

impl Tree {
    pub(crate) fn new(map: Mapping) -> Self {
        let splitting = Mutex::new(());
        Self { map, splitting }
    }

    /// Calls `read` with the leaf of a key and the first key after the leaf; returns the answer
    /// that was read while neither changed.
    pub(crate) fn with_leaf<R>(
        &self,
        key: u64,
        read: impl Fn(&dyn Words, Option<u64>) -> R,
    ) -> Result<R, StoreError> {
        for _ in 0..ATTEMPTS {
            if let Some(place) = self.find(key)
                && let Some(leaf) = self.look_at(place.leaf)
                && is_unchanged(&place.parent)
                && leaf.is_leaf()
            {
                let answer = read(&leaf, place.end);
                if leaf.validate() {
                    return Ok(answer);
                }
            }
        }
        let (mut node, mut end) = (self.map.read_latched(ROOT)?, None);
        while !node.is_leaf() {
            let (child, until) = node.child_of(key);
            end = until.or(end);
            // The parent is latched until the child is.
            node = self.map.read_latched(child)?;
        }
        Ok(read(&&node[..], end))
    }

    /// Begins to read a page without its latch, unless it is being written to. Never waits for a
    /// latch.
    fn look_at(&self, number: u64) -> Option<OptimisticRead<'_>> {
        let read = || self.map.read_optimistic(number);
        read().or_else(|| {
            // A page that cannot be read in is found by the latched reads that follow.
            self.map.will_need(number..number + 1).ok()?;
            read()
        })
    }

    /// Descends to a key's leaf. Returns `None` if a node changed on the way.
    fn find(&self, key: u64) -> Option<Place<'_>> {
        let (mut leaf, mut parent, mut end) = (ROOT, None::<OptimisticRead<'_>>, None);
        loop {
            let node = self.look_at(leaf)?;
            // The parent led here, and still does.
            if !is_unchanged(&parent) {
                return None;
            }
            let level = node.level();
            if level > LEAF {
                let (child, until) = node.child_of(key);
                (leaf, end) = (child, until.or(end));
            }
            if !node.validate() {
                return None;
            }
            parent = (level > LEAF).then_some(node);
            if level <= LEAF + 1 {
                return Some(Place { leaf, parent, end });
            }
        }
    }

    /// Latches the leaf of a key for writing; returns the first key after it, too. Gives up if the
    /// way there changes, or cannot be read.
    pub(crate) fn latch_leaf(
        &self,
        key: u64,
    ) -> Result<Option<(Held<'_>, Option<u64>)>, StoreError> {
        for _ in 0..ATTEMPTS {
            if let Some(place) = self.find(key) {
                let held = self.write(place.leaf)?;
                // A split changes the parent; that of the root makes it an inner node.
                if is_unchanged(&place.parent) && held.page.is_leaf() {
                    return Ok(Some((held, place.end)));
                }
            }
        }
        Ok(None)
    }

    fn write(&self, number: u64) -> Result<Held<'_>, ReadError> {
        let page = self.map.write(number)?;
        Ok(Held { number, page })
    }

    /// Splits the leaf of a key, and the full nodes on the way there.
    pub(crate) fn split(&self, log: &Log, key: u64) -> Result<(), StoreError> {
        let _splitting = self.splitting.lock().expect("no split panics");
        let mut node = self.write(ROOT)?;
        if is_crowded(&node.page) {
            self.grow(log, &mut node)?;
        }
        while !node.page.is_leaf() {
            let mut child = self.write(node.page.child_of(key).0)?;
            if is_crowded(&child.page) {
                let upper = self.split_child(log, &mut node, &mut child)?;
                let is_upper = upper.page.key(0) <= key;
                child = if is_upper { upper } else { child };
            }
            node = child;
        }
        Ok(())
    }

    /// Moves the root's entries to a page below it.
    fn grow<'a>(&'a self, log: &Log, root: &mut Held<'a>) -> Result<(), StoreError> {
        let (mut meta, mut below) = self.unused()?;
        below.page.copy_from_slice(&root.page[..]);
        node::format(&mut root.page, below.page.level() + 1);
        node::put_child(&mut root.page, 0, below.number);
        log_images(log, &mut [&mut meta, root, &mut below]);
        Ok(())
    }

    fn split_child<'a>(
        &'a self,
        log: &Log,
        parent: &mut Held<'a>,
        child: &mut Held<'a>,
    ) -> Result<Held<'a>, StoreError> {
        let (mut meta, mut upper) = self.unused()?;
        let first = node::split(&mut child.page, &mut upper.page);
        node::put_child(&mut parent.page, first, upper.number);
        log_images(log, &mut [&mut meta, parent, child, &mut upper]);
        Ok(upper)
    }

    /// Takes a page that was never used; returns page 0, which says so, and the page.
    fn unused(&self) -> Result<(Held<'_>, Held<'_>), StoreError> {
        let mut meta = self.write(META)?;
        let first = meta.page.first_unused();
        if first == self.map.pages() {
            return Err(StoreError::Full(first));
        }
        let page = self.write(first)?;
        node::set_first_unused(&mut meta.page, first + 1);
        Ok((meta, page))
    }
}

/// Returns whether a leaf may have no room for a transaction, or an inner node none for an entry.
fn is_crowded(node: &Page) -> bool {
    let least = if node.is_leaf() { KEYS_MAX } else { 1 };
    node.count() + least > node.capacity()
}

/// Logs pages as they are now.
fn log_images(log: &Log, pages: &mut [&mut Held<'_>]) {
    log.append(|lsn, _| {
        pages.iter_mut().for_each(|held| held.stamp(lsn));
        pages.iter().map(|held| held.image()).collect()
    });
}

/// Returns the first two pages of an empty store.
pub(crate) fn empty() -> [(u64, Box<Page>); 2] {
    let page = || vec![0; PAGE_SIZE].into_boxed_slice();
    let (mut meta, mut root) = (page(), page());
    node::set_first_unused(&mut meta, ROOT + 1);
    node::format(&mut root, LEAF);
    [(META, meta), (ROOT, root)]
}
