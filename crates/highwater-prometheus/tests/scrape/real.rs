//! A real Prometheus scrapes a manager, where one is installed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use highwater::{Bytes, Limits};
use highwater_prometheus::ManagerCollector;
use prometheus_client::registry::Registry;
use serde_json::Value;

/// Ends the server with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Answers every request with the registry's page.
fn serve(listener: &TcpListener, registry: &Registry) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let _request = stream.read(&mut [0; 4096]).unwrap();
        let body = super::text(registry);
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0; \
                    charset=utf-8\r\nConnection: close\r\n";
        let length = body.len();
        // Prometheus hangs up when it ends.
        drop(write!(
            stream,
            "{head}Content-Length: {length}\r\n\r\n{body}"
        ));
    }
}

/// Returns the JSON of an answer, if the server answers.
fn ask(port: u16, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// Asks until `is_ready`, for at most 20 s.
fn ask_until(port: u16, path: &str, is_ready: impl Fn(&Value) -> bool) -> Value {
    let mut last = None;
    for _ in 0..200 {
        if let Some(answer) = ask(port, path) {
            if is_ready(&answer) {
                return answer;
            }
            last = Some(answer);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("Prometheus says of {path}: {last:?}");
}

#[test]
fn a_real_prometheus_scrapes_it() {
    let found = Command::new("prometheus").arg("--version").output();
    if found.is_err() {
        println!("not tested: no prometheus is installed; the strict parser reads every page");
        return;
    }
    let hw = super::manager();
    let odd = hw
        .root()
        .child("a \"b\\c\" Größe", Limits::max(Bytes::mib(8)))
        .unwrap();
    let work = odd.charge(Bytes::mib(3)).unwrap();
    assert!(odd.charge(Bytes::mib(64)).is_err());
    let registry = super::registry(ManagerCollector::new(&hw));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    std::thread::spawn(move || serve(&listener, &registry));

    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("prometheus.yml");
    let text = format!(
        "scrape_configs:\n- job_name: hw\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  \
         static_configs:\n  - targets: ['{target}']\n"
    );
    std::fs::write(&config, text).unwrap();
    // A free port; another process may take it first, then the server ends and the test fails.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let server = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            dir.path().join("data").display()
        ))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _server = Server(server.unwrap());

    let health = |answer: &Value| answer["data"]["activeTargets"][0]["health"].clone();
    let targets = ask_until(port, "/api/v1/targets", |it| {
        health(it) != "unknown" && !health(it).is_null()
    });
    let target = &targets["data"]["activeTargets"][0];
    assert_eq!(target["health"], "up", "{}", target["lastError"]);
    // The label came through, and the type is known.
    let series = "/api/v1/query?query=topk(1,-highwater_memory_max_bytes)";
    let is_there = |it: &Value| it["data"]["result"][0]["metric"]["group"] == "/a \"b\\c\" Größe";
    let max = ask_until(port, series, is_there);
    assert_eq!(max["data"]["result"][0]["value"][1], "-8388608");
    let types = ask_until(
        port,
        "/api/v1/metadata?metric=highwater_memory_events",
        |it| it["data"]["highwater_memory_events"].is_array(),
    );
    assert_eq!(
        types["data"]["highwater_memory_events"][0]["type"],
        "counter"
    );
    drop(work);
}
