//! An outcome in 80 columns: the columns of each table that fit, names and headings broken into
//! lines, and checks as sentences.

use std::fmt;

use super::Check;

/// Default width of a terminal.
pub(crate) const COLUMNS: usize = 80;

/// Columns of a row's name; a longer one is broken into lines.
const NAME_MAX: usize = 34;

/// Columns of a check's verdict.
const VERDICT: usize = 10;

/// The lines of a cell.
type Cell = Vec<String>;

/// Writes a table whose first two columns are variant and source.
pub(super) fn write_table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let named = |row: &Vec<String>| {
        let figures = row.iter().skip(2).cloned();
        std::iter::once(name(row)).chain(figures).collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(named).collect();
    write_fitting(f, &rows)
}

/// Writes a table of which the first column is a name: of the other columns, from the left, those
/// that fit.
pub(crate) fn write_fitting(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let name = |row: &Vec<String>| {
        row.first()
            .map_or_else(Cell::new, |it| wrapped(it, NAME_MAX))
    };
    let names: Vec<Cell> = rows.iter().map(name).collect();
    let mut widths = vec![widest(names.iter().flatten())];
    let mut lines: Vec<Vec<Cell>> = names.into_iter().map(|name| vec![name]).collect();
    let nr_columns = rows.iter().map(Vec::len).max().unwrap_or(1);
    let mut left_out = 0;
    for column in 1..nr_columns {
        let cells = column_of(rows, column);
        let width = widest(cells.iter().flatten());
        let used: usize = widths.iter().map(|width| width + 2).sum();
        if used + width > COLUMNS {
            left_out += 1;
            continue;
        }
        widths.push(width);
        for (line, cell) in lines.iter_mut().zip(cells) {
            line.push(cell);
        }
    }
    for line in &lines {
        write_line(f, line, &widths)?;
    }
    match left_out {
        0 => Ok(()),
        1 => writeln!(f, "(1 column more with --wide)"),
        left_out => writeln!(f, "({left_out} columns more with --wide)"),
    }
}

/// Returns variant and source in one cell; the header has the variant only.
fn name(row: &[String]) -> String {
    match row {
        [variant, source, ..] if source == "this run" || source == "source" => variant.clone(),
        [variant, source, ..] => format!("{variant} [{source}]"),
        _ => String::new(),
    }
}

/// Returns the cells of a column; its heading, the first, is broken to the width of the others.
fn column_of(rows: &[Vec<String>], column: usize) -> Vec<Cell> {
    let cell = |row: &Vec<String>| row.get(column).cloned().unwrap_or_default();
    let values: Vec<String> = rows.iter().skip(1).map(cell).collect();
    let heading = rows.first().map(cell).unwrap_or_default();
    let longest = widest(heading.split_whitespace());
    let width = widest(&values).max(longest);
    let cells = values.into_iter().map(|value| vec![value]);
    std::iter::once(wrapped(&heading, width))
        .chain(cells)
        .collect()
}

/// Writes one row: the first cell left-aligned, the others right-aligned.
fn write_line(f: &mut fmt::Formatter<'_>, cells: &[Cell], widths: &[usize]) -> fmt::Result {
    let height = cells.iter().map(Vec::len).max().unwrap_or(0);
    for at in 0..height {
        let mut line = String::new();
        for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let text = cell.get(at).map_or("", String::as_str);
            line += &match column {
                0 => format!("{text:<width$}"),
                _ => format!("  {text:>width$}"),
            };
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Writes each check: verdict, subject, result, expectation.
pub(super) fn write_checks(f: &mut fmt::Formatter<'_>, checks: &[Check]) -> fmt::Result {
    for check in checks {
        let Check {
            name, want, got, ..
        } = check;
        let mut verdict = check.verdict();
        for line in wrapped(
            &format!("{name}: {got}, wanted {want}"),
            COLUMNS - VERDICT - 2,
        ) {
            writeln!(f, "{verdict:<VERDICT$}  {line}")?;
            verdict = "";
        }
    }
    Ok(())
}

/// Breaks `text` into lines of at most `columns` columns, at spaces, and inside words that are
/// longer.
#[must_use]
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        let is_full = line.chars().count() + 1 + word.len() > columns;
        if !line.is_empty() && is_full {
            lines.push(std::mem::take(&mut line));
        }
        while word.len() > columns {
            lines.push(word.drain(..columns).collect());
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.extend(word);
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

fn widest<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> usize {
    let widths = texts.into_iter().map(|text| text.as_ref().chars().count());
    widths.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces_and_in_long_words() {
        assert_eq!(wrapped("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(wrapped("  ", 4), [""; 0]);
    }
}
