//! A figure of named rows: a dot for each, with a bar from the least to the greatest of its values,
//! over one axis.
//!
//! Names and values are text of the page, so that long names wrap, a phone shows them, and a
//! screen reader reads them; each row has a small drawing of its own, all of one width.

use maud::{Markup, html};

use super::axis::{Axis, coordinate};

/// Width and height of a row's drawing, in its own units.
const WIDTH: f64 = 220.0;
const HEIGHT: f64 = 18.0;

/// Space beside the axis' ends, so that a dot at an end is whole.
const MARGIN: f64 = 8.0;

/// One row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Where the value is from.
    pub(crate) source: String,
    /// Index into the palette.
    pub(crate) colour: usize,
    pub(crate) value: f64,
    /// The value as text.
    pub(crate) shown: String,
    /// The least and the greatest value.
    pub(crate) range: Option<[f64; 2]>,
}

impl Row {
    /// Returns the value and the ends of the bar.
    pub(crate) fn values(&self) -> impl Iterator<Item = f64> {
        std::iter::once(self.value).chain(self.range.into_iter().flatten())
    }
}

/// Rows over one axis.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) title: String,
    pub(crate) axis: Axis,
    pub(crate) rows: Vec<Row>,
    /// Says below the figure how to read it.
    pub(crate) note: Option<String>,
}

impl Rows {
    pub(crate) fn markup(&self) -> Markup {
        html! {
            figure aria-label=(self.summary()) {
                h3 { (self.title) }
                div class="rows" {
                    @for row in &self.rows {
                        span class="name" { (row.name) " " span class="of" { "(" (row.source) ")" } }
                        (self.drawing(row))
                        span class="n" { (row.shown) }
                    }
                    span {}
                    (self.scale())
                    span {}
                }
                @if let Some(note) = &self.note { figcaption { p { (note) } } }
            }
        }
    }

    /// Returns the content in a sentence.
    fn summary(&self) -> String {
        let by_value = |a: &&Row, b: &&Row| a.value.total_cmp(&b.value);
        let ends = [
            self.rows.iter().min_by(by_value),
            self.rows.iter().max_by(by_value),
        ];
        let [least, most] = ends.map(|row| row.map_or("no value", |row| row.shown.as_str()));
        format!(
            "{}: {} variants, {least} to {most}",
            self.title,
            self.rows.len()
        )
    }

    fn drawing(&self, row: &Row) -> Markup {
        let x = self.x(row.value);
        let range = row.range.map(|range| range.map(|value| self.x(value)));
        html! {
            svg aria-hidden="true" class={ "s" (row.colour) } viewBox=(view_box(HEIGHT)) {
                path class="tick" d=(self.lines()) {}
                @if let Some([low, high]) = range {
                    path class="bar" d={
                        "M" (coordinate(low)) " 4v10m0-5H" (coordinate(high)) "m0-5v10"
                    } {}
                }
                circle cx=(coordinate(x)) cy="9" r="4.5" {}
            }
        }
    }

    /// Returns the path of a line at each tick.
    fn lines(&self) -> String {
        let ticks = self.axis.ticks();
        let line = |tick: &f64| format!("M{:.0} 0V{HEIGHT}", self.x(*tick));
        ticks.iter().map(line).collect()
    }

    /// Draws the labels of the ticks; where they would touch, every second one.
    fn scale(&self) -> Markup {
        let ticks = self.axis.ticks();
        let every = ticks.len().div_ceil(4).max(1);
        html! {
            svg class="scale" aria-hidden="true" viewBox=(view_box(14.0)) {
                @for tick in ticks.into_iter().step_by(every) {
                    @let at = self.x(tick);
                    @let side = if at < 16.0 { "start" } else if at > WIDTH - 16.0 { "end" } else { "middle" };
                    text x=(coordinate(at)) y="11" text-anchor=(side) { (self.axis.label(self.axis.place(tick))) }
                }
            }
        }
    }

    /// Returns the horizontal place of a value.
    fn x(&self, value: f64) -> f64 {
        let [low, high] = self.axis.ends();
        MARGIN + (WIDTH - 2.0 * MARGIN) * (self.axis.place(value) - low) / (high - low)
    }
}

fn view_box(height: f64) -> String {
    format!("0 0 {WIDTH} {height}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_lab::report::Unit;

    /// Goal: dots and bars lie within the drawing and in the order of their values, also at the
    /// ends of either scale; texts are escaped. Method: coordinates read from the SVG.
    #[test]
    fn rows_are_drawn_to_scale() {
        let row = |value: f64, range| Row {
            name: "<b>".to_owned(),
            source: "this <run>".to_owned(),
            colour: 0,
            value,
            shown: value.to_string(),
            range,
        };
        let rows = vec![
            row(1.0, None),
            row(20.0, Some([10.0, 3000.0])),
            row(3000.0, Some([3000.0; 2])),
        ];
        let values = || rows.iter().flat_map(Row::values);
        for axis in [
            Axis::linear("a", Unit::Plain, values()),
            Axis::log("a", Unit::Plain, values()),
        ] {
            let figure = Rows {
                title: "t".to_owned(),
                axis,
                rows: rows.clone(),
                note: None,
            };
            let html = figure.markup().into_string();
            assert!(
                !html.contains("<b>") && html.contains("this &lt;run&gt;"),
                "{html}"
            );
            let numbers = |name: &str| -> Vec<f64> {
                let marked = format!("{name}=\"");
                let parts = html.split(&marked).skip(1);
                let texts = parts.filter_map(|part| part.split('"').next());
                texts.filter_map(|text| text.parse().ok()).collect()
            };
            let dots = numbers("circle cx");
            assert_eq!(dots.len(), 3);
            assert!(dots.is_sorted(), "{dots:?}");
            let ends = |path: &str| {
                let (low, rest) = path.split_once(' ')?;
                let high = rest.split_once('H')?.1.split('m').next()?;
                Some([low.parse::<f64>().ok()?, high.parse().ok()?])
            };
            let paths = html.split("class=\"bar\" d=\"M").skip(1);
            let bars: Vec<f64> = paths.filter_map(ends).flatten().collect();
            assert_eq!(bars.len(), 4, "two ends for each range");
            assert!(
                bars[0] <= dots[1] && bars[1] >= dots[2] - 0.1,
                "{bars:?} {dots:?}"
            );
            assert!(
                dots.iter()
                    .chain(&bars)
                    .all(|x| (5.0..=WIDTH - 5.0).contains(x))
            );
        }
    }
}
