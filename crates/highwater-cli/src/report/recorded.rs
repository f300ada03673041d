//! The files of a recording in the report of its replay.

use highwater_lab::report::Unit;
use maud::{Markup, html};
use serde::Deserialize;

use super::table::{Cell, Line, table};

/// A trace that was replayed.
#[derive(Deserialize)]
pub(super) struct Trace {
    pub(super) recording: Option<Recording>,
}

/// A trace of `highwater record`.
#[derive(Deserialize)]
pub(super) struct Recording {
    about: Vec<String>,
    lost_events: f64,
    is_complete: bool,
    nr_files: f64,
    nr_named: f64,
    files: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    name: String,
    page_accesses: f64,
    hits: f64,
    hit_ratio: f64,
}

/// Returns the table of files, and what the recording says about itself.
pub(super) fn files(tenant: &str, recording: &Recording) -> Markup {
    let count = |value: f64| Cell::number(Unit::Plain.shown(value), value);
    let line = |file: &File| {
        Line::from(vec![
            Cell::text(&file.name),
            count(file.page_accesses - file.hits),
            count(file.page_accesses),
            Cell::number(Unit::Percent.shown(file.hit_ratio * 100.0), file.hit_ratio),
        ])
    };
    let lines: Vec<Line> = recording.files.iter().map(line).collect();
    let caption = format!("Files of {tenant} with the most misses");
    html! {
        (table(&caption, &["file", "misses", "accesses", "hits"], &lines))
        p {
            (Unit::Plain.shown(recording.nr_files)) " files, "
            (Unit::Plain.shown(recording.nr_files - recording.nr_named)) " without a name; "
            (Unit::Plain.shown(recording.lost_events)) " events were lost while they were recorded."
            @if !recording.is_complete { " The recording was killed, and ends early." }
        }
        ul { @for line in &recording.about { li { (line) } } }
    }
}
