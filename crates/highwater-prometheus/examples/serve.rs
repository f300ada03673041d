//! Serves the metrics of a manager that is at work: three tenants charge memory and meet their
//! limits. `cargo run -p highwater-prometheus --example serve [PORT]`, then
//! `curl localhost:9000`. Ends by itself after one request if PORT is 0.

#![expect(clippy::print_stdout, reason = "an example says its address")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use highwater::{Bytes, Limits, Manager};
use highwater_prometheus::ManagerCollector;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Charges and drops memory for ever; every fourth charge is above the limit.
fn work(hw: &Manager, name: &str, step: u64) -> Result<()> {
    let limits = Limits::max(Bytes::mib(3 * step));
    let tenant = hw.root().child(name, limits)?;
    std::thread::spawn(move || {
        for size in (1..=4).cycle() {
            let charge = tenant.charge(Bytes::mib(size * step));
            std::thread::sleep(Duration::from_millis(50));
            drop(charge);
        }
    });
    Ok(())
}

/// Answers one request with the page.
fn answer(stream: &TcpStream, registry: &Registry) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let head = BufReader::new(stream).lines();
    // Up to the empty line after the head.
    for line in head {
        if line?.is_empty() {
            break;
        }
    }
    let mut page = String::new();
    encode(&mut page, registry)?;
    let mut stream = stream;
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0; \
         charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    )?;
    Ok(())
}

fn main() -> Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "9000".into());
    let port: u16 = port
        .parse()
        .map_err(|_| format!("port `{port}` is not a number from 0 to 65535"))?;
    let hw = Manager::builder().capacity(Bytes::mib(64)).build()?;
    for (name, step) in [("web", 1), ("batch", 2), ("reports", 3)] {
        work(&hw, name, step)?;
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ManagerCollector::new(&hw)));
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("http://{}/metrics", listener.local_addr()?);
    for stream in listener.incoming() {
        if let Err(error) = answer(&stream?, &registry) {
            println!("a request failed: {error}");
        }
        if port == 0 {
            break;
        }
    }
    Ok(())
}
