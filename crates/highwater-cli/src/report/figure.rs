//! A figure: lines, bands and points over two axes, as SVG with a text alternative.
//!
//! The SVG has no style of its own. Colours are numbers of the palette, written as fixed colours
//! that the page's style sheet maps to those of light or dark mode, so that a figure follows the
//! reader's mode without a script. The palette is that of Okabe and Ito, which colour-blind people
//! tell apart; limits are dashed as well.
//!
//! A figure is drawn at four times its nominal size, because the back end rounds to whole units.

use maud::{Markup, PreEscaped, html};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::{
    Cartesian2d, ChartBuilder, ChartContext, Circle, IntoDrawingArea as _, LineSeries, PathElement,
    Polygon, RGBColor, SVGBackend, Text,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color as _, IntoFont as _, ShapeStyle, TextStyle};

use super::axis::Axis;

/// Size of the drawing in its own units: four for each CSS pixel of the nominal size.
const SIZE: (u32, u32) = (1840, 1080);

/// Heights of texts.
const FONT: u32 = 62;

/// Colours of series, before the style sheet maps them.
pub(crate) const PALETTE: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x56, 0xB4, 0xE8),
    RGBColor(0x99, 0x4F, 0x00),
    RGBColor(0x66, 0x66, 0x66),
];

/// Texts and axes.
const INK: RGBColor = RGBColor(0x10, 0x10, 0x10);
/// Grid lines.
const GRID: RGBColor = RGBColor(0xDD, 0xDD, 0xDD);

/// Shape of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A line through the points.
    Line,
    /// A line that keeps each value until the next point.
    Steps,
    /// A dashed line: a limit.
    Limit,
    /// Single points.
    Points,
}

/// One value, with the interval that holds the truth if that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) interval: Option<[f64; 2]>,
}

/// Points of one colour.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    /// Index into the palette.
    pub(crate) colour: usize,
    pub(crate) points: Vec<Point>,
}

impl Series {
    /// Returns a series of values without intervals.
    pub(crate) fn new(
        name: &str,
        shape: Shape,
        colour: usize,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let point = |(x, y)| Point {
            x,
            y,
            interval: None,
        };
        Self {
            name: name.to_owned(),
            shape,
            colour: colour % PALETTE.len(),
            points: points.into_iter().map(point).collect(),
        }
    }

    /// Returns every value and bound along the vertical axis.
    pub(crate) fn ys(&self) -> impl Iterator<Item = f64> {
        self.points.iter().flat_map(|point| {
            let bounds = point.interval.into_iter().flatten();
            std::iter::once(point.y).chain(bounds)
        })
    }

    /// Returns every value along the horizontal axis.
    pub(crate) fn xs(&self) -> impl Iterator<Item = f64> {
        self.points.iter().map(|point| point.x)
    }
}

/// One figure.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) title: String,
    /// The text alternative: the content in a sentence or two.
    pub(crate) alternative: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
    /// A value of the horizontal axis that is marked, and its name.
    pub(crate) mark: Option<(f64, String)>,
    /// Says below the figure how to read it.
    pub(crate) note: Option<String>,
}

impl Figure {
    /// Returns the figure with its caption and legend.
    pub(crate) fn markup(&self) -> Markup {
        html! {
            figure {
                h3 { (self.title) }
                (PreEscaped(self.svg()))
                figcaption {
                    @if self.series.len() > 1 || self.series.iter().any(has_intervals) {
                        ul class="legend" {
                            @for series in &self.series {
                                li class={ "s" (series.colour) } {
                                    span class={ "key " (key_class(series)) } aria-hidden="true" {}
                                    (series.name)
                                }
                            }
                        }
                    }
                    @if let Some(note) = &self.note { p { (note) } }
                }
            }
        }
    }

    fn svg(&self) -> String {
        let mut svg = String::new();
        let drawn = self.draw(&mut svg);
        // Writing to a string cannot fail; a drawing error leaves the figure's text alternative.
        if drawn.is_err() {
            svg = format!("<svg viewBox=\"0 0 {} {}\"></svg>", SIZE.0, SIZE.1);
        }
        let label = html! { (self.alternative) }.into_string();
        let label = label.replace('"', "&quot;");
        let size = format!("<svg width=\"{}\" height=\"{}\"", SIZE.0, SIZE.1);
        svg.replacen(&size, "<svg", 1)
            .replacen(
                "<svg",
                &format!("<svg role=\"img\" aria-label=\"{label}\""),
                1,
            )
            .replace(" opacity=\"1\"", "")
            .replace(" \"/>", "\"/>")
    }

    fn draw(&self, svg: &mut String) -> Drawn {
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin_top(92)
            .margin_right(90)
            .margin_left(8)
            .x_label_area_size(160)
            .y_label_area_size(250)
            .build_cartesian_2d(Placed(&self.x), Placed(&self.y))?;
        chart
            .configure_mesh()
            .light_line_style(GRID.mix(0.0))
            .bold_line_style(GRID.stroke_width(3))
            .axis_style(INK.stroke_width(3))
            .label_style(ink(FONT))
            .x_label_formatter(&|place| self.x.label(*place))
            .y_label_formatter(&|place| self.y.label(*place))
            .x_desc(self.x.name.as_str())
            .axis_desc_style(ink(FONT))
            .draw()?;
        root.draw(&Text::new(
            self.y.name.clone(),
            (16, 8),
            ink(FONT).pos(Pos::new(HPos::Left, VPos::Top)),
        ))?;
        self.draw_mark(&mut chart)?;
        for series in &self.series {
            self.draw_series(&mut chart, series)?;
        }
        root.present()?;
        drop(chart);
        drop(root);
        Ok(())
    }

    fn draw_mark(&self, chart: &mut Chart<'_>) -> Drawn {
        let ([x0, x1], [y0, y1]) = (self.x.ends(), self.y.ends());
        if let Some((at, name)) = &self.mark {
            let x = self.x.place(*at);
            let style = mapped(7, Shape::Limit).stroke_width(6);
            chart.draw_series([PathElement::new([(x, y0), (x, y1)], style)])?;
            let (is_right, gap) = (x > f64::midpoint(x0, x1), (x1 - x0) * 0.012);
            let (side, x) = if is_right {
                (HPos::Right, x - gap)
            } else {
                (HPos::Left, x + gap)
            };
            let style = ink(FONT).pos(Pos::new(side, VPos::Top));
            chart.draw_series([Text::new(name.clone(), (x, y1), style)])?;
        }
        Ok(())
    }

    fn draw_series(&self, chart: &mut Chart<'_>, series: &Series) -> Drawn {
        let place = |point: &Point, y: f64| (self.x.place(point.x), self.y.place(y));
        let style = mapped(series.colour, series.shape);
        if series.shape == Shape::Points {
            let dots = series.points.iter().map(|p| place(p, p.y));
            chart.draw_series(dots.map(|at| Circle::new(at, 16, style.filled())))?;
            return Ok(());
        }
        let points = series.points.iter();
        let bounds: Vec<_> = points.filter_map(|p| p.interval.map(|i| (p, i))).collect();
        if !bounds.is_empty() {
            let above = bounds.iter().map(|(p, [_, high])| place(p, *high));
            let below = bounds.iter().rev().map(|(p, [low, _])| place(p, *low));
            let outline: Vec<_> = above.chain(below).collect();
            let fill: ShapeStyle = style.mix(0.3).filled();
            chart.draw_series([Polygon::new(outline, fill)])?;
        }
        let line = with_steps(series).map(|(x, y)| (self.x.place(x), self.y.place(y)));
        let width = if series.shape == Shape::Limit { 6 } else { 8 };
        chart.draw_series(LineSeries::new(line, style.stroke_width(width)))?;
        Ok(())
    }
}

/// The area between the axes.
type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Placed<'a>, Placed<'a>>>;

/// The end of a drawing step.
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Returns the style of texts.
fn ink(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// An axis as the back end asks for it, in the coordinates of [`Axis::place`].
struct Placed<'a>(&'a Axis);

impl Ranged for Placed<'_> {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a figure is a few thousand units wide"
    )]
    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let [low, high] = self.0.ends();
        let part = (value - low) / (high - low);
        first + (f64::from(last - first) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Light lines, for which it asks after the bold ones, are not drawn.
        match hint.bold_points() {
            0 => Vec::new(),
            _ => self
                .0
                .ticks()
                .iter()
                .map(|tick| self.0.place(*tick))
                .collect(),
        }
    }

    fn range(&self) -> std::ops::Range<f64> {
        let [low, high] = self.0.ends();
        low..high
    }
}

impl ValueFormatter<f64> for Placed<'_> {}

fn has_intervals(series: &Series) -> bool {
    series.points.iter().any(|point| point.interval.is_some())
}

/// Returns the class of a series' key in the legend.
fn key_class(series: &Series) -> &'static str {
    match series.shape {
        Shape::Limit => "limit",
        Shape::Points => "points",
        Shape::Line | Shape::Steps if has_intervals(series) => "band",
        Shape::Line | Shape::Steps => "line",
    }
}

/// Returns the corners of a series' line.
fn with_steps(series: &Series) -> impl Iterator<Item = (f64, f64)> {
    let before = [None].into_iter().chain(series.points.iter().map(Some));
    let has_steps = series.shape == Shape::Steps;
    series
        .points
        .iter()
        .zip(before)
        .flat_map(move |(point, before)| {
            let corner = before
                .filter(|_| has_steps)
                .map(|before| (point.x, before.y));
            corner.into_iter().chain([(point.x, point.y)])
        })
}

/// Returns the colour of a series; limits have one of their own, which the style sheet dashes.
fn mapped(colour: usize, shape: Shape) -> RGBColor {
    let RGBColor(red, green, blue) = PALETTE[colour % PALETTE.len()];
    match shape {
        Shape::Limit => RGBColor(red, green, blue ^ 1),
        _ => RGBColor(red, green, blue),
    }
}

/// Returns the rules that map the colours of figures to the variables of the page's style sheet.
pub(crate) fn colour_rules() -> String {
    let hex = |RGBColor(red, green, blue): RGBColor| format!("#{red:02X}{green:02X}{blue:02X}");
    let mut rules = String::new();
    let mut rule = |colour: String, variable: &str, more: &str| {
        rules += &format!(
            "svg [stroke=\"{colour}\"]{{stroke:var({variable}){more}}}\
             svg [fill=\"{colour}\"]{{fill:var({variable})}}\n"
        );
    };
    for (index, colour) in PALETTE.into_iter().enumerate() {
        let variable = format!("--c{index}");
        rule(hex(colour), &variable, "");
        rule(
            hex(mapped(index, Shape::Limit)),
            &variable,
            ";stroke-dasharray:24 16",
        );
    }
    rule(hex(INK), "--ink", "");
    rule(hex(GRID), "--grid", "");
    rules
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_lab::report::Unit;

    /// Goal: no two colours of figures are one, so that each maps to its own variable.
    #[test]
    fn colours_differ() {
        let mut colours: Vec<_> = (0..PALETTE.len())
            .flat_map(|index| [mapped(index, Shape::Line), mapped(index, Shape::Limit)])
            .chain([INK, GRID])
            .map(|RGBColor(red, green, blue)| [red, green, blue])
            .collect();
        let before = colours.len();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), before);
    }

    /// Goal: names with characters of HTML do no harm, and a figure has its text alternative.
    #[test]
    fn texts_are_escaped() {
        let line = [(1.0, 1.0), (2.0, 3.0)];
        let series = Series::new("<b>\"&", Shape::Line, 0, line);
        let figure = Figure {
            title: "<i>".to_owned(),
            alternative: "rises \"from\" <1> to 3".to_owned(),
            x: Axis::linear("<x>", Unit::Plain, series.xs()),
            y: Axis::log("<y>", Unit::Plain, series.ys()),
            series: vec![series.clone(), series],
            mark: Some((1.5, "<mark>".to_owned())),
            note: None,
        };
        let html = figure.markup().into_string();
        for tag in ["<b>", "<i>", "<x>", "<y>", "<mark>", "<1>"] {
            assert!(!html.contains(tag), "{html}");
        }
        assert!(
            html.contains("role=\"img\" aria-label=\"rises &quot;from&quot;"),
            "{html}"
        );
        // Ticks and axes are thinner.
        let lines = |width| {
            html.matches(&format!("stroke-width=\"{width}\" points"))
                .count()
        };
        assert_eq!([lines(6), lines(8)], [1, 2], "mark and series: {html}");
    }
}
