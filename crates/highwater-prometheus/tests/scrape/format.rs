//! A strict parser of the `OpenMetrics` text format, as far as a scrape uses it.

use std::collections::{BTreeMap, BTreeSet};

/// Labels of a series, sorted by name.
pub(crate) type Labels = BTreeMap<String, String>;

/// The series of a page, by name and labels.
#[derive(Debug, Default)]
pub(crate) struct Page {
    series: BTreeMap<(String, Labels), f64>,
}

/// The metric family that the lines belong to.
#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: String,
    unit: Option<String>,
    has_help: bool,
    has_series: bool,
}

impl Page {
    /// Reads a page, or says which line is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let body = text.strip_suffix("# EOF\n").ok_or("no # EOF at the end")?;
        if !body.is_empty() && !body.ends_with('\n') {
            return Err("# EOF is in the middle of a line".into());
        }
        let mut page = Self::default();
        let (mut family, mut seen) = (Family::default(), BTreeSet::new());
        for line in body.split_terminator('\n') {
            let result = match line.strip_prefix("# ") {
                Some(comment) => family.describe(comment, &mut seen),
                None => page.add(line, &mut family),
            };
            result.map_err(|wrong| format!("{wrong}: {line}"))?;
        }
        Ok(page)
    }

    pub(crate) fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let owned = |(name, value): &(&str, &str)| (name.to_string(), value.to_string());
        let labels = labels.iter().map(owned).collect();
        self.series.get(&(name.to_owned(), labels)).copied()
    }

    /// All series that count events.
    pub(crate) fn totals(&self) -> impl Iterator<Item = (&(String, Labels), f64)> {
        let totals = self.series.iter();
        totals
            .filter(|((name, _), _)| name.ends_with("_total"))
            .map(|(series, value)| (series, *value))
    }

    /// The values of a label of a name.
    pub(crate) fn values(&self, name: &str, label: &str) -> BTreeSet<&str> {
        let of = self.series.keys().filter(|(other, _)| other == name);
        of.map(|(_, labels)| &*labels[label]).collect()
    }

    fn add(&mut self, line: &str, family: &mut Family) -> Result<(), &'static str> {
        let (name, rest) = line.split_at(line.find(['{', ' ']).ok_or("no value")?);
        let (mut labels, value) = parse_labels(rest)?;
        let value = value.strip_prefix(' ').ok_or("no space before the value")?;
        let value: f64 = value.parse().map_err(|_| "no number")?;
        family.owns(name, &labels)?;
        if family.kind != "gauge" && (value < 0.0 || !value.is_finite()) {
            return Err("a count below zero");
        }
        if family.kind == "histogram" && name.ends_with("_bucket") {
            self.checks_bucket(name, &labels, value)?;
            if labels["le"] == "+Inf" {
                let count = family.name.clone() + "_count";
                if self.get(&count, &[]).is_some_and(|count| count != value) {
                    return Err("the last bucket is not the count");
                }
            }
        }
        if !is_name(name) || labels.keys().any(|label| !is_name(label)) {
            return Err("a bad name");
        }
        let labels = std::mem::take(&mut labels);
        let before = self.series.insert((name.to_owned(), labels), value);
        before.map_or(Ok(()), |_| Err("the series is there twice"))
    }

    /// Buckets are cumulative and in the order of their bounds.
    fn checks_bucket(&self, name: &str, labels: &Labels, value: f64) -> Result<(), &'static str> {
        let bound = |labels: &Labels| labels["le"].parse::<f64>().map_err(|_| "a bad bound");
        for ((other, before), count) in &self.series {
            if other == name && (bound(before)? >= bound(labels)? || *count > value) {
                return Err("buckets are out of order");
            }
        }
        Ok(())
    }
}

impl Family {
    /// Takes a line of HELP, TYPE or UNIT.
    fn describe(&mut self, line: &str, seen: &mut BTreeSet<String>) -> Result<(), &'static str> {
        let mut words = line.splitn(3, ' ');
        let [Some(what), Some(name), Some(rest)] = [words.next(), words.next(), words.next()]
        else {
            return Err("a comment of fewer than three words");
        };
        if name != self.name || self.has_series {
            if !seen.insert(name.to_owned()) {
                return Err("the family is there twice, or not in one piece");
            }
            *self = Self {
                name: name.to_owned(),
                ..Self::default()
            };
        }
        match what {
            "HELP" if !self.has_help && !rest.trim().is_empty() => self.has_help = true,
            "TYPE" if self.kind.is_empty() && is_kind(rest) => self.kind = rest.to_owned(),
            "UNIT" if self.unit.is_none() && name.ends_with(&format!("_{rest}")) => {
                self.unit = Some(rest.to_owned());
            }
            _ => return Err("a bad description"),
        }
        Ok(())
    }

    /// Checks that a series is one of this family.
    fn owns(&mut self, name: &str, labels: &Labels) -> Result<(), &'static str> {
        let suffix = name.strip_prefix(&*self.name).ok_or("of no family")?;
        let (suffixes, le): (&[&str], bool) = match &*self.kind {
            "counter" => (&["_total"], false),
            "gauge" => (&[""], false),
            "histogram" => (&["_sum", "_count", "_bucket"], suffix == "_bucket"),
            _ => return Err("a family without type"),
        };
        if !self.has_help || !suffixes.contains(&suffix) || labels.contains_key("le") != le {
            return Err("not as its type requires");
        }
        self.has_series = true;
        Ok(())
    }
}

fn is_kind(kind: &str) -> bool {
    matches!(kind, "counter" | "gauge" | "histogram")
}

fn is_name(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.chars().all(is_word) && name.starts_with(|c: char| !c.is_ascii_digit())
}

/// Reads `{name="value",...}` if it is there, and returns what follows.
fn parse_labels(text: &str) -> Result<(Labels, &str), &'static str> {
    let mut labels = Labels::new();
    let Some(mut rest) = text.strip_prefix('{') else {
        return Ok((labels, text));
    };
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((labels, after));
        }
        let (name, after) = rest.split_once("=\"").ok_or("a label without value")?;
        let (value, after) = parse_value(after)?;
        if labels.insert(name.to_owned(), value).is_some() {
            return Err("a label is there twice");
        }
        rest = match after.strip_prefix(',') {
            Some(after) if !after.starts_with('}') => after,
            None if after.starts_with('}') => after,
            _ => return Err("labels are not separated"),
        };
    }
}

/// Reads a label's value up to its closing quote.
fn parse_value(text: &str) -> Result<(String, &str), &'static str> {
    let (mut value, mut chars) = (String::new(), text.chars());
    loop {
        match chars.next().ok_or("a quote is open")? {
            '"' => return Ok((value, chars.as_str())),
            '\\' => value.push(match chars.next() {
                Some('n') => '\n',
                Some(escaped @ ('\\' | '"')) => escaped,
                _ => return Err("a bad escape"),
            }),
            other => value.push(other),
        }
    }
}
