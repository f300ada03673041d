//! A file of the system. Only such files are read by io_uring; it does not misbehave.

use std::io::Write;
use std::sync::Arc;

use highwater::units::{FilePage, PAGE_SIZE};
use highwater::{Access, Backing, File, FileBacking, Manager};
use tempfile::NamedTempFile;

use super::model::{Begins, Model};

/// A file in a directory of the build, and its expected contents.
#[derive(Debug)]
pub(crate) struct SystemFile {
    named: NamedTempFile,
    model: Arc<Model>,
    /// Reads what is stored.
    reader: FileBacking,
    io: Io,
}

#[derive(Clone, Copy, Debug)]
enum Io {
    Direct,
    /// Where the file system has no direct I/O.
    Buffered,
}

impl SystemFile {
    /// Creates a file of so many words.
    pub(crate) fn new(id: u32, words: u64) -> Arc<Self> {
        let model = Arc::new(Model::new(id, words, PAGE_SIZE, Begins::Stamped));
        let named = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR"));
        let mut named = named.expect("the build's directory is writable");
        for page in 0..model.pages() {
            let bytes = &model.first(page)[..model.page_len(page)];
            named.write_all(bytes).expect("room for a small file");
        }
        let direct = FileBacking::open_direct(named.path(), Access::ReadOnly);
        let (reader, io) = match direct {
            Ok(reader) => (reader, Io::Direct),
            Err(error) => {
                eprintln!("skipped: no direct I/O in the build's directory: {error}");
                let file = named.reopen().expect("it is there");
                (
                    FileBacking::new(file).expect("a regular file"),
                    Io::Buffered,
                )
            }
        };
        Arc::new(Self {
            named,
            model,
            reader,
            io,
        })
    }

    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub(crate) fn open(&self, hw: &Manager, access: Access) -> File {
        let path = self.named.path();
        let opened = match (self.io, access) {
            (Io::Direct, Access::ReadOnly) => hw.open_direct(path),
            (Io::Direct, Access::ReadWrite) => hw.open_direct_writable(path),
            (Io::Buffered, Access::ReadOnly) => hw.open(path),
            (Io::Buffered, Access::ReadWrite) => hw.open_writable(path),
        };
        opened.expect("one file more")
    }

    /// Asserts that every stored word is of the given version of its page, or of a later one.
    pub(crate) fn assert_stored(&self, at_least: &[u32]) {
        let mut bytes = [0; PAGE_SIZE];
        for (page, &least) in (0..).zip(at_least) {
            let read = self.reader.read_page(FilePage(page), &mut bytes);
            let len = self.model.page_len(page);
            assert_eq!(read.expect("a page of the file"), len, "page {page}");
            self.model.assert_version(&bytes[..len], page, least);
        }
    }
}
