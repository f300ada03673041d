//! Made recordings: states that the tests of `top` show.

use std::time::Duration;

use highwater::{Bytes, Estimate};

use super::model::{
    File, Frames, Group, Limits, Lock, Mark, Origin, PcpList, Source, Stall, Stat, State, Victim,
    Waiting,
};

/// Moments of a made recording: one each 100 ms.
const PERIOD: Duration = Duration::from_millis(100);

/// A recording of ticks from `first` to `last`.
pub(crate) struct Made {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) has_ended: bool,
    pub(crate) origin: Origin,
    pub(crate) marks: Vec<Mark>,
    pub(crate) victims: Vec<Victim>,
}

impl Made {
    pub(crate) fn new(first: u64, last: u64) -> Self {
        Self {
            first,
            last,
            has_ended: false,
            origin: Origin {
                file: "run.hwr".to_owned(),
                program: "engine".to_owned(),
                pid: 4_711,
                started_unix: Duration::from_secs(1_795_469_696),
                page_size: 4_096,
            },
            marks: vec![
                mark(1_500, "load \u{1b}[31mstarts"),
                mark(6_050, "deploy 41"),
            ],
            victims: vec![victim(3_000, "/web"), victim(5_210, "/db/query-41")],
        }
    }
}

impl Source for Made {
    fn refresh(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn first(&self) -> Option<u64> {
        (self.first <= self.last).then_some(self.first)
    }

    fn last(&self) -> Option<u64> {
        (self.first <= self.last).then_some(self.last)
    }

    fn len(&self) -> usize {
        usize::try_from((self.last + 1).saturating_sub(self.first)).unwrap()
    }

    fn step(&self, tick: u64, by: i64) -> Option<u64> {
        self.first()?;
        Some(tick.saturating_add_signed(by).clamp(self.first, self.last))
    }

    fn at_time(&self, time: Duration) -> Option<u64> {
        let tick = u64::try_from(time.as_millis() / PERIOD.as_millis()).unwrap();
        self.step(tick, 0)
    }

    fn time(&self, tick: u64) -> Option<Duration> {
        let is_held = (self.first..=self.last).contains(&tick);
        is_held.then(|| time_of(tick))
    }

    fn state(&self, tick: u64) -> Result<Option<State>, String> {
        Ok(self.time(tick).map(|_| state(tick)))
    }

    fn marks(&self) -> &[Mark] {
        &self.marks
    }

    fn victims(&self) -> &[Victim] {
        &self.victims
    }

    fn origin(&self) -> &Origin {
        &self.origin
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn nr_torn(&self) -> u64 {
        0
    }
}

fn time_of(tick: u64) -> Duration {
    Duration::from_millis(tick * 100)
}

fn mark(millis: u64, text: &str) -> Mark {
    Mark {
        time: Duration::from_millis(millis),
        text: text.to_owned(),
    }
}

fn victim(millis: u64, path: &str) -> Victim {
    Victim {
        time: Duration::from_millis(millis),
        target: "/db".to_owned(),
        path: path.to_owned(),
        estimate: estimate(5_000, 4_800, 5_600),
        exact: Some(kib(5_200)),
        badness: 5_200 << 10,
        runner_up: Some(("/db/query-42".to_owned(), 4_100 << 10)),
        gap: Bytes::ZERO,
        census: [
            ("scanned", 6),
            ("eligible", 4),
            ("in reach", 2),
            ("exact reads", 2),
            ("passes", 1),
        ],
        text: format!("{path}: 5200 KiB (estimate 5000 KiB); proven; next /db/query-42"),
    }
}

const fn kib(amount: u64) -> Bytes {
    Bytes(amount << 10)
}

const fn estimate(value: u64, low: u64, high: u64) -> Estimate<Bytes> {
    Estimate {
        value: kib(value),
        low: kib(low),
        high: kib(high),
    }
}

/// The state at a tick: six groups of a manager of 32 MiB.
pub(crate) fn state(tick: u64) -> State {
    let limits = |min, low, high, max| Limits {
        min: Some(kib(min)).filter(|limit| limit.0 > 0),
        low: Some(kib(low)).filter(|limit| limit.0 > 0),
        high: Some(kib(high)).filter(|limit| limit.0 > 0),
        max: Some(kib(max)).filter(|limit| limit.0 > 0),
    };
    let none = Limits::default();
    let group = |path: &str, parent, usage, limits| group(tick, path, parent, usage, limits);
    let mut groups = vec![
        group("/", None, estimate(30_000, 28_000, 31_500), none),
        group("/batch", Some(0), estimate(1_500, 1_500, 1_500), none),
        group(
            "/db",
            Some(0),
            estimate(19_000, 17_800, 19_900),
            limits(2_048, 4_096, 18_432, 20_480),
        ),
        group("/db/query-41", Some(2), estimate(6_000, 5_500, 6_400), none),
        group(
            "/db/query-42",
            Some(2),
            estimate(13_000, 12_300, 13_500),
            limits(0, 0, 14_336, 16_384),
        ),
        group(
            "/web",
            Some(0),
            estimate(9_500, 8_700, 10_100),
            limits(0, 8_192, 0, 12_288),
        ),
    ];
    groups[2].waiting = Waiting {
        charges: 3,
        bytes: kib(2_048),
        longest: Duration::from_millis(1_200),
    };
    State {
        tick,
        time: time_of(tick),
        whole_at: time_of(tick / 10 * 10),
        is_whole: true,
        groups,
        frames: frames(),
        locks: locks(tick),
        files: vec![file(1, "data/table.db", 12_000), file(2, "", 3_000)],
        files_omitted: 3,
        counters: vec![
            ("pgfault".to_owned(), tick * 70),
            ("nr_free_pages".to_owned(), 400),
        ],
    }
}

fn group(
    tick: u64,
    path: &str,
    parent: Option<usize>,
    usage: Estimate<Bytes>,
    limits: Limits,
) -> Group {
    let share = usage.value.0 >> 20;
    let stall = |by: u32| Stall {
        averages: [12, 6, 2].map(|part| f64::from(by * part) / 100.0),
        total: Duration::from_millis(tick * u64::from(by)),
    };
    let pressed = u32::try_from(share).unwrap();
    Group {
        id: path.bytes().map(u64::from).sum(),
        parent,
        name: path.rsplit('/').next().unwrap().to_owned(),
        path: path.to_owned(),
        read_at: time_of(tick),
        usage,
        peak: estimate(usage.value.0 >> 10, usage.low.0 >> 10, usage.high.0 >> 10),
        limits,
        events: [
            ("low", 0),
            ("high", tick * share),
            ("max", tick / 10),
            ("debt", 0),
            ("oom", 1),
            ("oom_kill", 1),
        ],
        some: stall(pressed * 10),
        full: stall(pressed),
        stat: Stat {
            anon: share * 40,
            file: share * 200,
            file_dirty: share * 3,
            refault: tick * share * 5,
            activate: tick * share,
            scanned: tick * share * 10,
            reclaimed: tick * share * 9,
            fault: tick * share * 70,
            major_fault: tick * share * 12,
        },
        stat_staleness: 320,
        stat_age: Duration::from_millis(300),
        waiting: Waiting::default(),
    }
}

fn frames() -> Frames {
    let list = |cpu, count| PcpList {
        cpu,
        count,
        high: 120,
        high_min: 16,
        high_max: 500,
        batch: 31,
    };
    Frames {
        managed: 8_192,
        ballooned: 0,
        free: 400,
        deferred: 12,
        cached: 110,
        allocated: 7_670,
        peak: 7_900,
        watermark_min: 64,
        watermark_low: 80,
        watermark_high: 96,
        is_reclaiming: true,
        lists: vec![list(Some(0), 60), list(Some(1), 50), list(None, 0)],
    }
}

fn locks(tick: u64) -> Vec<Lock> {
    let lock = |class: &str, contended: u64, held| Lock {
        class: class.to_owned(),
        contended,
        wait: Duration::from_micros(contended * 7),
        held,
    };
    let held = Some((Duration::from_micros(tick * 40), tick * 90));
    vec![
        lock("lruvec", tick * 12, None),
        lock("zone", tick * 3, held),
        lock("page_index", 0, None),
    ]
}

fn file(id: u64, path: &str, resident: u64) -> File {
    File {
        id,
        path: path.to_owned(),
        pages: 40_000,
        resident: estimate(resident, resident - 500, resident + 500),
    }
}
