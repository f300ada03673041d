//! Keys as a state machine: seek, play, fold, filter, panes; and a ring that forgets.

use super::super::made::Made;
use super::*;

fn started(source: &Made) -> App {
    let mut app = App::new();
    app.pass(Duration::ZERO, source).unwrap();
    app
}

fn press(app: &mut App, keys: &str, source: &Made) {
    for key in keys.chars() {
        let key = KeyEvent::from(KeyCode::Char(key));
        assert_eq!(app.key(key, source).unwrap(), Flow::Continue);
    }
}

fn hit(app: &mut App, code: KeyCode, source: &Made) {
    assert_eq!(app.key(code.into(), source).unwrap(), Flow::Continue);
}

/// Goal: the newest moment is followed until a key leaves it, and again after one returns.
#[test]
fn the_newest_moment_is_followed_until_a_key_leaves_it() {
    let mut source = Made::new(10, 70);
    let mut app = started(&source);
    assert_eq!(app.tick(), Some(70));
    source.last = 75;
    app.pass(Duration::ZERO, &source).unwrap();
    assert_eq!(app.tick(), Some(75));
    press(&mut app, "[[", &source);
    assert_eq!((app.tick(), app.is_following), (Some(73), false));
    source.last = 80;
    app.pass(Duration::from_secs(5), &source).unwrap();
    assert_eq!(app.tick(), Some(73));
    press(&mut app, "]]]]]]]]]", &source);
    assert_eq!((app.tick(), app.is_following), (Some(80), true));
}

/// Goal: seeks by ten seconds, to the ends, and to marks and victims; clamped at the ends.
#[test]
fn seeks_stop_at_the_ends() {
    let source = Made::new(10, 300);
    let mut app = started(&source);
    press(&mut app, "{", &source);
    assert_eq!(app.tick(), Some(200));
    press(&mut app, "}}}", &source);
    assert_eq!((app.tick(), app.is_following), (Some(300), true));
    let mut seen = Vec::new();
    for _ in 0..5 {
        press(&mut app, "(", &source);
        seen.push(app.tick().unwrap());
    }
    assert_eq!(seen, [61, 53, 30, 15, 15]);
    press(&mut app, ")))))", &source);
    assert_eq!(app.tick(), Some(61));
    press(&mut app, "g[[{", &source);
    assert_eq!(app.tick(), Some(10));
    hit(&mut app, KeyCode::End, &source);
    assert_eq!(app.tick(), Some(300));
}

/// Goal: space plays from the moment shown with the recording's own pace, and pauses.
#[test]
fn play_keeps_the_pace_of_the_recording() {
    let source = Made::new(0, 100);
    let mut app = started(&source);
    press(&mut app, "g ", &source);
    app.pass(Duration::from_millis(2_050), &source).unwrap();
    assert_eq!(app.tick(), Some(20));
    press(&mut app, ">", &source);
    app.pass(Duration::from_millis(1_000), &source).unwrap();
    assert_eq!((app.tick(), app.quarters()), (Some(40), 8));
    press(&mut app, " ", &source);
    app.pass(Duration::from_secs(10), &source).unwrap();
    assert_eq!((app.tick(), app.playing), (Some(40), None));
    press(&mut app, " <<<<<<<<<", &source);
    assert_eq!(app.quarters(), 1);
    app.pass(Duration::from_secs(100), &source).unwrap();
    assert_eq!((app.tick(), app.is_following), (Some(100), true));
}

/// Goal: space pauses a live recording, and plays one that has ended from its first moment.
#[test]
fn space_pauses_what_is_live_and_replays_what_has_ended() {
    let mut source = Made::new(10, 20);
    let mut app = started(&source);
    press(&mut app, " ", &source);
    source.last = 30;
    app.pass(Duration::from_secs(1), &source).unwrap();
    assert_eq!((app.tick(), app.playing), (Some(20), None));
    source.has_ended = true;
    press(&mut app, "G ", &source);
    app.pass(Duration::from_millis(500), &source).unwrap();
    assert_eq!(app.tick(), Some(15));
}

/// Goal: a moment that the ring overwrites gives way to the oldest one; without any, nothing shows.
#[test]
fn a_forgotten_moment_gives_way_to_the_oldest() {
    let mut source = Made::new(10, 70);
    let mut app = started(&source);
    press(&mut app, "g", &source);
    (source.first, source.last) = (40, 100);
    app.pass(Duration::ZERO, &source).unwrap();
    assert_eq!(app.tick(), Some(40));
    let empty = Made::new(1, 0);
    let mut app = started(&empty);
    press(&mut app, "[]{}()gG j", &empty);
    assert!(app.shown.state.is_none());
}

/// Goal: arrows select and fold, `-` and `+` fold and open all, `s` sorts.
#[test]
fn the_tree_folds_and_keeps_its_selection() {
    let source = Made::new(10, 70);
    let mut app = started(&source);
    press(&mut app, "jjjj", &source);
    assert_eq!(app.selected, "/db/query-42");
    hit(&mut app, KeyCode::Left, &source);
    assert_eq!((app.selected.as_str(), app.shown.rows.len()), ("/db", 6));
    hit(&mut app, KeyCode::Left, &source);
    assert_eq!(app.shown.rows.len(), 4);
    hit(&mut app, KeyCode::Enter, &source);
    assert_eq!(app.shown.rows.len(), 6);
    hit(&mut app, KeyCode::PageDown, &source);
    assert_eq!(app.selected, "/web");
    press(&mut app, "kk-", &source);
    assert_eq!((app.selected.as_str(), app.shown.rows.len()), ("/db", 4));
    press(&mut app, "+s", &source);
    assert_eq!((app.shown.rows.len(), app.selected_row()), (6, 1));
}

/// Goal: `/` filters as it is typed; Enter keeps the filter, Escape restores the one before.
#[test]
fn a_filter_is_typed_kept_and_restored() {
    let source = Made::new(10, 70);
    let mut app = started(&source);
    press(&mut app, "/qX", &source);
    assert!(app.shown.rows.is_empty());
    hit(&mut app, KeyCode::Backspace, &source);
    assert_eq!(app.shown.rows.len(), 4);
    hit(&mut app, KeyCode::Enter, &source);
    press(&mut app, "/uery-41", &source);
    assert_eq!(app.shown.rows.len(), 3);
    hit(&mut app, KeyCode::Esc, &source);
    assert_eq!((app.shape.filter.as_str(), app.shown.rows.len()), ("q", 4));
    hit(&mut app, KeyCode::Esc, &source);
    assert_eq!(app.shown.rows.len(), 6);
}

/// Goal: digits and Tab select panes, any key closes the help, q and Ctrl-C end.
#[test]
fn panes_help_and_the_end() {
    let source = Made::new(10, 70);
    let mut app = started(&source);
    for (digit, pane) in ('1'..='6').zip(Pane::ALL) {
        press(&mut app, &digit.to_string(), &source);
        assert_eq!(app.pane, pane);
    }
    press(&mut app, "jjk", &source);
    assert_eq!(app.scroll, 1);
    hit(&mut app, KeyCode::Tab, &source);
    assert_eq!((app.pane, app.scroll), (Pane::Groups, 0));
    hit(&mut app, KeyCode::BackTab, &source);
    assert_eq!(app.pane, Pane::Marks);
    press(&mut app, "?", &source);
    assert!(app.is_helping);
    press(&mut app, "q", &source);
    assert!(!app.is_helping);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    let quit = KeyEvent::from(KeyCode::Char('q'));
    assert_eq!(app.key(interrupt, &source).unwrap(), Flow::Interrupt);
    assert_eq!(app.key(quit, &source).unwrap(), Flow::Quit);
    press(&mut app, "/", &source);
    assert_eq!(app.key(interrupt, &source).unwrap(), Flow::Interrupt);
}
