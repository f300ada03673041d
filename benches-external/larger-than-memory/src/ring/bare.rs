//! A bare io_uring loop: reads into buffers of its own, and nothing else.

#![expect(unsafe_code, reason = "the system writes to its buffers")]

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};

use super::{Column, DEPTH, PAGE, check};
use crate::Error;

pub struct Bare {
    ring: IoUring,
    file: File,
    pages: u64,
    /// One buffer for each read in flight.
    buffers: *mut u8,
}

impl Bare {
    pub fn new(file: File, pages: u64) -> Result<Self, Error> {
        // The mode for one thread, if the kernel has it.
        let mut builder = IoUring::builder();
        let alone = builder.setup_single_issuer().setup_defer_taskrun();
        let ring = alone
            .build(DEPTH as u32)
            .or_else(|_| IoUring::new(DEPTH as u32))?;
        let layout = Layout::from_size_align(DEPTH * PAGE, PAGE)?;
        // SAFETY: the layout has a size.
        let buffers = unsafe { alloc_zeroed(layout) };
        if buffers.is_null() {
            handle_alloc_error(layout);
        }
        Ok(Self {
            ring,
            file,
            pages,
            buffers,
        })
    }

    fn queue(&mut self, slot: usize, page: u64) -> Result<(), Error> {
        // SAFETY: a slot's offset is within the buffers.
        let buffer = unsafe { self.buffers.add(slot * PAGE) };
        let entry = opcode::Read::new(types::Fd(self.file.as_raw_fd()), buffer, PAGE as u32)
            .offset(page * PAGE as u64)
            .build()
            .user_data(slot as u64);
        // SAFETY: the buffer is never freed, and no other read in flight has it.
        unsafe { self.ring.submission().push(&entry)? };
        Ok(())
    }
}

impl Column for Bare {
    fn name(&self) -> &'static str {
        "bare io_uring, depth 64"
    }

    fn read_until(&mut self, deadline: Instant, rng: &mut fastrand::Rng) -> Result<u64, Error> {
        let (mut reads, mut in_flight) = (0, DEPTH);
        let mut pages = vec![0; DEPTH];
        for (slot, page) in pages.iter_mut().enumerate() {
            *page = rng.u64(0..self.pages);
            self.queue(slot, *page)?;
        }
        while in_flight > 0 {
            self.ring.submit_and_wait(1)?;
            let ended: Vec<_> = self.ring.completion().collect();
            let is_over = Instant::now() >= deadline;
            for entry in ended {
                let slot = entry.user_data() as usize;
                assert_eq!(entry.result(), PAGE as i32, "a whole page");
                // SAFETY: the read of this buffer has ended.
                let bytes =
                    unsafe { std::slice::from_raw_parts(self.buffers.add(slot * PAGE), PAGE) };
                check(pages[slot], bytes);
                reads += 1;
                if is_over {
                    in_flight -= 1;
                } else {
                    pages[slot] = rng.u64(0..self.pages);
                    self.queue(slot, pages[slot])?;
                }
            }
        }
        Ok(reads)
    }
}
