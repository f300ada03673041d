//! Overlapping operations: reclaim while pages are held, charges while another thread writes, sync,
//! close and the end of a manager in the middle of a write-back.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod support;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};

use highwater::units::{FilePage, PAGE_BYTES};
use highwater::{Access, Background, Backing, Group, Limits, Manager, Mapping, Pages, ReadPattern};
use support::{TestFile, assert_empty, manager, mapped};

/// Pages of zeros whose write-backs block until they are let through, and then end as told.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
    written: AtomicU64,
    panics_in_len: AtomicBool,
}

#[derive(Debug, Default)]
struct GateState {
    is_closed: bool,
    /// Number of write-backs that wait.
    nr_waiting: u64,
    fails: bool,
}

impl Gate {
    fn closed() -> Arc<Self> {
        let gate = Arc::new(Self::default());
        gate.state.lock().unwrap().is_closed = true;
        gate
    }

    fn wait_for_a_write(&self) {
        let state = self.state.lock().unwrap();
        drop(
            self.changed
                .wait_while(state, |state| state.nr_waiting == 0),
        );
    }

    /// Lets everything through.
    fn open(&self) {
        self.state.lock().unwrap().is_closed = false;
        self.changed.notify_all();
    }

    /// Makes the writes that come through fail from now on.
    fn fail(&self) {
        self.state.lock().unwrap().fails = true;
    }
}

impl Backing for Gate {
    fn len(&self) -> u64 {
        assert!(!self.panics_in_len.load(Ordering::Relaxed), "as told");
        8 * PAGE_BYTES
    }

    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }

    fn write_page(&self, _: FilePage, buf: &[u8]) -> io::Result<usize> {
        let mut state = self.state.lock().unwrap();
        state.nr_waiting += 1;
        self.changed.notify_all();
        state = self
            .changed
            .wait_while(state, |state| state.is_closed)
            .unwrap();
        state.nr_waiting -= 1;
        if state.fails {
            return Err(io::Error::other("as told"));
        }
        self.written.fetch_add(1, Ordering::Relaxed);
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Dirties one page of each file, charged to `group`; the files stay open, as a close would write
/// them.
fn two_dirty_pages(hw: &Manager, group: &Group, gates: [&Arc<Gate>; 2]) {
    for gate in gates {
        let file = hw.open_backing(Arc::clone(gate) as Arc<dyn Backing>, Access::ReadWrite);
        let map = hw.space(group).map_file(&file.unwrap(), 0..8).unwrap();
        map.write(0).unwrap()[0] = 1;
        std::mem::forget(map);
    }
}

#[test]
fn a_charge_sees_the_room_that_another_made_while_it_looked() {
    // Goal: a refusal implies a moment at which no memory was available. Method: two dirty pages
    // fill a group. One thread writes the first back; a charge finds the second only, and while
    // that write is in progress, and then fails, the first is freed.
    let hw = manager(64);
    let (first, second) = (Gate::closed(), Gate::closed());
    let group = hw
        .root()
        .child("full", Limits::max(Pages(2).bytes()))
        .unwrap();
    two_dirty_pages(&hw, &group, [&first, &second]);
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| hw.drop_caches());
        first.wait_for_a_write();
        let charging = scope.spawn(|| group.charge(Pages(1).bytes()).map(drop));
        second.wait_for_a_write();
        first.open();
        assert_eq!(dropping.join().unwrap(), Pages(1));
        second.fail();
        second.open();
        charging.join().unwrap().unwrap();
    });
}

#[test]
fn a_maximum_sees_the_room_that_another_made_while_it_looked() {
    // Goal and method: as above, for a maximum that is lowered.
    let hw = manager(64);
    let (first, second) = (Gate::closed(), Gate::closed());
    let group = hw.root().child("full", Limits::default()).unwrap();
    two_dirty_pages(&hw, &group, [&first, &second]);
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| hw.drop_caches());
        first.wait_for_a_write();
        let setting = scope.spawn(|| group.set_max(Pages(1).bytes()));
        second.wait_for_a_write();
        first.open();
        assert_eq!(dropping.join().unwrap(), Pages(1));
        second.fail();
        second.open();
        setting.join().unwrap().unwrap();
    });
}

#[test]
fn a_maximum_that_is_being_met_does_not_come_back() {
    // Goal: the last `set_max` wins. Method: one thread lowers it below two dirty pages, whose
    // write-back waits; another raises it meanwhile. The first returns Ok, and the maximum is the
    // second's.
    let hw = manager(64);
    let (first, second) = (Gate::closed(), Gate::closed());
    let group = hw.root().child("full", Limits::default()).unwrap();
    two_dirty_pages(&hw, &group, [&first, &second]);
    std::thread::scope(|scope| {
        let lowering = scope.spawn(|| group.set_max(Pages(1).bytes()));
        first.wait_for_a_write();
        assert_eq!(group.limits().max, Pages(1).bytes());
        group.set_max(Pages(9).bytes()).unwrap();
        first.fail();
        second.fail();
        first.open();
        second.open();
        lowering.join().unwrap().unwrap();
    });
    assert_eq!(group.limits().max, Pages(9).bytes());
    assert_eq!(group.usage_precise(), Pages(2).bytes());
}

#[test]
fn storage_that_panics_when_asked_for_its_length_stops_nobody() {
    // Goal: as for a panic in the write itself. Method: a dirty page, then reclaim for other
    // requests.
    for background in [Background::Off, Background::Thread] {
        let builder = Manager::builder().capacity(Pages(64).bytes());
        let hw = builder.background(background).build().unwrap();
        let gate = Arc::new(Gate::default());
        let file = hw.open_backing(Arc::clone(&gate) as Arc<dyn Backing>, Access::ReadWrite);
        let file = file.unwrap();
        let map = hw.space(&hw.root()).map_file(&file, 0..8).unwrap();
        map.write(0).unwrap()[0] = 1;
        gate.panics_in_len.store(true, Ordering::Relaxed);
        let (_clean, clean_map) = mapped(&hw, &TestFile::new(256), Access::ReadOnly);
        for page in 0..256 {
            clean_map.read(&hw.enter(), page).unwrap();
        }
        assert!(file.sync().is_err());
        hw.drop_caches();
        hw.check_invariants();
        assert_eq!(hw.snapshot().counter("nr_dirty"), 1);
        gate.panics_in_len.store(false, Ordering::Relaxed);
        file.sync().unwrap();
        assert_eq!(gate.written.load(Ordering::Relaxed), 1);
        drop((map, clean_map, file));
        assert_empty(&hw);
    }
}

#[test]
fn a_handler_that_runs_out_of_memory_itself_is_refused() {
    // Goal: the handler may call anything; it is not called by itself. Method: a handler that
    // requests more than is available, twice: the first refusal must not end the protection.
    let hw = manager(64);
    let group = hw.root().child("g", Limits::default()).unwrap();
    let _held = group.charge(Pages(60).bytes()).unwrap();
    let (asking, refused) = (group.clone(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&refused);
    hw.root().on_exhausted(move |_| {
        for _ in 0..2 {
            if asking.charge(Pages(10).bytes()).is_err() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    assert!(group.charge(Pages(20).bytes()).is_err());
    assert_eq!(refused.load(Ordering::Relaxed), 2);
    // The handler holds a handle of the manager.
    hw.root().on_exhausted(|_| ());
}

#[test]
fn a_removed_groups_handle_shows_no_pages_of_the_next() {
    // Goal: a handle refers to its own group. Method: a group of the same number.
    let hw = manager(64);
    let (file, _map) = mapped(&hw, &TestFile::new(8), Access::ReadOnly);
    let former = hw.root().child("former", Limits::default()).unwrap();
    former.remove().unwrap();
    let next = hw.root().child("next", Limits::default()).unwrap();
    assert_eq!(next.id(), former.id(), "the number is used again");
    let map = hw.space(&next).map_file(&file, 0..8).unwrap();
    map.read(&hw.enter(), 1).unwrap();
    assert_eq!(next.list_sizes().total(), Pages(1));
    assert_eq!(former.list_sizes().total(), Pages::ZERO);
}

#[test]
fn pages_that_cannot_be_written_are_no_progress() {
    // Goal: the bound on fruitless steps holds while a group is full of pages that cannot be
    // evicted. Method: such a group, and a fault in it; the error has the number of attempts.
    let hw = manager(256);
    let gate = Arc::new(Gate::default());
    gate.fail();
    let group = hw
        .root()
        .child("full", Limits::max(Pages(6).bytes()))
        .unwrap();
    let file = hw.open_backing(Arc::clone(&gate) as Arc<dyn Backing>, Access::ReadWrite);
    let file = file.unwrap();
    let map = hw.space(&group).map_file(&file, 0..8).unwrap();
    for page in 0..6 {
        map.write(page).unwrap()[0] = 1;
    }
    let error = map.read_latched(7).map(drop).unwrap_err();
    assert!(error.to_string().contains("after 18 attempts"), "{error}");
    gate.state.lock().unwrap().fails = false;
    drop((map, file));
    assert_empty(&hw);
}

#[test]
fn a_manager_writes_at_its_end_what_a_closed_file_refused() {
    // Goal: pages of a closed file are kept while their storage might still take them. Method: a
    // close that fails, storage that recovers, and no call in between.
    let hw = manager(64);
    let gate = Arc::new(Gate::default());
    let file = hw.open_backing(Arc::clone(&gate) as Arc<dyn Backing>, Access::ReadWrite);
    let file = file.unwrap();
    let map = hw.space(&hw.root()).map_file(&file, 0..8).unwrap();
    map.write(0).unwrap()[0] = 1;
    gate.fail();
    drop((map, file));
    assert_eq!(gate.written.load(Ordering::Relaxed), 0);
    gate.state.lock().unwrap().fails = false;
    drop(hw);
    assert_eq!(gate.written.load(Ordering::Relaxed), 1);
}

/// Storage that fails on every thread but the reclaim thread, which drops a handle of the manager.
#[derive(Debug, Default)]
struct Keeper {
    kept: Mutex<Option<Manager>>,
    changed: Condvar,
    /// The reclaim thread has called.
    has_come: AtomicBool,
    has_dropped: AtomicBool,
}

impl Backing for Keeper {
    fn len(&self) -> u64 {
        PAGE_BYTES
    }

    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }

    fn write_page(&self, _: FilePage, buf: &[u8]) -> io::Result<usize> {
        if std::thread::current().name() != Some("highwater-kswapd") {
            return Err(io::Error::other("not here"));
        }
        self.has_come.store(true, Ordering::Relaxed);
        let kept = self.kept.lock().unwrap();
        let mut kept = self
            .changed
            .wait_while(kept, |kept| kept.is_none())
            .unwrap();
        drop(kept.take());
        self.has_dropped.store(true, Ordering::Relaxed);
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_last_handle_may_be_dropped_by_the_reclaim_thread() {
    // Goal: storage may hold a handle, and drop the last one, on any thread. Method: the reclaim
    // thread writes a page of a closed file, and drops the handle in the middle of that.
    let builder = Manager::builder().capacity(Pages(64).bytes());
    let hw = builder.background(Background::Thread).build().unwrap();
    let keeper = Arc::new(Keeper::default());
    let file = hw.open_backing(Arc::clone(&keeper) as Arc<dyn Backing>, Access::ReadWrite);
    let map = hw.space(&hw.root()).map_file(&file.unwrap(), 0..1).unwrap();
    map.write(0).unwrap()[0] = 1;
    drop(map);
    let (file, map) = mapped(&hw, &TestFile::new(256), Access::ReadOnly);
    // Down to the low watermark and no further: this thread must not reclaim.
    let mut pages = 0..256;
    while !keeper.has_come.load(Ordering::Relaxed) {
        if hw.snapshot().frames.free > hw.snapshot().watermarks().low {
            map.read(&hw.enter(), pages.next().unwrap()).unwrap();
        }
        std::thread::yield_now();
    }
    drop((map, file));
    *keeper.kept.lock().unwrap() = Some(hw);
    keeper.changed.notify_all();
    // Bounded by the test's own time: the thread ends, and the manager with it.
    while Arc::strong_count(&keeper) > 1 {
        std::thread::yield_now();
    }
    assert!(keeper.has_dropped.load(Ordering::Relaxed));
}

/// Pages of zeros whose first read blocks until it is let through.
#[derive(Debug, Default)]
struct SlowFirst {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Backing for SlowFirst {
    fn len(&self) -> u64 {
        8 * PAGE_BYTES
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        if page == 0 {
            let mut state = self.state.lock().unwrap();
            state.0 = true;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |(_, may_go)| !*may_go));
        }
        buf.fill(0);
        Ok(buf.len())
    }

    fn write_page(&self, _: FilePage, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("never written"))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_fault_waits_for_a_page_that_another_is_reading_in() {
    // Goal: no refusal while the group is full of pages in transit, however long their I/O takes.
    // Method: a group of one page, whose read takes 50 ms: six times the wait without progress.
    let hw = manager(64);
    let storage = Arc::new(SlowFirst::default());
    let file = hw.open_backing(Arc::clone(&storage) as Arc<dyn Backing>, Access::ReadOnly);
    let file = file.unwrap();
    let group = hw
        .root()
        .child("tiny", Limits::max(Pages(1).bytes()))
        .unwrap();
    let map = hw.space(&group).map_file(&file, 0..8).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| map.read(&hw.enter(), 0).map(drop).unwrap());
        let state = storage.state.lock().unwrap();
        drop(
            storage
                .changed
                .wait_while(state, |(has_come, _)| !*has_come),
        );
        let waiting = scope.spawn(|| map.read(&hw.enter(), 1).map(drop));
        std::thread::sleep(std::time::Duration::from_millis(50));
        storage.state.lock().unwrap().1 = true;
        storage.changed.notify_all();
        waiting.join().unwrap().unwrap();
    });
    drop((map, file));
    assert_empty(&hw);
}

#[test]
fn a_fault_waits_for_a_page_that_a_reclaimer_has_in_hand() {
    // Goal: no refusal while a reclaimer that lost its CPU has isolated the group's pages, however
    // long that takes. Method: a group of one dirty page, which a reclaimer writes back for 50 ms:
    // six times the wait without progress.
    let hw = manager(64);
    let gate = Gate::closed();
    let group = hw
        .root()
        .child("tiny", Limits::max(Pages(1).bytes()))
        .unwrap();
    let file = hw.open_backing(Arc::clone(&gate) as Arc<dyn Backing>, Access::ReadWrite);
    let map = hw.space(&group).map_file(&file.unwrap(), 0..8).unwrap();
    map.write(0).unwrap()[0] = 1;
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| hw.drop_caches());
        gate.wait_for_a_write();
        let waiting = scope.spawn(|| map.read_latched(1).map(drop));
        std::thread::sleep(std::time::Duration::from_millis(50));
        gate.open();
        dropping.join().unwrap();
        waiting.join().unwrap().unwrap();
    });
    drop(map);
    assert_empty(&hw);
}

/// Storage that reads pages of a mapping before it answers, once two threads are there.
#[derive(Debug)]
struct Layered {
    below: Mutex<Option<Mapping>>,
    both: Barrier,
}

impl Backing for Layered {
    fn len(&self) -> u64 {
        8 * PAGE_BYTES
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let below = self.below.lock().unwrap().clone();
        self.both.wait();
        let bytes = below.as_ref().unwrap().read_latched(page);
        buf.copy_from_slice(&bytes.map_err(io::Error::other)?[..]);
        Ok(buf.len())
    }

    fn write_page(&self, _: FilePage, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("never written"))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn faults_do_not_wait_for_themselves_and_each_other_for_ever() {
    // Goal: an error, and no hang, if pages can come only after others for which there is no room.
    // Method: storage that reads from the cache for the same group; two threads are in it, so that
    // the group is full of their pages, and each needs another one. Once the first is refused and
    // has given its page back, the second may have it.
    let hw = manager(64);
    let group = hw
        .root()
        .child("tiny", Limits::max(Pages(2).bytes()))
        .unwrap();
    let space = hw.space(&group);
    let lower = Arc::new(Gate::default()) as Arc<dyn Backing>;
    let lower = hw.open_backing(lower, Access::ReadWrite).unwrap();
    let layered = Arc::new(Layered {
        below: Mutex::new(Some(space.map_file(&lower, 0..8).unwrap())),
        both: Barrier::new(2),
    });
    let upper = Arc::clone(&layered) as Arc<dyn Backing>;
    let upper = hw.open_backing(upper, Access::ReadOnly).unwrap();
    upper.set_read_pattern(ReadPattern::Random);
    let map = space.map_file(&upper, 0..8).unwrap();
    let read = |page| map.read(&hw.enter(), page).map(drop);
    let outcomes = std::thread::scope(|scope| {
        let other = scope.spawn(|| read(5));
        [read(0), other.join().unwrap()]
    });
    let errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(!errors.is_empty(), "the group has room for two pages");
    for error in errors {
        assert!(error.to_string().contains("/tiny: 4 KiB asked"), "{error}");
    }
    drop(layered.below.lock().unwrap().take());
    drop((map, upper, space, lower));
    assert_empty(&hw);
}

#[test]
fn a_handler_may_wait_for_a_request_to_the_group_that_it_was_called_for() {
    // Goal: no request waits for a page whose thread is in the handler, which may wait for any
    // thread. Method: all frames are pinned; a fault in a group of one page finds none, and its
    // handler waits for another fault in that group.
    let hw = manager(64);
    let file = hw.open_backing(TestFile::new(128), Access::ReadOnly);
    let file = file.unwrap();
    let hog = hw.root().child("hog", Limits::default()).unwrap();
    let held = hw.space(&hog).map_file(&file, 0..128).unwrap();
    let pins: Vec<_> = (0..128).map_while(|page| held.pin(page).ok()).collect();
    let pins = Mutex::new(pins);
    let tiny = hw
        .root()
        .child("tiny", Limits::max(Pages(1).bytes()))
        .unwrap();
    let map = hw.space(&tiny).map_file(&file, 0..128).unwrap();
    let (asking, calls) = (map.clone(), AtomicU64::new(0));
    let (refused, told) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (seen_refused, seen_told) = (Arc::clone(&refused), Arc::clone(&told));
    hw.root().on_exhausted(move |_| {
        seen_told.fetch_add(1, Ordering::Relaxed);
        // The other fault selects a victim too.
        if calls.fetch_add(1, Ordering::Relaxed) == 0 {
            let other = std::thread::scope(|scope| {
                let pin = || asking.pin(127).map(drop);
                scope.spawn(pin).join().unwrap()
            });
            seen_refused.fetch_add(u64::from(other.is_err()), Ordering::Relaxed);
            pins.lock().unwrap().clear();
        }
    });
    map.pin(126).map(drop).unwrap();
    assert_eq!(refused.load(Ordering::Relaxed), 1);
    assert!(told.load(Ordering::Relaxed) > 0);
    // The handler holds handles of the manager.
    hw.root().on_exhausted(|_| ());
    drop((map, held, file));
    assert_empty(&hw);
}
