//! Snapshots of the screen: made states on ratatui's `TestBackend`, as text without colours. The
//! expected screens are in `snapshots/`; `SNAPSHOTS=renew cargo test` writes them anew.

use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use crossterm::event::{KeyCode, KeyEvent};
use ratatui_core::backend::TestBackend;
use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Color, Modifier};
use ratatui_core::terminal::Terminal;

use super::app::App;
use super::look::{Glyphs, Look};
use super::made::Made;
use super::model::Source;
use super::{json, picture, screen};

/// The look of the snapshots.
const PLAIN: Look = Look {
    is_coloured: false,
    glyphs: Glyphs::UTF_8,
};

/// So long after the newest moment the screen is drawn.
const AGE: Duration = Duration::from_millis(300);

/// Draws a recording after keys were pressed.
fn drawn(source: &Made, keys: &str, look: &Look, (width, height): (u16, u16)) -> Buffer {
    let mut app = App::new();
    app.pass(Duration::ZERO, source).unwrap();
    for key in keys.chars() {
        app.key(KeyEvent::from(KeyCode::Char(key)), source).unwrap();
    }
    let newest = source.last().and_then(|last| source.time(last));
    let now = source.origin.started_unix + newest.unwrap_or_default() + AGE;
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| {
            let area = frame.area();
            screen::draw(&app, source, now, look, area, frame.buffer_mut());
        })
        .unwrap();
    terminal.backend().buffer().clone()
}

fn assert_snapshot(name: &str, text: &str) {
    let root = env::var("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").to_owned());
    let path = Path::new(&root).join("src/top/snapshots").join(name);
    if env::var("SNAPSHOTS").is_ok_and(|it| it == "renew") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == text,
        "{name} differs (SNAPSHOTS=renew writes it anew); the screen is now\n{text}"
    );
}

/// Goal: every pane, the help and the filter look as reviewed, on a small and on a wide screen.
#[test]
fn screens_are_as_reviewed() {
    let source = Made::new(10, 70);
    let cases = [
        ("groups", "jj"),
        ("paused", "jjj[["),
        ("frames", "2"),
        ("locks", "3"),
        ("files", "4"),
        ("victims", "5"),
        ("marks", "6"),
        ("help", "?"),
        ("filter", "/query-4"),
        ("no-match", "/nothing"),
    ];
    for (name, keys) in cases {
        let text = picture::text(&drawn(&source, keys, &PLAIN, (80, 24)));
        assert_snapshot(&format!("{name}-80x24.txt"), &text);
    }
    let text = picture::text(&drawn(&source, "jjsc", &PLAIN, (200, 50)));
    assert_snapshot("groups-200x50.txt", &text);
    let text = picture::text(&drawn(&source, "j5", &PLAIN, (200, 50)));
    assert_snapshot("victims-200x50.txt", &text);
    let mut empty = Made::new(1, 0);
    (empty.marks, empty.victims) = (Vec::new(), Vec::new());
    let text = picture::text(&drawn(&empty, "", &PLAIN, (80, 24)));
    assert_snapshot("empty-80x24.txt", &text);
}

/// Goal: without UTF-8 everything that `top` draws is ASCII, and control characters of names do not
/// reach the terminal.
#[test]
fn ascii_screens_are_ascii() {
    let look = Look {
        glyphs: Glyphs::ASCII,
        ..PLAIN
    };
    let source = Made::new(10, 70);
    for keys in ["jj", "2", "3", "4", "5", "6", "?", "/query"] {
        for size in [(80, 24), (200, 50)] {
            let text = picture::text(&drawn(&source, keys, &look, size));
            let is_printable = |c: char| c == '\n' || (' '..='~').contains(&c);
            assert!(text.chars().all(is_printable), "{keys}: {text}");
        }
    }
    let text = picture::text(&drawn(&source, "jj", &look, (80, 24)));
    assert_snapshot("ascii-80x24.txt", &text);
}

/// Goal: no size of the terminal and no scrolling panics, and every line fits.
#[test]
fn every_size_is_drawn() {
    let source = Made::new(10, 70);
    for keys in ["jjjjj", "2jjjjjjjjjjjj", "5jjjj", "?", "/q"] {
        for width in (1..220).step_by(13) {
            for height in [1, 4, 5, 11, 12, 13, 24, 30, 60] {
                let buffer = drawn(&source, keys, &PLAIN, (width, height));
                assert_eq!(buffer.area.as_size(), (width, height).into());
            }
        }
    }
}

/// Goal: without colours no cell has one; with colours the bars have, and the selection is reversed
/// either way.
#[test]
fn colours_are_only_where_they_are_wanted() {
    let source = Made::new(10, 70);
    let coloured = Look {
        is_coloured: true,
        ..PLAIN
    };
    let has_colour = |look: &Look| {
        let buffer = drawn(&source, "jj", look, (80, 24));
        let reversed =
            |cell: &&ratatui_core::buffer::Cell| cell.modifier.contains(Modifier::REVERSED);
        assert!(buffer.content().iter().filter(reversed).count() >= 80);
        let mut cells = buffer.content().iter();
        cells.any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(!has_colour(&PLAIN));
    assert!(has_colour(&coloured));
}

/// Goal: a recording that is not written any more says so; one that has ended in order, too.
#[test]
fn a_silent_recording_is_told_from_one_that_has_ended() {
    let mut source = Made::new(10, 70);
    let first_line = |source: &Made| {
        let text = picture::text(&drawn(source, "", &PLAIN, (80, 24)));
        text.lines().next().unwrap().to_owned()
    };
    assert!(first_line(&source).contains("LIVE"));
    // The wall clock of the drawing is that of the newest moment: the file says it began earlier.
    let mut app = App::new();
    app.pass(Duration::ZERO, &source).unwrap();
    let now = source.origin.started_unix + Duration::from_secs(7 + 12);
    let mut buffer = Buffer::empty(ratatui_core::layout::Rect::new(0, 0, 80, 24));
    let area = buffer.area;
    screen::draw(&app, &source, now, &PLAIN, area, &mut buffer);
    assert!(picture::text(&buffer).contains("SILENT for 12.0s"));
    source.has_ended = true;
    assert!(first_line(&source).contains("ENDED"));
}

/// Goal: the picture is well-formed text with the shapes of bars, and escapes names.
#[test]
fn the_picture_has_shapes_and_escapes() {
    let mut source = Made::new(10, 70);
    source.origin.file = "a<b&c.hwr".to_owned();
    let svg = picture::svg(&drawn(&source, "jj", &PLAIN, (120, 40)), "a<b");
    assert!(svg.contains("url(#hatch)") && svg.contains("<title>a&lt;b</title>"));
    assert!(svg.contains("a&lt;b&amp;c.hwr") && !svg.contains("a<b"));
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    assert!(svg.len() < 200 << 10, "{} bytes", svg.len());
}

/// Goal: the picture of the documents shows the tabs, columns and keys of this version. Method: the
/// rows that do not depend on a recording are those of a made one. `highwater top FILE --at SECONDS
/// --svg crates/highwater/docs/top.svg --size 100x24` makes it anew, of two recorded tenants.
#[test]
fn the_picture_of_the_documents_is_current() {
    let root = env::var("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").to_owned());
    let shown = fs::read_to_string(Path::new(&root).join("../highwater/docs/top.svg")).unwrap();
    let coloured = Look {
        is_coloured: true,
        ..PLAIN
    };
    let made = picture::svg(
        &drawn(&Made::new(10, 70), "[", &coloured, (100, 24)),
        "made",
    );
    for row in [3, 4, 23] {
        let of_row = |svg: &str| {
            let place = format!(" y=\"{}\" ", row * 17 + 13);
            let lines = svg.lines().filter(|line| line.contains(&place));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(!of_row(&made).is_empty());
        assert_eq!(of_row(&shown), of_row(&made), "row {row}");
    }
    assert!(shown.contains("url(#hatch)") && shown.len() < 200 << 10);
}

/// Goal: the first line fits, and its parts are apart, however long the recording is silent.
#[test]
fn the_first_line_has_a_space_between_its_parts() {
    let source = Made::new(10, 70);
    let mut app = App::new();
    app.pass(Duration::ZERO, &source).unwrap();
    for key in ['[', ' '] {
        app.key(KeyEvent::from(KeyCode::Char(key)), &source)
            .unwrap();
    }
    let now = source.origin.started_unix + Duration::from_secs(7 + 12_345);
    let line = |width| {
        let area = ratatui_core::layout::Rect::new(0, 0, width, 24);
        let mut buffer = Buffer::empty(area);
        screen::draw(&app, &source, now, &PLAIN, area, &mut buffer);
        let text = picture::text(&buffer);
        text.lines().next().unwrap().to_owned()
    };
    let status = "SILENT for 3h25m PLAY x1 ";
    for (width, time) in [
        (90, " 6.9s  2026-11-23 21:35:02 UTC"),
        (80, " 6.9s  21:35:02 UTC"),
        (60, " 6.9s"),
    ] {
        let line = line(width);
        assert!(line.contains(status) && line.ends_with(time), "{line}");
        assert_eq!(line.len(), usize::from(width));
    }
}

/// Goal: the JSON has rates, intervals and units in its names. Method: values of the made state.
#[test]
fn json_has_units_and_intervals() {
    let source = Made::new(10, 70);
    let mut app = App::new();
    app.pass(Duration::ZERO, &source).unwrap();
    let state = app.shown.state.as_ref().unwrap();
    let object = json::moment(state, &app.shown.rates, &source);
    let db = &object["groups"][2];
    assert_eq!(db["path"], "/db");
    assert_eq!(db["usage_bytes"]["low"], 17_800 << 10);
    assert_eq!(db["max_bytes"], 20_480 << 10);
    assert_eq!(db["waiting"]["longest_us"], 1_200_000);
    // 18 MiB of usage refault 18 * 5 pages a tick, ten ticks a second.
    assert_eq!(db["refaults_per_s"], 900);
    assert_eq!(db["reclaim_efficiency_percent"], 90);
    assert_eq!(object["frames"]["pcp"][2]["cpu"], serde_json::Value::Null);
    assert_eq!(object["victims"][1]["search"]["exact_reads"], 2);
}
