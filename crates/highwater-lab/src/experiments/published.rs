//! Published figures, from the data files in `published/`: one for each experiment, with tables of
//! figures and histograms. Each names the source and the origin of its figures; the suffix of a
//! figure's name is its unit, as in a report.
//!
//! ```text
//! {"tables": [{"part", "source", "origin", "figures": [names], "rows": [[variant, [values]]]}],
//!  "histograms": [{"part", "column", "variant", "source", "origin", "frames_max", "first_ns",
//!   "is_cut_off", "visits"}]}
//! ```
//!
//! A value of `null` was not published. `visits` counts times by bucket; buckets double, the first
//! begins at `first_ns`.

use serde::Deserialize;

use crate::report::{Row, Source, Value};

/// A data file.
#[derive(Debug, Deserialize)]
struct Published<'a> {
    #[serde(borrow, default)]
    tables: Vec<Table<'a>>,
    #[serde(borrow, default)]
    histograms: Vec<Histogram<'a>>,
}

#[derive(Debug, Deserialize)]
struct Table<'a> {
    part: &'a str,
    source: Source,
    #[serde(borrow)]
    figures: Vec<&'a str>,
    rows: Vec<(String, Vec<Option<Value>>)>,
}

/// A published histogram of the times of calls.
#[derive(Debug, Deserialize)]
pub(super) struct Histogram<'a> {
    /// The table that shows it by bucket.
    pub(super) part: &'a str,
    /// The name of its figures there.
    pub(super) column: &'a str,
    pub(super) variant: &'a str,
    /// The most frames that a call moved, if that was published.
    pub(super) frames_max: Option<u64>,
    pub(super) first_ns: u64,
    /// Whether longer times were published too, and are not known here.
    #[serde(default)]
    pub(super) is_cut_off: bool,
    pub(super) visits: Vec<u64>,
}

/// Parses a data file. Its texts become names of figures, so it must be part of the program.
fn parse(file: &'static str) -> Published<'static> {
    serde_json::from_str(file).expect("the data files are tested")
}

/// Returns the rows of a file's tables. `parts` are the tables' headings in the experiment's own
/// report, under which the rows are shown.
///
/// # Panics
///
/// When a table is of another part.
pub(super) fn rows(file: &'static str, parts: &[&str]) -> Vec<Row> {
    let tables = parse(file).tables.into_iter();
    tables.flat_map(|table| table.into_rows(parts)).collect()
}

/// Returns a figure that a check names, of the only row of `part` that has it.
///
/// # Panics
///
/// When there is none or it is no number.
pub(super) fn figure(rows: &[Row], part: &str, name: &str) -> f64 {
    let of_part = rows.iter().filter(|row| row.part == part);
    let mut found = of_part.filter_map(|row| row.figures.get(name)?.as_f64());
    match (found.next(), found.next()) {
        (Some(value), None) => value,
        _ => panic!("not one figure `{name}` in the part `{part}`"),
    }
}

/// Returns the histograms of a file.
pub(super) fn histograms(file: &'static str) -> Vec<Histogram<'static>> {
    parse(file).histograms
}

impl Table<'static> {
    fn into_rows(self, parts: &[&str]) -> impl Iterator<Item = Row> {
        let Self {
            part,
            source,
            figures,
            rows,
        } = self;
        assert!(parts.contains(&part), "no part is called `{part}`");
        rows.into_iter().map(move |(variant, values)| {
            assert_eq!(values.len(), figures.len(), "values of {variant}");
            let known = figures.iter().zip(values);
            known.fold(
                Row::new(part, source, variant),
                |row, (name, value)| match value {
                    Some(value) => row.with(name, value),
                    None => row,
                },
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use serde_json::Value as Json;

    use crate::experiments::EXPERIMENTS;
    use crate::report::Unit;

    fn texts<'a>(list: &'a Json, key: &str) -> Vec<&'a str> {
        let text = |entry: &'a Json| entry[key].as_str().unwrap();
        list.as_array()
            .map_or(Vec::new(), |list| list.iter().map(text).collect())
    }

    /// Goal: each experiment has published figures with origin and unit, each at one place. Method:
    /// every data file.
    #[test]
    fn figures_have_an_origin_and_a_unit() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("published");
        let files = fs::read_dir(&directory).unwrap();
        let files = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let files: BTreeSet<String> = files.collect();
        let wanted = EXPERIMENTS.iter().map(|each| format!("{}.json", each.name));
        assert_eq!(files, wanted.collect());
        for name in files {
            let text = fs::read_to_string(directory.join(&name)).unwrap();
            let file: Json = serde_json::from_str(&text).unwrap();
            let (tables, histograms) = (&file["tables"], &file["histograms"]);
            let mut origins = texts(tables, "origin");
            origins.extend(texts(histograms, "origin"));
            assert!(!origins.is_empty(), "{name}");
            assert!(origins.iter().all(|origin| !origin.is_empty()), "{name}");
            let mut seen = BTreeSet::new();
            for table in tables.as_array().into_iter().flatten() {
                let rows = table["rows"].as_array().unwrap();
                let figures = table["figures"].as_array().unwrap();
                for (at, figure) in figures.iter().enumerate() {
                    let (unit, _) = Unit::of(figure.as_str().unwrap());
                    let is_count = rows.iter().all(|row| row[1][at].is_u64());
                    assert!(unit != Unit::Plain || is_count, "{name}: {figure}");
                }
                for row in rows {
                    let key = [&table["part"], &table["source"], &row[0]].map(Json::to_string);
                    assert!(seen.insert(key.clone()), "{name}: twice: {key:?}");
                }
            }
        }
    }
}
