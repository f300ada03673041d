//! Work of one selection, counted: objects looked at, exact sums, and distinct cache lines read.
//!
//! A search runs over a view that counts each look. A line counts once however often it is read,
//! because it is missing from cold caches once. Lines are those of the layouts: of a published tree
//! the root of each member, and for an exact sum one line for each CPU; of the library's set its
//! own, root and bounds, and for an exact sum one for each CPU that added.

use std::cell::RefCell;

use highwater::counter::Accuracy;
use highwater::units::Bytes;
use highwater::victim::{Candidates, Policy, Selector, Standing};

use super::population::{OurSpaces, Spaces};
use crate::baselines::{Tasks, TreeSpaces, select_two_pass};
use crate::report::Row;

/// Counts of one selection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effort {
    /// Looks at an object: one visited in two passes counts twice.
    pub(super) looks: u64,
    pub(super) exact_sums: u64,
    /// Distinct cache lines.
    pub(super) lines: u64,
}

impl Effort {
    /// Returns the work of the library's search.
    pub(super) fn of_ours(spaces: &OurSpaces) -> Self {
        let view = View::new(spaces, spaces.sets().len());
        let mut selector = Selector::with_capacity(Policy::READS_MAX + 1);
        let _decision = selector.select(&view, &Policy::default());
        view.effort()
    }

    /// Returns the work of the two published passes.
    pub(super) fn of_two_passes(spaces: &Spaces) -> Self {
        let view = View::new(&spaces.trees, spaces.trees.len());
        let _chosen = select_two_pass(&view);
        view.effort()
    }

    /// Returns the work of exact sums of all spaces.
    pub(super) fn of_one_pass(spaces: &Spaces) -> Self {
        let nr_spaces = spaces.ours.sets().len() as u64;
        Self {
            looks: nr_spaces,
            exact_sums: nr_spaces,
            lines: spaces.flat.bytes().div_ceil(LINE_BYTES),
        }
    }

    /// Returns `row` with the counts.
    pub(super) fn on(&self, row: Row) -> Row {
        row.with("looked_at", self.looks)
            .with("lines", self.lines)
            .with("exact_sums", self.exact_sums)
    }
}

const LINE_BYTES: u64 = 64;

/// Lines that a look and an exact sum read.
trait Lines {
    fn lines(&self, object: usize) -> [u64; 2];
}

impl Lines for TreeSpaces {
    fn lines(&self, _: usize) -> [u64; 2] {
        self.lines_read()
    }
}

impl Lines for OurSpaces {
    fn lines(&self, object: usize) -> [u64; 2] {
        let [look, exact] = self.lines_read(object);
        // The set's own lines were read by the look already.
        let own = size_of_val(&self.sets()[object]) as u64 / LINE_BYTES;
        [look, exact - own]
    }
}

/// A population that counts what is read of it.
struct View<'a, T> {
    of: &'a T,
    seen: RefCell<Seen>,
}

#[derive(Default)]
struct Seen {
    effort: Effort,
    /// Whether an object's look, and its exact sum, were counted.
    were_read: Vec<[bool; 2]>,
}

impl<'a, T: Lines> View<'a, T> {
    fn new(of: &'a T, objects: usize) -> Self {
        let seen = Seen {
            effort: Effort::default(),
            were_read: vec![[false; 2]; objects],
        };
        Self {
            of,
            seen: RefCell::new(seen),
        }
    }

    fn effort(&self) -> Effort {
        self.seen.borrow().effort
    }

    fn looks_at(&self, object: usize) {
        self.seen.borrow_mut().effort.looks += 1;
        self.reads(object, 0);
    }

    fn sums(&self, object: usize) {
        self.seen.borrow_mut().effort.exact_sums += 1;
        self.reads(object, 1);
    }

    fn reads(&self, object: usize, kind: usize) {
        let mut seen = self.seen.borrow_mut();
        if !std::mem::replace(&mut seen.were_read[object][kind], true) {
            seen.effort.lines += self.of.lines(object)[kind];
        }
    }
}

impl Tasks for View<'_, TreeSpaces> {
    fn len(&self) -> usize {
        self.of.len()
    }

    fn approximate(&self, task: usize) -> i64 {
        self.looks_at(task);
        self.of.approximate(task)
    }

    fn accuracy(&self) -> Accuracy {
        self.of.accuracy()
    }

    fn exact(&self, task: usize) -> i64 {
        self.sums(task);
        self.of.exact(task)
    }
}

impl Candidates for View<'_, OurSpaces> {
    type Id = usize;

    fn for_each(&self, mut visit: impl FnMut(usize, &Standing)) {
        self.of.for_each(|id, standing| {
            self.looks_at(id);
            visit(id, standing);
        });
    }

    fn precise_usage(&self, id: usize) -> Option<Bytes> {
        self.sums(id);
        self.of.precise_usage(id)
    }
}
