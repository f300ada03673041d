//! Promise: frames that a thread moves between the per-CPU lists and the zones are free: no group
//! is stopped, and no request fails, because that thread does not run.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use highwater::frame::{Backend, MakeBackend, Wait};
use highwater::lab::sync::LockTimes;
use highwater::topology::Topology;
use highwater::units::{CpuId, Order, Pfn};
use highwater::{Background, Manager, Pages};

/// Far longer than a request waits without progress.
const SUSPENDED: Duration = Duration::from_millis(300);

/// Tells that the thread is about to free frames to the back end, and waits for an answer.
struct Stop {
    begun: Sender<()>,
    answer: Receiver<()>,
}

thread_local! {
    /// Stops the thread's next free.
    static NEXT: Cell<Option<Stop>> = const { Cell::new(None) };
}

/// A back end in which a free can be stopped before it is made.
#[derive(Debug)]
struct Stoppable(Box<dyn Backend>);

impl Backend for Stoppable {
    fn alloc_bulk(
        &self,
        near: CpuId,
        order: Order,
        floor: Pages,
        wait: Wait,
        out: &mut [Pfn],
    ) -> usize {
        self.0.alloc_bulk(near, order, floor, wait, out)
    }

    fn alloc_within(&self, frames: Range<u32>, floor: Pages, out: &mut Vec<Pfn>) {
        self.0.alloc_within(frames, floor, out);
    }

    fn free_bulk(&self, near: CpuId, order: Order, wait: Wait, blocks: &mut [Pfn]) {
        if let Some(Stop { begun, answer }) = NEXT.take() {
            begun.send(()).expect("the test waits for it");
            answer.recv().expect("the test answers");
        }
        self.0.free_bulk(near, order, wait, blocks);
    }

    fn free_fresh(&self, near: CpuId, order: Order, blocks: &mut [Pfn]) {
        self.0.free_fresh(near, order, blocks);
    }

    fn nr_fresh(&self) -> Pages {
        self.0.nr_fresh()
    }

    fn has_used(&self, frames: Pages) -> bool {
        self.0.has_used(frames)
    }

    fn splice(&self) {
        self.0.splice();
    }

    fn nr_free(&self) -> Pages {
        self.0.nr_free()
    }

    fn nr_deferred(&self) -> Pages {
        self.0.nr_deferred()
    }

    fn nr_free_blocks(&self, order: Order) -> u64 {
        self.0.nr_free_blocks(order)
    }

    fn free_runs(&self) -> Vec<(Pfn, Order)> {
        self.0.free_runs()
    }

    fn times(&self) -> LockTimes {
        self.0.times()
    }

    fn check_invariants(&self) {
        self.0.check_invariants();
    }
}

// Symptom: a victim was told, or a fault failed, although a list's frames were free: a thread that
// drained the list had been preempted before it gave them to the zones. Method: all frames but the
// reserve have anonymous pages, and then one is in a list; its drain stops for longer than requests
// have patience.
#[test]
fn frames_of_a_drain_that_does_not_run_are_waited_for() {
    const FRAMES: u64 = 4096;
    let stoppable = MakeBackend::new(
        "stoppable",
        |frames, cpus, _| Box::new(Stoppable(MakeBackend::TREES.build(frames, cpus))),
        0,
    );
    let builder = Manager::builder().capacity(Pages(FRAMES).bytes());
    let builder = builder
        .topology(Topology::flat(1))
        .background(Background::Off);
    let hw = builder.backend(stoppable).build().expect("a manager");
    let told = Arc::new(AtomicU32::new(0));
    let tell = Arc::clone(&told);
    hw.root().on_exhausted(move |_| {
        tell.fetch_add(1, Ordering::Relaxed);
    });
    let full = hw.space(&hw.root()).map_anon(Pages(FRAMES)).expect("room");
    let late = hw.space(&hw.root()).map_anon(Pages(1)).expect("room");
    let reserve = hw.zoneinfo().watermarks.min;
    for page in 0..FRAMES - reserve.0 {
        full.write(page).expect("a frame")[0] = 1;
    }
    full.discard(0..1).expect("it is anonymous");
    let frames = hw.snapshot().frames;
    assert_eq!((frames.free, frames.cached), (reserve, Pages(1)));
    let (begun, has_begun) = channel();
    let (resume, answer) = channel();
    thread::scope(|scope| {
        // Dropped when an assertion fails: the drain ends.
        let resume: Sender<()> = resume;
        let drain = scope.spawn(|| {
            NEXT.set(Some(Stop { begun, answer }));
            hw.drain_all()
        });
        has_begun.recv().expect("the drain has begun");
        let fault = scope.spawn(|| late.write(0).map(|mut page| page[0] = 1));
        thread::sleep(SUSPENDED);
        assert!(!fault.is_finished(), "it has not waited");
        resume.send(()).expect("the drain waits");
        assert_eq!(drain.join().expect("no panic"), Pages(1));
        fault.join().expect("no panic").expect("frames are free");
    });
    assert_eq!(told.load(Ordering::Relaxed), 0, "stopped needlessly");
}
