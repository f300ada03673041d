//! The page of a replay.

use highwater_lab::curve::BesideCurves;
use highwater_lab::replay::{LatencyCurve, Outcome, Timeline, VictimRecord};
use highwater_lab::report::Unit;
use maud::html;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::axis::Axis;
use super::figure::{Figure, Point, Series, Shape};
use super::machine::Machine;
use super::page::{Mood, Page, grid};
use super::recorded::{self, Trace};
use super::table::{Cell, Line, table};
use super::{Envelope, curve, leaves};

/// Tenants that are drawn over time: those with the highest peaks. Chosen: as many as colours,
/// less that of marks.
const DRAWN_MAX: usize = 7;

/// The data of a report, as written.
#[derive(Serialize)]
struct Written<'a> {
    report: &'a Value,
    laid_out_pages: u64,
    hit_latencies: &'a LatencyCurve,
    miss_latencies: &'a LatencyCurve,
    victims: &'a [VictimRecord],
    timeline: Option<Timeline>,
    curves: &'a [BesideCurves],
}

/// Wraps an outcome; `report` is its JSON, with the spread of several runs if there were some,
/// `curves` those of the first tenants.
///
/// # Errors
///
/// When it cannot be represented.
pub(crate) fn envelope(
    outcome: &Outcome,
    report: &Value,
    curves: &[BesideCurves],
) -> Result<Envelope, String> {
    let timeline = outcome.timeline.clone().map(|mut timeline| {
        let peak = |name: &str| {
            let tenants = &outcome.report.tenants;
            let found = tenants.iter().find(|tenant| tenant.name == name);
            found.map_or(0, |tenant| tenant.peak_bytes)
        };
        timeline
            .tenants
            .sort_by_key(|t| std::cmp::Reverse(peak(&t.name)));
        timeline.tenants.truncate(DRAWN_MAX);
        timeline
    });
    let written = Written {
        report,
        laid_out_pages: outcome.laid_out_pages,
        hit_latencies: &outcome.hit_latencies,
        miss_latencies: &outcome.miss_latencies,
        victims: &outcome.victims,
        timeline,
        curves,
    };
    Envelope::new(super::Kind::Replay, &written)
}

/// The same, as read.
#[derive(Deserialize)]
struct Data {
    report: Run,
    /// Former name: that of reports of 0.1.
    #[serde(alias = "footprint_pages")]
    laid_out_pages: f64,
    hit_latencies: Latencies,
    miss_latencies: Latencies,
    victims: Vec<Victim>,
    timeline: Option<Times>,
    /// Absent in reports of 0.1.
    #[serde(default)]
    curves: Vec<BesideCurves>,
}

#[derive(Deserialize)]
struct Run {
    policy: String,
    seed: u64,
    threads: u64,
    in_flight: u64,
    readahead_pages: u64,
    backend: String,
    machine: Machine,
    page_accesses: f64,
    hits: f64,
    hit_ratio: f64,
    pages_read: f64,
    refaults: f64,
    elapsed_s: f64,
    accesses_per_s: f64,
    miss_latency_us: Quantiles,
    capacity_bytes: f64,
    rss_peak_bytes: f64,
    verify_failures: u64,
    leaked_frames: u64,
    leaked_bytes: u64,
    io: String,
    tenants: Vec<Tenant>,
    runs: Option<u64>,
    spread: Option<leaves::Spread>,
}

#[derive(Deserialize)]
struct Quantiles {
    p50: f64,
    p99: f64,
}

#[derive(Deserialize)]
struct Tenant {
    name: String,
    trace: Trace,
    requests: f64,
    page_accesses: f64,
    hit_ratio: f64,
    usage_bytes: f64,
    usage_low_bytes: f64,
    usage_high_bytes: f64,
    peak_bytes: f64,
    max_bytes: Option<f64>,
    max_events: f64,
    victims: f64,
}

#[derive(Deserialize)]
struct Latencies {
    at_most_us: Vec<f64>,
    accesses: Vec<f64>,
}

#[derive(Deserialize)]
struct Victim {
    at_s: f64,
    group: String,
    usage_bytes: f64,
    runner_up_bytes: f64,
    candidates: f64,
    record: String,
}

#[derive(Deserialize)]
struct Times {
    at_us: Vec<f64>,
    page_accesses: Vec<f64>,
    refaults: Vec<f64>,
    pgscan: Vec<f64>,
    pgsteal: Vec<f64>,
    stalled_us: Vec<f64>,
    tenants: Vec<Usage>,
}

#[derive(Deserialize)]
struct Usage {
    name: String,
    usage_bytes: Vec<f64>,
    usage_low_bytes: Vec<f64>,
    usage_high_bytes: Vec<f64>,
}

fn percent(ratio: f64) -> String {
    Unit::Percent.shown(ratio * 100.0)
}

/// Draws the page.
///
/// # Errors
///
/// When a part of the data is missing.
pub(super) fn page(envelope: &Envelope) -> serde_json::Result<Page> {
    let data = Data::deserialize(&envelope.data)?;
    let run = &data.report;
    let names: Vec<&str> = run
        .tenants
        .iter()
        .take(3)
        .map(|t| t.name.as_str())
        .collect();
    let more = match run.tenants.len().saturating_sub(3) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let mut sections = Vec::new();
    let over_time = data.timeline.as_ref().map(|times| over_time(times, run));
    let mut figures = over_time.unwrap_or_default();
    figures.insert(figures.len().min(1), latency(&data));
    sections.push((
        "Over time, and latency".to_owned(),
        grid(figures.iter().map(Figure::markup)),
    ));
    if !data.curves.is_empty() {
        let figures: Vec<Figure> = sized(&data);
        sections.push((
            "Misses at other sizes".to_owned(),
            grid(figures.iter().map(Figure::markup)),
        ));
    }
    sections.push(("Tenants".to_owned(), tenants(run)));
    for tenant in &run.tenants {
        if let Some(recording) = &tenant.trace.recording {
            let files = recorded::files(&tenant.name, recording);
            sections.push((format!("Files of {}", tenant.name), files));
        }
    }
    sections.push(("Victims".to_owned(), victims(&data)));
    if let Some(spread) = &run.spread {
        sections.push(("Repeated runs".to_owned(), repeated(run, spread)));
    }
    let size = Unit::Bytes.shown(run.capacity_bytes);
    Ok(Page {
        title: format!("Replay of {}{more} in {size}", names.join(", ")),
        subtitle: format!(
            "Policy {}, {} thread{}, {} pages in the data files, {} I/O",
            run.policy,
            run.threads,
            if run.threads == 1 { "" } else { "s" },
            Unit::Plain.shown(data.laid_out_pages),
            run.io
        ),
        verdict: verdict(run),
        tiles: vec![
            (percent(run.hit_ratio), "of accesses hit".to_owned()),
            (
                Unit::Plain.shown(run.accesses_per_s.round()),
                "accesses per second".to_owned(),
            ),
            (
                Unit::Us.shown(run.miss_latency_us.p99),
                format!(
                    "99th percentile of misses (median {})",
                    Unit::Us.shown(run.miss_latency_us.p50)
                ),
            ),
        ],
        sections,
        foot: foot(envelope, run),
    })
}

fn verdict(run: &Run) -> (String, Mood) {
    let Run {
        verify_failures,
        leaked_frames,
        leaked_bytes,
        ..
    } = run;
    if verify_failures + leaked_frames + leaked_bytes > 0 {
        let text = format!(
            "{verify_failures} pages did not verify, {leaked_frames} frames and {leaked_bytes} bytes \
             of charges leaked: do not trust this run."
        );
        return (text, Mood::Bad);
    }
    let hit = format!(
        "Every page verified and nothing leaked: {} of {} accesses hit",
        percent(run.hit_ratio),
        Unit::Plain.shown(run.page_accesses)
    );
    let text = if run.pages_read > 0.0 {
        let of_read = percent(run.refaults / run.pages_read);
        format!("{hit}, and {of_read} of the pages read had been evicted before.")
    } else {
        format!("{hit}.")
    };
    (text, Mood::Good)
}

/// Draws each tenant's curves, with its size in this run marked.
fn sized(data: &Data) -> Vec<Figure> {
    let run = &data.report;
    let figures = data.curves.iter().filter_map(|curves| {
        let tenant = run.tenants.iter().find(|it| it.name == curves.name)?;
        let at = match tenant.max_bytes {
            Some(max) => max.min(run.capacity_bytes),
            None if run.tenants.len() == 1 => run.capacity_bytes,
            None => tenant.peak_bytes,
        };
        let missed = (tenant.page_accesses > 0.0).then_some(1.0 - tenant.hit_ratio);
        Some(curve::beside(curves, &run.policy, at, missed))
    });
    figures.collect()
}

/// Returns seconds of the points.
fn seconds(times: &Times) -> impl Iterator<Item = f64> + Clone + '_ {
    times.at_us.iter().map(|us| us / 1e6)
}

fn over_time(times: &Times, run: &Run) -> Vec<Figure> {
    let mut figures = vec![usage(times, run)];
    let rate = |values: &[f64]| rates(times, values);
    let of = |title: &str, unit, name: &str, series: Vec<Series>, note: &str| Figure {
        title: title.to_owned(),
        alternative: said(title, unit, &series),
        x: Axis::linear("time", Unit::Seconds, seconds(times)),
        y: Axis::linear(name, unit, series.iter().flat_map(Series::ys)),
        series,
        mark: None,
        note: (!note.is_empty()).then(|| note.to_owned()),
    };
    figures.push(of(
        "Refaults, scanned and reclaimed pages",
        Unit::Plain,
        "pages per second",
        vec![
            Series::new("scanned", Shape::Steps, 0, rate(&times.pgscan)),
            Series::new("reclaimed", Shape::Steps, 1, rate(&times.pgsteal)),
            Series::new("refaults", Shape::Steps, 2, rate(&times.refaults)),
        ],
        "Reclaim at a tenant's own maximum is included.",
    ));
    let stalled = rate(&times.stalled_us).into_iter();
    let stalled: Vec<_> = stalled
        .map(|(at, us)| (at, (us / 1e4).clamp(0.0, 100.0)))
        .collect();
    figures.push(of(
        "Memory pressure",
        Unit::Percent,
        "time with a thread stalled",
        vec![Series::new("stalled", Shape::Steps, 1, stalled)],
        "PSI some of all tenants, between neighbouring points.",
    ));
    figures.push(of(
        "Accesses",
        Unit::Plain,
        "page accesses per second",
        vec![Series::new(
            "accesses",
            Shape::Steps,
            0,
            rate(&times.page_accesses),
        )],
        "",
    ));
    figures
}

/// Returns the growth of a counter in a second, between about 60 points of the run.
fn rates(times: &Times, values: &[f64]) -> Vec<(f64, f64)> {
    let points: Vec<(f64, f64)> = seconds(times).zip(values.iter().copied()).collect();
    let every = points.len().div_ceil(60).max(1);
    let last = points.len().saturating_sub(1);
    let chosen: Vec<_> = points
        .iter()
        .enumerate()
        .filter(|(index, _)| index % every == 0 || *index == last)
        .map(|(_, point)| *point)
        .collect();
    let pairs = chosen.windows(2).filter_map(|pair| {
        let &[(t0, v0), (t1, v1)] = pair else {
            return None;
        };
        (t1 > t0).then(|| (t1, (v1 - v0) / (t1 - t0)))
    });
    pairs.collect()
}

/// Describes series in words.
fn said(title: &str, unit: Unit, series: &[Series]) -> String {
    let one = |series: &Series| {
        let most = series.ys().fold(0.0, f64::max);
        let last = series.points.last().map_or(0.0, |point| point.y);
        let shown = |value: f64| unit.shown((value * 100.0).round() / 100.0);
        format!(
            "{} at most {}, at the end {}",
            series.name,
            shown(most),
            shown(last)
        )
    };
    let series: Vec<String> = series.iter().map(one).collect();
    format!("{title} over time: {}.", series.join("; "))
}

fn usage(times: &Times, run: &Run) -> Figure {
    let mut series = Vec::new();
    for (index, tenant) in times.tenants.iter().enumerate() {
        let bounds = tenant.usage_low_bytes.iter().zip(&tenant.usage_high_bytes);
        let values = tenant.usage_bytes.iter().zip(bounds);
        let points = seconds(times)
            .zip(values)
            .map(|(x, (y, (low, high)))| Point {
                x,
                y: *y,
                interval: Some([*low, *high]),
            });
        let mut drawn = Series::new(&tenant.name, Shape::Line, index, []);
        drawn.points = points.collect();
        series.push(drawn);
        let max = run.tenants.iter().find(|other| other.name == tenant.name);
        if let Some(max) = max.and_then(|other| other.max_bytes) {
            let name = format!("{}: max {}", tenant.name, Unit::Bytes.shown(max));
            let line = seconds(times).map(|x| (x, max));
            series.push(Series::new(&name, Shape::Limit, index, ends(line)));
        }
    }
    let line = seconds(times).map(|x| (x, run.capacity_bytes));
    let name = format!("capacity {}", Unit::Bytes.shown(run.capacity_bytes));
    series.push(Series::new(&name, Shape::Limit, 7, ends(line)));
    let hidden = run.tenants.len().saturating_sub(times.tenants.len());
    let note = match hidden {
        0 => "Shaded: the interval that holds the exact usage.".to_owned(),
        hidden => format!(
            "Shaded: the interval that holds the exact usage. {hidden} tenants with lower peaks are \
             not drawn."
        ),
    };
    Figure {
        title: "Usage against limits".to_owned(),
        alternative: said("Usage of each tenant", Unit::Bytes, &series),
        x: Axis::linear("time", Unit::Seconds, seconds(times)),
        y: Axis::linear("usage", Unit::Bytes, series.iter().flat_map(Series::ys)),
        series,
        mark: None,
        note: Some(note),
    }
}

/// Returns the first and the last point.
fn ends(points: impl Iterator<Item = (f64, f64)> + Clone) -> Vec<(f64, f64)> {
    let first = points.clone().next();
    first.into_iter().chain(points.last()).collect()
}

/// Draws the share of accesses that took longer than a latency, on log axes.
fn latency(data: &Data) -> Figure {
    let curve = |name: &str, colour, latencies: &Latencies| {
        let total = latencies.accesses.last().copied().unwrap_or(0.0);
        let points = latencies.at_most_us.iter().zip(&latencies.accesses);
        let shares = points.map(|(us, count)| (*us, (total - count) / total * 100.0));
        // The slowest access has none above it, which a log axis cannot show.
        let shares = shares.filter(|(_, share)| *share > 0.0);
        Series::new(name, Shape::Line, colour, shares)
    };
    let series: Vec<Series> = [
        curve("hits", 0, &data.hit_latencies),
        curve("misses", 1, &data.miss_latencies),
    ]
    .into_iter()
    .filter(|series| !series.points.is_empty())
    .collect();
    let worst = |latencies: &Latencies| {
        let us = latencies.at_most_us.last();
        us.map_or_else(|| "none".to_owned(), |us| Unit::Us.shown(*us))
    };
    let alternative = format!(
        "Share of hits and of misses that took longer than a latency. Longest hit: {}, longest miss: \
         {}; misses have a median of {} and a 99th percentile of {}.",
        worst(&data.hit_latencies),
        worst(&data.miss_latencies),
        Unit::Us.shown(data.report.miss_latency_us.p50),
        Unit::Us.shown(data.report.miss_latency_us.p99)
    );
    Figure {
        title: "Latency of hits and misses".to_owned(),
        alternative,
        x: Axis::log("latency", Unit::Us, series.iter().flat_map(Series::xs)),
        y: Axis::log(
            "slower accesses",
            Unit::Percent,
            series.iter().flat_map(Series::ys),
        ),
        series,
        mark: None,
        note: Some(
            "1 % is the 99th percentile, 0.1 % the 99.9th. Both axes are logarithmic.".to_owned(),
        ),
    }
}

fn tenants(run: &Run) -> maud::Markup {
    let bytes = |value: f64| Cell::number(Unit::Bytes.shown(value), value);
    let count = |value: f64| Cell::number(Unit::Plain.shown(value), value);
    let line = |tenant: &Tenant| {
        Line::from(vec![
            Cell::text(&tenant.name),
            count(tenant.requests),
            count(tenant.page_accesses),
            Cell::number(percent(tenant.hit_ratio), tenant.hit_ratio),
            bytes(tenant.usage_bytes),
            Cell::text(format!(
                "{} to {}",
                Unit::Bytes.shown(tenant.usage_low_bytes),
                Unit::Bytes.shown(tenant.usage_high_bytes)
            )),
            bytes(tenant.peak_bytes),
            tenant.max_bytes.map_or_else(|| Cell::text("none"), bytes),
            count(tenant.max_events),
            count(tenant.victims),
        ])
    };
    let lines: Vec<Line> = run.tenants.iter().map(line).collect();
    let headings = [
        "tenant",
        "requests",
        "accesses",
        "hits",
        "usage",
        "interval",
        "peak",
        "max",
        "max events",
        "victims",
    ];
    table("Each tenant at the end of its accesses", &headings, &lines)
}

fn victims(data: &Data) -> maud::Markup {
    if data.victims.is_empty() {
        return html! { p { "No group was selected as a victim: reclaim always found enough." } };
    }
    let line = |victim: &Victim| {
        Line::from(vec![
            Cell::number(Unit::Seconds.shown(victim.at_s), victim.at_s),
            Cell::text(&victim.group),
            Cell::number(Unit::Bytes.shown(victim.usage_bytes), victim.usage_bytes),
            Cell::number(
                Unit::Bytes.shown(victim.runner_up_bytes),
                victim.runner_up_bytes,
            ),
            Cell::number(Unit::Plain.shown(victim.candidates), victim.candidates),
            Cell::text(&victim.record),
        ])
    };
    let lines: Vec<Line> = data.victims.iter().map(line).collect();
    let headings = [
        "time",
        "group",
        "usage",
        "runner-up",
        "candidates",
        "record",
    ];
    table(
        "The first selections of a victim; a replay stops none",
        &headings,
        &lines,
    )
}

fn repeated(run: &Run, spread: &leaves::Spread) -> maud::Markup {
    let caption = format!("Figures of {} runs", run.runs.unwrap_or(1));
    table(
        &caption,
        &["figure", "lowest", "median", "highest"],
        &leaves::lines(spread),
    )
}

fn foot(envelope: &Envelope, run: &Run) -> Vec<(String, String)> {
    let mut foot = envelope.foot();
    foot.extend([
        run.machine.line(),
        ("Seed".to_owned(), run.seed.to_string()),
        (
            "Run".to_owned(),
            format!(
                "{:.2} s, {} hits, {} pages read, {} of real memory at most; back end {}, readahead {} \
                 pages, {} in flight",
                run.elapsed_s,
                Unit::Plain.shown(run.hits),
                Unit::Plain.shown(run.pages_read),
                Unit::Bytes.shown(run.rss_peak_bytes),
                run.backend,
                run.readahead_pages,
                run.in_flight
            ),
        ),
    ]);
    foot
}
