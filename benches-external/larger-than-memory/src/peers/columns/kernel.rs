//! The kernel's page cache: `pread` and `mmap`.

#![expect(unsafe_code, reason = "maps a file")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use memmap2::{Advice as MapAdvice, MmapMut, MmapOptions};
use rustix::fs::fadvise;

use super::super::PAGE;
use super::super::log::Log;
use super::{Config, Paged, change, word_of};
use crate::Error;

/// What the kernel is told of the order of accesses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    Normal,
    Random,
}

fn open(config: &Config) -> Result<File, Error> {
    Ok(OpenOptions::new()
        .read(true)
        .write(true)
        .open(config.pages())?)
}

/// A system call for each access.
pub struct Pread {
    file: File,
    log: Log,
    page: Box<[u8; PAGE]>,
}

impl Pread {
    pub fn open(config: &Config, advice: Advice) -> Result<Box<dyn Paged>, Error> {
        let file = open(config)?;
        if advice == Advice::Random {
            fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
        }
        let (log, page) = (Log::new(config.log()?, config.writes), Box::new([0; PAGE]));
        Ok(Box::new(Self { file, log, page }))
    }
}

impl Paged for Pread {
    fn read(&mut self, page: u64, line: usize) -> Result<u64, Error> {
        let at = page * PAGE as u64;
        self.file.read_exact_at(&mut self.page[..], at)?;
        Ok(word_of(&self.page[..], line))
    }

    fn update(&mut self, page: u64, line: usize, value: u64) -> Result<(), Error> {
        self.read(page, line)?;
        change(&mut self.page[..], line, value);
        self.log.append(page, line, value);
        let at = page * PAGE as u64;
        Ok(self.file.write_all_at(&self.page[..], at)?)
    }

    fn commit(&mut self) -> Result<(), Error> {
        Ok(self.log.commit()?)
    }
}

/// A mapping.
pub struct Mmap {
    map: MmapMut,
    log: Log,
}

impl Mmap {
    pub fn open(config: &Config, advice: Advice) -> Result<Box<dyn Paged>, Error> {
        let file = open(config)?;
        // SAFETY: no other process changes the file meanwhile.
        let map = unsafe { MmapOptions::new().map_mut(&file)? };
        if advice == Advice::Random {
            map.advise(MapAdvice::Random)?;
        }
        let log = Log::new(config.log()?, config.writes);
        Ok(Box::new(Self { map, log }))
    }

    fn page(&mut self, page: u64) -> &mut [u8] {
        let at = page as usize * PAGE;
        &mut self.map[at..at + PAGE]
    }
}

impl Paged for Mmap {
    fn read(&mut self, page: u64, line: usize) -> Result<u64, Error> {
        Ok(word_of(self.page(page), line))
    }

    fn update(&mut self, page: u64, line: usize, value: u64) -> Result<(), Error> {
        change(self.page(page), line, value);
        self.log.append(page, line, value);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        Ok(self.log.commit()?)
    }
}
