//! A stack whose lock a thread holds, with its gate up.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::Tally;
use super::header::Header;
use super::stack::Stack;
use crate::memmap::Token;
use crate::sync::MutexGuard;
use crate::units::CpuId;

/// A stack that is locked, until this is dropped.
pub(crate) struct Locked<'a, T: Token, S> {
    pub(super) home: T::Home,
    pub(super) cpu: CpuId,
    pub(super) stack: &'a Stack,
    /// The gate is lowered before this is dropped.
    pub(super) state: MutexGuard<'a, S>,
}

impl<T: Token, S: Tally> Locked<'_, T, S> {
    /// Returns which stack this is.
    pub(crate) fn cpu(&self) -> CpuId {
        self.cpu
    }

    /// Returns the number of tokens and the tally: exact while it is locked.
    pub(crate) fn header(&self) -> Header {
        self.stack.header()
    }

    /// Sets the tally.
    pub(crate) fn set_tally(&mut self, tally: u16) {
        self.stack.set_header(self.header().with_tally(tally));
    }

    /// Makes pushes refused that find `limit` tokens or more, and gives `bound` to pushes, once it
    /// is unlocked.
    pub(crate) fn set_limits(&mut self, limit: u32, bound: u16) {
        self.stack.set_bound(bound);
        self.stack.set_limit(limit);
    }

    /// Pushes as [`Stacks::push`](super::Stacks::push) does, beyond the limit if need be.
    ///
    /// # Errors
    ///
    /// Gives the token back if the ring is full.
    ///
    /// # Panics
    ///
    /// When the token is not of the stacks' home.
    pub(crate) fn push(&mut self, token: T) -> Result<(), T> {
        let raw = token.into_raw(self.home);
        if self.stack.push::<S>(raw, self.stack.capacity()) {
            return Ok(());
        }
        // SAFETY: the number came from `into_raw` right above, and was put nowhere.
        Err(unsafe { T::from_raw(raw, self.home) })
    }

    /// Pops as [`Stacks::pop`](super::Stacks::pop) does.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let raw = self.stack.pop::<S>()?;
        // SAFETY: numbers in a ring come from `into_raw` with this home, and this one has left it.
        Some(unsafe { T::from_raw(raw, self.home) })
    }

    /// Puts up to `most` tokens at the hot end, the last of them to be popped first, as far as they
    /// fit: from the front of `tokens`, which keeps the others. The tally stays. Returns how many.
    ///
    /// # Panics
    ///
    /// When a token is not of the stacks' home.
    pub(crate) fn push_all(&mut self, tokens: &mut Vec<T>, most: u32) -> u32 {
        let room = most.min(self.stack.capacity() - self.header().len());
        let count = tokens.len().min(room as usize);
        let home = self.home;
        let raws = tokens.drain(..count).map(|token| token.into_raw(home));
        self.stack.extend(raws);
        u32::try_from(count).expect("at most the room in the ring")
    }

    /// Takes out the `count` tokens that have been in the stack the longest, or all if there are
    /// fewer, and puts them at the end of `out`, oldest first. The tally stays. Returns how many.
    pub(crate) fn take_oldest(&mut self, count: u32, out: &mut Vec<T>) -> u32 {
        let home = self.home;
        out.reserve(count.min(self.header().len()) as usize);
        self.stack.take_oldest(count, |raw| {
            // SAFETY: numbers in a ring come from `into_raw` with this home, and this one has left
            // it.
            out.push(unsafe { T::from_raw(raw, home) });
        })
    }
}

impl<T: Token, S> Drop for Locked<'_, T, S> {
    fn drop(&mut self) {
        debug_assert!(self.stack.header().len() <= self.stack.capacity());
        self.stack.lower();
    }
}

impl<T: Token, S> Deref for Locked<'_, T, S> {
    type Target = S;
    fn deref(&self) -> &S {
        &self.state
    }
}

impl<T: Token, S> DerefMut for Locked<'_, T, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}

impl<T: Token, S: Tally> fmt::Debug for Locked<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locked")
            .field("cpu", &self.cpu)
            .field("header", &self.header())
            .finish_non_exhaustive()
    }
}
