//! The store: transactions over the tree, checkpoints, recovery.
//!
//! A transaction collects its writes, and notes what it read. Its commit latches the leaves of all
//! these keys in the order of the keys, checks that it would read the same again, and appends one
//! record for all its writes: so a crash leaves all of them or none, and nothing has to be undone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, TryLockError};

use highwater::{
    Access, Backing, File, FilePage, Group, Manager, OpenError, PAGE_SIZE, Pages, RangeError,
    ReadError, SyncError, WriteGate,
};

use super::log::{Append, Change, Log, Record, replay};
use super::node::{self, KEYS_MAX, Node, Page, VALUE_MAX};
use super::tree::{self, Held, Tree};

/// Where the store reaches its files.
pub(crate) struct Media {
    /// The data file, which checks and makes checksums.
    pub(crate) data: Arc<dyn Backing>,
    /// How the log is written.
    pub(crate) append: Append,
}

pub(crate) struct Store {
    tree: Tree,
    file: File,
    log: Arc<Log>,
    /// Held during a checkpoint: another one would miss an error that only this one is told of.
    checkpointing: Mutex<()>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("all {0} pages of the store are used: create it with more")]
    Full(u64),
    #[error("the log or the data file: {0}")]
    Io(#[from] io::Error),
    #[error("another transaction changed key {0}: try again")]
    Conflict(u64),
    #[error("the value of key {0} has {1} bytes: at most {VALUE_MAX}")]
    TooLong(u64, usize),
    #[error("a checkpoint is in progress: wait for its end")]
    Checkpointing,
    #[error("the transaction has {0} keys: at most {KEYS_MAX}")]
    TooMany(usize),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// A key and its value.
pub(crate) type Entry = (u64, Vec<u8>);

/// A transaction: nothing of it is visible before it commits. Dropped, it leaves nothing.
pub(crate) struct Transaction<'a> {
    store: &'a Store,
    reads: BTreeMap<u64, Option<Vec<u8>>>,
    writes: BTreeMap<u64, Option<Vec<u8>>>,
}

impl Store {
    /// Opens a store, whose pages `group` pays for; creates it if the directory has no log, and
    /// recovers what was committed.
    pub(crate) fn open(
        hw: &Manager,
        group: &Group,
        dir: &Path,
        media: Media,
    ) -> Result<Self, StoreError> {
        let next = recover(dir, &media)?;
        let log = Arc::new(Log::begin(dir, next, media.append)?);
        log.remove_before(next)?;
        let file = hw.open_backing(media.data, Access::ReadWrite)?;
        file.set_write_gate(Arc::clone(&log) as _);
        let tree = Tree::new(hw.space(group).map_file(&file, 0..file.pages())?);
        Ok(Self {
            tree,
            file,
            log,
            checkpointing: Mutex::new(()),
        })
    }

    pub(crate) fn begin(&self) -> Transaction<'_> {
        Transaction {
            store: self,
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
        }
    }

    /// Returns the value of a key, which is committed, and perhaps not durable yet.
    pub(crate) fn get(&self, key: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let read = |leaf: &dyn node::Words, _| leaf.find(key).ok().map(|at| leaf.value(at));
        self.tree.with_leaf(key, read)
    }

    /// Returns the keys and values of one leaf, from `first` on, as they were at some moment; and
    /// the key from which to read on.
    pub(crate) fn scan(&self, first: u64) -> Result<(Vec<Entry>, Option<u64>), StoreError> {
        self.tree.with_leaf(first, |leaf, end| {
            let (Ok(begin) | Err(begin)) = leaf.find(first);
            let entries = (begin..leaf.count()).map(|at| (leaf.key(at), leaf.value(at)));
            (entries.collect(), end)
        })
    }

    /// Shortens the log: pages that were changed before now are written back while transactions go
    /// on, `at_a_time` of them between two calls of `pause`. One checkpoint at a time.
    pub(crate) fn checkpoint(&self, at_a_time: Pages, pause: impl Fn()) -> Result<(), StoreError> {
        let _checkpointing = match self.checkpointing.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(StoreError::Checkpointing),
            // A `pause` that panicked leaves nothing half done.
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
        };
        let redo = self.log.switch()?;
        loop {
            match self.file.checkpoint(redo, at_a_time) {
                Ok(redone) if redone >= redo => return Ok(self.log.remove_before(redo)?),
                Ok(_) => pause(),
                Err(error) => {
                    if !matches!(error, SyncError::WriteBack { .. }) {
                        self.log.fail(io::ErrorKind::Other);
                    }
                    return Err(io::Error::other(error).into());
                }
            }
        }
    }
}

impl Transaction<'_> {
    /// Returns a key's value; the commit fails if it is another by then.
    pub(crate) fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(value) = self.writes.get(&key).or_else(|| self.reads.get(&key)) {
            return Ok(value.clone());
        }
        let value = self.store.get(key)?;
        self.reads.insert(key, value.clone());
        Ok(value)
    }

    pub(crate) fn put(&mut self, key: u64, value: &[u8]) -> Result<(), StoreError> {
        if value.len() > VALUE_MAX {
            return Err(StoreError::TooLong(key, value.len()));
        }
        self.writes.insert(key, Some(value.to_vec()));
        Ok(())
    }

    pub(crate) fn remove(&mut self, key: u64) {
        self.writes.insert(key, None);
    }

    /// Commits; when it returns, the writes are durable.
    pub(crate) fn commit(self) -> Result<(), StoreError> {
        let mut keys: BTreeSet<u64> = self.writes.keys().copied().collect();
        keys.extend(self.reads.keys());
        if keys.len() > KEYS_MAX {
            return Err(StoreError::TooMany(keys.len()));
        }
        let lsn = loop {
            if let Some(lsn) = self.try_apply(&keys)? {
                break lsn;
            }
        };
        Ok(self.store.log.flush(lsn)?)
    }

    /// Applies the writes; returns the LSN of their record. Returns `None` if other threads were in
    /// the way, or after it split a leaf.
    fn try_apply(&self, keys: &BTreeSet<u64>) -> Result<Option<u64>, StoreError> {
        let Store { tree, log, .. } = self.store;
        let mut leaves: Vec<Leaf<'_>> = Vec::new();
        for &key in keys {
            let is_here = |leaf: &Leaf<'_>| leaf.end.is_none_or(|end| key < end);
            if !leaves.last().is_some_and(is_here) {
                let Some((held, end)) = tree.latch_leaf(key)? else {
                    drop(leaves);
                    // Waits for what was in the way, or finds why the leaf cannot be read.
                    tree.with_leaf(key, |_, _| ())?;
                    return Ok(None);
                };
                let keys = Vec::new();
                leaves.push(Leaf { held, end, keys });
            }
            leaves.last_mut().expect("it has the key").keys.push(key);
        }
        self.check(&leaves)?;
        let crowded = leaves.iter().find(|leaf| !self.has_room(leaf));
        if let Some(key) = crowded.map(|leaf| leaf.keys[0]) {
            drop(leaves);
            tree.split(log, key)?;
            return Ok(None);
        }
        let lsn = log.append(|lsn, redo| self.apply(&mut leaves, lsn, redo));
        Ok(Some(lsn))
    }

    /// Checks that what was read is still there.
    fn check(&self, leaves: &[Leaf<'_>]) -> Result<(), StoreError> {
        for Leaf { held, keys, .. } in leaves {
            for key in keys {
                let now = || held.page.find(*key).ok().map(|at| held.page.value(at));
                if self.reads.get(key).is_some_and(|then| *then != now()) {
                    return Err(StoreError::Conflict(*key));
                }
            }
        }
        Ok(())
    }

    fn has_room(&self, leaf: &Leaf<'_>) -> bool {
        let page = &leaf.held.page;
        let is_new = |key: &&u64| {
            let puts = matches!(self.writes.get(key), Some(Some(_)));
            puts && page.find(**key).is_err()
        };
        page.count() + leaf.keys.iter().filter(is_new).count() <= page.capacity()
    }

    /// Applies the writes to their leaves; returns their record.
    fn apply(&self, leaves: &mut [Leaf<'_>], lsn: u64, redo: u64) -> Record {
        let mut record = Record::new();
        for Leaf { held, keys, .. } in leaves {
            let change = |key: &u64| Some(Change::Set(*key, self.writes.get(key)?.clone()));
            let changes: Vec<Change> = keys.iter().filter_map(change).collect();
            if changes.is_empty() {
                continue;
            }
            let is_first = held.page.lsn() < redo;
            let apply = |change: &Change| change.apply(&mut held.page);
            changes.iter().for_each(apply);
            held.stamp(lsn);
            if is_first {
                record.push(held.image());
            } else {
                record.extend(changes.into_iter().map(|change| (held.number, change)));
            }
        }
        record
    }
}

/// A latched leaf, and the keys in it of a transaction.
struct Leaf<'a> {
    held: Held<'a>,
    /// First key after it.
    end: Option<u64>,
    keys: Vec<u64>,
}

/// Applies the log to the data file; returns the LSN of the next record. A crash in the middle of
/// it is mended by the next recovery: the log stays until the pages are durable.
fn recover(dir: &Path, media: &Media) -> Result<u64, StoreError> {
    fs::create_dir_all(dir)?;
    let mut pages: BTreeMap<u64, Box<Page>> = BTreeMap::new();
    let next = replay(dir, |lsn, record| {
        for (number, change) in record {
            let empty = || vec![0; PAGE_SIZE].into();
            let page = pages.entry(number).or_insert_with(empty);
            change.apply(page);
            node::set_lsn(page, lsn);
        }
    })?;
    if next == 1 {
        // The store is new, or nothing was ever committed.
        pages.extend(tree::empty());
    }
    for (number, mut page) in pages {
        let number = FilePage(number);
        media.data.seal(number, &mut page[..]);
        if media.data.write_page(number, &page[..])? < page.len() {
            return Err(io::Error::from(io::ErrorKind::WriteZero).into());
        }
    }
    media.data.sync()?;
    Ok(next)
}
