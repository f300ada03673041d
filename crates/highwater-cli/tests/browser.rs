//! Promise: reports work in a real browser: nothing on the console, no request leaves the file,
//! and no page is wider than a phone of 400 pixels. Skipped where no Chromium is installed.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

const BROWSERS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// Hosts that the browser asks for its own sake, on any page.
const OF_THE_BROWSER: [&str; 3] = ["google.com", "googleapis.com", "gvt1.com"];

/// Widths of the page's frame, in CSS pixels.
const WIDTHS: [u32; 2] = [400, 1400];

fn browser() -> Option<&'static str> {
    let runs = |name: &&&str| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|out| out.status.success())
    };
    BROWSERS.iter().find(runs).copied()
}

/// What a page did while it was shown.
#[derive(Debug, Default)]
struct Shown {
    /// Lines on the console, without those of `measured`.
    console: Vec<String>,
    /// Requests that reached the network.
    requests: Vec<String>,
    /// Widths of content and of frame, for each of `WIDTHS`.
    widths: Vec<[u32; 2]>,
}

/// Returns the page with a script at its end that logs how wide the content is.
fn measured(page: &str) -> String {
    format!(
        "{page}<script>addEventListener('load', () => console.log('layout ' + \
         document.documentElement.scrollWidth + ' ' + innerWidth + ' end'))</script>"
    )
}

/// Shows a page in frames of each width. A proxy that refuses everything sees its requests.
fn show(browser: &str, page: &str) -> Shown {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    fs::write(file("page.html"), measured(page)).unwrap();
    let frame = |width| format!("<iframe src=page.html width={width} height=900></iframe>");
    let frames: String = WIDTHS.map(frame).concat();
    fs::write(file("frames.html"), format!("<!DOCTYPE html>{frames}")).unwrap();
    let (proxy, requests) = refusing_proxy();
    let out = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args(["--disable-background-networking", "--enable-logging=stderr"])
        .arg(format!("--proxy-server={proxy}"))
        .arg(format!("--user-data-dir={}", file("profile").display()))
        .arg(format!("--screenshot={}", file("shot.png").display()))
        .arg("--window-size=1500,2000")
        .arg(format!("file://{}", file("frames.html").display()))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && file("shot.png").exists(),
        "{browser} failed: {said}"
    );
    let mut shown = Shown {
        requests: requests.try_iter().collect(),
        ..Shown::default()
    };
    for line in said.lines().filter(|line| line.contains(":CONSOLE:")) {
        match width_in(line) {
            Some(widths) => shown.widths.push(widths),
            None => shown.console.push(line.to_owned()),
        }
    }
    let is_of_the_page =
        |request: &String| !OF_THE_BROWSER.iter().any(|host| request.contains(host));
    shown.requests.retain(is_of_the_page);
    shown.widths.sort_by_key(|[_, frame]| *frame);
    shown
}

/// Reads a line that the script of `measured` logged.
fn width_in(line: &str) -> Option<[u32; 2]> {
    let (widths, _) = line.split_once("layout ")?.1.split_once(" end")?;
    let (content, frame) = widths.split_once(' ')?;
    Some([content.parse().ok()?, frame.parse().ok()?])
}

/// Starts a proxy that answers 404, and returns its address and the lines that asked it.
fn refusing_proxy() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let sender = sender.clone();
            // Each on its own: the browser also opens connections on which it asks nothing, and
            // closes them when it ends.
            thread::spawn(move || {
                let mut head = [0; 4096];
                let length = stream.read(&mut head).unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..length]);
                let Some(line) = head.lines().next() else {
                    return;
                };
                sender.send(line.to_owned()).ok();
                let refusal = "HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                stream.write_all(refusal.as_bytes()).ok();
            });
        }
    });
    (address, receiver)
}

/// Writes a report of each kind into the directory and returns their names.
fn write_reports(dir: &Path) -> Vec<String> {
    let line = |step: u64| format!("{} 8 0 {step}\n", step * 7 % 900 * 8);
    let trace: String = (0..5000).map(line).collect();
    fs::write(dir.join("t.lis"), &trace).unwrap();
    fs::write(dir.join("another-tenant.lis"), &trace).unwrap();
    let replay = ["replay", "t.lis", "--readahead", "0", "--capacity"];
    let runs: [&[&str]; 6] = [
        &[&replay[..], &["2MiB", "--runs", "2"]].concat(),
        &[&replay[..], &["1MiB"]].concat(),
        &["curve", "t.lis", "another-tenant.lis"],
        &["lab", "rss-theft", "--quick"],
        &["host"],
        &["compare", "0.html", "1.html"],
    ];
    let mut names = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let name = format!("{index}.html");
        let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
        command.current_dir(dir).args(*run);
        let out = command.args(["--report", &name]).output().unwrap();
        // `host` ends with status 1 if it finds something bad.
        assert!(
            out.status.code().is_some_and(|code| code < 2),
            "{run:?}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        names.push(name);
    }
    names
}

/// Goal: each kind of report is silent, alone and narrow. Method: Chromium shows it in two frames;
/// a page with an error, an image from elsewhere and a wide element shows that all are seen.
#[test]
fn a_browser_shows_reports_without_errors_and_requests() {
    let Some(browser) = browser() else {
        eprintln!("skipped: none of {BROWSERS:?} is installed");
        return;
    };
    let broken = show(
        browser,
        "<!DOCTYPE html><img src='http://elsewhere.invalid/x.png'><div style='width: 3000px'>wide\
         </div><script>throw new Error('planted')</script>",
    );
    let asked = |request: &String| request.contains("elsewhere.invalid");
    assert!(broken.requests.iter().any(asked), "{broken:?}");
    let complained = |line: &String| line.contains("planted");
    assert!(broken.console.iter().any(complained), "{broken:?}");
    assert!(broken.widths[0][0] >= 3000, "{broken:?}");

    let dir = tempfile::tempdir().unwrap();
    for name in write_reports(dir.path()) {
        let page = fs::read_to_string(dir.path().join(&name)).unwrap();
        let shown = show(browser, &page);
        assert_eq!(shown.console, [""; 0], "{name}");
        assert_eq!(shown.requests, [""; 0], "{name}");
        let frames: Vec<u32> = shown.widths.iter().map(|[_, frame]| *frame).collect();
        assert_eq!(frames, WIDTHS, "{name}");
        for [content, frame] in shown.widths {
            assert!(
                content <= frame,
                "{name}: {content} pixels in a frame of {frame}"
            );
        }
    }
}
