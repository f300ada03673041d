//! Promise: a scrape is valid `OpenMetrics` text that shows the largest groups by name and the rest
//! together, flushes nothing, and has counters that never fall.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "scrape/format.rs"]
mod format;
#[path = "scrape/real.rs"]
mod real;

use std::sync::atomic::{AtomicBool, Ordering};

use format::Page;
use highwater::group::{StatItem, Tolerance};
use highwater::{Background, Bytes, Group, Limits, Manager};
use highwater_prometheus::ManagerCollector;
use prometheus_client::registry::Registry;

const CURRENT: &str = "highwater_memory_current_bytes";

/// A manager without a background thread: nothing flushes unasked.
fn manager() -> Manager {
    let builder = Manager::builder().capacity(Bytes::mib(16));
    builder.background(Background::Off).build().unwrap()
}

fn child(parent: &Group, name: &str) -> Group {
    parent.child(name, Limits::default()).unwrap()
}

fn registry(collector: ManagerCollector) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
    registry
}

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

fn page(registry: &Registry) -> Page {
    Page::parse(&text(registry)).unwrap()
}

/// Asks the group for more than its maximum, `times` times: `max` events.
fn refusals(group: &Group, times: usize) {
    for _ in 0..times {
        assert!(group.try_charge(Bytes::mib(64)).is_err());
    }
}

fn max_events(page: &Page, group: &str) -> Option<f64> {
    let labels = [("group", group), ("event", "max")];
    page.get("highwater_memory_events_total", &labels)
}

#[test]
fn the_largest_groups_are_named_and_the_rest_is_summed() {
    let hw = manager();
    let limits = Limits {
        low: Bytes::mib(1),
        ..Limits::max(Bytes::mib(8))
    };
    let large = hw.root().child("large", limits).unwrap();
    let query = child(&large, "query");
    let small: Vec<_> = (0..5)
        .map(|at| child(&hw.root(), &format!("small-{at}")))
        .collect();
    let held: Vec<_> = [&query, &large]
        .map(|group| group.charge(Bytes::mib(2)).unwrap())
        .into();
    let others: Vec<_> = small
        .iter()
        .map(|group| group.charge(Bytes(1000)).unwrap())
        .collect();
    let page = page(&registry(ManagerCollector::new(&hw).groups_max(2)));
    let named: Vec<_> = page.values(CURRENT, "group").into_iter().collect();
    assert_eq!(named, ["/", "/large", "/large/query", "other"]);
    let mut other = 0;
    for (name, exact) in [
        ("/", hw.root().usage_precise()),
        ("/large", Bytes::mib(4)),
        ("/large/query", Bytes::mib(2)),
        ("other", Bytes(5000)),
    ] {
        let bound = |bound| {
            page.get(
                &format!("highwater_memory_current{bound}_bytes"),
                &[("group", name)],
            )
        };
        let [low, value, high] = ["_low", "", "_high"].map(|suffix| bound(suffix).unwrap());
        assert!(low <= value && value <= high, "{name}");
        assert!(low <= exact.0 as f64 && exact.0 as f64 <= high, "{name}");
        other += 1;
    }
    assert_eq!(other, 4);
    let limit = |name, group| {
        page.get(
            &format!("highwater_memory_{name}_bytes"),
            &[("group", group)],
        )
    };
    assert_eq!(limit("max", "/large"), Some(Bytes::mib(8).0 as f64));
    assert_eq!(limit("low", "/large"), Some(Bytes::mib(1).0 as f64));
    assert_eq!(
        (limit("max", "/large/query"), limit("high", "/large")),
        (None, None)
    );
    assert_eq!(
        (limit("min", "/large"), limit("low", "/large/query")),
        (None, None)
    );
    assert_eq!(limit("max", "other"), None);
    drop((held, others));
}

#[test]
fn no_groups_or_no_depth_leaves_the_root() {
    let hw = manager();
    let tenant = child(&hw.root(), "tenant");
    let work = child(&tenant, "query").charge(Bytes::mib(1)).unwrap();
    let nobody = page(&registry(ManagerCollector::new(&hw).groups_max(0)));
    assert_eq!(nobody.values(CURRENT, "group"), ["/", "other"].into());
    assert!(nobody.get(CURRENT, &[("group", "other")]).unwrap() >= Bytes::mib(1).0 as f64);
    let flat = page(&registry(ManagerCollector::new(&hw).depth_max(0)));
    assert_eq!(flat.values(CURRENT, "group"), ["/"].into());
    let one = page(&registry(ManagerCollector::new(&hw).depth_max(1)));
    assert_eq!(one.values(CURRENT, "group"), ["/", "/tenant"].into());
    drop(work);
}

#[test]
fn names_are_escaped() {
    // Goal: each name comes back from the text as it went in.
    let hw = manager();
    let names = [
        "a \"quoted\" one",
        "back\\slash",
        "Größe 大きい 🦀",
        "other",
        "x=\"1\",y",
    ];
    let with_break = hw.root().child("two\nlines", Limits::default());
    let mut expected: Vec<String> = vec!["/".into()];
    let groups: Vec<_> = names.iter().map(|name| child(&hw.root(), name)).collect();
    expected.extend(names.iter().map(|name| format!("/{name}")));
    expected.extend(with_break.iter().map(|_| "/two\nlines".to_owned()));
    expected.sort();
    let page = page(&registry(ManagerCollector::new(&hw)));
    let found: Vec<_> = page.values(CURRENT, "group").into_iter().collect();
    assert_eq!(found, expected);
    drop(groups);
}

#[test]
fn a_scrape_flushes_nothing_and_says_how_old_it_is() {
    let source = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(source.path(), vec![7; 16 * 4096]).unwrap();
    let hw = manager();
    let tenant = child(&hw.root(), "tenant");
    let registry = registry(ManagerCollector::new(&hw));
    let file = hw.open(source.path()).unwrap();
    let space = hw.space(&tenant);
    let mapping = space.map_file(&file, 0..16).unwrap();
    let guard = hw.enter();
    (0..16_u64).for_each(|at| assert_eq!(mapping.read(&guard, at).unwrap()[0], 7));
    drop(guard);
    let of = |page: &Page, name: &str| page.get(name, &[("group", "/tenant")]).unwrap();
    let mut shown = 0.0;
    for _ in 0..2 {
        let page = page(&registry);
        let staleness = of(&page, "highwater_memory_stat_staleness");
        assert!(staleness > 0.0, "the scrape before has flushed");
        assert!(of(&page, "highwater_memory_stat_age_seconds") > 0.0);
        shown = of(&page, "highwater_memory_pgfault_total");
        assert!(shown + staleness >= 1.0, "{shown}");
    }
    let faults = tenant.stats(Tolerance::EXACT).get(StatItem::Pgfault) as f64;
    assert!(shown < faults, "a scrape flushed");
    let page = page(&registry);
    assert_eq!(of(&page, "highwater_memory_pgfault_total"), faults);
    assert_eq!(of(&page, "highwater_memory_file_bytes"), 16.0 * 4096.0);
    assert_eq!(page.get("highwater_nr_swap_total_pages", &[]), Some(0.0));
    assert!(page.get("highwater_pgmajfault_total", &[]).unwrap() >= 1.0);
}

#[test]
fn counters_of_the_rest_never_fall() {
    // Goal: each event of a group counts in the rest exactly once, if the group was not named
    // during it. Method: a group of two levels grows until it is named, shrinks, and is removed.
    let hw = manager();
    let limits = || Limits::max(Bytes::mib(4));
    let [a, b] = ["a", "b"].map(|name| hw.root().child(name, limits()).unwrap());
    let below = child(&a, "below");
    let registry = registry(ManagerCollector::new(&hw).groups_max(1));
    let keeps_b = b.charge(Bytes::mib(1)).unwrap();
    let other = || max_events(&page(&registry), "other");
    refusals(&a, 3);
    refusals(&b, 2); // named
    assert_eq!(other(), Some(3.0));
    refusals(&below, 4); // `a` refuses them
    assert_eq!(other(), Some(7.0));
    let grows_a = a.charge(Bytes::mib(2)).unwrap();
    refusals(&a, 1);
    assert_eq!(other(), Some(8.0), "until this scrape `a` was unnamed");
    refusals(&b, 5);
    refusals(&a, 10); // named
    assert_eq!(other(), Some(13.0));
    drop(grows_a);
    assert_eq!(other(), Some(13.0), "`a` was named until now");
    refusals(&a, 1);
    assert_eq!(other(), Some(14.0));
    drop(below);
    hw.group("/a/below").unwrap().remove().unwrap();
    a.remove().unwrap();
    assert_eq!(other(), Some(14.0));
    drop(keeps_b);
}

#[test]
fn a_group_with_a_reused_number_counts_as_a_new_one() {
    // Goal: the rest has each event of two groups that had one number after the other exactly once,
    // whether the second has fewer events than the first or more. Method: no group is named; a
    // number is reused at once by the thread that removed its group.
    for events in [8, 15] {
        let hw = manager();
        let registry = registry(ManagerCollector::new(&hw).groups_max(0));
        let limited = |name| hw.root().child(name, Limits::max(Bytes::mib(4))).unwrap();
        let first = limited("a");
        refusals(&first, 10);
        assert_eq!(max_events(&page(&registry), "other"), Some(10.0));
        let number = first.id();
        first.remove().unwrap();
        drop(first);
        let second = limited("b");
        assert_eq!(second.id(), number, "it is reused");
        refusals(&second, events);
        let total = (10 + events) as f64;
        assert_eq!(max_events(&page(&registry), "other"), Some(total));
    }
}

#[test]
fn groups_come_and_go_while_several_scrape() {
    // Goal: every page is valid, and no counter falls, while groups are created and removed.
    let hw = manager();
    let registry = registry(ManagerCollector::new(&hw).groups_max(4));
    let stays = child(&hw.root(), "stays");
    let keep = stays.charge(Bytes::mib(1)).unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let mut rounds = 0;
            while !ends.load(Ordering::Relaxed) {
                let limits = Limits::max(Bytes::mib(2));
                let groups: Vec<_> = (0..8)
                    .map(|at| hw.root().child(&format!("g{at}"), limits).unwrap())
                    .collect();
                let query = child(&groups[0], "query");
                drop(query.charge(Bytes::mib(1)).unwrap());
                groups.iter().for_each(|group| refusals(group, 1));
                query.remove().unwrap();
                groups.iter().for_each(|group| group.remove().unwrap());
                rounds += 1;
            }
            rounds
        });
        let scrapers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut before = page(&registry);
                    for _ in 0..40 {
                        let now = page(&registry);
                        let group = |labels: &format::Labels| {
                            labels
                                .get("group")
                                .is_none_or(|it| it == "other" || it == "/")
                        };
                        for ((name, labels), value) in before.totals() {
                            let labels = labels.iter().map(|(k, v)| (&**k, &**v));
                            let pairs: Vec<_> = labels.collect();
                            let is_kept = group(
                                &pairs
                                    .iter()
                                    .map(|(k, v)| (k.to_string(), v.to_string()))
                                    .collect(),
                            );
                            let risen = now.get(name, &pairs).is_some_and(|now| now >= value);
                            assert!(risen || !is_kept, "{name} {pairs:?} fell from {value}");
                        }
                        before = now;
                    }
                })
            })
            .collect();
        scrapers
            .into_iter()
            .for_each(|scraper| scraper.join().unwrap());
        ends.store(true, Ordering::Relaxed);
        assert!(churn.join().unwrap() > 0);
    });
    drop(keep);
}

#[test]
fn stalls_are_a_histogram() {
    // Method: a charge that no victim can make room for reclaims in vain: one stall.
    let hw = manager();
    let tenant = hw
        .root()
        .child("tenant", Limits::max(Bytes::mib(1)))
        .unwrap();
    let registry = registry(ManagerCollector::new(&hw));
    let name = "highwater_stall_duration_seconds";
    let count = |page: &Page| page.get(&format!("{name}_count"), &[]).unwrap();
    assert_eq!(count(&page(&registry)), 0.0);
    let full = tenant.charge(Bytes::mib(1)).unwrap();
    assert!(tenant.charge(Bytes(1)).is_err());
    drop(full);
    let page = page(&registry);
    assert_eq!(count(&page), 1.0);
    assert_eq!(
        page.get(&format!("{name}_bucket"), &[("le", "+Inf")]),
        Some(1.0)
    );
    let stalled = page.get(
        "highwater_memory_pressure_some_seconds_total",
        &[("group", "/tenant")],
    );
    assert!(stalled.is_some());
}

#[test]
fn the_parser_refuses_faulty_pages() {
    let good = "# HELP a_b text\n# TYPE a_b counter\na_b_total{x=\"1\"} 2\na_b_total{x=\"2\"} 2\n";
    assert!(Page::parse(&format!("{good}# EOF\n")).is_ok());
    for (fault, text) in [
        ("no end", good.to_owned()),
        (
            "duplicate",
            format!("{good}a_b_total{{x=\"1\"}} 2\n# EOF\n"),
        ),
        ("no suffix", format!("{good}a_b{{x=\"3\"}} 2\n# EOF\n")),
        ("stranger", format!("{good}c_total 2\n# EOF\n")),
        ("family twice", format!("{good}{good}# EOF\n")),
        (
            "bad escape",
            format!("{good}a_b_total{{x=\"\\t\"}} 2\n# EOF\n"),
        ),
        (
            "label twice",
            format!("{good}a_b_total{{x=\"3\",x=\"4\"}} 2\n# EOF\n"),
        ),
        (
            "raw line break",
            format!("{good}a_b_total{{x=\"3\n\"}} 2\n# EOF\n"),
        ),
        (
            "raw quote",
            format!("{good}a_b_total{{x=\"a\"b\"}} 2\n# EOF\n"),
        ),
        (
            "negative",
            format!("{good}a_b_total{{x=\"3\"}} -2\n# EOF\n"),
        ),
        (
            "no number",
            format!("{good}a_b_total{{x=\"3\"}} two\n# EOF\n"),
        ),
        ("no type", "# HELP a text\na 1\n# EOF\n".into()),
        ("no help", "# TYPE a gauge\na 1\n# EOF\n".into()),
        (
            "unit",
            "# HELP a text\n# TYPE a gauge\n# UNIT a bytes\na 1\n# EOF\n".into(),
        ),
    ] {
        assert!(Page::parse(&text).is_err(), "{fault}");
    }
}
