//! Models of leaves that come and go beside readers.

use ::loom::{model, thread};

use super::table::{Entry, Installed, Left, PageTable};
use crate::sync::Arc;
use crate::units::Pfn;

const PFN: Pfn = Pfn(1);
const OTHER: Pfn = Pfn(2);

fn install(table: &PageTable, page: u64, pfn: Pfn) {
    assert_eq!(table.install(page, pfn), Installed::Now(Entry::ABSENT));
}

#[test]
fn a_leaf_goes_beside_an_install_or_not_at_all() {
    // Goal: the last entry of a leaf is cleared while another comes: the latter is not lost, and
    // readers see what was there at some time. Method: pages 4 and 5 are all of a leaf.
    model(|| {
        let table = Arc::new(PageTable::new(8, 2));
        install(&table, 4, PFN);
        let clears = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                assert!(table.clear(4, PFN, Left::Absent).is_some());
                assert_eq!(table.get(4), Entry::ABSENT);
            })
        };
        let installs = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                install(&table, 5, OTHER);
                assert_eq!(table.get(5).pfn(), Some(OTHER));
            })
        };
        assert!(!table.is_hole(4) && !table.is_hole(5));
        clears.join().unwrap();
        installs.join().unwrap();
        assert_eq!(table.get(5).pfn(), Some(OTHER));
        assert_eq!(table.nr_nodes(), 1);
        assert!(table.clear(5, OTHER, Left::Absent).is_some());
        assert_eq!(table.nr_nodes(), 0);
    });
}

#[test]
fn a_leaf_becomes_another_one_beside_its_users() {
    // Goal: a thread that is on its way to a leaf, while that becomes another one, changes neither
    // the other's entries nor its count. Method: the page of the only leaf is used for another
    // leaf, whose entry names the same frame, while the first is read, marked and cleared.
    model(|| {
        let table = Arc::new(PageTable::new(8, 2));
        install(&table, 4, PFN);
        let moves = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                let was = table.clear(4, PFN, Left::Absent);
                install(&table, 0, PFN);
                was.is_some()
            })
        };
        let seen = table.get(4);
        assert!(seen.pfn().is_none_or(|pfn| pfn == PFN) && !table.is_hole(4));
        if seen.pfn().is_some() {
            table.touch(4, seen);
        }
        let was_here = table.clear(4, PFN, Left::Swapped).is_some();
        let was_there = moves.join().unwrap();
        assert!(was_here != was_there, "cleared once");
        assert_eq!(table.get(0).pfn(), Some(PFN));
        assert_eq!(table.get(4).is_swapped(), was_here);
        let others = table.take_swapped(0..8, |_| false);
        assert_eq!(others, i64::from(was_here));
        assert_eq!(table.nr_nodes(), 1);
    });
}

#[test]
fn a_hole_stays_one_while_its_leaf_goes() {
    // Goal: a page that was unmapped is never seen as absent, while its leaf, and the node above,
    // become holes as a whole and their pages other ones. Method: page 4 is a hole; the others of
    // its leaf, or subtree, become holes while it is read.
    for (len, pages) in [(8, 4..6), (16, 4..8)] {
        model(move || {
            let table = Arc::new(PageTable::new(len, 2));
            table.punch(4..5, |_, _| ());
            let punches = {
                let (table, pages) = (Arc::clone(&table), pages.clone());
                thread::spawn(move || {
                    table.punch(pages, |page, _| panic!("page {page} was not in use"));
                    install(&table, 0, PFN);
                })
            };
            assert!(table.is_hole(4));
            assert_eq!(table.install(4, OTHER), Installed::Hole);
            punches.join().unwrap();
            assert!(table.is_hole(4) && table.is_hole(5));
            assert_eq!(table.get(0).pfn(), Some(PFN));
            assert_eq!(table.nr_nodes(), if len == 8 { 1 } else { 2 });
        });
    }
}

#[test]
fn a_leaf_comes_once_for_threads_that_install_at_once() {
    // Goal: as the name says, also of the node above; and both go. Method: two threads install in
    // one leaf of a table with two levels, and clear what they installed.
    model(|| {
        let table = Arc::new(PageTable::new(16, 2));
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                install(&table, 5, OTHER);
                assert!(table.clear(5, OTHER, Left::Absent).is_some());
            })
        };
        install(&table, 4, PFN);
        assert_eq!(table.get(4).pfn(), Some(PFN));
        assert!(table.clear(4, PFN, Left::Absent).is_some());
        other.join().unwrap();
        assert_eq!(table.nr_nodes(), 0);
    });
}

#[test]
fn a_hole_stays_one_while_its_page_becomes_a_node() {
    // Goal: as above, where the page of the holes' leaf comes back as a node, and goes again.
    // Method: a subtree of holes is completed while a leaf of the other one comes and goes.
    model(|| {
        let table = Arc::new(PageTable::new(16, 2));
        table.punch(4..5, |_, _| ());
        let punches = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                table.punch(4..8, |page, _| panic!("page {page} was not in use"));
            })
        };
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                install(&table, 0, PFN);
                assert!(table.clear(0, PFN, Left::Absent).is_some());
            })
        };
        assert!(table.is_hole(4));
        punches.join().unwrap();
        other.join().unwrap();
    });
}
