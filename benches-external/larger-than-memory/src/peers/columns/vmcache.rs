//! vmcache, which `vmcache/build` makes a library of; the variable `VMCACHE` names it.

#![expect(unsafe_code, reason = "calls a C++ library")]

use std::fs::File;
use std::io::Write;
use std::path::Path;

use libloading::{Library, Symbol};

use super::super::PAGE;
use super::super::log::Log;
use super::{Config, LINE, Paged};
use crate::Error;

const LIBRARY: &str = "VMCACHE";
const FILE: &str = "vmcache";
/// Words of a line.
const WORDS: u64 = LINE as u64 / 8;
/// The word of a line that has the page's number, and the one that updates change. The first byte
/// of a page is vmcache's own.
const NUMBER: u64 = 2;
const CHANGED: u64 = 1;

/// Returns whether there is a library.
pub fn is_here() -> bool {
    std::env::var_os(LIBRARY).is_some()
}

/// Writes the data: zeros, but for the number of a page in each of its lines.
pub fn create(dir: &Path, pages: u64) -> Result<(), Error> {
    let mut file = File::create(dir.join(FILE))?;
    for page in 0..pages {
        let mut bytes = [0; PAGE];
        for line in bytes.chunks_exact_mut(LINE) {
            let at = 8 * NUMBER as usize;
            line[at..at + 8].copy_from_slice(&page.to_ne_bytes());
        }
        file.write_all(&bytes)?;
    }
    Ok(file.sync_all()?)
}

type Read = unsafe extern "C" fn(page: u64, word: u64) -> u64;
type Update = unsafe extern "C" fn(page: u64, word: u64, value: u64);

/// Its pool, of which a process has one.
pub struct Vmcache {
    read: Read,
    update: Update,
    log: Log,
    /// Has the functions.
    _library: Library,
}

impl Vmcache {
    pub fn open(config: &Config) -> Result<Box<dyn Paged>, Error> {
        let path = std::env::var_os(LIBRARY).ok_or("VMCACHE names no library")?;
        let file = config.dir.join(FILE);
        let virtual_gib = std::fs::metadata(&file)?.len().div_ceil(1 << 30);
        let pool_mib = config.cache() >> 20;
        // SAFETY: the process has one thread still.
        unsafe {
            std::env::set_var("BLOCK", &file);
            std::env::set_var("VIRTGB", virtual_gib.to_string());
            std::env::set_var("PHYSMB", pool_mib.to_string());
        }
        // SAFETY: `vmcache/build` has made it; its constructors open the file.
        let library = unsafe { Library::new(path)? };
        // SAFETY: the types are those of `vmcache/column.cpp`.
        let (read, update) = unsafe {
            let read: Symbol<'_, Read> = library.get(b"vmcache_read")?;
            let update: Symbol<'_, Update> = library.get(b"vmcache_update")?;
            (*read, *update)
        };
        Ok(Box::new(Self {
            read,
            update,
            log: Log::new(config.log()?, config.writes),
            _library: library,
        }))
    }
}

impl Paged for Vmcache {
    fn read(&mut self, page: u64, line: usize) -> Result<u64, Error> {
        // SAFETY: the page is one of the file, the word one of the page.
        Ok(unsafe { (self.read)(page, line as u64 * WORDS + NUMBER) })
    }

    fn update(&mut self, page: u64, line: usize, value: u64) -> Result<(), Error> {
        // SAFETY: as in `read`; the process has no other thread.
        unsafe { (self.update)(page, line as u64 * WORDS + CHANGED, value) };
        self.log.append(page, line, value);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        Ok(self.log.commit()?)
    }
}
