//! Per-CPU stacks of tokens (rseq push and pop), with a lock for all other operations.
//!
//! A push or a pop on the stack of the CPU that the thread runs on takes no lock and no atomic
//! instruction: it is a restartable sequence. All other operations, such as moving many at once, or
//! acting from another CPU, take the stack's lock; while it is held, pushes and pops are refused,
//! and no thread waits.
//!
//! ```text
//! one CPU
//!   line     header, station, ring, limits      module `stack`; the header: module `header`
//!   state    what the user keeps beside it, in the lock
//! ```
//!
//! **How to use it.** The fast path is [`pop`](Stacks::pop) or [`push`](Stacks::push) alone. When
//! it refuses, take [`try_lock`](Stacks::try_lock): `Some` shows the reason, by the header and the
//! limit, and lets the caller act on it (an interrupted sequence has no reason: pop or push under
//! the lock); `None` means that another thread holds the lock, and the caller uses another path.
//! Any thread may set the limit of a stack to 0, so that the next push takes the slow path
//! ([`refuse_pushes`](Stacks::refuse_pushes)). Drains that must not miss a stack wait for its lock
//! ([`lock_on`](Stacks::lock_on)). Tokens in stacks that are dropped are forgotten.
//!
//! **Invariant.** A right is in one place: in a token, or as a number in one ring, between bottom
//! and hot end. A stack has at most as many as its ring has places. Header and ring change in one
//! of two ways, never both at once:
//!
//! * *Gate down*: in sequences on the stack's CPU, each of which checks the gate and ends with the
//!   one store of the header. There are none on the extra stack, for threads without rseq and
//!   unknown CPUs, and on all in the atomic regime: there, pushes and pops raise the gate for
//!   themselves.
//! * *Gate up*: by the thread that has raised it. Where there are no sequences, that is a
//!   compare-and-exchange. Where there are, only the holder of the lock raises it, and stops the
//!   sequences that had found it down. On the stack's own CPU, it raises the gate in a sequence: at
//!   that moment every other thread of the CPU is preempted, and restarts if it was in a sequence.
//!   From another CPU, a membarrier(2) does that.
//!
//! **Orderings.** The lock orders its holders. A holder sees the stores of the sequences because it
//! ran on their CPU, or by the membarrier. A sequence that finds the gate down acquires the
//! holder's stores before it lowered the gate (Release).
//!
//! **Failure modes.** Without membarrier(2) for sequences (before Linux 5.10, sandboxes), every
//! stack is in the atomic regime, whatever was requested; where it is refused later, as the module
//! `gated`. A sequence that is interrupted refuses, and its caller's slow path takes over;
//! [`try_lock`](Stacks::try_lock) gives up after a fixed number of interruptions.
//!
//! Source: the per-CPU caches of tcmalloc (push and pop as restartable sequences), and the drain of
//! a remote list under that list's lock in Linux since 6.0 (frames specification, 4.8).
//! Deviation: tcmalloc stops a CPU by a gate on its whole slab; here each stack has one, and a lock
//! whose holder may go on to move tokens. The header has bits for what the user counts ([`Tally`]),
//! so that it costs the fast path no store of its own.

mod header;
mod locked;
#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod measure;
mod stack;
#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod stress;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use self::stack::Stack;
use super::cells::RETRIES_MAX;
use super::{Area, Regime, Sequences, current_cpu};
use crate::memmap::{Token, Unreached};
use crate::sync::{LockClass, Mutex, MutexGuard, thread};
use crate::units::CpuId;

pub(crate) use self::header::Header;
pub(crate) use self::locked::Locked;

/// What the user of stacks counts in the header of each: 16 bits, stepped by each push and pop.
pub(crate) trait Tally {
    /// Returns what a push adds to the tally, or subtracts (wrapped): the sum has 16 bits. `bound`
    /// is that of [`Locked::set_limits`].
    fn pushed(tally: u16, bound: u16) -> u64;

    /// Returns what a pop adds to the tally, or subtracts (wrapped): the sum has 16 bits.
    fn popped(tally: u16) -> u64;
}

/// One stack of tokens for each CPU, and in the restartable regime one more, for threads without
/// rseq.
pub(crate) struct Stacks<T: Token, S> {
    sequences: Sequences,
    home: T::Home,
    nr_cpus: u32,
    /// Of each CPU.
    own: Box<[Stack]>,
    /// In the restartable regime, that of threads without rseq and of unknown CPUs.
    extra: Option<Box<Stack>>,
    /// State that the user keeps for each stack, in the stack's lock.
    states: Box<[Mutex<S>]>,
}

impl<T: Token, S: Tally> Stacks<T, S> {
    /// Returns empty stacks for `nr_cpus` CPUs, of `capacity` tokens each, with locks of `class`.
    /// Pushes are limited by the capacity, and the bound is 0, until [`Locked::set_limits`] is
    /// called. Memory is committed as stacks fill.
    ///
    /// # Panics
    ///
    /// When there are no CPUs, or the capacity is no power of two, or above 2^23.
    pub(crate) fn new(
        regime: Regime,
        nr_cpus: usize,
        home: T::Home,
        capacity: u32,
        class: &'static LockClass,
        mut state: impl FnMut(CpuId) -> S,
    ) -> Self {
        assert!(nr_cpus > 0, "stacks for no CPUs");
        let sequences = Sequences::of(regime);
        let extra = sequences.area().map(|_| CpuId::from_index(nr_cpus));
        let cpus = (0..nr_cpus).map(CpuId::from_index);
        let nr_cpus = i32::try_from(nr_cpus).expect("a machine has less than 2^31 CPUs");
        let stack = |cpu| Stack::new(cpu, capacity);
        Self {
            sequences,
            home,
            nr_cpus: nr_cpus.cast_unsigned(),
            own: cpus.clone().map(stack).collect(),
            extra: extra.map(|cpu| Box::new(stack(cpu))),
            states: cpus
                .chain(extra)
                .map(|cpu| Mutex::new(class, state(cpu)))
                .collect(),
        }
    }

    /// Pops the token that was pushed last on the CPU that the thread runs on; `None` if there is
    /// none, the lock is held, or the thread was interrupted.
    #[inline]
    pub(crate) fn pop(&self) -> Option<T> {
        self.try_pop().or_else(|| self.pop_without())
    }

    /// Like [`pop`](Self::pop), by a sequence or not at all: the caller's fast path. When it
    /// refuses, `pop` may still succeed.
    #[inline]
    pub(crate) fn try_pop(&self) -> Option<T> {
        self.pop_delayed::<0>()
    }

    /// Pushes on the stack of the CPU that the thread runs on.
    ///
    /// # Errors
    ///
    /// Gives the token back if the stack has reached its limit, the lock is held, or the thread was
    /// interrupted.
    ///
    /// # Panics
    ///
    /// When the token is not of the stacks' home.
    #[inline]
    pub(crate) fn push(&self, token: T) -> Result<(), T> {
        self.try_push(token)
            .or_else(|token| self.push_without(token))
    }

    /// Like [`push`](Self::push), by a sequence or not at all, as [`try_pop`](Self::try_pop).
    ///
    /// # Errors
    ///
    /// Gives the token back. `push` may still succeed.
    ///
    /// # Panics
    ///
    /// As [`push`](Self::push).
    #[inline]
    pub(crate) fn try_push(&self, token: T) -> Result<(), T> {
        self.push_delayed::<0>(token)
    }

    /// Like [`pop`](Self::pop), as if running on `cpu`.
    ///
    /// # Panics
    ///
    /// In the restartable regime, and when there is no such CPU.
    pub(crate) fn pop_on(&self, cpu: CpuId) -> Option<T> {
        self.check_acting_as(cpu);
        let raw = self.pop_as(cpu)?;
        // SAFETY: numbers in a ring come from `into_raw` with this home, and this one has left it.
        Some(unsafe { T::from_raw(raw, self.home) })
    }

    /// Like [`push`](Self::push), as if running on `cpu`.
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
        let raw = token.into_raw(self.home);
        if self.push_as(cpu, raw) {
            return Ok(());
        }
        // SAFETY: the number came from `into_raw` right above, and was put nowhere.
        Err(unsafe { T::from_raw(raw, self.home) })
    }

    /// Locks the stack of the CPU that the thread runs on; `None` if another thread holds the lock
    /// (or pushes or pops, where there are no sequences), or the thread was interrupted too often.
    /// The lock stays that of the stack, wherever the thread runs later.
    ///
    /// # Cost
    ///
    /// Two locked instructions (22 ns with the unlocking on 2 virtual CPUs of an Intel Xeon,
    /// November 2026); no system call.
    pub(crate) fn try_lock(&self) -> Option<Locked<'_, T, S>> {
        for _ in 0..=RETRIES_MAX {
            let cpu = self.here();
            let state = self.states[cpu.index()].try_lock()?;
            if self.try_raise(cpu) {
                return Some(self.locked(cpu, state));
            }
        }
        None
    }

    /// Locks the stack of `cpu` from any CPU; `None` if another thread holds the lock (or pushes or
    /// pops, where there are no sequences), or the system refuses the membarrier that it granted
    /// before, and its substitute.
    ///
    /// # Cost
    ///
    /// As [`try_lock`](Self::try_lock); from another CPU in the restartable regime also a
    /// membarrier (0.2 us if that CPU runs no thread of this process, else several).
    ///
    /// # Panics
    ///
    /// When there is no such stack.
    pub(crate) fn try_lock_on(&self, cpu: CpuId) -> Option<Locked<'_, T, S>> {
        let state = self.states[cpu.index()].try_lock()?;
        let is_raised = self.try_raise(cpu) || self.raise_from_afar(cpu).unwrap_or(false);
        is_raised.then(|| self.locked(cpu, state))
    }

    /// Like [`reach`](Self::reach), for callers that cannot do without.
    ///
    /// # Panics
    ///
    /// When there is no such stack, or the system refuses. The stack is then as it was.
    pub(crate) fn lock_on(&self, cpu: CpuId) -> Locked<'_, T, S> {
        let reached = self.reach(cpu);
        reached.unwrap_or_else(|unreached| panic!("{unreached}"))
    }

    /// Like [`try_lock_on`](Self::try_lock_on), but waits for the lock.
    ///
    /// # Errors
    ///
    /// When the system refuses the membarrier that it granted when the stacks were created, and its
    /// substitute. The stack is as it was.
    ///
    /// # Panics
    ///
    /// When there is no such stack.
    pub(crate) fn reach(&self, cpu: CpuId) -> Result<Locked<'_, T, S>, Unreached> {
        let state = self.states[cpu.index()].lock();
        let mut turns = 0;
        // Ends: without sequences, a thread that has the gate up pushes or pops, and does not wait.
        while !(self.try_raise(cpu) || self.raise_from_afar(cpu)?) {
            wait(turns);
            turns += 1;
        }
        Ok(self.locked(cpu, state))
    }

    /// Calls `look` with what the lock of a stack protects and a snapshot of its header; pushes and
    /// pops go on.
    ///
    /// # Panics
    ///
    /// When there is no such stack.
    pub(crate) fn look<R>(&self, cpu: CpuId, look: impl FnOnce(&S, Header) -> R) -> R {
        let state = self.states[cpu.index()].lock();
        look(&state, self.probe(cpu))
    }

    /// Returns a snapshot of the header of the stack of `cpu`, without its lock.
    ///
    /// # Panics
    ///
    /// When there is no such stack.
    pub(crate) fn probe(&self, cpu: CpuId) -> Header {
        self.stack(cpu).header()
    }

    /// Makes the next push on each stack refused, so that its caller checks for changes. Limits set
    /// later stand: a thread that sets one, and then (after a sequentially consistent fence) reads
    /// the state that the caller has changed before this call, misses nothing.
    pub(crate) fn refuse_pushes(&self) {
        self.all().for_each(|stack| stack.set_limit(0));
    }

    /// Returns the numbers of all stacks. In the restartable regime the last is the extra one's.
    pub(crate) fn cpus(&self) -> impl ExactSizeIterator<Item = CpuId> + use<T, S> {
        (0..self.states.len()).map(CpuId::from_index)
    }

    /// Returns the stack that a push or pop of this thread would use now: a hint.
    #[inline]
    pub(crate) fn here(&self) -> CpuId {
        match self.sequences.area() {
            Some(area) => CpuId(area.cpu_number().min(self.nr_cpus)),
            None => CpuId(current_cpu().0 % self.nr_cpus),
        }
    }

    /// Returns how pushes and pops are made: restartable if that was requested and is possible.
    pub(crate) fn regime(&self) -> Regime {
        self.sequences.regime()
    }

    /// Like [`pop`](Self::pop), by a sequence or not at all: with `DELAY` turns of a loop at each
    /// point where an interruption must restart it.
    #[inline]
    fn pop_delayed<const DELAY: u32>(&self) -> Option<T> {
        let area = self.sequences.area()?;
        let raw = self.own(area)?.pop_here::<S, DELAY>(area)?;
        // SAFETY: numbers in a ring come from `into_raw` with this home, and this one has left it.
        Some(unsafe { T::from_raw(raw, self.home) })
    }

    /// Like [`push`](Self::push), with `DELAY` as in [`pop_delayed`](Self::pop_delayed).
    #[inline]
    fn push_delayed<const DELAY: u32>(&self, token: T) -> Result<(), T> {
        let raw = token.into_raw(self.home);
        let is_pushed = self.sequences.area().is_some_and(|area| {
            let stack = self.own(area);
            stack.is_some_and(|stack| stack.push_here::<S, DELAY>(area, raw))
        });
        if is_pushed {
            return Ok(());
        }
        // SAFETY: the number came from `into_raw` right above, and was put nowhere.
        Err(unsafe { T::from_raw(raw, self.home) })
    }

    /// Pops where there are no sequences: in the atomic regime, and for threads and CPUs without.
    #[cold]
    fn pop_without(&self) -> Option<T> {
        let cpu = self.here();
        if self.area_of(cpu).is_some() {
            return None;
        }
        let raw = self.pop_as(cpu)?;
        // SAFETY: numbers in a ring come from `into_raw` with this home, and this one has left it.
        Some(unsafe { T::from_raw(raw, self.home) })
    }

    /// Pushes where there are no sequences, as [`pop_without`](Self::pop_without).
    #[cold]
    fn push_without(&self, token: T) -> Result<(), T> {
        let cpu = self.here();
        if self.area_of(cpu).is_some() {
            return Err(token);
        }
        let raw = token.into_raw(self.home);
        if self.push_as(cpu, raw) {
            return Ok(());
        }
        // SAFETY: the number came from `into_raw` right above, and was put nowhere.
        Err(unsafe { T::from_raw(raw, self.home) })
    }

    /// Pops where there are no sequences.
    fn pop_as(&self, cpu: CpuId) -> Option<u32> {
        self.alone(cpu)?.pop::<S>()
    }

    /// Pushes where there are no sequences.
    fn push_as(&self, cpu: CpuId, raw: u32) -> bool {
        let alone = self.alone(cpu);
        alone.is_some_and(|stack| stack.push::<S>(raw, stack.limit()))
    }

    /// Returns a stack that has no sequences, with its gate up; `None` if another thread has raised
    /// it.
    fn alone(&self, cpu: CpuId) -> Option<Alone<'_>> {
        debug_assert!(self.area_of(cpu).is_none());
        let stack = self.stack(cpu);
        stack.try_raise().then(|| Alone(stack))
    }

    /// Raises the gate of a stack whose lock the thread holds, if that needs no membarrier, and no
    /// push or pop is in progress where there are no sequences.
    fn try_raise(&self, cpu: CpuId) -> bool {
        let stack = self.stack(cpu);
        match self.area_of(cpu) {
            Some(area) => stack.raise_here(area),
            None => stack.try_raise(),
        }
    }

    /// Raises the gate of a stack whose lock the thread holds, if it has sequences; on an error it
    /// is down.
    fn raise_from_afar(&self, cpu: CpuId) -> Result<bool, Unreached> {
        let Some(area) = self.area_of(cpu) else {
            return Ok(false);
        };
        let stack = self.stack(cpu);
        stack.raise();
        area.restart_others(Some(cpu))
            .inspect_err(|_| stack.lower())?;
        Ok(true)
    }

    /// Returns the sequences of this stack, if it has any.
    fn area_of(&self, cpu: CpuId) -> Option<Area> {
        self.sequences.area().filter(|_| cpu != self.extra())
    }

    /// Returns the stack of the CPU that the thread runs on; `None` on an unknown CPU, and for a
    /// thread that is not registered.
    #[inline(always)]
    fn own(&self, area: Area) -> Option<&Stack> {
        self.own.get(area.cpu_number() as usize)
    }

    /// Returns all stacks, in the order of their numbers.
    fn all(&self) -> impl Iterator<Item = &Stack> {
        self.own.iter().chain(self.extra.as_deref())
    }

    /// Returns the stack of `cpu`.
    ///
    /// # Panics
    ///
    /// When there is no such stack.
    fn stack(&self, cpu: CpuId) -> &Stack {
        let stack = self.all().nth(cpu.index());
        stack.unwrap_or_else(|| panic!("no stack of {cpu}"))
    }

    /// Returns the stack of threads without rseq, in the restartable regime.
    fn extra(&self) -> CpuId {
        CpuId(self.nr_cpus)
    }

    fn locked<'a>(&'a self, cpu: CpuId, state: MutexGuard<'a, S>) -> Locked<'a, T, S> {
        Locked {
            home: self.home,
            cpu,
            stack: self.stack(cpu),
            state,
        }
    }

    fn check_acting_as(&self, cpu: CpuId) {
        assert_eq!(
            self.regime(),
            Regime::Atomic,
            "acting as {cpu} needs the atomic regime"
        );
    }
}

/// Waits a little for a push or pop to end.
fn wait(turns: u32) {
    const YIELDS_MAX: u32 = 100;
    if turns < YIELDS_MAX {
        thread::yield_now();
    } else {
        // It has been preempted, perhaps by a thread of lower priority.
        thread::sleep(Duration::from_micros(50));
    }
}

/// A stack without sequences, whose gate is up while this lives.
struct Alone<'a>(&'a Stack);

impl Deref for Alone<'_> {
    type Target = Stack;
    fn deref(&self) -> &Stack {
        self.0
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.lower();
    }
}

impl<T: Token, S: Tally> fmt::Debug for Stacks<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers = self.all().map(Stack::header);
        f.debug_struct("Stacks")
            .field("regime", &self.regime())
            .field("headers", &headers.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
