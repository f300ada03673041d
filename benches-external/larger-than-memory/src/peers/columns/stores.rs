//! Key-value stores that users would take instead: a value for each page.

#![expect(unsafe_code, reason = "LMDB is opened by unsafe functions")]

use std::path::Path;

use heed::types::{Bytes, U64};
use heed::{Database, Env, EnvFlags, EnvOpenOptions, PutFlags};
use redb::{ReadTransaction, TableDefinition};

use super::{Config, Paged, VALUE, change, fill, word_of};
use crate::Error;

/// Bytes of address space for LMDB.
const LMDB_MAX: usize = 1 << 38;

const TABLE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("pages");

type LmdbPages = Database<U64<heed::byteorder::BigEndian>, Bytes>;

/// Returns the store's environment, without readahead, which it does not need for single pages.
fn lmdb(dir: &Path) -> Result<Env, Error> {
    let mut options = EnvOpenOptions::new();
    options.map_size(LMDB_MAX);
    // SAFETY: of the flags, these keep all of LMDB's guarantees.
    unsafe { options.flags(EnvFlags::NO_SUB_DIR | EnvFlags::NO_READ_AHEAD) };
    // SAFETY: no other process has it open, and it is opened once.
    Ok(unsafe { options.open(dir.join("lmdb"))? })
}

pub fn create_lmdb(dir: &Path, pages: u64) -> Result<(), Error> {
    let env = lmdb(dir)?;
    let mut transaction = env.write_txn()?;
    let all: LmdbPages = env.create_database(&mut transaction, None)?;
    let mut value = [0; VALUE];
    for page in 0..pages {
        fill(page, &mut value);
        all.put_with_flags(&mut transaction, PutFlags::APPEND, &page, &value)?;
    }
    Ok(transaction.commit()?)
}

pub fn create_redb(dir: &Path, pages: u64) -> Result<(), Error> {
    let store = redb::Database::create(dir.join("redb"))?;
    let transaction = store.begin_write()?;
    {
        let mut table = transaction.open_table(TABLE)?;
        let mut value = [0; VALUE];
        for page in 0..pages {
            fill(page, &mut value);
            table.insert(page, &value[..])?;
        }
    }
    Ok(transaction.commit()?)
}

/// LMDB: a tree in a mapping.
pub struct Lmdb {
    env: Env,
    pages: LmdbPages,
    /// Updates that are not committed.
    changes: Vec<(u64, usize, u64)>,
}

impl Lmdb {
    pub fn open(config: &Config) -> Result<Box<dyn Paged>, Error> {
        let env = lmdb(&config.dir)?;
        let transaction = env.read_txn()?;
        let pages = env.open_database(&transaction, None)?;
        let pages = pages.ok_or("LMDB has no data")?;
        drop(transaction);
        let changes = Vec::new();
        Ok(Box::new(Self {
            env,
            pages,
            changes,
        }))
    }
}

impl Paged for Lmdb {
    fn read(&mut self, page: u64, line: usize) -> Result<u64, Error> {
        let transaction = self.env.read_txn()?;
        let value = self.pages.get(&transaction, &page)?;
        Ok(word_of(value.ok_or("LMDB has lost a page")?, line))
    }

    fn update(&mut self, page: u64, line: usize, value: u64) -> Result<(), Error> {
        self.changes.push((page, line, value));
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        let mut transaction = self.env.write_txn()?;
        let mut bytes = [0; VALUE];
        for (page, line, value) in self.changes.drain(..) {
            let before = self.pages.get(&transaction, &page)?;
            bytes.copy_from_slice(before.ok_or("LMDB has lost a page")?);
            change(&mut bytes, line, value);
            self.pages.put(&mut transaction, &page, &bytes)?;
        }
        Ok(transaction.commit()?)
    }
}

/// redb: a copy-on-write tree with a cache of its own.
pub struct Redb {
    store: redb::Database,
    /// Kept over reads, as long as nothing is committed.
    reading: Option<ReadTransaction>,
    changes: Vec<(u64, usize, u64)>,
}

impl Redb {
    pub fn open(config: &Config) -> Result<Box<dyn Paged>, Error> {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(config.cache() as usize);
        let store = builder.open(config.dir.join("redb"))?;
        Ok(Box::new(Self {
            store,
            reading: None,
            changes: Vec::new(),
        }))
    }
}

impl Paged for Redb {
    fn read(&mut self, page: u64, line: usize) -> Result<u64, Error> {
        use redb::ReadableDatabase;
        let reading = match &mut self.reading {
            Some(reading) => reading,
            none => none.insert(self.store.begin_read()?),
        };
        let table = reading.open_table(TABLE)?;
        let value = table.get(page)?.ok_or("redb has lost a page")?;
        Ok(word_of(value.value(), line))
    }

    fn update(&mut self, page: u64, line: usize, value: u64) -> Result<(), Error> {
        self.changes.push((page, line, value));
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        use redb::ReadableTable;
        self.reading = None;
        let transaction = self.store.begin_write()?;
        {
            let mut table = transaction.open_table(TABLE)?;
            let mut bytes = [0; VALUE];
            for (page, line, value) in self.changes.drain(..) {
                let before = table.get(page)?.ok_or("redb has lost a page")?;
                bytes.copy_from_slice(before.value());
                drop(before);
                change(&mut bytes, line, value);
                table.insert(page, &bytes[..])?;
            }
        }
        Ok(transaction.commit()?)
    }
}
