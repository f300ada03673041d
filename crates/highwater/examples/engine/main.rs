//! A small transactional key-value store on Highwater: a B+-tree of pages larger than memory, a log
//! before the pages, fuzzy checkpoints, and recovery. An example to read, not a product.
//!
//! `cargo run --release --example engine` moves money between accounts on four threads while it
//! takes checkpoints, opens the store again, and counts the money.
//!
//! Read it in this order: `node.rs` (a page), `tree.rs` (pages in a tree), `log.rs` (records),
//! `store.rs` (transactions, checkpoints, recovery), `data_file.rs` (checksums); and
//! `docs/engine.md`.

#![expect(clippy::print_stdout, reason = "an example shows its results")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use highwater::{Background, Bytes, FileBacking, Manager, Pages};
use store::{Media, Store, StoreError};

mod data_file;
mod log;
mod node;
mod store;
mod tree;

const ACCOUNTS: u64 = 30_000;
const OPENING: u64 = 3;
const DATA: Bytes = Bytes::mib(16);
/// A quarter of what the accounts need.
const MEMORY: Bytes = Bytes::mib(1);
const RUN: Duration = Duration::from_secs(2);

fn open(hw: &Manager, dir: &Path) -> Result<Store, Box<dyn Error>> {
    let mut options = std::fs::OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(dir.join("data"))?;
    file.set_len(DATA.0)?;
    let media = Media {
        data: Arc::new(data_file::DataFile(Arc::new(FileBacking::new(file)?))),
        append: log::append_and_sync,
    };
    Ok(Store::open(hw, &hw.root(), dir, media)?)
}

/// Returns the key of an account: in no order, so that they share leaves with any others.
fn key(account: u64) -> u64 {
    account.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn number(value: Option<Vec<u8>>) -> u64 {
    value.map_or(0, |it| u64::from_le_bytes(it.try_into().expect("8 bytes")))
}

/// Moves money between two accounts; an account without money is closed.
fn transfer(store: &Store, from: u64, to: u64) -> Result<(), StoreError> {
    let mut transaction = store.begin();
    let (has, gets) = (number(transaction.get(from)?), number(transaction.get(to)?));
    if from == to || has == 0 {
        return Ok(());
    }
    match has - 1 {
        0 => transaction.remove(from),
        left => transaction.put(from, &left.to_le_bytes())?,
    }
    transaction.put(to, &(gets + 1).to_le_bytes())?;
    transaction.commit()
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let hw = Manager::builder()
        .capacity(MEMORY)
        .background(Background::Thread)
        .build()?;
    let store = open(&hw, dir.path())?;
    let accounts: Vec<u64> = (0..ACCOUNTS).map(key).collect();
    for some in accounts.chunks(node::KEYS_MAX) {
        let mut transaction = store.begin();
        for account in some {
            transaction.put(*account, &OPENING.to_le_bytes())?;
        }
        transaction.commit()?;
    }

    let begun = Instant::now();
    let committed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (store, committed) = (&store, &committed);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut account = || key(random.u64(..ACCOUNTS));
                while begun.elapsed() < RUN {
                    match transfer(store, account(), account()) {
                        Ok(()) => _ = committed.fetch_add(1, Relaxed),
                        Err(StoreError::Conflict(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        while begun.elapsed() < RUN {
            let pause = || std::thread::sleep(Duration::from_millis(1));
            store.checkpoint(Pages(64), pause).expect("a checkpoint");
        }
    });
    let rate = committed.load(Relaxed) as f64 / begun.elapsed().as_secs_f64();
    println!("{rate:.0} transactions a second");

    drop(store);
    let store = open(&hw, dir.path())?;
    let (mut money, mut from) = (0, Some(0));
    while let Some(key) = from {
        let (entries, next) = store.scan(key)?;
        for (_, value) in entries {
            money += number(Some(value));
        }
        from = next;
    }
    println!("after recovery: {money} in all");
    assert_eq!(money, ACCOUNTS * OPENING);
    Ok(())
}
