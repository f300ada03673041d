//! Files of a recording: their numbers in the trace, names, sizes and counts.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use highwater_host::accesses::{Access, FileKey, Found, Kind, Names};
use highwater_lab::trace::{FileId, FileNumber, Op, RecordingWriter, WriteError};

/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;

/// A size is not read again before so many ns of the trace have passed.
const SIZE_AGE_NS: u64 = 10_000_000;

/// Most tasks whose open files are searched for a file without a name.
const TASKS_OF_A_FILE: usize = 8;

/// Entries of directories that the search for names reads at the end.
const SCAN_BUDGET: usize = 200_000;

/// Entries of directories that are read before the recording. Chosen: some 50 ms.
const EXPECTED_BUDGET: usize = 20_000;

/// A file of the trace.
#[derive(Debug)]
pub(super) struct Traced {
    pub(super) key: FileKey,
    number: FileNumber,
    pub(super) path: Option<PathBuf>,
    /// Pages up to the file's end; `None` if the size is not known.
    pages: Option<u64>,
    size_time_ns: u64,
    /// Tasks that accessed it while it had no name.
    tasks: Vec<u32>,
    pub(super) read_pages: u64,
    pub(super) written_pages: u64,
}

/// All files of the trace.
#[derive(Debug, Default)]
pub(super) struct Files {
    files: Vec<Traced>,
    places: HashMap<FileKey, usize>,
    names: Names,
    /// Tasks whose files were learned since the last [`resolve`](Self::resolve).
    learned: Vec<u32>,
}

impl Files {
    /// Returns no files.
    pub(super) fn new() -> Self {
        Self {
            names: Names::of_mounts(),
            ..Self::default()
        }
    }

    /// Learns the files below these directories in advance: the processes of a command may end
    /// before their open files can be seen, and lookups of reads reach beyond a file's end.
    pub(super) fn expect(&mut self, roots: &[PathBuf]) {
        let mut budget = EXPECTED_BUDGET;
        for root in roots.iter().filter(|root| root.parent().is_some()) {
            self.names.learn_tree(root, &mut budget);
        }
    }

    /// Writes an access, cut at the file's end.
    pub(super) fn push<W: Write>(
        &mut self,
        writer: &mut RecordingWriter<W>,
        access: &Access,
        time_ns: u64,
    ) -> Result<(), WriteError> {
        let place = match self.places.get(&access.file) {
            Some(place) => *place,
            None => self.add(writer, access, time_ns)?,
        };
        let file = &mut self.files[place];
        if file.path.is_none()
            && file.tasks.len() < TASKS_OF_A_FILE
            && !file.tasks.contains(&access.task)
        {
            file.tasks.push(access.task);
        }
        let Some(count) = file.pages_before_end(access, time_ns) else {
            return Ok(());
        };
        let op = if access.kind.is_write() {
            file.written_pages += count;
            Op::Write
        } else {
            file.read_pages += count;
            Op::Read
        };
        writer.push(file.number, op, access.first, count)
    }

    /// Adds a file at its first access.
    fn add<W: Write>(
        &mut self,
        writer: &mut RecordingWriter<W>,
        access: &Access,
        time_ns: u64,
    ) -> Result<usize, WriteError> {
        let is_known = |found: &Found| size(&found.path, &access.file).is_some();
        let is_known = self.names.get(&access.file).is_some_and(is_known);
        // A name from before the recording may be that of a removed file with the same inode.
        if !is_known && !self.learned.contains(&access.task) {
            self.names.learn_task(access.task);
            self.learned.push(access.task);
        }
        let found = self.names.get(&access.file);
        let path = found.map(|found| found.path.clone());
        let bytes = path.as_deref().and_then(|path| size(path, &access.file));
        let bytes = bytes.or(found.and_then(|found| found.bytes));
        let pages = bytes.map(|bytes| bytes.div_ceil(PAGE_BYTES));
        let id = FileId {
            major: access.file.major,
            minor: access.file.minor,
            inode: access.file.inode,
        };
        let name = path.as_deref().map_or_else(String::new, shown);
        let number = writer.file(id, pages.unwrap_or(0), &name)?;
        let place = self.files.len();
        self.files.push(Traced {
            key: access.file,
            number,
            path,
            pages,
            size_time_ns: time_ns,
            tasks: Vec::new(),
            read_pages: 0,
            written_pages: 0,
        });
        self.places.insert(access.file, place);
        Ok(place)
    }

    /// Searches the open files of tasks for names that are missing.
    pub(super) fn resolve<W: Write>(&mut self, writer: &mut RecordingWriter<W>) {
        self.learned.clear();
        let unnamed = self.files.iter().filter(|file| file.path.is_none());
        let mut tasks: Vec<u32> = unnamed.flat_map(|file| file.tasks.clone()).collect();
        tasks.sort_unstable();
        tasks.dedup();
        for task in &tasks {
            self.names.learn_task(*task);
        }
        self.name_all(writer);
    }

    /// Searches these directories and those of named files for the names that are still missing.
    pub(super) fn scan<W: Write>(&mut self, writer: &mut RecordingWriter<W>, roots: &[PathBuf]) {
        self.resolve(writer);
        let named = self.files.iter().filter_map(|file| file.path.as_deref());
        // Next to the files that have names, first.
        let directories = named.filter_map(Path::parent).map(Path::to_owned);
        let roots = directories.chain(roots.iter().cloned());
        let roots: Vec<PathBuf> = roots.collect();
        let mut budget = SCAN_BUDGET;
        let mut scanned = Vec::new();
        for root in roots {
            let is_done = self.files.iter().all(|file| file.path.is_some());
            if is_done || budget == 0 {
                break;
            }
            // The root of the file system has too many files below it.
            if !scanned.contains(&root) && root.parent().is_some() {
                self.names.learn_tree(&root, &mut budget);
                self.name_all(writer);
                scanned.push(root);
            }
        }
    }

    fn name_all<W: Write>(&mut self, writer: &mut RecordingWriter<W>) {
        for file in self.files.iter_mut().filter(|file| file.path.is_none()) {
            if let Some(found) = self.names.get(&file.key) {
                writer.name(file.number, &shown(&found.path));
                file.path = Some(found.path.clone());
                let bytes = size(&found.path, &file.key).or(found.bytes);
                let known = bytes.map(|bytes| bytes.div_ceil(PAGE_BYTES));
                file.pages = file.pages.max(known);
                file.tasks = Vec::new();
            }
        }
    }

    /// Returns all files.
    pub(super) fn all(&self) -> &[Traced] {
        &self.files
    }
}

impl Traced {
    /// Returns the pages of an access that the file has: lookups of reads ask for as much as the
    /// program's buffer holds. `None` if it has none.
    fn pages_before_end(&mut self, access: &Access, time_ns: u64) -> Option<u64> {
        let end = access.first.saturating_add(access.count);
        if access.kind != Kind::Read {
            self.pages = self.pages.map(|pages| pages.max(end));
            return Some(access.count);
        }
        if self.pages.is_some_and(|pages| end > pages)
            && time_ns.saturating_sub(self.size_time_ns) >= SIZE_AGE_NS
        {
            self.size_time_ns = time_ns;
            let bytes = self.path.as_deref().and_then(|path| size(path, &self.key));
            let now = bytes.map(|bytes| bytes.div_ceil(PAGE_BYTES));
            self.pages = self.pages.max(now);
        }
        let count = end
            .min(self.pages.unwrap_or(end))
            .saturating_sub(access.first);
        (count > 0).then_some(count)
    }
}

/// Returns the size of a file in bytes, if it is still the one at this path.
fn size(path: &Path, key: &FileKey) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path).ok()?;
    (metadata.ino() == key.inode).then_some(metadata.len())
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
