//! Tables of a page. A click on a heading sorts the rows; each cell has its number for that.

use maud::{Markup, html};

/// A cell: its text, and the number to sort by if it is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) number: Option<f64>,
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            number: None,
        }
    }

    pub(crate) fn number(text: impl Into<String>, number: f64) -> Self {
        Self {
            text: text.into(),
            number: Some(number),
        }
    }
}

/// A row: its cells, and whether it is shown in grey.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Line {
    pub(crate) cells: Vec<Cell>,
    pub(crate) is_grey: bool,
}

impl From<Vec<Cell>> for Line {
    fn from(cells: Vec<Cell>) -> Self {
        Self {
            cells,
            is_grey: false,
        }
    }
}

/// Returns a table that scrolls sideways if it is wider than the page.
pub(crate) fn table(caption: &str, headings: &[&str], lines: &[Line]) -> Markup {
    let is_number = |column: usize| {
        let mut cells = lines.iter().filter_map(|line| line.cells.get(column));
        cells.any(|cell| cell.number.is_some())
    };
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(caption) {
            table {
                caption { (caption) }
                thead {
                    tr {
                        @for (column, heading) in headings.iter().enumerate() {
                            th scope="col" class=[is_number(column).then_some("n")] {
                                button type="button" { (heading) }
                            }
                        }
                    }
                }
                tbody {
                    @for line in lines {
                        tr class=[line.is_grey.then_some("grey")] {
                            @for (column, cell) in line.cells.iter().enumerate() {
                                td class=[is_number(column).then_some("n")]
                                    data-n=[cell.number.filter(|number| number.is_finite())] {
                                    (cell.text)
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
