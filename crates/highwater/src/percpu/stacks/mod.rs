//! Stacks of rights, one for each CPU, with a lock for what is not a push or a pop.
//!
//! A push or a pop on the stack of the CPU that the thread runs on takes no lock and no atomic
//! instruction. Everything else, such as moving many at once, or acting from another CPU, is done
//! under the stack's lock; while somebody holds it, pushes and pops are refused, and nobody waits.
//!
//! ```text
//! one CPU
//!   line     header, station, ring, bottom, limits      (module `stack`; the header: module `header`)
//!   state    what the user keeps beside it, in the lock
//! ```
//!
//! **How to use it.** The fast path is [`pop`](Stacks::pop) or [`push`](Stacks::push) alone. When it
//! refuses, take [`try_lock`](Stacks::try_lock): `Some` says why, by the header and the limit, and lets
//! one do something about it; `None` means that somebody else holds the lock, and the caller goes another way. A
//! stack that should be looked at by the next push has its limit set to 0, by anybody
//! ([`refuse_pushes`](Stacks::refuse_pushes)). Drains that must not miss a stack wait for its lock
//! ([`lock_on`](Stacks::lock_on)).
//!
//! **Invariant.** A right is in one place: in a token, or as a number in one ring. A stack has at most
//! as many as its ring has places.

mod header;
mod stack;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ops::{Deref, DerefMut};

use self::stack::Stack;
use super::{Regime, current_cpu};
use crate::memmap::Token;
use crate::sync::{LockClass, Mutex, MutexGuard};
use crate::units::CpuId;

pub(crate) use self::header::Header;

/// One stack of tokens for each CPU, and in the restartable regime one more, for threads without rseq.
pub(crate) struct Stacks<T: Token, S> {
    home: T::Home,
    regime: Regime,
    nr_cpus: usize,
    stacks: Box<[Stack]>,
    /// What the user keeps for each stack, in the stack's lock.
    states: Box<[Mutex<S>]>,
}

/// A stack that is locked, until this is dropped.
pub(crate) struct Locked<'a, T: Token, S> {
    home: T::Home,
    cpu: CpuId,
    stack: &'a Stack,
    state: MutexGuard<'a, S>,
}

impl<T: Token, S> Stacks<T, S> {
    /// Empty stacks for `nr_cpus` CPUs, of `capacity` tokens each, with locks of `class`. Pushes are
    /// limited by the capacity, and runs are not counted, until [`Locked::set_limits`] says more. Memory is
    /// committed as stacks fill.
    ///
    /// # Panics
    ///
    /// When there are no CPUs, or the capacity is no power of two.
    pub(crate) fn new(
        regime: Regime,
        nr_cpus: usize,
        home: T::Home,
        capacity: u32,
        class: &'static LockClass,
        mut state: impl FnMut(CpuId) -> S,
    ) -> Self {
        assert!(nr_cpus > 0, "stacks for no CPUs");
        // The sequences are not here yet: every regime is the atomic one.
        let _ = regime;
        let regime = Regime::Atomic;
        let cpus = (0..nr_cpus + usize::from(regime == Regime::Restartable)).map(CpuId::from_index);
        Self {
            home,
            regime,
            nr_cpus,
            stacks: cpus.clone().map(|cpu| Stack::new(cpu, capacity)).collect(),
            states: cpus.map(|cpu| Mutex::new(class, state(cpu))).collect(),
        }
    }

    /// Pops the token that was pushed last on the CPU that the thread runs on; `None` if there is none,
    /// somebody holds the lock, or the thread was interrupted.
    #[inline]
    pub(crate) fn pop(&self) -> Option<T> {
        self.pop_as(self.here())
    }

    /// Pushes on the stack of the CPU that the thread runs on.
    ///
    /// # Errors
    ///
    /// Gives the token back if the stack has reached its limit, somebody holds the lock, or the thread
    /// was interrupted.
    ///
    /// # Panics
    ///
    /// When the token is not of the stacks' home.
    #[inline]
    pub(crate) fn push(&self, token: T) -> Result<(), T> {
        self.push_as(self.here(), token)
    }

    /// As [`pop`](Self::pop), as if running on `cpu`.
    ///
    /// # Panics
    ///
    /// In the restartable regime, and when there is no such CPU.
    pub(crate) fn pop_on(&self, cpu: CpuId) -> Option<T> {
        self.check_acting_as(cpu);
        self.pop_as(cpu)
    }

    /// As [`push`](Self::push), as if running on `cpu`.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push).
    ///
    /// # Panics
    ///
    /// In the restartable regime, when there is no such CPU, and as [`push`](Self::push).
    pub(crate) fn push_on(&self, cpu: CpuId, token: T) -> Result<(), T> {
        self.check_acting_as(cpu);
        self.push_as(cpu, token)
    }

    /// Locks the stack of the CPU that the thread runs on; `None` if somebody holds the lock, or the
    /// thread was interrupted too often. The lock stays that of the stack, wherever the thread runs later.
    ///
    /// # Cost
    ///
    /// Two locked instructions; no system call.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_, T, S>> {
        self.try_lock_on(self.here())
    }

    /// Locks the stack of `cpu` from whichever CPU; `None` if somebody holds the lock.
    ///
    /// # Cost
    ///
    /// As [`try_lock`](Self::try_lock); from another CPU in the restartable regime also a membarrier.
    ///
    /// # Panics
    ///
    /// When there is no such stack.
    pub(crate) fn try_lock_on(&self, cpu: CpuId) -> Option<Locked<'_, T, S>> {
        let state = self.states[cpu.index()].try_lock()?;
        Some(self.locked(cpu, state))
    }

    /// As [`try_lock_on`](Self::try_lock_on), once nobody else holds the lock.
    ///
    /// # Panics
    ///
    /// When there is no such stack.
    pub(crate) fn lock_on(&self, cpu: CpuId) -> Locked<'_, T, S> {
        let state = self.states[cpu.index()].lock();
        self.locked(cpu, state)
    }

    /// What the stack of `cpu` seems to have, without its lock.
    ///
    /// # Panics
    ///
    /// When there is no such stack.
    pub(crate) fn probe(&self, cpu: CpuId) -> Header {
        self.stacks[cpu.index()].header()
    }

    /// Has the next push on each stack refused, so that its caller looks at what has changed. Limits
    /// that are set later stand: who sets one, and then looks (after a sequentially consistent fence) at
    /// what the caller has changed before this, misses nothing.
    pub(crate) fn refuse_pushes(&self) {
        self.stacks.iter().for_each(|stack| stack.set_limit(0));
    }

    /// Numbers of all stacks. In the restartable regime the last is the extra one's.
    pub(crate) fn cpus(&self) -> impl ExactSizeIterator<Item = CpuId> + use<T, S> {
        (0..self.stacks.len()).map(CpuId::from_index)
    }

    /// The stack that a push or pop of this thread would use now: a hint.
    #[inline]
    pub(crate) fn here(&self) -> CpuId {
        CpuId::from_index(current_cpu().index() % self.nr_cpus)
    }

    /// How pushes and pops are made: restartable if that was asked for and is possible.
    pub(crate) fn regime(&self) -> Regime {
        self.regime
    }

    /// Tokens that fit a stack.
    pub(crate) fn capacity(&self) -> u32 {
        self.stacks[0].capacity()
    }

    fn pop_as(&self, cpu: CpuId) -> Option<T> {
        let _state = self.states[cpu.index()].try_lock()?;
        let raw = self.stacks[cpu.index()].pop()?;
        // SAFETY: numbers in a ring come from `into_raw` with this home, and this one has left it.
        Some(unsafe { T::from_raw(raw, self.home) })
    }

    fn push_as(&self, cpu: CpuId, token: T) -> Result<(), T> {
        let Some(_state) = self.states[cpu.index()].try_lock() else {
            return Err(token);
        };
        let stack = &self.stacks[cpu.index()];
        let raw = token.into_raw(self.home);
        if stack.push(raw, stack.limit()) {
            return Ok(());
        }
        // SAFETY: the number came from `into_raw` right above, and was put nowhere.
        Err(unsafe { T::from_raw(raw, self.home) })
    }

    fn locked<'a>(&'a self, cpu: CpuId, state: MutexGuard<'a, S>) -> Locked<'a, T, S> {
        Locked {
            home: self.home,
            cpu,
            stack: &self.stacks[cpu.index()],
            state,
        }
    }

    fn check_acting_as(&self, cpu: CpuId) {
        assert_eq!(
            self.regime,
            Regime::Atomic,
            "acting as {cpu} needs the atomic regime"
        );
    }
}

impl<T: Token, S> Locked<'_, T, S> {
    /// Which stack this is.
    pub(crate) fn cpu(&self) -> CpuId {
        self.cpu
    }

    /// How many tokens the stack has, and how it was used: exact while it is locked.
    pub(crate) fn header(&self) -> Header {
        self.stack.header()
    }

    /// Says how long the run of pushes is.
    pub(crate) fn set_run(&mut self, run: u16) {
        self.stack.set_header(self.header().with_run(run));
    }

    /// Says what the pushes to come halve.
    pub(crate) fn set_grow(&mut self, grow: u8) {
        self.stack.set_header(self.header().with_grow(grow));
    }

    /// Has pushes refused that find `limit` tokens or more, and counts no run as longer than `run_max`. A
    /// run that is longer already stays so until pops have halved it.
    pub(crate) fn set_limits(&mut self, limit: u32, run_max: u16) {
        self.stack.set_run_max(run_max);
        self.stack.set_limit(limit);
    }

    /// What pushes are refused at: what was set, [`refuse_pushes`](Stacks::refuse_pushes) since, or the
    /// capacity.
    pub(crate) fn limit(&self) -> u32 {
        self.stack.limit()
    }

    /// Pushes as [`Stacks::push`] does, beyond the limit if need be.
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
        if self.stack.push(raw, self.stack.capacity()) {
            return Ok(());
        }
        // SAFETY: the number came from `into_raw` right above, and was put nowhere.
        Err(unsafe { T::from_raw(raw, self.home) })
    }

    /// Pops as [`Stacks::pop`] does.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let raw = self.stack.pop()?;
        // SAFETY: numbers in a ring come from `into_raw` with this home, and this one has left it.
        Some(unsafe { T::from_raw(raw, self.home) })
    }

    /// Puts tokens at the hot end, the last of `tokens` to be popped first, as many as fit: from the front
    /// of `tokens`, which keeps the others. Run and grow stay. Returns how many.
    ///
    /// # Panics
    ///
    /// When a token is not of the stacks' home.
    pub(crate) fn push_all(&mut self, tokens: &mut Vec<T>) -> u32 {
        let room = self.stack.capacity() - self.header().len();
        let count = tokens.len().min(room as usize);
        let home = self.home;
        let raws = tokens.drain(..count).map(|token| token.into_raw(home));
        self.stack.extend(raws);
        u32::try_from(count).expect("at most the room in the ring")
    }

    /// Takes out the `count` tokens that have been in the stack the longest, or all if there are fewer,
    /// and puts them at the end of `out`, oldest first. Run and grow stay. Returns how many.
    pub(crate) fn take_oldest(&mut self, count: u32, out: &mut Vec<T>) -> u32 {
        let home = self.home;
        out.reserve(count.min(self.header().len()) as usize);
        self.stack.take_oldest(count, |raw| {
            // SAFETY: numbers in a ring come from `into_raw` with this home, and this one has left it.
            out.push(unsafe { T::from_raw(raw, home) });
        })
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

impl<T: Token, S> fmt::Debug for Stacks<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers = self.stacks.iter().map(Stack::header);
        f.debug_struct("Stacks")
            .field("regime", &self.regime)
            .field("headers", &headers.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl<T: Token, S> fmt::Debug for Locked<'_, T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locked")
            .field("cpu", &self.cpu)
            .field("header", &self.header())
            .finish_non_exhaustive()
    }
}
