//! Models of counters: every interleaving of additions on one CPU, and of one that closes a window
//! from another, on the model checker's CPUs.

use ::loom::model;

use super::model::run_on;
use super::{Cells, Home, Regime, Sequences, Windowed};
use crate::sync::{Arc, thread};
use crate::units::CpuId;

const C0: CpuId = CpuId(0);
const C1: CpuId = CpuId(1);

// Goal: no addition is lost, also not of the two that touch the word first, nor of a thread that
// runs on no known CPU. Method: two threads of one CPU or of two.
#[test]
fn cells_lose_no_addition() {
    for other in [C0, C1, CpuId(9)] {
        model(move || {
            let cells = Arc::new(Cells::new(Regime::Restartable, 2, 1));
            let shared = Arc::clone(&cells);
            let adder = thread::spawn(move || {
                run_on(other);
                shared.add(0, 1);
            });
            run_on(C0);
            cells.add(0, 2);
            adder.join().expect("the model's thread ends");
            assert_eq!(cells.precise_sum(0), 3);
        });
    }
}

// Goal: of two CPUs that add, one becomes the owner, and what it adds is not lost.
#[test]
fn a_home_has_one_owner() {
    for other in [C0, C1] {
        model(move || {
            let home = Arc::new(Home::<1>::new(Regime::Restartable));
            let shared = Arc::clone(&home);
            let adder = thread::spawn(move || {
                run_on(other);
                i64::from(shared.try_add(0, 1))
            });
            run_on(C0);
            let mine = 2 * i64::from(home.try_add(0, 2));
            let theirs = adder.join().expect("the model's thread ends");
            assert_eq!(home.load(0), mine + theirs);
            assert!(mine + theirs > 0 && (other == C1 || mine + theirs == 3));
        });
    }
}

// Goal: nothing is added to a closed window once additions were stopped. Method: an addition on its
// CPU, and a thread elsewhere that closes the window and then reads the cell.
#[test]
fn a_closed_window_gets_no_addition() {
    model(|| {
        let sequences = Sequences::of(Regime::Restartable);
        let words = Arc::new(Windowed::<1>::new(sequences, C0));
        assert!(words.exchange_window(0, 8));
        let shared = Arc::clone(&words);
        let adder = thread::spawn(move || {
            run_on(C0);
            i64::from(shared.try_add(sequences, C0, 0, 1))
        });
        run_on(C1);
        assert!(words.exchange_window(8, 1 << 32));
        words.stop_additions(sequences).expect("granted");
        let cell = words.cell(0);
        let added = adder.join().expect("the model's thread ends");
        assert_eq!((cell, words.cell(0)), (added, added));
    });
}
