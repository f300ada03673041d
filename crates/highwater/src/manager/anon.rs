//! Memory without a file: anonymous mappings and shared memory.
//!
//! Both are objects like files, with pages that begin as zeros and go to the manager's swap area when they
//! are taken back ([`Builder::swap`](super::Builder::swap)). Without one, or when it is full, what was written stays in
//! memory; what was only read can go. An object ends with its last handle or mapping: its pages and slots
//! are free then, without I/O.

use thiserror::Error;

use super::file::File;
use super::mapping::Mapping;
use super::space::Space;
use super::{Handle, Manager};
use crate::cache::{FileKind, TooManyFiles};
use crate::units::Pages;

/// Memory without a file could not be had.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The object has more pages than can be named.
    #[error("memory of {pages} is too large: at most {max} at once")]
    TooLarge {
        /// What was asked for.
        pages: Pages,
        /// The most.
        max: Pages,
    },
    /// Too many files are open.
    #[error(transparent)]
    TooMany(#[from] TooManyFiles),
}

impl Space {
    /// Maps memory that nobody else sees: zeros, until they are written to. It is charged page by page as it is
    /// first read or written, by [`Mapping::read_latched`] and [`Mapping::write`].
    ///
    /// # Cost
    ///
    /// 16 bytes for each 512 pages, and 2 KiB for those of which some were swapped out.
    ///
    /// # Errors
    ///
    /// For more than [`Manager::MEMORY_MAX`], or when too many files are open.
    pub fn map_anon(&self, pages: Pages) -> Result<Mapping, MemoryError> {
        let memory = open(self.shared(), pages, FileKind::Anon)?;
        Ok(Mapping::new(memory, self.clone(), 0..pages.0))
    }
}

impl Manager {
    /// The most pages of one anonymous mapping, or of one piece of shared memory: 16 TiB.
    pub const MEMORY_MAX: Pages = Pages(1 << 32);

    /// Makes memory that many spaces can map ([`Space::map_file`]): zeros, until they are written to.
    ///
    /// # Cost
    ///
    /// As [`Space::map_anon`].
    ///
    /// # Errors
    ///
    /// As [`Space::map_anon`].
    pub fn shared_memory(&self, pages: Pages) -> Result<File, MemoryError> {
        open(&self.shared, pages, FileKind::Shmem)
    }
}

fn open(shared: &Handle, pages: Pages, kind: FileKind) -> Result<File, MemoryError> {
    let max = Manager::MEMORY_MAX;
    if pages > max {
        return Err(MemoryError::TooLarge { pages, max });
    }
    shared.core.reap_closing();
    let entry = shared.core.cache.open_memory(pages, kind)?;
    Ok(File::new(shared, entry))
}
