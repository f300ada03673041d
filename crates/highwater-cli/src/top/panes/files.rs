//! Open files, those with most resident pages first.

use highwater::Bytes;
use ratatui_core::text::Line;

use super::super::model::File;
use super::super::numbers::{bytes, interval, short};
use super::Context;

/// Returns the lines of the pane.
pub(crate) fn lines(context: &Context<'_>, width: u16) -> Vec<Line<'static>> {
    let titles = format!("{:>15} {:>9} {:>4}  FILE", "RESIDENT", "SIZE", "IN");
    let mut lines = vec![context.heading("FILES", width), context.faint(titles)];
    let files = context.state.files.iter();
    lines.extend(files.map(|file| of_file(context, file)));
    if context.state.files.is_empty() {
        lines.push(Line::raw("no file is open"));
    }
    if context.state.files_omitted > 0 {
        let omitted = short(context.state.files_omitted);
        lines.push(context.faint(format!("and {omitted} with fewer resident pages")));
    }
    lines
}

fn of_file(context: &Context<'_>, file: &File) -> Line<'static> {
    let size = file.pages.saturating_mul(context.origin.page_size);
    // Percents of a file need no more than the value that was read.
    let share = u128::from(file.resident.value.0) * 100;
    let share = share.checked_div(u128::from(size));
    let share = share.map_or_else(|| "-".to_owned(), |share| format!("{share}%"));
    let name = match file.path.as_str() {
        "" => format!("file {}", file.id),
        // In brackets: a kind instead of a path.
        kind if kind.starts_with('[') => format!("{kind} {}", file.id),
        path => path.to_owned(),
    };
    Line::raw(format!(
        "{:>15} {:>9} {share:>4}  {name}",
        interval(&file.resident),
        bytes(Bytes(size)),
    ))
}
