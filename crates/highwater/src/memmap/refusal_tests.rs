//! Refusals: batches with invalid entries, and system calls that a sandbox takes away.

use super::barrier::Barrier;
use super::frames::Taken;
use super::tests::{
    TAG, of_both_barriers, published, retract, rewrite_beside_readers, surrender_all,
};
use super::*;
use crate::sync::thread;
use crate::units::{PAGE_SIZE, Pages, Pfn};

#[test]
fn a_batch_that_is_refused_hands_out_no_frame_that_is_read() {
    // Symptom: a retract that panicked over a later frame of its batch left tokens of earlier ones,
    // not checked yet, by which safe code wrote bytes that a reader was reading. Method: a borrowed
    // frame and a free one, then an invalid entry, in every place of the batch; both are published
    // as before.
    let memory = FrameMemory::new(Pages(4)).unwrap();
    let read = published(&memory, 0, 5);
    let idle = published(&memory, 1, 6);
    let reader = memory.reader(memory.seat());
    let bytes = reader.borrow(read, TAG).expect("published");
    for refused in [(Pfn(2), 0), (Pfn(4), TAG), (Pfn(u32::MAX), TAG)] {
        for at in 0..3 {
            let mut batch = vec![(read, TAG), (idle, TAG)];
            batch.insert(at, refused);
            let mut out = Retracted::default();
            let retract = std::panic::AssertUnwindSafe(|| memory.retract(&batch, &mut out));
            assert!(std::panic::catch_unwind(retract).is_err(), "{refused:?}");
            assert_eq!((out.frames.len(), out.borrowed.len()), (0, 0));
            assert!(memory.has_tag(read, TAG) && memory.has_tag(idle, TAG));
        }
    }
    assert_eq!(bytes, &[5; PAGE_SIZE]);
    let out = retract(&memory, &[read, idle]);
    assert_eq!(out.borrowed, [read]);
    assert_eq!(surrender_all(&memory, out), 1);
}

#[test]
fn a_retract_that_unwinds_in_its_middle_publishes_what_it_took() {
    // Goal: tags that were cleared are put back, on any unwinding. Method: unwind with tags
    // cleared, before the scan of seats and pins and after a part of it.
    let memory = FrameMemory::new(Pages(3)).unwrap();
    let pfns = [0, 1, 2].map(|pfn| published(&memory, pfn, 1));
    let batch = pfns.map(|pfn| (pfn, TAG));
    for gone in 0..3 {
        let mut frames = Vec::new();
        let mut taken = Taken::from(&memory, &batch, &mut frames);
        assert!(pfns.iter().all(|&pfn| !memory.has_tag(pfn, TAG)));
        for _ in 0..gone {
            let (pfn, tag) = taken.first().expect("three were taken");
            taken.forget_first();
            memory.put_back(pfn, tag);
        }
        drop(taken);
        assert!(pfns.iter().all(|&pfn| memory.has_tag(pfn, TAG)), "{gone}");
    }
    assert_eq!(surrender_all(&memory, retract(&memory, &pfns)), 3);
}

#[test]
fn a_borrowed_frame_keeps_the_tag_that_it_has() {
    // Symptom: a batch that named a frame under two tags published it again under the first one, so
    // that it was found under a name whose bytes it does not hold. Method: both tags in either
    // order, the frame borrowed and not; named twice under one tag, it is handed out once.
    let memory = FrameMemory::new(Pages(1)).unwrap();
    let pfn = published(&memory, 0, 1);
    for batch in [[(pfn, TAG + 1), (pfn, TAG)], [(pfn, TAG), (pfn, TAG + 1)]] {
        let mut out = Retracted::default();
        let reader = memory.reader(memory.seat());
        assert!(reader.borrow(pfn, TAG).is_some());
        memory.retract(&batch, &mut out);
        assert_eq!(out.borrowed, [pfn]);
        assert!(memory.has_tag(pfn, TAG) && !memory.has_tag(pfn, TAG + 1));
        drop(reader);
        for batch in [batch, [(pfn, TAG); 2]] {
            memory.retract(&batch, &mut out);
            assert_eq!((out.frames.len(), out.borrowed.len()), (1, 0));
            let frame = out.frames.pop().expect("one");
            memory.publish(frame, TAG);
        }
    }
    assert_eq!(surrender_all(&memory, retract(&memory, &[pfn])), 1);
}

/// Runs `test` in a thread of its own, with the given system calls refused.
#[cfg(all(target_os = "linux", not(miri)))]
fn refused(others: &[libc::c_long], errno: libc::c_int, test: impl FnOnce() + Send) {
    let test = || sandbox::refuse_membarrier(others, errno).then(test);
    thread::scope(|scope| _ = scope.spawn(test).join().expect("as above"));
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn retracting_goes_on_where_membarrier_is_refused_later() {
    // Symptom: a program whose filter refused membarrier after it had built its memory spun a
    // million times in each retract, and panicked. Method: a memory that relies on it; then a
    // filter, with either error, in the thread that retracts beside readers.
    for errno in [libc::EPERM, libc::ENOSYS] {
        let memory = FrameMemory::new(Pages(2)).unwrap();
        refused(&[], errno, || rewrite_beside_readers(&memory, 100));
    }
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn nothing_is_handed_out_where_no_barrier_can_be_had() {
    // Goal: without a barrier, and without its replacement, no frame is owned: all stay as they
    // are, and the call ends. Method: as above, with the visits refused too; a memory that does not
    // rely on membarrier still works.
    for (memory, barrier) in of_both_barriers(2)
        .into_iter()
        .zip([Barrier::new(), Barrier::fenced()])
    {
        let pfns = [0, 1].map(|pfn| published(&memory, pfn, 1));
        refused(&[sandbox::SETAFFINITY], libc::EPERM, || {
            let out = retract(&memory, &pfns);
            if barrier.is_asymmetric() {
                assert_eq!((out.frames.len(), &out.borrowed[..]), (0, &pfns[..]));
                assert!(pfns.iter().all(|&pfn| memory.has_tag(pfn, TAG)));
            } else {
                assert_eq!(surrender_all(&memory, out), 2);
            }
        });
    }
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn frames_that_the_system_does_not_take_back_read_as_zeros() {
    // Symptom: if the system refused to decommit memory (it is locked, or a sandbox refuses) the
    // next owner read the last one's bytes. Method: a filter that refuses the call.
    let memory = FrameMemory::new(Pages(3)).unwrap();
    let decommit = || {
        let mut frame = memory.claim(Pfn(1));
        memory.bytes_mut(&mut frame).fill(5);
        let is_refused = sandbox::refuse(&[libc::SYS_madvise], libc::EPERM);
        memory.decommit(&mut frame);
        assert_eq!(memory.bytes(&frame), &[0; PAGE_SIZE], "{is_refused}");
        let mut frames = vec![frame, memory.claim(Pfn(2))];
        memory.bytes_mut(&mut frames[1]).fill(6);
        let given = memory.decommit_all(&mut frames);
        assert_eq!(memory.bytes(&frames[1]), &[0; PAGE_SIZE]);
        assert!(
            given == Pages::ZERO || !is_refused,
            "{given} are resident still"
        );
        memory.surrender_all(&mut frames, &mut Vec::new());
    };
    thread::scope(|scope| scope.spawn(decommit).join().unwrap());
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn locked_frames_are_given_back_or_not_counted() {
    // Goal: what is reported as given back is not resident. Method: a frame that is locked in
    // memory, which older systems do not take back.
    let memory = FrameMemory::new(Pages(1)).unwrap();
    let mut frame = memory.claim(Pfn(0));
    memory.bytes_mut(&mut frame).fill(5);
    let bytes = memory.bytes(&frame).as_ptr();
    // SAFETY: the bytes are mapped; locking changes none.
    let locked = unsafe { libc::mlock(bytes.cast(), PAGE_SIZE) };
    let mut frames = vec![frame];
    let given = memory.decommit_all(&mut frames);
    let resident = memory.reservation.nr_resident(Pfn(0), Pages(1));
    assert_eq!(given + resident, Pages(1), "mlock: {locked}");
    assert_eq!(memory.bytes(&frames[0]), &[0; PAGE_SIZE]);
    memory.surrender_all(&mut frames, &mut Vec::new());
}
