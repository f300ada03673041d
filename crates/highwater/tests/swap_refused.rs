//! Promise: swap storage that refuses some pages is used as far as it takes others.

mod support;

use std::io;
use std::sync::Arc;

use highwater::units::FilePage;
use highwater::{Backing, Manager, Pages};
use support::TestFile;

/// Swap of which some slots cannot be written.
#[derive(Debug)]
struct Refusing(Arc<TestFile>, fn(u64) -> bool);

impl Backing for Refusing {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_page(page, buf)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        match self.1(page.0) {
            true => Err(io::Error::from_raw_os_error(28 /* ENOSPC */)),
            false => self.0.write_page(page, buf),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

// Symptom: after one slot that could not be written, no page was swapped out any more.
#[test]
fn slots_that_cannot_be_written_leave_the_others() {
    let refusals: [fn(u64) -> bool; 2] = [|slot| slot == 5, |slot| slot >= 256];
    for is_refused in refusals {
        let storage = Refusing(TestFile::new(1024), is_refused);
        let hw = Manager::builder()
            .capacity(Pages(64).bytes())
            .swap_on(Arc::new(storage))
            .build()
            .unwrap();
        let map = hw.space(&hw.root()).map_anon(Pages(200)).unwrap();
        for version in 1..20 {
            for page in 0..200 {
                map.write(page).unwrap()[..8].copy_from_slice(&[version; 8]);
            }
            for page in 0..200 {
                assert_eq!(map.read_latched(page).unwrap()[..8], [version; 8]);
            }
        }
        drop(map);
        hw.check_invariants();
    }
}
