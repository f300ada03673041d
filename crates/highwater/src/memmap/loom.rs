//! Loom models of borrowing against retracting: a frame that a reader holds, by slot or by pin, is
//! never owned by another thread.

use ::loom::cell::UnsafeCell;
use ::loom::{model, thread};

use super::frames::Taken;
use super::{FrameMemory, Pinned, Retracted};
use crate::sync::Arc;
use crate::units::{Pages, Pfn};

const TAG: u64 = 5;

fn one_published_frame() -> Arc<FrameMemory> {
    let memory = FrameMemory::new(Pages(1)).unwrap();
    let mut frame = memory.claim(Pfn(0));
    memory.bytes_mut(&mut frame)[0] = 1;
    memory.publish(frame, TAG);
    Arc::new(memory)
}

/// Retracts the frame if possible, and then writes it as an owner may.
fn retract_and_write(memory: &FrameMemory) -> bool {
    let mut out = Retracted::default();
    memory.retract(&[(Pfn(0), TAG)], &mut out);
    let Some(mut frame) = out.frames.pop() else {
        return false;
    };
    memory.bytes_mut(&mut frame)[0] = 2;
    memory.surrender(frame);
    true
}

#[test]
fn a_slot_borrow_excludes_the_owner() {
    model(|| {
        let memory = one_published_frame();
        let owner = Arc::clone(&memory);
        let owner = thread::spawn(move || retract_and_write(&owner));
        {
            let reader = memory.reader(memory.seat());
            // Without a check of the tag before.
            if let Some(bytes) = reader.borrow_likely(Pfn(0), TAG) {
                thread::yield_now();
                assert_eq!(bytes[0], 1);
            }
        }
        let taken = owner.join().unwrap();
        assert_eq!(taken, memory.count_free() == Pages(1));
    });
}

#[test]
fn a_slot_that_is_used_again_excludes_the_owner() {
    // Method: two slots both announce the first frame, so that the second frame is announced by one
    // of them; the third is pinned. All borrowed bytes are unchanged at the end.
    model(|| {
        let memory = Arc::new(FrameMemory::new(Pages(3)).unwrap());
        let pfns = [Pfn(0), Pfn(1), Pfn(2)];
        for pfn in pfns {
            let mut frame = memory.claim(pfn);
            memory.bytes_mut(&mut frame)[0] = 1;
            memory.publish(frame, TAG);
        }
        let owner = Arc::clone(&memory);
        let owner = thread::spawn(move || {
            let mut out = Retracted::default();
            owner.retract(&pfns.map(|pfn| (pfn, TAG)), &mut out);
            for mut frame in out.frames {
                owner.bytes_mut(&mut frame)[0] = 2;
                owner.surrender(frame);
            }
        });
        {
            let reader = memory.reader(memory.seat());
            let order = [pfns[0], pfns[0], pfns[1], pfns[2]];
            let borrowed = order.map(|pfn| reader.borrow_likely(pfn, TAG));
            thread::yield_now();
            assert!(borrowed.iter().flatten().all(|bytes| bytes[0] == 1));
        }
        owner.join().unwrap();
    });
}

#[test]
fn a_pin_excludes_the_owner() {
    model(|| {
        let memory = one_published_frame();
        let owner = Arc::clone(&memory);
        let owner = thread::spawn(move || retract_and_write(&owner));
        if let Some(pinned) = Pinned::new(Arc::clone(&memory), Pfn(0), TAG) {
            thread::yield_now();
            assert_eq!(pinned.bytes()[0], 1);
        }
        owner.join().unwrap();
    });
}

#[test]
fn one_of_two_retractors_wins() {
    model(|| {
        let memory = one_published_frame();
        let other = Arc::clone(&memory);
        let other = thread::spawn(move || retract_and_write(&other));
        let mine = retract_and_write(&memory);
        assert!(mine ^ other.join().unwrap());
    });
}

#[test]
fn reading_lies_before_what_the_next_owner_writes() {
    // Method: a cell of the model stands for the frame's bytes; it fails when a read and a write of
    // it are not ordered. The reader leaves its seat, or announces another frame by the same slot.
    for next in [None, Some(Pfn(1))] {
        model(move || {
            let memory = Arc::new(FrameMemory::new(Pages(2)).unwrap());
            for pfn in [Pfn(0), Pfn(1)] {
                let frame = memory.claim(pfn);
                memory.publish(frame, TAG);
            }
            let bytes = Arc::new(UnsafeCell::new(0));
            let (owner, owners_bytes) = (Arc::clone(&memory), Arc::clone(&bytes));
            let owner = thread::spawn(move || {
                if retract_and_write(&owner) {
                    owners_bytes.with_mut(|_| ());
                }
            });
            let mut reader = memory.reader(memory.seat());
            if reader.borrow(Pfn(0), TAG).is_some() {
                bytes.with(|_| ());
            }
            let seat = reader.take_seat();
            let again = next.map(|pfn| {
                let again = memory.reader(seat);
                assert!(again.borrow(pfn, TAG).is_some());
                again
            });
            owner.join().unwrap();
            drop(again);
        });
    }
}

#[test]
fn a_frame_that_is_put_back_shows_what_its_owner_wrote() {
    // Method: a cell of the model stands for the frame's bytes, written by the owner before it
    // publishes. Another thread takes the tag and puts it back, as a retract that unwinds does; a
    // reader that borrows afterwards reads the cell.
    model(|| {
        let memory = Arc::new(FrameMemory::new(Pages(1)).unwrap());
        let bytes = Arc::new(UnsafeCell::new(0));
        let (owner, owners_bytes) = (Arc::clone(&memory), Arc::clone(&bytes));
        let owner = thread::spawn(move || {
            let frame = owner.claim(Pfn(0));
            // SAFETY: the model reports if another thread reads it meanwhile.
            owners_bytes.with_mut(|bytes| unsafe { *bytes = 1 });
            owner.publish(frame, TAG);
        });
        let other = Arc::clone(&memory);
        let other = thread::spawn(move || {
            drop(Taken::from(&other, &[(Pfn(0), TAG)], &mut Vec::new()));
        });
        {
            let reader = memory.reader(memory.seat());
            if reader.borrow(Pfn(0), TAG).is_some() {
                // SAFETY: as above.
                assert_eq!(bytes.with(|bytes| unsafe { *bytes }), 1);
            }
        }
        owner.join().unwrap();
        other.join().unwrap();
    });
}
