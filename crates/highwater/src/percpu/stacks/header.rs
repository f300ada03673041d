//! The header of a per-CPU stack: length, run, grow and mark in one word.
//!
//! ```text
//! bits  0..16  run    pushes in a row lately: one more by each push up to a bound, halved by each pop
//! bits 16..48  len    tokens in the stack
//! bits 48..56  grow   set by the holder of the lock, halved by each push
//! bit  56      mark   set by the holder of the lock, cleared by the next push
//! ```
//!
//! The fields change together, by one store, so that a push or a pop is a restartable sequence with
//! one commit. The order of the fields makes the steps short: one addition with carry counts the
//! token and the run, and a shift of the lowest 16 bits halves the run.

use std::fmt;

const LEN_SHIFT: u32 = 16;
const GROW_SHIFT: u32 = 48;
const ONE_TOKEN: u64 = 1 << LEN_SHIFT;
const MARK: u64 = 1 << 56;

/// The number of tokens in a stack, and its recent use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header(pub(super) u64);

impl Header {
    /// An empty stack.
    pub(super) const EMPTY: Self = Self(0);

    /// Returns the number of tokens in the stack.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the field's 32 bits")]
    pub(crate) const fn len(self) -> u32 {
        (self.0 >> LEN_SHIFT) as u32
    }

    /// Returns the pushes in a row lately, halved by each pop (`free_run` of a list of frames).
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the field's 16 bits")]
    pub(crate) const fn run(self) -> u16 {
        self.0 as u16
    }

    /// Returns the value set last, halved by each push since (the refill shift of a list of
    /// frames).
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the field's 8 bits")]
    pub(crate) const fn grow(self) -> u8 {
        (self.0 >> GROW_SHIFT) as u8
    }

    /// Whether nothing was pushed since the mark was set (the last free of a list of frames was of
    /// a high order).
    #[inline]
    pub(crate) const fn is_marked(self) -> bool {
        self.0 & MARK != 0
    }

    /// Returns the header after a push: one token more, the run one longer if it is below
    /// `run_max`, grow halved, no mark.
    #[inline]
    pub(super) const fn pushed(self, run_max: u16) -> Self {
        let longer = (self.run() < run_max) as u64;
        let counted = Self((self.0 & !MARK) + ONE_TOKEN + longer);
        counted.with_grow(self.grow() / 2)
    }

    /// Returns the header after a pop: one token less, the run halved.
    #[inline]
    pub(super) const fn popped(self) -> Self {
        Self(self.0 - ONE_TOKEN).with_run(self.run() / 2)
    }

    pub(super) const fn with_len(self, len: u32) -> Self {
        Self(self.0 & !((u32::MAX as u64) << LEN_SHIFT) | (len as u64) << LEN_SHIFT)
    }

    pub(super) const fn with_run(self, run: u16) -> Self {
        Self(self.0 & !(u16::MAX as u64) | run as u64)
    }

    pub(super) const fn with_grow(self, grow: u8) -> Self {
        Self(self.0 & !((u8::MAX as u64) << GROW_SHIFT) | (grow as u64) << GROW_SHIFT)
    }

    pub(super) const fn marked(self) -> Self {
        Self(self.0 | MARK)
    }

    pub(super) const fn unmarked(self) -> Self {
        Self(self.0 & !MARK)
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("len", &self.len())
            .field("run", &self.run())
            .field("grow", &self.grow())
            .field("is_marked", &self.is_marked())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // Goal: a step changes only its own fields, as documented. Method: random headers, each step
    // against the same on three numbers.
    #[test]
    fn steps_change_their_fields_only() {
        let mut random = crate::seed::rng(5);
        let fields = |header: Header| {
            let marked = header.is_marked();
            (header.len(), header.run(), header.grow(), marked)
        };
        for _ in 0..10_000 {
            let (len, run, grow) = (random.u32(1..u32::MAX), random.u16(..), random.u8(..));
            let header = Header::EMPTY.with_grow(grow).with_len(len).with_run(run);
            assert_eq!(fields(header), (len, run, grow, false));
            let run_max = random.u16(..);
            let longer = if run < run_max { run + 1 } else { run };
            for header in [header, header.marked()] {
                let marked = header.is_marked();
                let pushed = fields(header.pushed(run_max));
                assert_eq!(pushed, (len + 1, longer, grow / 2, false));
                assert_eq!(fields(header.popped()), (len - 1, run / 2, grow, marked));
                assert_eq!(fields(header.unmarked()), (len, run, grow, false));
            }
            assert!(header.marked().is_marked());
        }
    }
}
