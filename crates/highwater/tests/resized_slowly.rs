//! Promise: nothing is lost while storage takes its time to change a file's length, whatever it
//! answers in the end.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use highwater::frame::Tunables;
use highwater::units::PAGE_BYTES;
use highwater::{Access, Backing, Bytes, File, FilePage, Manager, Mapping, Pages, ReadError};

/// Storage in memory whose `set_len` tells when it has begun, and waits for its answer.
#[derive(Debug)]
struct Slow {
    bytes: Mutex<Vec<u8>>,
    begun: Mutex<Sender<()>>,
    answer: Mutex<Receiver<io::Result<()>>>,
    fails_reads: AtomicBool,
}

/// The other ends of a [`Slow`]'s channels.
struct Remote {
    begun: Receiver<()>,
    answer: Sender<io::Result<()>>,
}

impl Slow {
    fn new(len: usize) -> (Arc<Self>, Remote) {
        let (tell_begun, begun) = channel();
        let (answer, wait_for) = channel();
        let slow = Self {
            bytes: Mutex::new(vec![0; len]),
            begun: Mutex::new(tell_begun),
            answer: Mutex::new(wait_for),
            fails_reads: AtomicBool::new(false),
        };
        (Arc::new(slow), Remote { begun, answer })
    }

    fn byte(&self, at: usize) -> u8 {
        self.bytes.lock().unwrap()[at]
    }
}

impl Backing for Slow {
    fn len(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        if self.fails_reads.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let bytes = self.bytes.lock().unwrap();
        let rest = bytes.get(start_of(page)..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        bytes[start_of(page)..][..buf.len()].copy_from_slice(buf);
        Ok(buf.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.begun.lock().unwrap().send(()).unwrap();
        self.answer.lock().unwrap().recv().unwrap()?;
        let len = usize::try_from(len).unwrap();
        self.bytes.lock().unwrap().resize(len, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn start_of(page: FilePage) -> usize {
    usize::try_from(page.0 * PAGE_BYTES).unwrap()
}

/// A manager, and a file of `pages` that it has mapped.
fn scene(storage: &Arc<Slow>, pages: u64) -> (Manager, File, Mapping) {
    // Write-back comes when it is called, and writes every dirty page.
    let at_once = Tunables::default().with("dirty_expire_centisecs", 0);
    let hw = Manager::builder().tunables(at_once.unwrap());
    let hw = hw.capacity(Bytes::mib(4)).build().unwrap();
    let backing = Arc::clone(storage) as Arc<dyn Backing>;
    let file = hw.open_backing(backing, Access::ReadWrite).unwrap();
    let all = hw.space(&hw.root()).map_file(&file, 0..pages).unwrap();
    (hw, file, all)
}

// Symptom: a checkpoint beside a shrink that storage refused returned a LSN below which a page was
// lost: it had looked for dirty pages up to the lower end only.
#[test]
fn a_sync_and_a_checkpoint_beside_a_refused_shrink_write_every_page() {
    for checkpoints in [false, true] {
        let (storage, remote) = Slow::new(10 * 4096);
        let (_hw, file, all) = scene(&storage, 10);
        for page in 0..10 {
            let mut page = all.write(page).unwrap();
            page[0] = 7;
            page.set_lsn(5);
        }
        thread::scope(|scope| {
            let shrink = scope.spawn(|| file.set_len(Bytes(3 * 4096)));
            remote.begun.recv().unwrap();
            let dirty = file.dirty_pages();
            let sync = scope.spawn(|| match checkpoints {
                true => file.checkpoint(10, Pages(64)).map(drop),
                false => file.sync(),
            });
            // It looks for dirty pages meanwhile, and then waits for the shrink.
            thread::sleep(Duration::from_millis(50));
            remote
                .answer
                .send(Err(io::ErrorKind::StorageFull.into()))
                .unwrap();
            assert!(shrink.join().unwrap().is_err());
            sync.join().unwrap().unwrap();
            assert_eq!(dirty.len(), 10, "storage may keep them");
        });
        let stored = |page: usize| storage.byte(page * 4096);
        assert_eq!((0..10).map(stored).collect::<Vec<_>>(), [7; 10]);
    }
}

// Symptom: write-back beside a growth wrote the part of the last page that was in the file before,
// and counted it as clean: what was written behind that was there until the page was evicted.
#[test]
fn what_is_written_behind_the_old_end_beside_a_growth_reaches_storage() {
    let (storage, remote) = Slow::new(4096 + 904);
    let (hw, file, all) = scene(&storage, 2);
    thread::scope(|scope| {
        let grow = scope.spawn(|| file.set_len(Bytes(2 * 4096)));
        remote.begun.recv().unwrap();
        all.write(1).unwrap()[2000] = 7;
        // Its age is counted in hundredths of a second.
        thread::sleep(Duration::from_millis(30));
        hw.writeback_tick();
        remote.answer.send(Ok(())).unwrap();
        grow.join().unwrap().unwrap();
    });
    file.sync().unwrap();
    assert_eq!(storage.byte(4096 + 2000), 7);
}

// Symptom: a page that storage could not read was read 10,000 times beside a resize, and the error
// was then another one.
#[test]
fn an_error_beside_a_resize_is_the_storages() {
    let (storage, remote) = Slow::new(10 * 4096);
    let (_hw, file, all) = scene(&storage, 10);
    thread::scope(|scope| {
        let shrink = scope.spawn(|| file.set_len(Bytes(3 * 4096)));
        remote.begun.recv().unwrap();
        storage.fails_reads.store(true, Ordering::SeqCst);
        let failed = all.read_latched(1).err();
        remote.answer.send(Ok(())).unwrap();
        shrink.join().unwrap().unwrap();
        assert!(matches!(failed, Some(ReadError::Io { .. })), "{failed:?}");
    });
}
