//! The machine under diagnosis: files that several checks read are read once.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;

use crate::groups::{Group, GroupVersion, Groups};
use crate::parse::{self, Counters, KernelVersion, Zone};
use crate::process::{Effort, ProcessTable};
use crate::root::{Missing, Root, RootError};
use crate::traced::Traced;
use crate::tracefs::{Tracefs, TracefsError};

/// A value that is read at the first use.
type Once<T> = OnceCell<Result<T, Missing>>;

/// A machine, live or recorded.
///
/// A live one is asked twice for what counts events: [`begin_interval`](Self::begin_interval), a
/// wait of the caller's, and [`end_interval`](Self::end_interval).
#[derive(Debug)]
pub struct Machine {
    root: Root,
    kernel: Result<KernelVersion, Missing>,
    page_bytes: u64,
    /// `interval_s` of a recorded machine.
    recorded_s: Option<f64>,
    begun: Option<(Instant, Sample)>,
    interval: Option<Result<Interval, Missing>>,
    traced: Option<Result<Traced, Missing>>,
    zones: Once<Vec<Zone>>,
    memory: Once<Counters>,
    processes: Once<ProcessTable>,
    groups: Once<Groups>,
}

/// Counters of events at one moment.
#[derive(Clone, Debug)]
struct Sample {
    vmstat: Result<Counters, Missing>,
    high_events: EventsByGroup,
}

/// Events of each group, by its path.
type EventsByGroup = HashMap<String, HighEvents>;

/// The times that a group was above its `memory.high`.
#[derive(Clone, Copy, Debug)]
struct HighEvents {
    /// Of the group alone.
    own: Option<u64>,
    /// Of the group and those below it.
    subtree: Option<u64>,
}

/// The events between two moments.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Time between the two, in seconds.
    pub seconds: f64,
    /// Growth of each line of `/proc/vmstat`.
    pub vmstat: Counters,
    /// Times that each group was above its own `memory.high`, by its path. Those of the groups
    /// below are not in it.
    pub high_events: BTreeMap<String, u64>,
}

impl Machine {
    /// Opens the machine below `root`.
    ///
    /// # Errors
    ///
    /// When a recorded machine has a `meta.json` that is wrong.
    pub fn open(root: Root) -> Result<Self, RootError> {
        let meta = Meta::read(&root)?;
        let page_bytes = match meta.page_size_bytes {
            Some(bytes) => bytes,
            None if root.is_live() => rustix::param::page_size() as u64,
            None => 4096,
        };
        Ok(Self {
            kernel: kernel(&root),
            root,
            page_bytes,
            recorded_s: meta.interval_s,
            begun: None,
            interval: None,
            traced: None,
            zones: Once::new(),
            memory: Once::new(),
            processes: Once::new(),
            groups: Once::new(),
        })
    }

    /// The files of the machine.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The version of its kernel.
    ///
    /// # Errors
    ///
    /// When neither `/proc` nor `uname(2)` says it.
    pub fn kernel(&self) -> Result<KernelVersion, Missing> {
        self.kernel.clone()
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// The number of CPUs that are online.
    ///
    /// A container may see a smaller number in `/sys` than the kernel uses; `/proc/zoneinfo` shows
    /// the list of each CPU, so that the larger number is taken.
    ///
    /// # Errors
    ///
    /// When no file says it.
    pub fn cpus_online(&self) -> Result<u64, Missing> {
        let in_sys = self
            .root
            .parse("sys/devices/system/cpu/online", parse::cpu_list);
        let in_sys = in_sys.or_else(|_| self.root.parse("proc/stat", parse::cpus_of_stat));
        let zones = self.zones().unwrap_or_default();
        let lists = zones.iter().map(|zone| zone.page_sets.len() as u64).max();
        match (in_sys, lists.filter(|lists| *lists > 0)) {
            (Ok(cpus), lists) => Ok(cpus.max(lists.unwrap_or(0))),
            (Err(_), Some(lists)) => Ok(lists),
            (Err(missing), None) => Err(missing),
        }
    }

    /// The number of CPUs that can ever be online: at least those that are.
    ///
    /// # Errors
    ///
    /// When no file says it.
    pub fn cpus_possible(&self) -> Result<u64, Missing> {
        let online = self.cpus_online()?;
        let path = "sys/devices/system/cpu/possible";
        Ok(self
            .root
            .parse(path, parse::cpu_list)
            .unwrap_or(0)
            .max(online))
    }

    /// The zones of memory.
    ///
    /// # Errors
    ///
    /// When `/proc/zoneinfo` cannot be read or parsed.
    pub fn zones(&self) -> Result<&[Zone], Missing> {
        let read = || self.root.parse("proc/zoneinfo", parse::zoneinfo);
        self.zones
            .get_or_init(read)
            .as_deref()
            .map_err(Clone::clone)
    }

    /// `/proc/meminfo`, in KiB.
    ///
    /// # Errors
    ///
    /// When it cannot be read or parsed.
    pub fn memory_kib(&self) -> Result<&Counters, Missing> {
        let read = || self.root.parse("proc/meminfo", parse::kilobytes);
        self.memory.get_or_init(read).as_ref().map_err(Clone::clone)
    }

    /// The processes that this user sees; see [`ProcessTable::read`].
    ///
    /// # Errors
    ///
    /// When `/proc` cannot be listed.
    pub fn processes(&self) -> Result<&ProcessTable, Missing> {
        let read = || ProcessTable::read(self, Effort::Bounded);
        self.processes
            .get_or_init(read)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// The memory groups that this user sees.
    ///
    /// # Errors
    ///
    /// When no control-group file system with the memory controller is mounted.
    pub fn groups(&self) -> Result<&Groups, Missing> {
        let read = || Groups::read(&self.root);
        self.groups.get_or_init(read).as_ref().map_err(Clone::clone)
    }

    /// The value of an option of the kernel's build, from `/proc/config.gz` or
    /// `/boot/config-RELEASE`; `None` if the kernel has no such option.
    ///
    /// # Errors
    ///
    /// When neither file can be read.
    pub fn config(&self, option: &str) -> Result<Option<String>, Missing> {
        let text = self.config_text()?;
        Ok(parse::config_value(&text, option).map(str::to_owned))
    }

    fn config_text(&self) -> Result<String, Missing> {
        if let Ok(bytes) = self.root.read_bytes("proc/config.gz") {
            let mut text = String::new();
            // A build configuration has about 300 KiB.
            let mut decoder = GzDecoder::new(&bytes[..]).take(16 << 20);
            if decoder.read_to_string(&mut text).is_ok() {
                return Ok(text);
            }
        }
        let release = match self.root.read("proc/sys/kernel/osrelease") {
            Ok(release) => release.trim().to_owned(),
            Err(_) => String::new(),
        };
        for path in [
            format!("boot/config-{release}"),
            format!("lib/modules/{release}/config"),
        ] {
            if let Ok(text) = self.root.read(&path) {
                return Ok(text);
            }
        }
        let need = format!("needs /proc/config.gz or /boot/config-{release}");
        Err(Missing::new(need))
    }

    /// Starts the interval of the checks that count events. Does nothing on a recorded machine.
    pub fn begin_interval(&mut self) {
        if self.root.is_live() {
            self.begun = Some((Instant::now(), self.sample("")));
        }
    }

    /// Ends the interval: since [`begin_interval`](Self::begin_interval) on a live machine, and
    /// between `proc/vmstat` and `proc/vmstat.after` on a recorded one.
    pub fn end_interval(&mut self) {
        let ended = if let Some((start, before)) = self.begun.take() {
            let after = self.sample("");
            Interval::between(&before, &after, start.elapsed().as_secs_f64())
        } else if let Some(seconds) = self.recorded_s {
            Interval::between(&self.sample(""), &self.sample(".after"), seconds)
        } else {
            Err(Missing::new(
                "needs a live machine, or two recorded samples",
            ))
        };
        self.interval = Some(ended);
    }

    /// The events of the interval.
    ///
    /// # Errors
    ///
    /// When it has not ended, or `/proc/vmstat` cannot be read.
    pub fn interval(&self) -> Result<&Interval, Missing> {
        match &self.interval {
            Some(ended) => ended.as_ref().map_err(Clone::clone),
            None => Err(Missing::new("needs two samples, with time between them")),
        }
    }

    /// Records events of the kernel for `time`, or until `is_interrupted`; see
    /// [`Traced::collect`]. Does nothing on a recorded machine.
    pub fn trace(&mut self, time: Duration, is_interrupted: &dyn Fn() -> bool) {
        if !self.root.is_live() {
            return;
        }
        let traced = Tracefs::open()
            .and_then(|tracefs| Traced::collect(&tracefs, time, is_interrupted))
            .map_err(|error| Self::untraced(&error));
        self.traced = Some(traced);
    }

    /// The events of [`trace`](Self::trace).
    ///
    /// # Errors
    ///
    /// When nothing was recorded, or the system refused it.
    pub fn traced(&self) -> Result<&Traced, Missing> {
        match &self.traced {
            Some(traced) => traced.as_ref().map_err(Clone::clone),
            None if self.root.is_live() => Err(Missing::new("needs --trace and root")),
            None => Err(Missing::new("needs a live machine, to trace its kernel")),
        }
    }

    /// Why the kernel's events cannot be counted.
    pub(crate) fn untraced(error: &TracefsError) -> Missing {
        let right = if error.is_permission() {
            "needs root: "
        } else {
            ""
        };
        Missing::new(format!("{right}{error}"))
    }

    fn sample(&self, suffix: &str) -> Sample {
        let groups = self.groups().ok();
        let groups = groups.filter(|groups| groups.version == GroupVersion::V2);
        let high_events = groups.map(|groups| self.high_events(groups, suffix));
        let path = format!("proc/vmstat{suffix}");
        Sample {
            vmstat: self.root.parse(&path, parse::counters),
            high_events: high_events.unwrap_or_default(),
        }
    }

    fn high_events(&self, groups: &Groups, suffix: &str) -> EventsByGroup {
        let is_local = self.has_local_events();
        let high = |group: &Group, file: &str| {
            let path = format!("{}{suffix}", groups.file_of(group, file));
            let events = self.root.parse(&path, parse::counters).ok()?;
            events.get("high")
        };
        let events = |group: &Group| {
            let own = high(group, "memory.events.local");
            // A recorded machine may have the first file in one of its samples only.
            let subtree = if own.is_some() && self.root.is_live() {
                None
            } else {
                high(group, "memory.events")
            };
            let own = if is_local { own.or(subtree) } else { own };
            (group.path.clone(), HighEvents { own, subtree })
        };
        groups.groups.iter().map(events).collect()
    }

    /// Returns whether `memory.events` counts a group without those below it: before 5.2, which
    /// added `memory.events.local`, and with the mount option `memory_localevents`.
    fn has_local_events(&self) -> bool {
        let is_old = self.kernel().is_ok_and(|kernel| !kernel.is_from(5, 2));
        let mounts = self.root.parse("proc/self/mountinfo", parse::mounts);
        let has_option = |mount: &parse::Mount| {
            mount.kind == "cgroup2" && mount.has_option("memory_localevents")
        };
        is_old || mounts.is_ok_and(|mounts| mounts.iter().any(has_option))
    }
}

/// Returns how often each group was above its own limit between two samples: by its own file in
/// both, else the growth of its subtree without that of the groups right below it.
fn own_events(before: &EventsByGroup, after: &EventsByGroup) -> BTreeMap<String, u64> {
    let grown = |path: &str, of: fn(&HighEvents) -> Option<u64>| {
        let (old, new) = (of(before.get(path)?)?, of(after.get(path)?)?);
        Some(new.saturating_sub(old))
    };
    let of_subtree = |path: &str| grown(path, |events| events.subtree);
    let mut below: HashMap<&str, u64> = HashMap::new();
    for path in after.keys() {
        if let (Some(parent), Some(events)) = (parent(path), of_subtree(path)) {
            let sum = below.entry(parent).or_default();
            *sum = sum.saturating_add(events);
        }
    }
    let own = |path: &String| {
        let subtree = || {
            let of_children = below.get(&**path).copied().unwrap_or(0);
            Some(of_subtree(path)?.saturating_sub(of_children))
        };
        let events = grown(path, |events| events.own).or_else(subtree)?;
        Some((path.clone(), events))
    };
    after.keys().filter_map(own).collect()
}

/// Returns the path of the group above that at `path`.
fn parent(path: &str) -> Option<&str> {
    match path.rsplit_once('/')? {
        (_, "") => None,
        ("", _) => Some("/"),
        (parent, _) => Some(parent),
    }
}

impl Interval {
    fn between(before: &Sample, after: &Sample, seconds: f64) -> Result<Self, Missing> {
        let (old, new) = (before.vmstat.as_ref(), after.vmstat.as_ref());
        let old = old.map_err(Clone::clone)?;
        let new = new.map_err(Clone::clone)?;
        if seconds.is_nan() || seconds <= 0.0 {
            return Err(Missing::new("needs time between its two samples"));
        }
        Ok(Self {
            seconds,
            vmstat: new.since(old),
            high_events: own_events(&before.high_events, &after.high_events),
        })
    }

    /// Events a second.
    #[must_use]
    pub fn rate(&self, events: u64) -> f64 {
        crate::finding::float(events) / self.seconds
    }
}

/// `meta.json` beside the `proc` of a recorded machine.
#[derive(Clone, Copy, Debug, Default)]
struct Meta {
    /// Seconds between `proc/vmstat` and `proc/vmstat.after`.
    interval_s: Option<f64>,
    /// Bytes of a page, if not 4,096.
    page_size_bytes: Option<u64>,
}

impl Meta {
    fn read(root: &Root) -> Result<Self, RootError> {
        if root.is_live() {
            return Ok(Self::default());
        }
        let Ok(text) = root.read("meta.json") else {
            return Ok(Self::default());
        };
        let wrong = |message: String| RootError::Meta {
            path: root.dir().join("meta.json"),
            message,
        };
        let json: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| wrong(format!("no JSON: {e}")))?;
        let interval_s = match json.get("interval_s") {
            None => None,
            Some(value) => match value.as_f64() {
                Some(seconds) if seconds > 0.0 => Some(seconds),
                _ => return Err(wrong(format!("`interval_s` is {value}, not above 0"))),
            },
        };
        let page_size_bytes = match json.get("page_size_bytes") {
            None => None,
            Some(value) => match value.as_u64() {
                Some(bytes) if bytes.is_power_of_two() && bytes >= 1024 => Some(bytes),
                _ => {
                    let message = format!("`page_size_bytes` is {value}, no size of a page");
                    return Err(wrong(message));
                }
            },
        };
        Ok(Self {
            interval_s,
            page_size_bytes,
        })
    }
}

fn kernel(root: &Root) -> Result<KernelVersion, Missing> {
    let release = root.parse("proc/sys/kernel/osrelease", parse::kernel_version);
    let release = release.or_else(|_| root.parse("proc/version", parse::kernel_version));
    if release.is_err() && root.is_live() {
        let name = rustix::system::uname();
        let release = name.release().to_string_lossy();
        return parse::kernel_version(&release).map_err(|e| Missing::new(e.to_string()));
    }
    release.map_err(|_| Missing::new("needs the kernel's version, /proc/sys/kernel/osrelease"))
}
