//! Tracks the space of each task, the active space of each CPU, and the lifetimes of spaces.
//!
//! Invariants: `named` maps an `mm_id` to its newest lifetime; a space's `builder` is the task
//! whose `building` it is; `active` changes by the rules of the [module](super) only.

use std::collections::{HashMap, HashSet};

use highwater::units::Pages;

use super::event::{Member, RssChange, SpaceId};
use super::line::Version;

/// Limit of the pages that one step of copying or building a new space adds: the pages of one page
/// table, or one huge page.
const BORN_MAX: Pages = Pages(512);

/// The idle task's number, one on every CPU.
const IDLE: u32 = 0;

/// State of one lifetime.
#[derive(Debug)]
struct Space {
    is_born: bool,
    /// The task that fills it before any task runs in it.
    builder: Option<u32>,
    sizes: [Option<Pages>; 4],
}

impl Space {
    fn is_empty(&self) -> bool {
        self.sizes.iter().flatten().all(|&size| size == Pages::ZERO)
    }
}

/// State of one task.
#[derive(Clone, Copy, Debug, Default)]
struct Task {
    space: Option<SpaceId>,
    /// The space it has filled last, in which no task runs yet.
    building: Option<SpaceId>,
    /// Announced an exec into `building`, not seen there yet.
    is_replacing: bool,
    /// Has given its space up.
    has_left: bool,
}

/// One event of `kmem:rss_stat`.
#[derive(Clone, Copy, Debug)]
pub(super) struct RssStat {
    pub(super) mm_id: u32,
    pub(super) is_current: bool,
    pub(super) member: Member,
    pub(super) size: Pages,
}

/// Follows tasks and spaces through a trace.
#[derive(Debug)]
pub(super) struct Spaces {
    version: Version,
    kernel_threads: HashSet<u32>,
    tasks: HashMap<u32, Task>,
    named: HashMap<u32, SpaceId>,
    spaces: Vec<Space>,
    cpus: Vec<Cpu>,
    inferred_switches: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    running: Option<u32>,
    active: Option<SpaceId>,
}

impl Spaces {
    pub(super) fn new(version: Version) -> Self {
        Self {
            version,
            kernel_threads: HashSet::from([IDLE]),
            tasks: HashMap::new(),
            named: HashMap::new(),
            spaces: Vec::new(),
            cpus: Vec::new(),
            inferred_switches: 0,
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.spaces.len() as u64
    }

    pub(super) fn inferred_switches(&self) -> u64 {
        self.inferred_switches
    }

    pub(super) fn active(&self, cpu: u32) -> Option<SpaceId> {
        self.cpus.get(cpu as usize)?.active
    }

    pub(super) fn declare_kernel_thread(&mut self, pid: u32) {
        self.kernel_threads.insert(pid);
    }

    /// Ensures that `pid` runs on `cpu`, because an event there is its own.
    pub(super) fn observe(&mut self, cpu: u32, pid: u32) {
        let index = cpu as usize;
        if index >= self.cpus.len() {
            self.cpus.resize(index + 1, Cpu::default());
        }
        let running = self.cpus[index].running;
        if running != Some(pid) {
            self.inferred_switches += u64::from(running.is_some());
            self.switch(cpu, pid);
        }
    }

    pub(super) fn switch(&mut self, cpu: u32, next: u32) {
        let running = self.cpus[cpu as usize].running.replace(next);
        if let Some(prev) = running
            && self.tasks.get(&prev).is_some_and(|task| task.is_replacing)
        {
            self.enter_built(cpu, prev);
        }
        if self.kernel_threads.contains(&next) {
            return;
        }
        let task = self.tasks.get(&next).copied().unwrap_or_default();
        let keeps = match self.version {
            Version::One => task.has_left || task.space.is_none(),
            Version::Two => task.has_left,
        };
        if !keeps {
            self.cpus[cpu as usize].active = task.space;
        }
    }

    /// Records that a task created another one in its own space.
    pub(super) fn fork_sharing(&mut self, pid: u32, child: u32) {
        let space = self.tasks.get(&pid).and_then(|parent| parent.space);
        self.insert_task(child, space);
    }

    /// Records that a task created another one in the space that it has built.
    pub(super) fn fork_copied(&mut self, pid: u32, child: u32) {
        let built = self.tasks.entry(pid).or_default().building.take();
        if let Some(space) = built {
            self.space_mut(space).builder = None;
        }
        self.insert_task(child, built);
    }

    /// Inserts a new task, and forgets the previous one of its number.
    fn insert_task(&mut self, pid: u32, space: Option<SpaceId>) {
        let task = Task {
            space,
            ..Task::default()
        };
        self.tasks.insert(pid, task);
    }

    pub(super) fn exec(&mut self, pid: u32) {
        self.tasks.entry(pid).or_default().is_replacing = true;
    }

    pub(super) fn exit(&mut self, pid: u32) {
        self.tasks.entry(pid).or_default().has_left = true;
    }

    pub(super) fn rss(&mut self, cpu: u32, pid: u32, stat: RssStat) -> RssChange {
        let nr_before = self.spaces.len();
        let space = self.lifetime(pid, stat);
        if stat.is_current {
            self.own(cpu, pid, space);
        } else if !self.kernel_threads.contains(&pid) {
            self.disown(cpu, pid, space);
        }
        let state = self.space_mut(space);
        let born_at = state.is_born.then_some(Pages::ZERO);
        let before = state.sizes[stat.member.index()].or(born_at);
        state.sizes[stat.member.index()] = Some(stat.size);
        RssChange {
            space,
            is_current: stat.is_current,
            member: stat.member,
            size: stat.size,
            delta_pages: before.map(|before| stat.size.0.cast_signed() - before.0.cast_signed()),
            is_first: self.spaces.len() > nr_before,
            is_empty: self.spaces[space.0 as usize].is_empty(),
        }
    }

    /// Returns the lifetime of an event: the newest of its `mm_id`, or a new one.
    fn lifetime(&mut self, pid: u32, stat: RssStat) -> SpaceId {
        let named = self.named.get(&stat.mm_id).copied();
        if let Some(space) = named {
            let is_own = self.tasks.get(&pid).and_then(|task| task.space) == Some(space);
            if !self.spaces[space.0 as usize].is_empty() || (stat.is_current && is_own) {
                return space;
            }
        }
        let is_built = !stat.is_current && !self.kernel_threads.contains(&pid);
        let number = u32::try_from(self.spaces.len()).expect("fewer lines than 2^32 are read");
        let space = SpaceId(number);
        self.spaces.push(Space {
            is_born: named.is_some() || (is_built && stat.size <= BORN_MAX),
            builder: is_built.then_some(pid),
            sizes: [None; 4],
        });
        if is_built {
            self.tasks.entry(pid).or_default().building = Some(space);
        }
        self.named.insert(stat.mm_id, space);
        space
    }

    /// Records that a task changed the space that it is in.
    fn own(&mut self, cpu: u32, pid: u32, space: SpaceId) {
        let task = self.tasks.entry(pid).or_default();
        if task.building == Some(space) {
            task.is_replacing = false;
        }
        task.has_left &= task.space == Some(space);
        task.space = Some(space);
        let builder = self.space_mut(space).builder.take();
        if let Some(builder) = builder.and_then(|builder| self.tasks.get_mut(&builder))
            && builder.building == Some(space)
        {
            builder.building = None;
        }
        self.cpus[cpu as usize].active = Some(space);
    }

    /// Records that a task changed a space that it is not in: if it was, it has left it, for the
    /// one that it has built or for good.
    fn disown(&mut self, cpu: u32, pid: u32, space: SpaceId) {
        let Some(task) = self.tasks.get_mut(&pid) else {
            return;
        };
        if task.space != Some(space) {
            return;
        }
        let replaces = match self.version {
            Version::One => task.building.is_some(),
            Version::Two => task.is_replacing,
        };
        if replaces {
            self.enter_built(cpu, pid);
        } else {
            task.has_left = true;
        }
    }

    fn enter_built(&mut self, cpu: u32, pid: u32) {
        let task = self.tasks.entry(pid).or_default();
        task.space = task.building.take();
        task.is_replacing = false;
        let space = task.space;
        self.cpus[cpu as usize].active = space;
    }

    fn space_mut(&mut self, space: SpaceId) -> &mut Space {
        &mut self.spaces[space.0 as usize]
    }
}
