//! Which figures two runs of one set-up may be expected to share: times never, counts by the kind
//! of run.

use highwater_lab::report::Unit;
use serde_json::Value;

/// Which counts each run of a set-up repeats.
#[derive(Clone, Copy, Debug)]
pub(super) enum RepeatedCounts {
    /// All: the run depends on its input alone.
    Repeat,
    /// Those of the set-up and of failures: threads that race decide the rest.
    OfThreads,
    /// Those of the set-up and of verdicts: the rest is the state of a machine that goes on.
    OfMachine,
}

impl RepeatedCounts {
    /// Returns those of a run that the subcommand `kind` made.
    pub(super) fn of(kind: &str, run: &Value) -> Self {
        // Reports of versions without the field have one.
        let is_one = |field: &str| {
            let number = run.get(field).and_then(Value::as_u64);
            number.is_none_or(|number| number == 1)
        };
        match kind {
            "host" => Self::OfMachine,
            "replay" if !(is_one("threads") && is_one("in_flight")) => Self::OfThreads,
            _ => Self::Repeat,
        }
    }

    /// Returns whether a figure, if it is no time, is the same in each run.
    pub(super) fn repeats(self, figure: &str) -> bool {
        let own = figure.rsplit('.').next().unwrap_or_default();
        let begins = |beginnings: &[&str]| beginnings.iter().any(|of| own.starts_with(of));
        match self {
            Self::Repeat => true,
            Self::OfThreads => OF_REPLAY.contains(&own),
            Self::OfMachine => OF_HOST.contains(&own) || begins(&["cpus_", "warn_", "bad_"]),
        }
    }
}

/// Figures of a replay that follow from its arguments and traces, and those of its failures, which
/// are no noise.
const OF_REPLAY: [&str; 10] = [
    "readahead_pages",
    "threads",
    "in_flight",
    "capacity_bytes",
    "max_bytes",
    "requests",
    "page_accesses",
    "verify_failures",
    "leaked_frames",
    "leaked_bytes",
];

/// Figures of `host` that describe the machine.
const OF_HOST: [&str; 3] = ["page_bytes", "managed_pages", "max_bytes"];

/// Returns whether a figure is a time, or memory that the kernel counts. Its own name tells, and
/// that of an object of percentiles (`hit_latency_us.p50`); others may be those of checks
/// (`rss_bound`).
pub(super) fn is_time(figure: &str) -> bool {
    let mut names = figure.rsplit('.');
    let [own, object] = [(); 2].map(|()| names.next().unwrap_or_default());
    let units = ["_us", "_ns", "_ms", "_s"];
    let is_of_time = |name: &str| units.iter().any(|unit| name.ends_with(unit));
    let has_no_unit = Unit::of(own).0 == Unit::Plain;
    let is_of_kernel = ["rss_", "kernel_cached"]
        .iter()
        .any(|of| own.starts_with(of));
    is_of_time(own) || (has_no_unit && is_of_time(object)) || is_of_kernel
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::compare::{Comparison, Meaning, Runs};
    use super::*;

    #[test]
    fn times_are_told_by_their_names() {
        let times = ["hit_latency_us.p50", "rows.p.v.cost_ns", "a.elapsed_s"];
        // Symptom: milliseconds, measured once on each side, differed.
        let others = ["read_p99_ms", "rss_peak_bytes", "kernel_cached_bytes"];
        assert!(times.iter().chain(&others).all(|figure| is_time(figure)));
        assert!(!is_time("wait_us.hits_percent") && !is_time("a_s.b.hits"));
    }

    // Symptom: of two equal runs on several threads, and of two looks at one machine, counts that
    // no run repeats were figures that differ.
    #[test]
    fn counts_that_do_not_repeat_are_measured_once() {
        let compared = |a: Value, b: Value| {
            let [a, b] = [a, b].map(|run| Runs::new(vec![run]).unwrap());
            let found = Comparison::new(("a", &a), ("b", &b)).unwrap();
            let of = found.differences.into_iter();
            of.map(|found| (found.figure, found.meaning))
                .collect::<Vec<_>>()
        };
        let named = |(figure, meaning): (&str, Meaning)| (figure.to_owned(), meaning);
        let replay = |threads: u64, in_flight: u64, hits: u64| {
            json!({
                "page_accesses": 9, "policy": "clock", "threads": threads, "in_flight": in_flight,
                "hits": hits, "verify_failures": hits, "tenants": [{"name": "web", "hits": hits}]
            })
        };
        for (threads, in_flight, want) in [
            (4, 1, Meaning::Once),
            (1, 8, Meaning::Once),
            (1, 1, Meaning::Differs),
        ] {
            let [a, b] = [5, 6].map(|hits| replay(threads, in_flight, hits));
            let failures = ("verify_failures", Meaning::Differs);
            let want = [("hits", want), ("tenants.web.hits", want), failures];
            assert_eq!(compared(a, b), want.map(named), "{threads} threads");
        }
        let found = compared(replay(1, 1, 5), replay(4, 1, 6));
        assert!(found.contains(&named(("threads", Meaning::Differs))));
        assert!(found.contains(&named(("hits", Meaning::Once))));
        let host = |parked: u64, managed: u64| {
            let check = json!({
                "id": "pcp_parked", "parked_pages": parked, "managed_pages": managed
            });
            json!({"checks": [check], "bad_count": 0})
        };
        let want = [
            ("checks.pcp_parked.managed_pages", Meaning::Differs),
            ("checks.pcp_parked.parked_pages", Meaning::Once),
        ];
        assert_eq!(compared(host(5, 100), host(6, 200)), want.map(named));
    }
}
