//! Time that tasks wait for locks, by class.
//!
//! A wait begins with `contention_begin` and ends with `contention_end` of the same task and lock.
//! The stack of the task, which a trigger writes, comes right after the beginning, on the same CPU.
//! A mutex spins and sleeps by turns: it begins at each turn and ends once, and the first beginning
//! counts. Any other lock begins once. A second beginning shows that the end of the first was lost,
//! as where a buffer was full, and replaces it. A wait that is open at the end of the recording
//! does not count: its end may be lost, too.
//!
//! Source: `__mutex_lock_common` in Linux's `kernel/locking/mutex.c`.

use std::collections::{BTreeMap, HashMap};

use super::classes::LockClass;
use super::name_of_task;
use super::symbols::Symbols;
use crate::tracefs::{Event, EventFormat, Field, Instance, Tracefs, TracefsError};

/// Flags of a beginning (`LCB_F_SPIN` and `LCB_F_MUTEX` in `trace/events/lock.h`).
const SPIN: u64 = 1;
const MUTEX: u64 = 1 << 5;

/// Time waited for the locks of one class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassWaits {
    /// Waits that ended.
    pub waits: u64,
    /// Their time, in ns.
    pub waited_ns: u64,
    /// The longest, in ns.
    pub longest_ns: u64,
    /// The task that waited longest in all.
    pub most: String,
}

/// Waits for locks.
#[derive(Debug)]
pub struct LockWaits {
    begin: Layout,
    flags: Field,
    end: Layout,
    stack: Option<StackLayout>,
    symbols: Symbols,
    open: HashMap<Waiter, Open>,
    /// The last wait that began on a CPU and has no stack yet.
    without_stack: HashMap<u32, Waiter>,
    by_class: BTreeMap<LockClass, ClassWaits>,
    by_task: HashMap<(LockClass, u64), (u64, Option<String>)>,
}

#[derive(Debug)]
struct Layout {
    id: u16,
    task: Field,
    lock: Field,
}

#[derive(Debug)]
struct StackLayout {
    id: u16,
    task: Field,
    /// Where the addresses begin; `size` says how many they are.
    first: usize,
}

/// A task that waits for a lock. The idle tasks of all CPUs have number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    task: u64,
    idle_cpu: u32,
    lock: u64,
}

#[derive(Debug)]
struct Open {
    since_ns: u64,
    /// Of the last beginning.
    flags: u64,
    class: LockClass,
}

impl Open {
    /// Returns whether this begins another turn of the same wait: of a mutex, which does not spin
    /// twice without a sleep between.
    const fn continues(&self, before: &Self) -> bool {
        self.flags & MUTEX != 0 && self.flags & before.flags & SPIN == 0
    }
}

impl Layout {
    fn of(format: &EventFormat) -> Result<Self, TracefsError> {
        Ok(Self {
            id: format.id,
            task: format.field("common_pid")?.clone(),
            lock: format.field("lock_addr")?.clone(),
        })
    }

    fn waiter(&self, event: &Event<'_>) -> Option<Waiter> {
        let task = self.task.unsigned(event.bytes)?;
        Some(Waiter {
            task,
            idle_cpu: if task == 0 { event.cpu } else { u32::MAX },
            lock: self.lock.unsigned(event.bytes)?,
        })
    }
}

impl LockWaits {
    pub(super) fn enable(instance: &Instance, tracefs: &Tracefs) -> Result<Self, TracefsError> {
        let begin = instance.enable("lock", "contention_begin", None)?;
        let end = instance.enable("lock", "contention_end", None)?;
        instance.write("events/lock/contention_begin/trigger", "stacktrace")?;
        let stack = tracefs.format("ftrace", "kernel_stack")?;
        Self::from_formats(&begin, &end, Some(&stack), Symbols::of_this_kernel())
    }

    /// Counts events of these formats. Without a stack every wait is [`LockClass::Other`].
    ///
    /// # Errors
    ///
    /// When a format lacks a field.
    pub fn from_formats(
        begin: &EventFormat,
        end: &EventFormat,
        stack: Option<&EventFormat>,
        symbols: Symbols,
    ) -> Result<Self, TracefsError> {
        let stack_layout = |format: &EventFormat| -> Result<_, TracefsError> {
            Ok(StackLayout {
                id: format.id,
                task: format.field("common_pid")?.clone(),
                first: format.field("caller")?.offset,
            })
        };
        Ok(Self {
            begin: Layout::of(begin)?,
            flags: begin.field("flags")?.clone(),
            end: Layout::of(end)?,
            stack: stack.map(stack_layout).transpose()?,
            symbols,
            open: HashMap::new(),
            without_stack: HashMap::new(),
            by_class: BTreeMap::new(),
            by_task: HashMap::new(),
        })
    }

    /// Counts an event; returns false if it is another one.
    pub fn count(&mut self, event: &Event<'_>) -> bool {
        let id = event.id();
        if id == self.begin.id {
            self.begin(event);
        } else if id == self.end.id {
            self.end(event);
        } else if let Some(stack) = self.stack.as_ref().filter(|stack| stack.id == id) {
            let task = stack.task.unsigned(event.bytes);
            let class = self.class_of(event.bytes.get(stack.first..).unwrap_or_default());
            self.set_class(event.cpu, task, class);
        } else {
            return false;
        }
        true
    }

    fn begin(&mut self, event: &Event<'_>) {
        let waiter = self.begin.waiter(event);
        let Some((waiter, flags)) = waiter.zip(self.flags.unsigned(event.bytes)) else {
            return;
        };
        let mut begun = Open {
            since_ns: event.time_ns,
            flags,
            class: LockClass::Other,
        };
        if let Some(open) = self.open.get(&waiter)
            && begun.continues(open)
        {
            begun.since_ns = open.since_ns;
            begun.class = open.class;
        }
        self.open.insert(waiter, begun);
        self.without_stack.insert(event.cpu, waiter);
    }

    fn class_of(&self, callers: &[u8]) -> LockClass {
        let (addresses, _) = callers.as_chunks::<8>();
        let addresses = addresses.iter().map(|bytes| u64::from_ne_bytes(*bytes));
        let names = addresses.filter_map(|address| self.symbols.name_at(address));
        LockClass::of_stack(&names.collect::<Vec<_>>())
    }

    fn set_class(&mut self, cpu: u32, task: Option<u64>, class: LockClass) {
        let Some(waiter) = self.without_stack.remove(&cpu) else {
            return;
        };
        if task == Some(waiter.task)
            && let Some(open) = self.open.get_mut(&waiter)
        {
            open.class = class;
        }
    }

    fn end(&mut self, event: &Event<'_>) {
        let Some(waiter) = self.end.waiter(event) else {
            return;
        };
        // A wait that began before the recording has no beginning.
        let Some(open) = self.open.remove(&waiter) else {
            return;
        };
        let waited = event.time_ns.saturating_sub(open.since_ns);
        let class = self.by_class.entry(open.class).or_default();
        class.waits += 1;
        class.waited_ns = class.waited_ns.saturating_add(waited);
        class.longest_ns = class.longest_ns.max(waited);
        let task = self.by_task.entry((open.class, waiter.task));
        let task = task.or_insert_with(|| (0, name_of_task(waiter.task)));
        task.0 = task.0.saturating_add(waited);
    }

    /// Names the tasks that waited most.
    #[must_use]
    pub fn finish(mut self) -> Self {
        for (class, waits) in &mut self.by_class {
            let of_class = self.by_task.iter().filter(|((of, _), _)| of == class);
            let most = of_class.max_by_key(|((_, task), (waited, _))| (*waited, *task));
            if let Some(((_, task), (_, name))) = most {
                let name = name.as_deref().unwrap_or("a task that ended");
                waits.most = format!("{name} ({task})");
            }
        }
        self
    }

    /// Waits for locks of a class.
    #[must_use]
    pub fn of(&self, class: LockClass) -> ClassWaits {
        self.by_class.get(&class).cloned().unwrap_or_default()
    }

    /// Whether stacks could be named, without which no wait has a class of memory management.
    #[must_use]
    pub fn has_symbols(&self) -> bool {
        self.stack.is_some() && !self.symbols.is_empty()
    }
}
