//! Access to a frame's bytes, from one thread and from several.

use super::barrier::Barrier;
use super::*;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::units::{Order, PAGE_SIZE, Pages, Pfn};

pub(super) const TAG: u64 = 77;

pub(super) fn published(memory: &FrameMemory, pfn: u32, byte: u8) -> Pfn {
    let mut frame = memory.claim(Pfn(pfn));
    memory.bytes_mut(&mut frame).fill(byte);
    memory.publish(frame, TAG)
}

/// Returns memories whose readers pay for a light barrier as little as possible here, and as much
/// as without membarrier.
pub(super) fn of_both_barriers(pages: u64) -> [FrameMemory; 2] {
    [Barrier::new(), Barrier::fenced()]
        .map(|barrier| FrameMemory::with_barrier(Pages(pages), barrier).expect("a small range"))
}

pub(super) fn retract(memory: &FrameMemory, pfns: &[Pfn]) -> Retracted {
    let batch: Vec<_> = pfns.iter().map(|&pfn| (pfn, TAG)).collect();
    let mut out = Retracted::default();
    memory.retract(&batch, &mut out);
    out
}

/// Surrenders every frame, so that no token is dropped.
pub(super) fn surrender_all(memory: &FrameMemory, retracted: Retracted) -> usize {
    let count = retracted.frames.len();
    for frame in retracted.frames {
        memory.surrender(frame);
    }
    count
}

#[test]
fn a_frame_goes_through_its_states_and_back() {
    let memory = FrameMemory::new(Pages(4)).unwrap();
    assert_eq!(memory.count_free(), Pages(4));
    let pfn = published(&memory, 2, 9);
    assert_eq!(memory.count_free(), Pages(3));
    {
        let reader = memory.reader(memory.seat());
        assert_eq!(reader.borrow(pfn, TAG).unwrap(), &[9; PAGE_SIZE]);
        assert!(reader.borrow(pfn, TAG + 1).is_none(), "another tag");
        assert!(reader.borrow(Pfn(0), TAG).is_none(), "a free frame");
        assert!(reader.borrow(Pfn(1 << 30), TAG).is_none(), "no such frame");
    }
    assert_eq!(surrender_all(&memory, retract(&memory, &[pfn])), 1);
    assert_eq!(memory.count_free(), Pages(4));
}

#[test]
fn a_borrowed_frame_is_not_retracted_until_its_reader_is_done() {
    // Method: every way to borrow (slot, slot again, pin by overflow, pin by `Pinned`).
    for memory in of_both_barriers(40) {
        nothing_borrowed_is_retracted(&Arc::new(memory));
    }
}

fn nothing_borrowed_is_retracted(memory: &Arc<FrameMemory>) {
    let pfns: Vec<Pfn> = (0..40).map(|pfn| published(memory, pfn, 1)).collect();
    let reader = memory.reader(memory.seat());
    for &pfn in pfns[..30].iter().chain(&pfns[..30]) {
        assert!(reader.borrow(pfn, TAG).is_some());
    }
    let pinned = Pinned::new(Arc::clone(memory), pfns[30], TAG).expect("published");
    let out = retract(memory, &pfns);
    let mut borrowed = out.borrowed.clone();
    borrowed.sort();
    assert_eq!(borrowed, pfns[..31]);
    assert_eq!(surrender_all(memory, out), 9);
    assert!(reader.borrow(pfns[0], TAG).is_some(), "published as before");

    drop(reader);
    let out = retract(memory, &pfns);
    assert_eq!(out.borrowed, [pfns[30]]);
    assert_eq!(surrender_all(memory, out), 30);
    assert_eq!(pinned.bytes(), &[1; PAGE_SIZE]);
    drop(pinned);
    assert_eq!(surrender_all(memory, retract(memory, &pfns)), 1);
    assert!(Pinned::new(Arc::clone(memory), pfns[30], TAG).is_none());
    assert_eq!(memory.count_free(), Pages(40));
}

#[test]
fn readers_without_a_seat_pin() {
    let memory = FrameMemory::new(Pages(2)).unwrap();
    let pfn = published(&memory, 0, 3);
    let mut reader = memory.reader(None);
    assert!(reader.borrow(pfn, TAG).is_some());
    assert_eq!(retract(&memory, &[pfn]).borrowed, [pfn]);
    assert!(reader.take_seat().is_none());
    assert_eq!(surrender_all(&memory, retract(&memory, &[pfn])), 1);
}

#[test]
fn seats_are_used_again() {
    let memory = FrameMemory::new(Pages(1)).unwrap();
    let seats: Vec<_> = (0..200).map(|_| memory.seat().unwrap()).collect();
    let shown: std::collections::BTreeSet<_> = seats.iter().map(|s| format!("{s:?}")).collect();
    assert_eq!(shown.len(), 200, "no two readers share a seat");
    drop(seats);
    assert!(
        shown.contains(&format!("{:?}", memory.seat().unwrap())),
        "a seat is used again"
    );
}

#[test]
#[should_panic(expected = "claimed while it is not free")]
fn claiming_twice_panics() {
    let memory = FrameMemory::new(Pages(1)).unwrap();
    let _frame = memory.claim(Pfn(0));
    let _again = memory.claim(Pfn(0));
}

#[test]
#[should_panic(expected = "is of another memory")]
fn a_token_is_good_for_its_own_memory_only() {
    let (a, b) = (
        FrameMemory::new(Pages(1)).unwrap(),
        FrameMemory::new(Pages(1)).unwrap(),
    );
    let frame = a.claim(Pfn(0));
    let _ = b.bytes(&frame);
}

#[test]
fn the_mark_of_unpublished_frames_is_no_tag() {
    // Goal: no number forges a right. Method: pass the mark itself as the tag of an owned frame and
    // a free one, in every call that takes a tag.
    let memory = Arc::new(FrameMemory::new(Pages(2)).unwrap());
    let owned = memory.claim(Pfn(0));
    let mark = 0;
    for pfn in [Pfn(0), Pfn(1)] {
        let (seated, unseated) = (memory.reader(memory.seat()), memory.reader(None));
        assert!(seated.borrow(pfn, mark).is_none(), "{pfn} by slot");
        assert!(unseated.borrow(pfn, mark).is_none(), "{pfn} by pin");
        assert!(Pinned::new(Arc::clone(&memory), pfn, mark).is_none());
        let retract = || memory.retract(&[(pfn, mark)], &mut Retracted::default());
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(retract));
        assert!(refused.is_err(), "{pfn} retracted from {mark}");
    }
    assert_eq!(memory.surrender(owned), Pfn(0));
}

#[test]
fn leaked_pins_do_not_wrap_around() {
    // Goal: the count of pins never wraps to zero while a reader holds one. Method: leak as many as
    // it takes (fewer in tests); the next one is refused, and the frame stays where it is.
    let memory = Arc::new(FrameMemory::new(Pages(1)).unwrap());
    let pfn = published(&memory, 0, 7);
    let pin = || Pinned::new(Arc::clone(&memory), pfn, TAG).unwrap();
    for _ in 0..1000 {
        std::mem::forget(pin());
    }
    for _ in 0..3 {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(pin())));
        assert!(refused.is_err(), "one pin too many");
    }
    assert_eq!(retract(&memory, &[pfn]).borrowed, [pfn]);
}

#[test]
fn decommitted_frames_read_as_zeros() {
    let memory = FrameMemory::new(Pages(3)).unwrap();
    let mut frame = memory.claim(Pfn(1));
    memory.bytes_mut(&mut frame).fill(5);
    memory.decommit(&mut frame);
    assert_eq!(memory.bytes(&frame), &[0; PAGE_SIZE]);
    memory.surrender(frame);
}

#[test]
fn impossible_sizes_are_refused_with_numbers() {
    for pages in [Pages(0), Pages(u64::from(u32::MAX)), Pages::MAX] {
        let error = FrameMemory::new(pages).unwrap_err();
        assert!(matches!(error, MapError::Size { requested, .. } if requested == pages.bytes()));
    }
}

#[test]
fn readers_never_see_a_frame_that_is_being_rewritten() {
    // Method: readers borrow and check both ends of the page twice; a writer retracts, rewrites
    // with another byte and publishes under another tag, without a pause, 20,000 times and until
    // the readers have read something (a loaded machine may start them late).
    for memory in of_both_barriers(2) {
        rewrite_beside_readers(&memory, 20_000);
    }
}

/// Rewrites `rounds` times, and until something was read.
pub(super) fn rewrite_beside_readers(memory: &FrameMemory, rounds: u64) {
    let (stop, borrowed) = (AtomicBool::new(false), AtomicU64::new(0));
    let tag = |round: u64| 1 + round % 3;
    let mut frame = memory.claim(Pfn(1));
    memory.bytes_mut(&mut frame).fill(1);
    memory.publish(frame, tag(0));
    std::thread::scope(|scope| {
        let read = || {
            let mut seat = memory.seat();
            while !stop.load(Ordering::Relaxed) {
                let mut reader = memory.reader(seat);
                for want in 1..=3_u8 {
                    if let Some(bytes) = reader.borrow(Pfn(1), u64::from(want)) {
                        let ends = || [bytes[0], bytes[2048], bytes[PAGE_SIZE - 1]];
                        assert_eq!(ends(), [want; 3]);
                        std::hint::spin_loop();
                        assert_eq!(ends(), [want; 3]);
                        borrowed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                seat = reader.take_seat();
            }
        };
        for _ in 0..3 {
            scope.spawn(read);
        }
        let mut out = Retracted::default();
        let mut round = 0;
        while round < rounds || borrowed.load(Ordering::Relaxed) == 0 {
            memory.retract(&[(Pfn(1), tag(round))], &mut out);
            let Some(mut frame) = out.frames.pop() else {
                std::thread::yield_now();
                continue;
            };
            round += 1;
            memory
                .bytes_mut(&mut frame)
                .fill(u8::try_from(tag(round)).expect("1 to 3"));
            memory.publish(frame, tag(round));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_page_counts_once_however_often_one_reader_reads_it() {
    // Goal: reading leaks no pins, with a seat whose slots are full and without one. Method: one
    // frame more than a seat announces, read more often than it can be pinned.
    for memory in of_both_barriers(16) {
        read_often(&memory);
    }
}

fn read_often(memory: &FrameMemory) {
    let pfns: Vec<Pfn> = (0..16).map(|pfn| published(memory, pfn, 1)).collect();
    for seat in [memory.seat(), None] {
        let reader = memory.reader(seat);
        for &pfn in pfns.iter().chain([&pfns[15]; 5000]) {
            assert!(reader.borrow(pfn, TAG).is_some());
        }
        assert!(reader.borrow(pfns[15], TAG + 1).is_none(), "another tag");
        assert_eq!(retract(memory, &pfns).borrowed.len(), 16);
    }
    assert_eq!(surrender_all(memory, retract(memory, &pfns)), 16);
}

#[test]
fn pages_read_in_turn_take_a_slot_each_and_no_pin() {
    // Goal: a reader holds 15 frames without a pin however often it reads each. Method: two in turn
    // until no slot is left, then 13 others, and a check of a tag that is gone in between; the
    // sixteenth is pinned.
    for memory in of_both_barriers(16) {
        read_in_turn(&memory);
    }
}

fn read_in_turn(memory: &FrameMemory) {
    let pfns: Vec<Pfn> = (0..16).map(|pfn| published(memory, pfn, 1)).collect();
    let reader = memory.reader(memory.seat());
    for &pfn in pfns[..2].iter().cycle().take(100).chain(&pfns[2..15]) {
        assert!(reader.borrow_likely(pfn, TAG + 1).is_none(), "another tag");
        assert!(reader.borrow_likely(pfn, TAG).is_some());
    }
    assert!(pfns.iter().all(|&pfn| !memory.is_pinned(pfn)));
    assert_eq!(retract(memory, &pfns[..15]).borrowed.len(), 15);
    assert!(reader.borrow_likely(pfns[15], TAG).is_some());
    assert!(memory.is_pinned(pfns[15]));
    assert_eq!(retract(memory, &pfns).borrowed.len(), 16);
    drop(reader);
    assert_eq!(surrender_all(memory, retract(memory, &pfns)), 16);
}

#[test]
fn a_thread_keeps_its_seats() {
    // Goal: readers of one thread, of several memories, one after another or at once, take only as
    // many new seats as there are readers at once. Method: other threads always get the same seats.
    let memories = [1, 2].map(|pages| FrameMemory::new(Pages(pages)).unwrap());
    let next = |memory: &FrameMemory| format!("{:?}", memory.seat().unwrap());
    let at_once = || {
        memories
            .each_ref()
            .map(|memory| (memory.enter(), memory.enter()))
    };
    drop(at_once());
    let free = memories.each_ref().map(next);
    for _ in 0..100 {
        drop(at_once());
        memories.iter().for_each(|memory| drop(memory.enter()));
        assert_eq!(memories.each_ref().map(next), free);
    }
}

#[test]
fn threads_that_end_leave_their_seats_to_others() {
    // Goal: a seat is free again when the thread that kept it has ended, also if a reader begins
    // while it ends, before or after the thread's seats were released; none is leaked, and nothing
    // stays borrowed. Method: short-lived threads, one after another, with readers within readers;
    // the next seat is always the same one.
    struct Late(Arc<FrameMemory>);
    impl Drop for Late {
        fn drop(&mut self) {
            let (outer, inner) = (self.0.enter(), self.0.enter());
            assert!(outer.borrow(Pfn(0), TAG).is_some());
            drop(outer);
            assert!(inner.borrow(Pfn(0), TAG).is_some());
        }
    }
    thread_local!(static LATE: std::cell::OnceCell<Late> = const { std::cell::OnceCell::new() });

    let memory = Arc::new(FrameMemory::new(Pages(1)).unwrap());
    let pfn = published(&memory, 0, 1);
    let next = || format!("{:?}", memory.seat().unwrap());
    let first = next();
    for round in 0..300 {
        let memory = Arc::clone(&memory);
        let short = move || {
            let late = || LATE.with(|late| late.set(Late(Arc::clone(&memory))).is_ok());
            assert!(round % 3 != 0 || late());
            let readers = [(); 3].map(|()| memory.enter());
            assert!(
                readers
                    .iter()
                    .all(|reader| reader.borrow(pfn, TAG).is_some())
            );
            drop(readers);
            assert!(round % 3 != 1 || late());
        };
        std::thread::spawn(short).join().unwrap();
        assert_eq!(next(), first, "round {round}");
    }
    assert_eq!(surrender_all(&memory, retract(&memory, &[pfn])), 1);
}

#[test]
fn a_block_is_one_right_to_its_frames() {
    // Goal: a block's frames are owned together, written as one slice, and freed together or one by
    // one. Method: every order that fits, at the memory's end.
    let memory = FrameMemory::new(Pages(1 << 10)).unwrap();
    for order in (0..=10).map(|order| Order::new(order).unwrap()) {
        let size = u32::try_from(order.pages().0).unwrap();
        let first = Pfn(1024 - size);
        let mut block = memory.claim_block(first, order);
        assert_eq!(memory.count_free(), Pages(1024) - order.pages());
        memory.block_bytes_mut(&mut block).fill(order.get());
        assert_eq!(memory.block_bytes(&block).len(), PAGE_SIZE << order.get());
        assert_eq!(memory.surrender_block(block), (first, order));
        assert_eq!(memory.count_free(), Pages(1024));

        let mut frames = Vec::new();
        memory.claim_block(first, order).split(&mut frames);
        assert!(frames.iter().map(Frame::pfn).eq((first.0..1024).map(Pfn)));
        assert_eq!(memory.bytes(&frames[0]), &[order.get(); PAGE_SIZE]);
        let mut pfns = Vec::new();
        memory.surrender_all(&mut frames, &mut pfns);
        memory.claim_all(&pfns, &mut frames);
        assert_eq!(memory.count_free(), Pages(1024) - order.pages());
        memory.surrender_all(&mut frames, &mut pfns);
    }
}

#[test]
fn impossible_blocks_panic() {
    // Goal: no right to frames that do not exist, are not aligned, or are not free. Method: each;
    // the free frames afterwards are those before.
    let memory = FrameMemory::new(Pages(1024)).unwrap();
    // Of a block of four words, a frame of the third.
    let held = memory.claim(Pfn(256 + 130));
    let claim = || memory.claim_block(Pfn(256), Order::new(8).unwrap()).pfn();
    let claim = std::panic::AssertUnwindSafe(claim);
    assert!(std::panic::catch_unwind(claim).is_err());
    assert_eq!(memory.count_free(), Pages(1023));
    memory.surrender(held);

    let memory = FrameMemory::new(Pages(20)).unwrap();
    let order = Order::new(2).unwrap();
    let held = memory.claim(Pfn(7));
    for first in [2, 4, 20, u32::MAX - 3] {
        let claim = std::panic::AssertUnwindSafe(|| memory.claim_block(Pfn(first), order).pfn());
        assert!(std::panic::catch_unwind(claim).is_err(), "{first}");
    }
    let other = FrameMemory::new(Pages(20)).unwrap();
    let block = other.claim_block(Pfn(4), order);
    let foreign = std::panic::AssertUnwindSafe(|| memory.block_bytes(&block).len());
    assert!(std::panic::catch_unwind(foreign).is_err());
    other.surrender_block(block);
    memory.surrender(held);
}

#[test]
fn free_frames_are_counted_as_a_plain_array_would() {
    // Goal: claiming and surrendering many frames or a block moves their bits and no others.
    // Method: random lists, sorted or not, and random blocks, against an array of booleans; the
    // last word is not full.
    const FRAMES: u32 = 1000;
    let mut random = crate::seed::rng(23);
    let memory = FrameMemory::new(Pages(FRAMES.into())).unwrap();
    let mut is_free = [true; FRAMES as usize];
    let (mut owned, mut blocks) = (Vec::new(), Vec::new());
    for _ in 0..3000 {
        match random.u8(..4) {
            0 => {
                let mut pfns: Vec<Pfn> =
                    (0..FRAMES).map(Pfn).filter(|_| random.u8(..) < 9).collect();
                pfns.retain(|pfn| std::mem::replace(&mut is_free[pfn.index()], false));
                if random.bool() {
                    random.shuffle(&mut pfns);
                }
                let before = owned.len();
                memory.claim_all(&pfns, &mut owned);
                assert!(owned[before..].iter().map(Frame::pfn).eq(pfns));
            }
            1 => {
                let mut some = owned.split_off(random.usize(..=owned.len()));
                let mut pfns = Vec::new();
                memory.surrender_all(&mut some, &mut pfns);
                assert!(some.is_empty());
                pfns.iter().for_each(|pfn| is_free[pfn.index()] = true);
            }
            2 => {
                let order = Order::new(random.u8(..9)).unwrap();
                let size = 1_usize << order.get();
                let first = random.usize(..FRAMES as usize / size) * size;
                if is_free[first..first + size].iter().all(|&is_free| is_free) {
                    is_free[first..first + size].fill(false);
                    blocks.push(memory.claim_block(Pfn::from_index(first), order));
                }
            }
            _ if blocks.is_empty() => {}
            _ => {
                let block = blocks.swap_remove(random.usize(..blocks.len()));
                let (first, order) = memory.surrender_block(block);
                is_free[first.index()..][..1 << order.get()].fill(true);
            }
        }
        let free = is_free.iter().filter(|&&is_free| is_free).count();
        assert_eq!(memory.count_free(), Pages(free as u64));
    }
    memory.surrender_all(&mut owned, &mut Vec::new());
    blocks
        .into_iter()
        .for_each(|block| _ = memory.surrender_block(block));
}

#[test]
fn a_list_that_names_a_frame_twice_panics() {
    // Goal: no list makes two rights to one frame. Method: the same frame twice, side by side and
    // apart, in one word and with another between; a free frame is lost or free, and never there
    // twice.
    for pfns in [[5, 5, 6], [5, 6, 5], [5, 100, 5]] {
        let memory = FrameMemory::new(Pages(200)).unwrap();
        let (mut frames, pfns) = (Vec::new(), pfns.map(Pfn));
        let claim = std::panic::AssertUnwindSafe(|| memory.claim_all(&pfns, &mut frames));
        assert!(std::panic::catch_unwind(claim).is_err());
        let mut claimed: Vec<Pfn> = frames.iter().map(Frame::pfn).collect();
        claimed.dedup();
        assert_eq!(claimed.len(), frames.len());
        assert_eq!(memory.count_free(), Pages(200 - frames.len() as u64));
        memory.surrender_all(&mut frames, &mut Vec::new());
    }
}

#[test]
fn memory_is_given_back_by_owners_and_reads_as_zeros() {
    // Method: frames with gaps, out of order and one block; other frames keep their bytes. Nothing
    // is resident the second time.
    let memory = FrameMemory::new(Pages(1 << 11)).unwrap();
    let signed = |pfn: u32| {
        let mut frame = memory.claim(Pfn(pfn));
        memory.bytes_mut(&mut frame).fill(5);
        frame
    };
    let mut frames: Vec<Frame> = [3, 4, 5, 9, 8, 600, 1023].into_iter().map(signed).collect();
    let kept = signed(6);
    assert_eq!(memory.decommit_all(&mut frames[..0]), Pages(0));
    assert!(memory.decommit_all(&mut frames) >= Pages(7));
    assert_eq!(memory.bytes(&kept), &[5; PAGE_SIZE]);
    for frame in &frames {
        assert_eq!(memory.bytes(frame), &[0; PAGE_SIZE], "{frame:?}");
    }
    let mut block = memory.claim_block(Pfn(1024), Order::MAX);
    memory.block_bytes_mut(&mut block).fill(7);
    assert_eq!(memory.decommit_block(&mut block), Order::MAX.pages());
    assert_eq!(
        memory.decommit_block(&mut block),
        Pages(0),
        "nothing is resident"
    );
    assert!(memory.block_bytes(&block).iter().all(|&byte| byte == 0));
    let (low, high) = block.halve();
    assert_eq!((low.pfn(), high.pfn()), (Pfn(1024), Pfn(1536)));
    memory.surrender_block(low);
    memory.surrender_block(high);
    frames.push(kept);
    frames
        .into_iter()
        .for_each(|frame| _ = memory.surrender(frame));
    assert_eq!(memory.count_free(), memory.pages());
}

#[test]
#[should_panic(expected = "another memory")]
fn memory_of_another_is_not_given_back() {
    let [memory, another] = [4, 8].map(|pages| FrameMemory::new(Pages(pages)).unwrap());
    let mut frames = [another.claim(Pfn(7))];
    memory.decommit_all(&mut frames);
}

#[test]
fn a_memory_of_no_frames_maps_nothing() {
    let memory = FrameMemory::without_frames();
    assert_eq!((memory.pages(), memory.count_free()), (Pages(0), Pages(0)));
    let reader = memory.reader(memory.seat());
    assert!(reader.borrow(Pfn(0), TAG).is_none());
}
