//! Highwater: blocking faults, and faults in flight on one thread.

use std::path::Path;
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use highwater::{Bytes, Manager, Mapping, ReadPattern, ReadWait};

use super::{Column, DEPTH, check};
use crate::Error;

/// A manager with a mapping of the file, past the kernel's cache.
struct Pool {
    hw: Manager,
    map: Mapping,
}

impl Pool {
    fn new(path: &Path, memory: u64) -> Result<Self, Error> {
        let hw = Manager::builder().capacity(Bytes::mib(memory)).build()?;
        let file = hw.open_direct(path)?;
        let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
        map.set_read_pattern(ReadPattern::Random);
        Ok(Self { hw, map })
    }
}

/// One fault after the other, each of which blocks the thread.
pub struct Blocking(Pool);

impl Blocking {
    pub fn new(path: &Path, memory: u64) -> Result<Self, Error> {
        Ok(Self(Pool::new(path, memory)?))
    }
}

impl Column for Blocking {
    fn name(&self) -> &'static str {
        "Highwater, blocking"
    }

    fn read_until(&mut self, deadline: Instant, rng: &mut fastrand::Rng) -> Result<u64, Error> {
        let Pool { hw, map } = &self.0;
        let mut reads = 0;
        while Instant::now() < deadline {
            let page = rng.u64(0..map.pages());
            check(page, map.read(&hw.enter(), page)?);
            reads += 1;
        }
        Ok(reads)
    }
}

/// Faults in flight.
pub struct InFlight(Pool);

impl InFlight {
    pub fn new(path: &Path, memory: u64) -> Result<Self, Error> {
        Ok(Self(Pool::new(path, memory)?))
    }
}

impl Column for InFlight {
    fn name(&self) -> &'static str {
        "Highwater, 64 faults in flight"
    }

    fn read_until(&mut self, deadline: Instant, rng: &mut fastrand::Rng) -> Result<u64, Error> {
        let Pool { hw, map } = &self.0;
        let mut next = || (Instant::now() < deadline).then(|| rng.u64(0..map.pages()));
        let mut slots: Vec<Option<(u64, Pin<Box<ReadWait>>)>> = Vec::new();
        slots.resize_with(DEPTH, || None);
        let mut reads = 0;
        let all = std::future::poll_fn(|context| {
            let mut are_empty = true;
            for slot in &mut slots {
                // A resident page is there at once: the slot takes the next.
                loop {
                    let (page, read) = match slot {
                        Some(read) => read,
                        None => match next() {
                            Some(page) => slot.insert((page, Box::pin(map.read_async(page)))),
                            None => break,
                        },
                    };
                    match read.as_mut().poll(context) {
                        Poll::Ready(read) => check(*page, &read?[..]),
                        Poll::Pending => break,
                    }
                    reads += 1;
                    *slot = None;
                }
                are_empty &= slot.is_none();
            }
            match are_empty {
                true => Poll::Ready(Ok::<(), Error>(())),
                false => Poll::Pending,
            }
        });
        hw.block_on(all)?;
        Ok(reads)
    }
}
