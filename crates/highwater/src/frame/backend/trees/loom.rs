//! Models: all interleavings over one or two words: hints that are cleared beside frees, whole
//! words taken beside single frames, and the last free frames.

use ::loom::{model, thread};

use super::*;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

const CPU: CpuId = CpuId(0);

/// Runs each of `others` in a thread concurrently with `this`.
fn beside<B: 'static + Send + Sync>(
    shared: &Arc<B>,
    this: impl FnOnce(&B),
    others: Vec<Box<dyn FnOnce(&B) + Send>>,
) {
    let others: Vec<_> = others
        .into_iter()
        .map(|other| {
            let shared = Arc::clone(shared);
            thread::spawn(move || other(&shared))
        })
        .collect();
    this(shared);
    for other in others {
        other.join().unwrap();
    }
}

fn take(trees: &Trees, of: u8, floor: u64) -> Option<Pfn> {
    let mut out = [Pfn(u32::MAX)];
    let order = Order::new(of).unwrap();
    let taken = trees.alloc_bulk(CPU, order, Pages(floor), Wait::Allowed, &mut out);
    (taken == 1).then_some(out[0])
}

fn free(trees: &Trees, of: u8, block: Pfn) {
    let order = Order::new(of).unwrap();
    trees.free_bulk(CPU, order, Wait::Allowed, &mut [block]);
}

#[test]
fn a_word_that_is_emptied_beside_frees_is_found() {
    // Goal: the hint to a word with a free frame is set in the end. Method: of three frames one is
    // free; one thread takes it and clears the hint, while two others free one each.
    model(|| {
        let bitmap = Arc::new(Bitmap::new(3));
        assert_eq!(bitmap.take(0, 0, 2), 0b011);
        let put = |frame: u64| -> Box<dyn FnOnce(&Bitmap) + Send> {
            Box::new(move |bitmap| assert_eq!(bitmap.put(0, frame), 0))
        };
        let take = |bitmap: &Bitmap| assert_eq!(bitmap.take(0, 0, 1).count_ones(), 1);
        beside(&bitmap, take, vec![put(0b001), put(0b010)]);
        bitmap.check_invariants();
        assert_eq!(bitmap.word(0).count_ones(), 2);
    });
}

#[test]
fn a_word_that_is_filled_beside_a_request_is_found_full() {
    // Goal: the same for full words. Method: one frame is allocated and comes back, while another
    // thread takes a frame, perhaps of the full word, and frees it.
    model(|| {
        let bitmap = Arc::new(Bitmap::new(64));
        assert_eq!(bitmap.take(0, 0, 1), 1);
        let borrow = |bitmap: &Bitmap| {
            let frame = bitmap.take(0, 0, 1);
            assert_eq!(bitmap.put(0, frame), 0);
        };
        let put: Box<dyn FnOnce(&Bitmap) + Send> =
            Box::new(|bitmap| assert_eq!(bitmap.put(0, 1), 0));
        beside(&bitmap, borrow, vec![put]);
        assert_eq!(bitmap.word(0), u64::MAX);
        bitmap.check_invariants();
    });
}

#[test]
fn a_full_word_that_was_seen_broken_is_found() {
    // Goal: a hint that is cleared because its word was seen broken is set if the word became full
    // meanwhile. Method: one frame comes back while a request for the whole word looks.
    model(|| {
        let bitmap = Arc::new(Bitmap::new(64));
        assert_eq!(bitmap.take(0, 0, 1), 1);
        let put: Box<dyn FnOnce(&Bitmap) + Send> =
            Box::new(|bitmap| assert_eq!(bitmap.put(0, 1), 0));
        let take = |bitmap: &Bitmap| {
            if bitmap.take_words(0, 1) {
                assert_eq!(bitmap.put_words(0, 1), 0);
            }
        };
        beside(&bitmap, take, vec![put]);
        assert_eq!(bitmap.word(0), u64::MAX);
        bitmap.check_invariants();
    });
}

#[test]
fn an_area_that_is_made_fresh_beside_requests_is_counted_once() {
    // Goal: an area is fresh only while no frame of it is owned, and the count of fresh words is
    // exact. Method: the owner of an area makes it fresh and frees it beside two requests for
    // frames of two words of it.
    model(|| {
        let bitmap = Arc::new(Bitmap::new(512));
        assert_eq!(bitmap.nr_fresh(), Pages(512));
        assert!(bitmap.take_words(0, 8));
        assert_eq!(bitmap.nr_fresh(), Pages::ZERO);
        let taken = Arc::new(AtomicU32::new(0));
        let request = |word: usize| -> Box<dyn FnOnce(&Bitmap) + Send> {
            let taken = Arc::clone(&taken);
            Box::new(move |bitmap| {
                let frames = bitmap.take(word, 0, 1).count_ones();
                taken.fetch_add(frames, Ordering::Relaxed);
            })
        };
        let give_back = |bitmap: &Bitmap| {
            bitmap.make_fresh(0);
            assert_eq!(bitmap.put_words(0, 8), 0);
        };
        beside(&bitmap, give_back, vec![request(0), request(7)]);
        bitmap.check_invariants();
        let is_fresh = taken.load(Ordering::Relaxed) == 0;
        assert_eq!(bitmap.nr_fresh(), Pages(if is_fresh { 512 } else { 0 }));
    });
}

#[test]
fn whole_words_are_taken_beside_single_frames() {
    // Goal: words are taken all or none, and an undone take is free and found again. Method: one
    // thread takes two words, another borrows a frame of the second.
    model(|| {
        let bitmap = Arc::new(Bitmap::new(128));
        let borrow: Box<dyn FnOnce(&Bitmap) + Send> = Box::new(|bitmap| {
            let frame = bitmap.take(1, 0, 1);
            assert_eq!(bitmap.put(1, frame), 0);
        });
        let take = |bitmap: &Bitmap| {
            if bitmap.take_words(0, 2) {
                assert_eq!((bitmap.word(0), bitmap.word(1)), (0, 0));
                assert_eq!(bitmap.put_words(0, 2), 0);
            }
        };
        beside(&bitmap, take, vec![borrow]);
        assert_eq!((bitmap.word(0), bitmap.word(1)), (u64::MAX, u64::MAX));
        bitmap.check_invariants();
    });
}

#[test]
fn a_large_block_is_had_beside_a_single_frame() {
    // Goal: the same through the back end, with promises.
    model(|| {
        let trees = Arc::new(Trees::new(128, 1));
        let borrow = |of: u8| {
            move |trees: &Trees| {
                if let Some(block) = take(trees, of, 0) {
                    free(trees, of, block);
                }
            }
        };
        beside(&trees, borrow(0), vec![Box::new(borrow(7))]);
        assert_eq!(trees.nr_free_blocks(Order::new(7).unwrap()), 1);
        trees.check_invariants();
    });
}

#[test]
fn every_promised_frame_is_found() {
    // Goal: a request for a single frame gets one if it was promised one, although the other thread
    // frees and takes the frames of the same word. Method: three frames, of which each thread owns
    // one at a time; so one is always free.
    model(|| {
        let trees = Arc::new(Trees::new(3, 2));
        let (mine, others) = (take(&trees, 0, 0).unwrap(), take(&trees, 0, 0).unwrap());
        let exchange = |frame: Pfn| {
            move |trees: &Trees| {
                free(trees, 0, frame);
                assert!(
                    take(trees, 0, 0).is_some(),
                    "two at least are free or in flight"
                );
            }
        };
        beside(&trees, exchange(mine), vec![Box::new(exchange(others))]);
        assert_eq!(trees.nr_free(), Pages(1));
        trees.check_invariants();
    });
}

#[test]
fn the_last_frame_above_the_floor_goes_to_one_of_two_requests() {
    model(|| {
        let trees = Arc::new(Trees::new(2, 1));
        let got = Arc::new(AtomicU32::new(0));
        let others_got = Arc::clone(&got);
        let request = |got: Arc<AtomicU32>| {
            move |trees: &Trees| {
                if take(trees, 0, 1).is_some() {
                    got.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        beside(
            &trees,
            request(Arc::clone(&got)),
            vec![Box::new(request(others_got))],
        );
        assert_eq!(got.load(Ordering::Relaxed), 1);
        assert_eq!(trees.nr_free(), Pages(1));
        trees.check_invariants();
    });
}

#[test]
fn a_block_that_is_not_there_costs_others_nothing() {
    // Goal: searching for a block in vain withholds no frames. Method: two frames are free that are
    // no block; both are requested beside a request for a block.
    model(|| {
        let trees = Arc::new(Trees::new(3, 1));
        let all: Vec<_> = (0..3).map(|_| take(&trees, 0, 0).unwrap()).collect();
        free(&trees, 0, all[0]);
        free(&trees, 0, all[2]);
        let block = |trees: &Trees| assert_eq!(take(trees, 1, 0), None);
        let frames = |trees: &Trees| {
            assert!(take(trees, 0, 0).is_some() && take(trees, 0, 0).is_some());
        };
        beside(&trees, frames, vec![Box::new(block)]);
    });
}

#[test]
fn a_promise_in_doubt_is_waited_for() {
    // Goal: a block that is split between the check and the promise costs other requests nothing.
    // Method: two frames of three are requested beside a request for a block of two, which either
    // gets it or leaves both.
    model(|| {
        let trees = Arc::new(Trees::new(3, 1));
        let blocks = Arc::new(AtomicU32::new(0));
        let had = Arc::clone(&blocks);
        let block = move |trees: &Trees| {
            if take(trees, 1, 0).is_some() {
                had.fetch_add(1, Ordering::Relaxed);
            }
        };
        let frames = Arc::new(AtomicU32::new(0));
        let got = Arc::clone(&frames);
        let singles = move |trees: &Trees| {
            for _ in 0..2 {
                got.fetch_add(u32::from(take(trees, 0, 0).is_some()), Ordering::Relaxed);
            }
        };
        beside(&trees, singles, vec![Box::new(block)]);
        let counts = [&blocks, &frames].map(|count| count.load(Ordering::Relaxed));
        assert!(matches!(counts, [0, 2] | [1, 1]), "{counts:?}");
        trees.check_invariants();
    });
}
