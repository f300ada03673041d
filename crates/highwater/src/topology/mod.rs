//! CPUs and the caches they share: detected from the system, or synthetic.
//!
//! The layers above need an order of the CPUs in which neighbours share caches, so that a structure
//! that groups neighbours keeps its lines inside one cache. That order is the *position*: the rank
//! of a CPU when all are sorted by socket, last-level cache (LLC), core and thread. CPU numbers are
//! no such order: Linux commonly numbers the second threads of all cores after the first ones, so
//! that two threads of one core are `n / 2` apart.
//!
//! Invariant: positions are a permutation of `0..nr_cpus`, `nr_cpus` is one more than the highest
//! CPU number that was online at construction, and neither changes afterwards. A machine may have
//! room for many more (`possible`, which firmware and hypervisors tend to overstate): per-CPU
//! arrays of that length would cost memory for CPUs that do not exist. A CPU that comes online
//! later has an unknown number; the layers above treat its threads as those without a CPU, which
//! costs locality, not correctness (`percpu`, extra slot).
//!
//! - [`Topology::detect`] reads `/sys/devices/system/cpu`. It never fails: a file that cannot be
//!   read costs locality, not correctness, so it falls back to a flat topology and emits an event.
//! - [`Topology::from_str`] parses a synthetic one from `SOCKETSxLLCSxCORESxTHREADS`, to run the
//!   production code as if on a different machine.
//!
//! Source: Linux `Documentation/ABI/stable/sysfs-devices-system-cpu` for the files and their
//! formats.

mod sysfs;
#[cfg(all(test, not(loom)))]
mod hotplug_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use thiserror::Error;

use crate::sync::Arc;
use crate::units::CpuId;
use sysfs::Files;

/// Maximum number of CPUs of a topology. Chosen: eight times the maximum of Linux on x86-64
/// (8,192), and small enough that a typing mistake cannot exhaust memory by per-CPU arrays.
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) const CPUS_MAX: usize = 1 << 16;

/// Directory in which Linux describes the CPUs.
const SYSTEM_CPUS: &str = "/sys/devices/system/cpu";

/// The CPUs of a machine, and their order by shared caches. Clones share one description.
///
/// # Examples
///
/// ```
/// use highwater::topology::Topology;
///
/// let server: Topology = "2x12x8x2".parse()?;
/// assert!(server.to_string().starts_with("384 CPUs"));
/// # Ok::<(), highwater::topology::ParseTopologyError>(())
/// ```
#[derive(Clone)]
pub struct Topology {
    description: Arc<Description>,
}

struct Description {
    kind: TopologyKind,
    nr_online: usize,
    nr_sockets: usize,
    nr_llcs: usize,
    nr_cores: usize,
    /// Indexed by CPU number.
    positions: Box<[usize]>,
    /// Indexed by CPU number; `None` if not known.
    places: Box<[Option<CpuPlace>]>,
}

/// The smallest part of a machine that two CPUs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) enum Sharing {
    /// They are the same CPU.
    Cpu,
    /// Threads of one core.
    Core,
    /// Cores behind one last-level cache.
    Llc,
    /// Last-level caches of one socket.
    Socket,
    /// Nothing smaller than the machine, as far as is known.
    Machine,
}

/// Origin of a topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) enum TopologyKind {
    /// From the system: its CPU numbers are those that the scheduler uses.
    Detected,
    /// From a description: its CPU numbers are virtual and must be given explicitly.
    Synthetic,
}

/// The text is not a topology.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseTopologyError {
    /// The text is not four numbers of at least 1 with an `x` between them.
    #[error(
        "`{text}` is not a topology: write SOCKETSxLLCSxCORESxTHREADS, each at least 1, \
         as in 2x12x8x2 (2 sockets of 12 last-level caches of 8 cores of 2 threads)"
    )]
    Malformed {
        /// The text as given.
        text: String,
    },
    /// The product of the four numbers is above [`CPUS_MAX`].
    #[error(
        "`{text}` has more than {CPUS_MAX} CPUs: SOCKETSxLLCSxCORESxTHREADS multiply to the \
         number of CPUs, as in 2x12x8x2 for 384"
    )]
    TooManyCpus {
        /// The text as given.
        text: String,
    },
}

/// Socket, cache and core of a CPU. The numbers only distinguish and order groups; the derived
/// order compares the widest group first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CpuPlace {
    socket: i64,
    llc: usize,
    core: usize,
}

impl Topology {
    /// Detects the CPUs of this machine.
    ///
    /// Never fails. A CPU that goes offline during detection has no known place. One whose caches
    /// the system does not describe is taken to share those of its core, and no other core's. If
    /// no caches are described, or a file that describes a CPU is broken, the topology is flat over
    /// the CPUs that are online, or over all known CPU numbers if these cannot be read; if not even
    /// the numbers can be read, it is flat over [`std::thread::available_parallelism`] CPUs.
    /// Wherever it is flat, a `tracing` event names the file.
    ///
    /// # Cost
    ///
    /// Reads two small files for each core and at most nine for each last-level cache, all of them
    /// twice if CPUs come and go meanwhile: linear in CPUs. Do it once.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::topology::Topology;
    ///
    /// let machine = Topology::detect();
    /// println!("{machine}"); // CPUs, and which share caches
    /// ```
    #[must_use]
    pub fn detect() -> Self {
        Self::detect_from(Path::new(SYSTEM_CPUS))
    }

    /// As [`detect`](Self::detect), from files laid out like those of `/sys/devices/system/cpu`.
    fn detect_from(files: &(impl Files + ?Sized)) -> Self {
        let nr_cpus = match sysfs::nr_possible(files) {
            Ok(nr_cpus) => nr_cpus,
            Err(unreadable) => {
                let nr_cpus = std::thread::available_parallelism()
                    .map_or(1, usize::from)
                    .min(CPUS_MAX);
                tracing::warn!(%unreadable, nr_cpus, "CPU numbers unknown, assuming a flat range");
                return Self::ranked(TopologyKind::Detected, &flat_places(nr_cpus));
            }
        };
        let places = sysfs::places(files, nr_cpus).unwrap_or_else(|unreadable| {
            tracing::warn!(%unreadable, nr_cpus, "CPU places unknown, assuming a flat topology");
            let all = flat_places(nr_cpus);
            match sysfs::online(files, nr_cpus) {
                Ok(online) => {
                    let mut places = vec![None; nr_cpus];
                    online.iter().for_each(|&cpu| places[cpu] = all[cpu]);
                    places
                }
                Err(_) => all,
            }
        });
        Self::ranked(TopologyKind::Detected, &places)
    }

    /// Returns a synthetic machine of one socket with one last-level cache and `nr_cpus` cores.
    ///
    /// # Panics
    ///
    /// When `nr_cpus` is 0 or above [`CPUS_MAX`].
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn flat(nr_cpus: usize) -> Self {
        assert!(
            (1..=CPUS_MAX).contains(&nr_cpus),
            "a topology has 1 to {CPUS_MAX} CPUs, not {nr_cpus}"
        );
        Self::ranked(TopologyKind::Synthetic, &flat_places(nr_cpus))
    }

    /// Returns a synthetic machine of `nr_cores` cores of two threads, with the second threads
    /// numbered after all first ones: numbers and positions differ.
    #[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
    pub(crate) fn siblings_apart(nr_cores: usize) -> Self {
        let threads = [flat_places(nr_cores), flat_places(nr_cores)].concat();
        Self::ranked(TopologyKind::Synthetic, &threads)
    }

    /// Returns the topology detected on a machine of `nr_cpus` cores while `offline` were offline.
    #[cfg(all(test, not(miri)))]
    pub(crate) fn with_offline(nr_cpus: usize, offline: &[usize]) -> Self {
        let mut places = flat_places(nr_cpus);
        offline.iter().for_each(|&cpu| places[cpu] = None);
        Self::ranked(TopologyKind::Detected, &places)
    }

    /// Sorts the CPUs by place; those without one (holes in the numbering, offline CPUs) come last,
    /// in the order of their numbers. Numbers above the last CPU with a place do not count.
    fn ranked(kind: TopologyKind, places: &[Option<CpuPlace>]) -> Self {
        let last = places.iter().rposition(Option::is_some);
        let places = &places[..last.map_or(places.len(), |last| last + 1)];
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|&cpu| (places[cpu].is_none(), places[cpu], cpu));
        let mut positions = vec![0; places.len()].into_boxed_slice();
        for (position, &cpu) in order.iter().enumerate() {
            positions[cpu] = position;
        }
        let known = || places.iter().flatten();
        let description = Description {
            kind,
            nr_online: known().count(),
            nr_sockets: distinct(known().map(|place| place.socket)),
            nr_llcs: distinct(known().map(|place| (place.socket, place.llc))),
            nr_cores: distinct(known()),
            positions,
            places: places.into(),
        };
        Self {
            description: Arc::new(description),
        }
    }

    /// Returns one more than the highest number of a CPU that was online: the length of an array
    /// indexed by CPU. A CPU that came online since may have a higher one.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn nr_cpus(&self) -> usize {
        self.description.positions.len()
    }

    /// Returns the number of CPUs that were online. They have the positions below this number; gaps
    /// in their numbering have the others.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn nr_online(&self) -> usize {
        self.description.nr_online
    }

    /// Returns whether the CPU numbers are the system's own.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn kind(&self) -> TopologyKind {
        self.description.kind
    }

    /// Returns the rank of `cpu` in the order of sockets, last-level caches, cores and threads.
    ///
    /// # Panics
    ///
    /// When `cpu` is not below [`nr_cpus`](Self::nr_cpus).
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn position(&self, cpu: CpuId) -> usize {
        self.description.positions[cpu.index()]
    }

    /// Returns the smallest part of the machine that two CPUs share: the distance of a cache line
    /// transfer. [`Sharing::Machine`] for a CPU that is not below [`nr_cpus`](Self::nr_cpus).
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn sharing(&self, one: CpuId, other: CpuId) -> Sharing {
        if one == other {
            return Sharing::Cpu;
        }
        let place = |cpu: CpuId| self.description.places.get(cpu.index()).copied().flatten();
        let (Some(a), Some(b)) = (place(one), place(other)) else {
            return Sharing::Machine;
        };
        if a.socket != b.socket {
            Sharing::Machine
        } else if a.llc != b.llc {
            Sharing::Socket
        } else if a.core != b.core {
            Sharing::Llc
        } else {
            Sharing::Core
        }
    }
}

/// Returns places with one core for each CPU, behind one cache.
fn flat_places(nr_cpus: usize) -> Vec<Option<CpuPlace>> {
    let place = |core| {
        Some(CpuPlace {
            socket: 0,
            llc: 0,
            core,
        })
    };
    (0..nr_cpus).map(place).collect()
}

fn distinct<T: Ord>(items: impl Iterator<Item = T>) -> usize {
    items.collect::<BTreeSet<_>>().len()
}

impl FromStr for Topology {
    type Err = ParseTopologyError;

    /// Parses `SOCKETSxLLCSxCORESxTHREADS`: sockets, last-level caches per socket, cores per cache,
    /// threads per core. CPUs are numbered in that order, so that position and number agree.
    ///
    /// # Errors
    ///
    /// Names the text if it is not of exactly that form (no spaces, no signs), if a factor is 0, or
    /// if the factors multiply to more than [`CPUS_MAX`].
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = || ParseTopologyError::Malformed {
            text: text.to_owned(),
        };
        let factors: Vec<&str> = text.split('x').collect();
        let is_factor = |factor: &&str| {
            factor.bytes().all(|byte| byte.is_ascii_digit())
                && factor.bytes().any(|byte| byte != b'0')
        };
        if factors.len() != 4 || !factors.iter().all(is_factor) {
            return Err(malformed());
        }
        // All digits and not zero: a remaining failure means too large for the type.
        let counts: Option<Vec<usize>> = factors.iter().map(|factor| factor.parse().ok()).collect();
        let nr_cpus = counts.as_deref().and_then(|counts| {
            counts
                .iter()
                .try_fold(1_usize, |product, &count| product.checked_mul(count))
        });
        let (Some(counts), Some(nr_cpus @ ..=CPUS_MAX)) = (counts, nr_cpus) else {
            return Err(ParseTopologyError::TooManyCpus {
                text: text.to_owned(),
            });
        };
        let [_, llcs, cores, threads] = counts[..] else {
            return Err(malformed());
        };
        let place = |cpu: usize| {
            let core = cpu / threads;
            let llc = core / cores;
            let socket = i64::try_from(llc / llcs).ok()?;
            Some(CpuPlace { socket, llc, core })
        };
        let places: Vec<Option<CpuPlace>> = (0..nr_cpus).map(place).collect();
        Ok(Self::ranked(TopologyKind::Synthetic, &places))
    }
}

impl fmt::Display for Topology {
    /// Writes the counts of CPUs, sockets, last-level caches and cores, and the origin:
    /// `384 CPUs: 2 sockets, 24 LLCs, 192 cores (synthetic)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = |count: usize, noun: &str| {
            let plural = if count == 1 { "" } else { "s" };
            format!("{count} {noun}{plural}")
        };
        let description = &*self.description;
        write!(
            f,
            "{}: {}, {}, {} ({})",
            counted(self.nr_cpus(), "CPU"),
            counted(description.nr_sockets, "socket"),
            counted(description.nr_llcs, "LLC"),
            counted(description.nr_cores, "core"),
            match description.kind {
                TopologyKind::Detected => "detected",
                TopologyKind::Synthetic => "synthetic",
            }
        )
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Topology({self})")
    }
}
