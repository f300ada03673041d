//! Promise: `--report` writes one self-contained HTML file of at most 1 MiB, with a text
//! alternative for each figure and its data inside, from which `highwater report` draws the same
//! page; `highwater compare` reads it; bad paths and files are errors with exit status 2.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use highwater_lab::trace::{FileId, Op, Packing, RecordingWriter};

fn highwater(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.current_dir(dir).args(arguments).output().unwrap()
}

/// The arguments that replay the small trace of `with_trace`.
const REPLAY: [&str; 6] = ["replay", "t.lis", "--capacity", "2MiB", "--readahead", "0"];

fn with_trace() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let line = |step: u64| format!("{} 8 0 {step}\n", step * 7 % 900 * 8);
    let trace: String = (0..5000).map(line).collect();
    fs::write(dir.path().join("t.lis"), trace).unwrap();
    dir
}

fn report_of(dir: &Path, more: &[&str]) -> String {
    let out = highwater(dir, &[&REPLAY[..], &["--report", "r.html"], more].concat());
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    fs::read_to_string(dir.join("r.html")).unwrap()
}

/// Goal: the file's properties. Method: counts of elements, and a search for anything that a
/// browser would load.
#[test]
fn a_report_is_complete_and_refers_to_nothing_else() {
    let dir = with_trace();
    let html = report_of(dir.path(), &[]);
    assert!(html.len() <= 1 << 20, "{} bytes", html.len());
    for figure in [
        "Usage against limits",
        "Refaults",
        "Memory pressure",
        "Accesses",
        "Latency of",
        "t: misses by size",
    ] {
        assert!(
            html.contains(&format!("<h3>{figure}")),
            "no figure `{figure}`"
        );
    }
    assert!(html.contains("size: 2.0") && html.contains("this run, balanced"));
    let figures = html.matches("<figure>").count();
    assert_eq!(
        figures,
        html.matches("<svg role=\"img\" aria-label=\"").count()
    );
    assert_eq!(figures, html.matches("</svg>").count());
    assert!(
        figures >= 5 && html.contains("<polyline"),
        "{figures} figures"
    );
    let pages = html.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    let page = pages.split("<script").next().unwrap();
    for word in [
        "src=", "http:", "https:", "url(", "@import", "<iframe", "<img",
    ] {
        assert!(!page.contains(word), "the page has `{word}`");
    }
    assert_eq!(
        html.matches("<link").count(),
        1,
        "only the icon, which is empty"
    );
    assert!(
        html.contains("Content-Security-Policy") && html.contains("default-src 'none'"),
        "the page may load something"
    );
    for name in ["Machine", "Command", "Seed", "Version"] {
        assert!(
            html.contains(&format!("<dt>{name}</dt>")),
            "no `{name}` at the foot"
        );
    }
    assert!(
        fs::read_dir(dir.path()).unwrap().count() == 2,
        "only trace and report"
    );
}

/// Goal: a report is drawn again to the same bytes, in place and elsewhere.
#[test]
fn a_report_is_drawn_again_from_itself() {
    let dir = with_trace();
    let html = report_of(dir.path(), &[]);
    let out = highwater(dir.path(), &["report", "r.html", "--output", "again.html"]);
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(fs::read_to_string(dir.path().join("again.html")).unwrap() == html);
    assert!(
        highwater(dir.path(), &["report", "r.html"])
            .status
            .success()
    );
    assert!(fs::read_to_string(dir.path().join("r.html")).unwrap() == html);
}

/// Goal: the report of a recording names its files, and what the trace lacks. Method: a recording
/// with a file whose name is markup, and lost events; drawn again from itself.
#[test]
fn the_files_of_a_recording_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let about = "kernel: 6.18.0\ntarget: command ./app\n";
    let mut writer = RecordingWriter::new(Vec::new(), Packing::Plain, about).unwrap();
    let id = FileId {
        major: 8,
        minor: 1,
        inode: 7,
    };
    let file = writer.file(id, 100, "/data/<b>.db").unwrap();
    writer.push(file, Op::Read, 0, 100).unwrap();
    writer.lost(3);
    let (bytes, _) = writer.finish().unwrap();
    fs::write(dir.path().join("app.hwt"), bytes).unwrap();
    let arguments = ["replay", "app.hwt", "--buffered", "--report", "r.html"];
    let out = highwater(dir.path(), &arguments);
    let said = String::from_utf8(out.stdout).unwrap();
    assert!(
        out.status.success() && said.contains("/data/<b>.db"),
        "{said}"
    );
    let html = fs::read_to_string(dir.path().join("r.html")).unwrap();
    for part in [
        "<h2>Files of app</h2>",
        "/data/&lt;b&gt;.db",
        "3 events were lost",
        "<li>kernel: 6.18.0</li>",
    ] {
        assert!(html.contains(part), "no `{part}`");
    }
    let again = ["report", "r.html", "--output", "again.html"];
    assert!(highwater(dir.path(), &again).status.success());
    assert!(fs::read_to_string(dir.path().join("again.html")).unwrap() == html);
}

// Symptom: some 3,000 % "of the misses brought back a page that had been evicted", because pages
// that were read ahead counted, too. Method: a loop over twice the capacity, with readahead.
#[test]
fn refaults_are_a_part_of_the_pages_read() {
    let dir = tempfile::tempdir().unwrap();
    let pages = (0..4 * 4096_u32).map(|step| format!("{}\n", step % 4096));
    fs::write(dir.path().join("loop.lirs"), pages.collect::<String>()).unwrap();
    let replay = [
        "replay",
        "loop.lirs",
        "--format",
        "lirs",
        "--capacity",
        "8MiB",
    ];
    let arguments = [&replay[..], &["--report", "r.html"]].concat();
    let out = highwater(dir.path(), &arguments);
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let html = fs::read_to_string(dir.path().join("r.html")).unwrap();
    let (_, after) = html.split_once(" accesses hit, and ").unwrap();
    let (percent, _) = after.split_once(" % of the ").unwrap();
    let percent: f64 = percent.parse().unwrap();
    assert!((50.0..=100.0).contains(&percent), "{percent} %");
}

/// Goal: two repeated runs of one configuration differ by no count, and of another by some.
#[test]
fn runs_are_compared() {
    let dir = with_trace();
    let html = report_of(dir.path(), &["--runs", "3"]);
    assert!(html.contains("Figures of 3 runs"));
    let json = highwater(
        dir.path(),
        &[&REPLAY[..], &["--json", "--policy", "clock"]].concat(),
    );
    fs::write(dir.path().join("b.json"), &json.stdout).unwrap();
    let same = highwater(dir.path(), &["compare", "r.html", "r.html"]);
    let said = String::from_utf8(same.stdout).unwrap();
    assert!(
        same.status.success() && said.starts_with("0 figures differ, 0 within noise"),
        "{said}"
    );
    let arguments = [
        "compare", "r.html", "b.json", "--report", "c.html", "--json",
    ];
    let out = highwater(dir.path(), &arguments);
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let differences = found["differences"].as_array().unwrap();
    assert!(
        differences
            .iter()
            .any(|d| d["figure"] == "hits" && d["meaning"] == "differs")
    );
    assert_eq!(found["settings"][0][0], "policy");
    let page = fs::read_to_string(dir.path().join("c.html")).unwrap();
    assert!(page.contains("Comparison of two runs") && page.contains("<tr class=\"grey\">"));
}

/// Goal: the lab's report has published figures beside ours, each with a text alternative; repeated
/// runs are one section, with an error bar where a figure varies. Method: an experiment that
/// measures times, once and twice.
#[test]
fn the_lab_draws_published_figures_beside_ours() {
    let dir = tempfile::tempdir().unwrap();
    for runs in ["1", "2"] {
        let arguments = [
            "lab", "rss-cost", "--quick", "--judge", "counts", "--runs", runs, "--report", "l.html",
        ];
        let out = highwater(dir.path(), &arguments);
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        let html = fs::read_to_string(dir.path().join("l.html")).unwrap();
        assert!(html.len() <= 1 << 20);
        let count = |part: &str| html.matches(part).count();
        assert!(html.contains("judged checks hold") && count("<caption>Checks</caption>") == 1);
        assert!(count("<figure") > 0, "no figure");
        assert_eq!(count("<figure"), count("<figure aria-label=\""));
        let is_repeated = runs == "2";
        assert_eq!(html.contains("medians of 2 runs"), is_repeated);
        assert_eq!(count("class=\"bar\"") > 0, is_repeated, "error bars");
        let title = String::from_utf8(out.stdout).unwrap();
        assert_eq!(
            title.matches("rss-cost (").count(),
            if is_repeated { 2 } else { 1 }
        );
    }
}

/// Goal: each bad path or file is an error of status 2 that names it. Method: one of each.
#[test]
fn bad_paths_and_files_are_errors() {
    let dir = with_trace();
    let html = report_of(dir.path(), &[]);
    let other = html.replace("\"format\":1,", "\"format\":9,");
    assert_ne!(other, html);
    fs::write(dir.path().join("other.html"), other).unwrap();
    fs::write(
        dir.path().join("cut.html"),
        html.split("</script>").next().unwrap(),
    )
    .unwrap();
    fs::write(dir.path().join("none.html"), "<html></html>").unwrap();
    fs::write(dir.path().join("none.json"), "{}").unwrap();
    let lab = r#"{"experiment": "x", "rows": [], "checks": []}"#;
    fs::write(dir.path().join("lab.json"), lab).unwrap();
    let unwritable = [&REPLAY[..], &["--report", "absent/r.html"]].concat();
    let folder = [&REPLAY[..], &["--report", "."]].concat();
    for (arguments, said) in [
        (&unwritable[..], "absent/r.html"),
        (&folder[..], "directory"),
        (&["report", "none.html"][..], "no report"),
        (&["report", "cut.html"][..], "cut short"),
        (&["report", "other.html"][..], "format 9"),
        (&["report", "absent.html"][..], "absent.html"),
        (&["compare", "none.json", "r.html"][..], "no run"),
        (&["compare", "r.html", "other.html"][..], "format 9"),
        (&["compare", "r.html", "lab.json"][..], "`replay` (r.html)"),
    ] {
        let out = highwater(dir.path(), arguments);
        let error = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(said), "{arguments:?}: {error}");
        assert!(out.stdout.is_empty(), "{arguments:?} printed a result");
    }
}
