//! Batches of token words of other CPUs, stepped under one membarrier(2) each.
//!
//! In the restartable regime, stepping a word of another CPU takes a membarrier, which interrupts
//! that CPU: microseconds. A pass that takes tokens back from many words pays one membarrier for
//! each [`FAR_MAX`] of them. In the atomic regime no word is far.

use std::ops::ControlFlow;

use super::cell::{Cell, OpenCell, Site};
use crate::percpu::Raised;

/// Words per membarrier. Chosen: a kibibyte of stack, and few enough that their CPUs do not step
/// them by locked instructions for long.
const FAR_MAX: usize = 64;

/// A batch of words, with their sites.
pub(in crate::group) struct Far<'a> {
    cells: [Option<(Site, &'a Cell)>; FAR_MAX],
    len: usize,
}

impl<'a> Far<'a> {
    pub(in crate::group) fn none() -> Self {
        Self {
            cells: [None; FAR_MAX],
            len: 0,
        }
    }

    /// Adds a word to the batch; a full batch is passed to `visit` as by [`each`](Self::each).
    pub(in crate::group) fn add<B>(
        &mut self,
        site: Site,
        cell: &'a Cell,
        visit: &mut dyn FnMut(Site, &OpenCell<'_>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        self.cells[self.len] = Some((site, cell));
        self.len += 1;
        if self.len == FAR_MAX {
            self.each(visit)?;
        }
        ControlFlow::Continue(())
    }

    /// Raises the gates of the batch, passes each word to `visit` until that breaks, lowers the
    /// gates and empties the batch.
    pub(in crate::group) fn each<B>(
        &mut self,
        visit: &mut dyn FnMut(Site, &OpenCell<'_>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let cells = &self.cells[..self.len];
        self.len = 0;
        let batch = cells.iter().flatten();
        let raised = Raised::new(batch.clone().map(|(_, cell)| cell.gated()));
        for ((site, _), open) in batch.zip(raised.words()) {
            visit(*site, &OpenCell(open))?;
        }
        ControlFlow::Continue(())
    }
}
