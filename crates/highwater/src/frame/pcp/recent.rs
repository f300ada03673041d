//! The recent use of a list (pcp), in the tally of its stack: run of frees, growth, mark.
//!
//! ```text
//! bits  0..12  run    frees in a row: one more by each push up to a bound, halved by each pop
//! bits 12..15  grow   doublings of the next refill: set by a refill, halved by each push
//! bit  15      mark   the last free was that of a block: set by it, cleared by the next push
//! ```

use crate::percpu::Tally;

use super::list::ListLock;

const GROW_SHIFT: u32 = 12;
const GROW: u16 = 7 << GROW_SHIFT;
const MARK: u16 = 1 << 15;
/// The longest run that is counted.
pub(super) const RUN_MAX: u16 = (1 << GROW_SHIFT) - 1;
/// Maximum growth.
pub(super) const GROW_MAX: u8 = 7;

/// The recent use of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recent(pub(super) u16);

impl Recent {
    #[inline]
    pub(super) const fn run(self) -> u16 {
        self.0 & RUN_MAX
    }

    #[inline]
    pub(super) const fn grow(self) -> u8 {
        ((self.0 & !MARK) >> GROW_SHIFT) as u8
    }

    pub(super) const fn is_marked(self) -> bool {
        self.0 & MARK != 0
    }

    /// Returns it with another run, at most [`RUN_MAX`].
    pub(super) fn with_run(self, run: u32) -> Self {
        let run = u16::try_from(run).map_or(RUN_MAX, |run| run.min(RUN_MAX));
        Self(self.0 & !RUN_MAX | run)
    }

    /// Returns it with another growth, at most [`GROW_MAX`].
    pub(super) fn with_grow(self, grow: u8) -> Self {
        let grow = u16::from(grow.min(GROW_MAX)) << GROW_SHIFT;
        Self(self.0 & (MARK | RUN_MAX) | grow)
    }

    pub(super) const fn marked(self) -> Self {
        Self(self.0 | MARK)
    }

    pub(super) const fn unmarked(self) -> Self {
        Self(self.0 & !MARK)
    }
}

impl Tally for ListLock {
    /// One more free, up to `bound` in a row, which is at most [`RUN_MAX`].
    #[inline(always)]
    fn pushed(recent: u16, bound: u16) -> u64 {
        match recent <= RUN_MAX {
            // Mostly there is neither growth nor a mark. A branch: the next push or pop does not
            // wait for the arithmetic of the other way.
            true => (recent < bound).into(),
            false => freed_after_refill(recent, bound),
        }
    }

    /// One allocation.
    #[inline(always)]
    fn popped(recent: u16) -> u64 {
        let run = u64::from(recent & RUN_MAX);
        ((run + 1) >> 1).wrapping_neg()
    }
}

/// One more free, while there is growth or a mark.
#[cold]
fn freed_after_refill(recent: u16, bound: u16) -> u64 {
    let run = recent & RUN_MAX;
    let grow = ((recent & GROW) >> 1) & GROW;
    let freed = grow | (run + u16::from(run < bound));
    u64::from(freed).wrapping_sub(recent.into())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // Goal: a step changes only its own fields, as documented. Method: all values, each step
    // against the same on three numbers.
    #[test]
    fn steps_change_their_fields_only() {
        let fields = |recent: u16| {
            let recent = Recent(recent);
            (recent.run(), recent.grow(), recent.is_marked())
        };
        let mut random = crate::seed::rng(5);
        for recent in 0..=u16::MAX {
            let (run, grow, is_marked) = fields(recent);
            let rebuilt = Recent(recent & MARK).with_run(run.into());
            assert_eq!(rebuilt.with_grow(grow).0, recent);
            let bound = random.u16(..=RUN_MAX);
            let longer = if run < bound { run + 1 } else { run };
            let stepped = |step: u64| u16::try_from(u64::from(recent).wrapping_add(step)).unwrap();
            let pushed = stepped(ListLock::pushed(recent, bound));
            assert_eq!(fields(pushed), (longer, grow / 2, false));
            let popped = stepped(ListLock::popped(recent));
            assert_eq!(fields(popped), (run / 2, grow, is_marked));
            assert_eq!(fields(Recent(recent).marked().0), (run, grow, true));
            assert_eq!(fields(Recent(recent).unmarked().0), (run, grow, false));
            let most = Recent(recent).with_run(u32::MAX).with_grow(u8::MAX);
            assert_eq!(fields(most.0), (RUN_MAX, GROW_MAX, is_marked));
        }
    }
}
