//! The page of miss-ratio curves: a figure for each tenant and, of several, for each policy.

use highwater_lab::curve::{
    BesideCurves, Curve, CurveReport, Mode, Split, TenantCurves, sample_note,
};
use highwater_lab::report::Unit;
use highwater_lab::trace::Skipped;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use super::Envelope;
use super::axis::Axis;
use super::figure::{Figure, Series, Shape};
use super::machine::Machine;
use super::page::{Mood, Page, grid};
use super::table::{Cell, Line, table};

/// Tenants that a figure of one policy shows: the first ones. Chosen: as many as colours.
const DRAWN_MAX: usize = 8;

/// Colour of a run among curves of policies, which are fewer.
const RUN_COLOUR: usize = 7;

/// The policy that the verdict is about, if it was drawn: the manager's default.
const JUDGED: &str = "balanced";

/// Differences of miss ratios below this are not told. Chosen: the error that the sample aims at.
const ALIKE: f64 = 0.005;

/// Wraps the curves.
///
/// # Errors
///
/// When they cannot be represented.
pub(crate) fn envelope(report: &CurveReport) -> Result<Envelope, String> {
    #[derive(Serialize)]
    struct Written<'a> {
        report: &'a CurveReport,
        machine: highwater_lab::replay::Machine,
    }
    let machine = highwater_lab::replay::Machine::detect();
    Envelope::new(super::Kind::Curve, &Written { report, machine })
}

/// The data of a report, as read.
#[derive(Deserialize)]
struct Data {
    report: CurveReport,
    machine: Machine,
}

/// Draws the page.
///
/// # Errors
///
/// When a part of the data is missing.
pub(super) fn page(envelope: &Envelope) -> serde_json::Result<Page> {
    let data = Data::deserialize(&envelope.data)?;
    let report = &data.report;
    let tenants = &report.tenants;
    let mut sections = Vec::new();
    sections.extend(report.split.as_ref().map(split));
    let figures: Vec<Figure> = tenants.iter().map(of_tenant).collect();
    sections.push((
        "Each tenant under each policy".to_owned(),
        grid(figures.iter().map(Figure::markup)),
    ));
    if tenants.len() > 1 {
        let figures: Vec<Figure> = policies(report)
            .map(|policy| of_policy(report, policy))
            .collect();
        sections.push((
            "Each policy with each tenant".to_owned(),
            grid(figures.iter().map(Figure::markup)),
        ));
    }
    let meanings = html! { @for tenant in tenants { (meaning(tenant)) } };
    sections.push(("The curves in words".to_owned(), meanings));
    let sizes = html! { @for tenant in tenants { (sizes(tenant)) } };
    sections.push(("Every size".to_owned(), sizes));
    Ok(Page {
        title: title(tenants),
        subtitle: subtitle(report),
        verdict: (verdict(report), Mood::Neutral),
        tiles: tiles(report),
        sections,
        foot: foot(envelope, &data),
    })
}

fn title(tenants: &[TenantCurves]) -> String {
    let names: Vec<&str> = tenants.iter().take(3).map(|it| it.name.as_str()).collect();
    let more = match tenants.len().saturating_sub(3) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("Miss-ratio curves of {}{more}", names.join(", "))
}

fn subtitle(report: &CurveReport) -> String {
    let accesses: u64 = report.tenants.iter().map(|it| it.page_accesses).sum();
    let method = match report.mode {
        Mode::Exact => "each size in full, by exact models".to_owned(),
        Mode::Sampled if report.tenants.iter().all(|it| it.sample_ratio >= 1.0) => {
            "every page, by exact models".to_owned()
        }
        Mode::Sampled => format!(
            "from at most {} sampled pages of a tenant{}",
            Unit::Plain.shown(report.samples_max as f64),
            report
                .tenants
                .first()
                .map_or("", |it| sample_note(&it.curves))
        ),
    };
    format!(
        "{} page accesses; {method}",
        Unit::Plain.shown(accesses as f64)
    )
}

/// Returns the curve that the verdict is about.
fn judged(tenant: &TenantCurves) -> Option<&Curve> {
    let named = tenant.curves.iter().find(|curve| curve.policy == JUDGED);
    named.or(tenant.curves.first())
}

fn best_ratio(curve: &Curve) -> f64 {
    let ratios = curve.points.iter().map(|point| point.miss_ratio);
    ratios.fold(1.0, f64::min)
}

fn verdict(report: &CurveReport) -> String {
    if let Some(split) = &report.split {
        return format!(
            "Of {} under {}: {}.",
            bytes(split.total_bytes),
            split.policy,
            split.advice
        );
    }
    let needs = report.tenants.iter().take(3).filter_map(|tenant| {
        let curve = judged(tenant)?;
        let most = tenant.curves.iter();
        let most = most.min_by(|a, b| best_at(a, curve).total_cmp(&best_at(b, curve)))?;
        let is_alike = best_at(curve, curve) - best_at(most, curve) < ALIKE;
        let other = match is_alike {
            true => String::new(),
            false => format!(", where {} misses least", most.policy),
        };
        Some(format!(
            "{} needs {} under {} for 95 % of its best hit ratio{other}",
            tenant.name,
            bytes(curve.within_5_percent_bytes),
            curve.policy
        ))
    });
    format!("{}.", needs.collect::<Vec<_>>().join("; "))
}

/// Returns a curve's miss ratio at the size that suffices for another one.
fn best_at(curve: &Curve, other: &Curve) -> f64 {
    let wanted = other.within_5_percent_bytes;
    let found = curve.points.iter().find(|point| point.size_bytes >= wanted);
    found.map_or(1.0, |point| point.miss_ratio)
}

fn tiles(report: &CurveReport) -> Vec<(String, String)> {
    let of = |amount: fn(&Curve) -> u64| {
        let curves = report.tenants.iter().filter_map(judged);
        curves.map(amount).sum::<u64>()
    };
    let each = match report.tenants.len() {
        1 => "its best hit ratio".to_owned(),
        tenants => format!("each best hit ratio, over {tenants} tenants"),
    };
    let footprint: u64 = report.tenants.iter().map(|it| it.footprint_bytes).sum();
    let policy = report.tenants.first().and_then(judged);
    let policy = policy.map_or("", |curve| curve.policy.as_str());
    vec![
        (
            bytes(of(|curve| curve.within_5_percent_bytes)),
            format!("for 95 % of {each}, under {policy}"),
        ),
        (
            bytes(of(|curve| curve.within_1_percent_bytes)),
            format!("for 99 % of {each}"),
        ),
        (
            bytes(footprint),
            "of distinct pages in the trace".to_owned(),
        ),
    ]
}

fn bytes(amount: u64) -> String {
    Unit::Bytes.shown(amount as f64)
}

fn percent(ratio: f64) -> String {
    format!("{:.2} %", 100.0 * ratio)
}

/// Returns the policies, in the order in which they were drawn.
fn policies(report: &CurveReport) -> impl Iterator<Item = &str> {
    let first = report.tenants.first().into_iter();
    first.flat_map(|tenant| tenant.curves.iter().map(|curve| curve.policy.as_str()))
}

fn series(name: &str, colour: usize, curve: &Curve) -> Series {
    let points = curve.points.iter();
    let points = points.map(|at| (at.size_bytes as f64, 100.0 * at.miss_ratio));
    let shape = match curve.points.len() {
        1 => Shape::Points,
        _ => Shape::Line,
    };
    Series::new(name, shape, colour, points)
}

/// Describes a curve in words.
fn said(name: &str, curve: &Curve) -> String {
    let ends = curve.points.first().zip(curve.points.last());
    ends.map_or_else(String::new, |(first, last)| {
        format!(
            "{name} {} at {}, {} at {}",
            percent(first.miss_ratio),
            bytes(first.size_bytes),
            percent(last.miss_ratio),
            bytes(last.size_bytes)
        )
    })
}

fn figure(title: String, series: Vec<Series>, said: &[String], note: String) -> Figure {
    Figure {
        alternative: format!("Miss ratio by size. {}: {}.", title, said.join("; ")),
        title,
        x: Axis::log("size", Unit::Bytes, series.iter().flat_map(Series::xs)),
        y: Axis::linear(
            "accesses that miss",
            Unit::Percent,
            series.iter().flat_map(Series::ys),
        ),
        series,
        mark: None,
        note: Some(note),
    }
}

fn of_tenant(tenant: &TenantCurves) -> Figure {
    let named = || tenant.curves.iter().enumerate();
    let series = named().map(|(colour, curve)| series(&curve.policy, colour, curve));
    let said: Vec<String> = named().map(|(_, it)| said(&it.policy, it)).collect();
    let note = match tenant.sample_ratio < 1.0 {
        true => format!(
            "From {} of {} pages, {}{}; the horizontal axis is logarithmic.",
            Unit::Plain.shown(tenant.sampled_pages as f64),
            Unit::Plain.shown(tenant.footprint_bytes as f64 / 4096.0),
            percent(tenant.sample_ratio),
            sample_note(&tenant.curves)
        ),
        false => "From every page; the horizontal axis is logarithmic.".to_owned(),
    };
    let mut figure = figure(tenant.name.clone(), series.collect(), &said, note);
    figure.mark = judged(tenant).map(|curve| {
        let at = curve.within_5_percent_bytes;
        (at as f64, format!("95 %: {}", bytes(at)))
    });
    figure
}

/// Draws the curves of what a replay accessed, with its size marked, and its own share of misses.
pub(super) fn beside(
    curves: &BesideCurves,
    policy: &str,
    size_bytes: f64,
    missed: Option<f64>,
) -> Figure {
    let named = || curves.curves.iter().enumerate();
    let mut drawn: Vec<Series> = named()
        .map(|(colour, curve)| series(&curve.policy, colour, curve))
        .collect();
    let mut said: Vec<String> = named().map(|(_, it)| said(&it.policy, it)).collect();
    if let Some(missed) = missed {
        let name = format!("this run, {policy}");
        let size = Unit::Bytes.shown(size_bytes);
        said.push(format!("{name}: {} at {size}", percent(missed)));
        let point = [(size_bytes, 100.0 * missed)];
        drawn.push(Series::new(&name, Shape::Points, RUN_COLOUR, point));
    }
    let pages = match curves.sample_ratio < 1.0 {
        true => format!(
            "{} sampled pages{}",
            Unit::Plain.shown(curves.sampled_pages as f64),
            sample_note(&curves.curves)
        ),
        false => "every page".to_owned(),
    };
    let note = format!(
        "By exact models from {pages}, without readahead and with a cache that is empty at first; \
         lru stands for two-list."
    );
    let title = format!("{}: misses by size", curves.name);
    let mut figure = figure(title, drawn, &said, note);
    figure.mark = Some((
        size_bytes,
        format!("size: {}", Unit::Bytes.shown(size_bytes)),
    ));
    figure
}

fn of_policy(report: &CurveReport, policy: &str) -> Figure {
    let drawn = || {
        let tenants = report.tenants.iter().take(DRAWN_MAX).enumerate();
        tenants.filter_map(|(colour, tenant)| {
            let curve = tenant.curves.iter().find(|curve| curve.policy == policy)?;
            Some((colour, &tenant.name, curve))
        })
    };
    let series = drawn().map(|(colour, name, curve)| series(name, colour, curve));
    let said: Vec<String> = drawn().map(|(_, name, curve)| said(name, curve)).collect();
    let note = match report.tenants.len().saturating_sub(DRAWN_MAX) {
        0 => "The horizontal axis is logarithmic.".to_owned(),
        hidden => format!("{hidden} tenants are not drawn; the tables have them."),
    };
    figure(policy.to_owned(), series.collect(), &said, note)
}

fn amount(value: u64) -> Cell {
    Cell::number(bytes(value), value as f64)
}

fn meaning(tenant: &TenantCurves) -> Markup {
    let line = |curve: &Curve| {
        let knees: Vec<String> = curve.knees_bytes.iter().map(|knee| bytes(*knee)).collect();
        let knees = match knees.is_empty() {
            true => "none".to_owned(),
            false => knees.join(", "),
        };
        let best = best_ratio(curve);
        Line::from(vec![
            Cell::text(&curve.policy),
            amount(curve.within_5_percent_bytes),
            amount(curve.within_1_percent_bytes),
            Cell::number(percent(best), best),
            Cell::text(knees),
        ])
    };
    let lines: Vec<Line> = tenant.curves.iter().map(line).collect();
    let headings = [
        "policy",
        "95 % of best",
        "99 % of best",
        "fewest misses",
        "knees",
    ];
    let won = |policy: &Option<String>| {
        let policy = policy.as_deref();
        policy.map_or_else(
            || "all alike".to_owned(),
            |name| format!("{name} misses least"),
        )
    };
    html! {
        (table(&format!("{}: smallest sizes that suffice", tenant.name), &headings, &lines))
        ul {
            @for winner in &tenant.winners {
                li { (range(winner.from_bytes, winner.to_bytes)) ": " (won(&winner.policy)) }
            }
        }
    }
}

fn range(from: u64, to: u64) -> String {
    match from == to {
        true => format!("At {}", bytes(from)),
        false => format!("{} to {}", bytes(from), bytes(to)),
    }
}

fn sizes(tenant: &TenantCurves) -> Markup {
    let points = tenant.curves.first().map_or(&[][..], |it| &it.points);
    let line = |(at, point): (usize, &highwater_lab::curve::Point)| {
        let ratios = tenant.curves.iter().map(|curve| {
            let ratio = curve.points[at].miss_ratio;
            Cell::number(percent(ratio), ratio)
        });
        let cells = std::iter::once(amount(point.size_bytes)).chain(ratios);
        Line::from(cells.collect::<Vec<_>>())
    };
    let lines: Vec<Line> = points.iter().enumerate().map(line).collect();
    let names = tenant.curves.iter().map(|curve| curve.policy.as_str());
    let headings: Vec<&str> = std::iter::once("size").chain(names).collect();
    table(&format!("{}: miss ratio", tenant.name), &headings, &lines)
}

fn split(split: &Split) -> (String, Markup) {
    let lines = split.shares.iter().map(|share| {
        Line::from(vec![
            Cell::text(&share.tenant),
            amount(share.even_bytes),
            amount(share.best_bytes),
        ])
    });
    let caption = format!(
        "Under {}: {:.1} % fewer misses than with equal shares",
        split.policy, split.fewer_misses_percent
    );
    let lines: Vec<Line> = lines.collect();
    let heading = format!("Best split of {}", bytes(split.total_bytes));
    (
        heading,
        table(&caption, &["tenant", "equal", "best"], &lines),
    )
}

fn foot(envelope: &Envelope, data: &Data) -> Vec<(String, String)> {
    let traces = data.report.tenants.iter().map(|tenant| {
        let bad = match tenant.bad_records {
            0 => String::new(),
            records => {
                let cut_after = tenant.cut_after_bytes;
                format!(", {}", Skipped { records, cut_after })
            }
        };
        format!(
            "{} ({}, {} requests{bad})",
            tenant.trace,
            tenant.format,
            Unit::Plain.shown(tenant.requests as f64)
        )
    });
    let mut foot = envelope.foot();
    foot.extend([
        data.machine.line(),
        ("Seed".to_owned(), data.report.seed.to_string()),
        ("Traces".to_owned(), traces.collect::<Vec<_>>().join("; ")),
        (
            "Run".to_owned(),
            format!(
                "{:.2} s; the cache is empty at first",
                data.report.elapsed_s
            ),
        ),
    ]);
    foot
}
