//! Promise: a key keeps its pages, ranges never overlap, memory does not grow with the number of
//! keys, and a failing store is an error, never a wrong answer.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use highwater_lab::trace::{BucketStore, DirectoryError, KeyDirectory};

/// A store in memory that fails at one operation; all stores that share `left` count together.
struct Failing {
    bytes: Vec<u8>,
    left: Rc<Cell<u64>>,
}

impl Failing {
    fn step(&self) -> io::Result<()> {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        match left {
            0 => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}

impl BucketStore for Failing {
    fn read_at(&self, target: &mut [u8], offset: u64) -> io::Result<()> {
        self.step()?;
        let start = usize::try_from(offset).unwrap();
        let Some(bytes) = self.bytes.get(start..start + target.len()) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        target.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.step()?;
        let start = usize::try_from(offset).unwrap();
        let end = start + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[start..end].copy_from_slice(bytes);
        Ok(())
    }
}

/// Model of the directory: the first page of each key, and the number of its pages.
#[derive(Default)]
struct Model {
    extents: HashMap<u64, (u64, u64)>,
    allocated: u64,
}

impl Model {
    /// `extent_pages` is the length of an extent for `pages`: the same, below 2^15 pages.
    fn locate(&mut self, key: u64, pages: u64, extent_pages: u64) -> Range<u64> {
        let (first, has) = self.extents.get(&key).copied().unwrap_or_default();
        if has >= pages {
            return first..first + pages;
        }
        let first = self.allocated;
        self.extents.insert(key, (first, extent_pages));
        self.allocated += extent_pages;
        first..first + pages
    }
}

// Goal: the directory is a map. Method: hundreds of thousands of look-ups of keys with a skew, new
// and known, shrinking and growing, compared with a map in memory; then every key again, which the
// front table cannot hold.
#[test]
fn answers_equal_those_of_a_map() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut directory = KeyDirectory::new_in(&std::env::temp_dir()).unwrap();
    let mut model = Model::default();
    for _ in 0..400_000 {
        let key = random.u64(..) >> random.u32(40..64);
        let key = key.wrapping_mul(0x1_0001);
        let pages = 1 + (random.u64(..) >> random.u32(50..64));
        let expected = model.locate(key, pages, pages);
        assert_eq!(directory.locate(key, pages).unwrap(), expected, "key {key}");
    }
    assert!(
        model.extents.len() > 150_000,
        "{} keys",
        model.extents.len()
    );
    assert_eq!(directory.nr_keys(), model.extents.len() as u64);
    assert_eq!(directory.pages_allocated(), model.allocated);
    for (&key, &(first, pages)) in &model.extents {
        assert_eq!(directory.locate(key, 0).unwrap(), first..first + 1);
        assert_eq!(directory.locate(key, pages).unwrap(), first..first + pages);
    }
    assert_eq!(directory.pages_allocated(), model.allocated);
}

// Goal: a failing store surfaces at once, and the directory refuses all further work. Method: let
// each operation of a run that splits and chains fail in turn; answers before it equal the model's.
#[test]
fn a_failing_store_is_an_error_and_stays_one() {
    for fails_at in (1..9_000).step_by(7) {
        let left = Rc::new(Cell::new(fails_at));
        let store = || Failing {
            bytes: Vec::new(),
            left: Rc::clone(&left),
        };
        let mut directory = KeyDirectory::with_stores(store(), store()).unwrap();
        let mut model = Model::default();
        let failed = (0..6_000).find(|&key| match directory.locate(key, 1) {
            Ok(range) => {
                assert_eq!(range, model.locate(key, 1, 1));
                false
            }
            Err(DirectoryError::Io(error)) => {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                true
            }
            Err(other) => panic!("{other}"),
        });
        assert!(failed.is_some(), "operation {fails_at} is never reached");
        assert!(matches!(
            directory.locate(0, 1),
            Err(DirectoryError::Broken)
        ));
    }
}

// Goal: exceeding a limit is an error that changes nothing. Method: requests beyond each.
#[test]
fn what_does_not_fit_is_refused() {
    let mut directory = KeyDirectory::new_in(&std::env::temp_dir()).unwrap();
    let too_large = directory.locate(1, (1 << 32) + 1);
    assert!(matches!(too_large, Err(DirectoryError::TooLarge { .. })));
    for key in 0..(1 << 12) {
        assert_eq!(
            directory.locate(key, 1 << 32).unwrap(),
            key << 32..(key + 1) << 32
        );
    }
    let full = directory.locate(1 << 12, 1);
    assert!(matches!(full, Err(DirectoryError::Full { .. })));
    assert_eq!(directory.locate(5, 1).unwrap(), 5 << 32..(5 << 32) + 1);
    assert_eq!(directory.pages_allocated(), 1 << 44);
}
