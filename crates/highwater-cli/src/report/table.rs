//! Tables of a page. A click on a heading sorts the rows; each cell has its number for that.

use maud::{Markup, html};

/// A cell: its text, and the number to sort by if it has one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) number: Option<f64>,
    /// Whether the text is a word and the number its rank, rather than its value.
    is_word: bool,
    /// The id of an element of the page that the text leads to.
    target: Option<String>,
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            ..Self::default()
        }
    }

    pub(crate) fn number(text: impl Into<String>, number: f64) -> Self {
        Self {
            number: Some(number),
            ..Self::text(text)
        }
    }

    /// A word that is sorted by its rank.
    pub(crate) fn ranked(text: impl Into<String>, rank: f64) -> Self {
        Self {
            is_word: true,
            ..Self::number(text, rank)
        }
    }

    /// A word that leads to the element with this id.
    pub(crate) fn link(text: impl Into<String>, target: impl Into<String>) -> Self {
        Self {
            target: Some(target.into()),
            ..Self::text(text)
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
        cells.any(|cell| cell.number.is_some() && !cell.is_word)
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
                                    @if let Some(target) = &cell.target {
                                        a href={ "#" (target) } { (cell.text) }
                                    } @else { (cell.text) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
