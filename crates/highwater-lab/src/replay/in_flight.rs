//! Accesses with several reads in flight on each thread.
//!
//! Each thread runs its part of the access loop as one future. A page of an immutable file that is
//! resident is accessed as usual; one that is not is read asynchronously, while the thread goes on
//! with the next access, until as many reads are in flight as the configuration says. Then it waits
//! for one of them. Accesses to writable files block, as with one read in flight.
//!
//! Counts mean the same: an access that does not find its page resident is a miss. So the accesses
//! that a thread makes to a page while it is in flight are misses, too. The latency of a miss is
//! the time until the thread has the page.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use fastrand::Rng;
use highwater::ReadWait;

use super::engine::{Worker, access_failed};
use super::error::ReplayError;
use super::latency::Seen;
use super::schedule::{self, Access};
use super::setup::boxed;
use crate::trace::Op;

/// A read in flight.
struct Flying {
    tenant: usize,
    page: u64,
    start: Instant,
    read: Pin<Box<ReadWait>>,
}

impl Worker<'_> {
    /// As `work`, with up to `max` reads in flight.
    pub(super) async fn work_in_flight(
        &mut self,
        index: usize,
        max: usize,
    ) -> Result<(), ReplayError> {
        let mut rng = Rng::with_seed(self.run.manifest.seed.wrapping_add(index as u64));
        let (mut batch, mut flying) = (Vec::new(), Vec::new());
        let (sources, control) = (&self.run.sources, self.control);
        while let Some(tenant) = schedule::next_batch(sources, control, &mut rng, &mut batch)? {
            let before = self.counts.tallies[tenant].page_accesses;
            for access in &batch {
                self.access_in_flight(tenant, *access, max, &mut flying)
                    .await?;
            }
            let accesses = self.counts.tallies[tenant].page_accesses - before;
            control.count_accesses(accesses);
        }
        while !flying.is_empty() {
            self.land_some(&mut flying).await?;
        }
        Ok(())
    }

    async fn access_in_flight(
        &mut self,
        index: usize,
        access: Access,
        max: usize,
        flying: &mut Vec<Flying>,
    ) -> Result<(), ReplayError> {
        let tenant = &self.run.tenants[index];
        if tenant.versions.is_some() || access.op == Op::Write {
            return self.access(index, access);
        }
        let before = self.counts.tallies[index];
        self.counts.tallies[index].requests += 1;
        for page in access.first..access.first + access.count {
            if self.control.is_stopped() {
                return Err(ReplayError::Interrupted);
            }
            let is_hit = self.read_resident(tenant, page);
            let tally = &mut self.counts.tallies[index];
            tally.page_accesses += 1;
            tally.hits += u64::from(is_hit);
            if is_hit {
                continue;
            }
            flying.push(Flying {
                tenant: index,
                page,
                start: Instant::now(),
                read: Box::pin(tenant.mapping.read_async(page)),
            });
            // Its first poll asks for the page.
            let last = flying.len() - 1;
            let asked = poll_fn(|context| Poll::Ready(self.poll(&mut flying[last], context)));
            if asked.await?.is_ready() {
                flying.pop();
            }
            if flying.len() >= max {
                self.land_some(flying).await?;
            }
        }
        self.counts.count_file(index, access.file, before);
        Ok(())
    }

    /// Waits until a read has ended.
    async fn land_some(&mut self, flying: &mut Vec<Flying>) -> Result<(), ReplayError> {
        poll_fn(|context| {
            let before = flying.len();
            let mut result = Ok(());
            flying.retain_mut(|flying| match self.poll(flying, context) {
                Ok(polled) => polled.is_pending(),
                Err(error) => {
                    result = Err(error);
                    false
                }
            });
            if flying.len() == before {
                return Poll::Pending;
            }
            Poll::Ready(result)
        })
        .await
    }

    /// Polls a read; verifies its page once it is there.
    fn poll(
        &mut self,
        flying: &mut Flying,
        context: &mut Context<'_>,
    ) -> Result<Poll<()>, ReplayError> {
        let Flying {
            tenant,
            page,
            start,
            read,
        } = flying;
        let Poll::Ready(read) = read.as_mut().poll(context) else {
            return Ok(Poll::Pending);
        };
        let tenant = &self.run.tenants[*tenant];
        let read = read.map_err(|e| access_failed(tenant, Op::Read, *page, boxed(e)))?;
        self.latencies.record(start.elapsed(), Seen::Miss);
        self.verify(tenant, tenant.data.stamp(*page, 0), &read[..]);
        Ok(Poll::Ready(()))
    }
}
