//! Highwater, past the kernel's cache: one access after the other, and several in flight on the
//! same thread.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use hdrhistogram::Histogram;
use highwater::frame::Tunables;
use highwater::{Background, Bytes, Manager, Mapping};

use super::super::COMMIT;
use super::super::log::Log;
use super::super::workload::{Accesses, PageAccess, Writes};
use super::{Config, Paged, change, word_of};
use crate::{Error, number};

/// A manager whose pages, books and program fit the limit, and a mapping of the file.
struct Pool {
    hw: Manager,
    map: Mapping,
    log: Arc<Log>,
    writes: Writes,
}

impl Pool {
    fn open(config: &Config) -> Result<Self, Error> {
        // Pages are written when they are evicted, and seldom before: as by vmcache, and by the
        // kernel, whose limits of dirty pages are parts of all memory (cgroup v1).
        let tunables = Tunables::default().with("dirty_ratio", 95)?;
        let hw = Manager::builder()
            .capacity(Bytes(config.cache()))
            .background(Background::Thread)
            .build()?;
        hw.set_tunables(tunables.with("dirty_background_ratio", 80)?);
        let log = Arc::new(Log::new(config.log()?, config.writes));
        let file = match config.writes {
            Writes::Never => hw.open_direct(config.pages())?,
            Writes::Lazily | Writes::Durably => hw.open_direct_writable(config.pages())?,
        };
        if config.writes == Writes::Durably {
            file.set_write_gate(log.clone());
        }
        let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
        Ok(Self {
            hw,
            map,
            log,
            writes: config.writes,
        })
    }

    /// Changes a latched page, and its log record before.
    fn change(&self, bytes: &mut [u8], (page, line, value): (u64, usize, u64)) -> u64 {
        change(bytes, line, value);
        self.log.append(page, line, value)
    }
}

/// One access after the other.
pub struct Blocking(Pool);

impl Blocking {
    pub fn open(config: &Config) -> Result<Box<dyn Paged>, Error> {
        Ok(Box::new(Self(Pool::open(config)?)))
    }
}

impl Paged for Blocking {
    fn read(&mut self, page: u64, line: usize) -> Result<u64, Error> {
        let Pool { hw, map, .. } = &self.0;
        Ok(match self.0.writes {
            Writes::Never => word_of(map.read(&hw.enter(), page)?, line),
            Writes::Lazily | Writes::Durably => word_of(&map.read_latched(page)?, line),
        })
    }

    fn update(&mut self, page: u64, line: usize, value: u64) -> Result<(), Error> {
        let mut write = self.0.map.write(page)?;
        let lsn = self.0.change(&mut write, (page, line, value));
        if self.0.writes == Writes::Durably {
            write.set_lsn(lsn);
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        Ok(self.0.log.commit()?)
    }
}

/// `IN_FLIGHT` accesses at a time.
pub struct InFlight(Pool);

impl InFlight {
    pub fn open(config: &Config) -> Result<Box<dyn Paged>, Error> {
        Ok(Box::new(Self(Pool::open(config)?)))
    }
}

/// Makes one access.
async fn access(pool: &Pool, access: PageAccess, value: u64) -> Result<(), Error> {
    let PageAccess {
        page,
        line,
        is_update,
    } = access;
    let map = &pool.map;
    if is_update {
        let mut write = map.write_async(page).await?;
        let lsn = pool.change(&mut write, (page, line, value));
        if pool.writes == Writes::Durably {
            write.set_lsn(lsn);
        }
        return Ok(());
    }
    let word = match pool.writes {
        Writes::Never => word_of(&map.read_async(page).await?, line),
        Writes::Lazily | Writes::Durably => word_of(&map.read_latched_async(page).await?, line),
    };
    assert_eq!(word, page, "page {page}");
    Ok(())
}

/// An access in flight.
struct Slot<'a> {
    begun: Instant,
    is_update: bool,
    future: Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>,
}

impl Paged for InFlight {
    fn read(&mut self, _: u64, _: usize) -> Result<u64, Error> {
        unreachable!("accesses are made by `run`")
    }

    fn update(&mut self, _: u64, _: usize, _: u64) -> Result<(), Error> {
        unreachable!("accesses are made by `run`")
    }

    fn commit(&mut self) -> Result<(), Error> {
        Ok(self.0.log.commit()?)
    }

    fn run(
        &mut self,
        accesses: &mut Accesses,
        deadline: Instant,
        latency: &mut Histogram<u64>,
    ) -> Result<(), Error> {
        let pool = &self.0;
        let mut slots: Vec<Option<Slot<'_>>> = Vec::new();
        slots.resize_with(number("IN_FLIGHT", 16)? as usize, || None);
        let mut updates = 0;
        let mut begin = || {
            let begun = Instant::now();
            (begun < deadline).then(|| {
                let next = accesses.next();
                Slot {
                    begun,
                    is_update: next.is_update,
                    future: Box::pin(access(pool, next, 1)),
                }
            })
        };
        let all = std::future::poll_fn(|context| {
            let mut are_empty = true;
            for slot in &mut slots {
                // A resident page is there at once: the slot takes the next access.
                loop {
                    let flying = match slot {
                        Some(flying) => flying,
                        None => match begin() {
                            Some(new) => slot.insert(new),
                            None => break,
                        },
                    };
                    match flying.future.as_mut().poll(context) {
                        Poll::Ready(done) => done?,
                        Poll::Pending => break,
                    }
                    if flying.is_update {
                        updates += 1;
                        if pool.writes == Writes::Durably && updates % COMMIT == 0 {
                            pool.log.commit()?;
                        }
                    }
                    latency.saturating_record(flying.begun.elapsed().as_nanos() as u64);
                    *slot = None;
                }
                are_empty &= slot.is_none();
            }
            match are_empty {
                true => Poll::Ready(Ok::<(), Error>(())),
                false => Poll::Pending,
            }
        });
        pool.hw.block_on(all)
    }
}
