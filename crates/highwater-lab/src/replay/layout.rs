//! The layout of direct data files, before the run.
//!
//! A page that is laid out at its first read waits for the device twice more than a page that is in
//! the file, which is what a replay is to measure. So the trace is read once in advance, and each
//! page that it touches is written into the file, through the kernel's cache, which is then told to
//! write it out and to drop it. A trace that can be read only once, such as standard input, is laid
//! out as it runs.
//!
//! Invariant: afterwards the kernel caches nothing of the file that it can drop.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use highwater::units::{PAGE_BYTES, PAGE_SIZE};
use rustix::fs::{Advice, fadvise};

use super::backing::TenantFile;
use super::config::DataIo;
use super::content::is_hole;
use super::error::ReplayError;
use super::schedule::{self, Source};
use super::setup::{Replay, open_trace};
use super::{TenantConfig, TraceInput};
use crate::control::Control;

/// Pages between two calls that write them out. Chosen: 16 MiB of dirty pages at most.
const PAGES_AT_ONCE: u64 = 4096;

/// Lays out the files of all tenants that are direct and whose traces can be read again.
pub(super) fn lay_out(run: &Replay, control: &Control) -> Result<(), ReplayError> {
    for (tenant, config) in run.tenants.iter().zip(&run.config.tenants) {
        if tenant.data.io() == DataIo::Direct && can_be_read_again(&config.trace) {
            lay_out_trace(run, config, &tenant.data, control)?;
        }
    }
    Ok(())
}

fn can_be_read_again(trace: &TraceInput) -> bool {
    match trace {
        TraceInput::File(path) => fs::metadata(path).is_ok_and(|found| found.is_file()),
        TraceInput::StandardInput => false,
        TraceInput::Embedded { .. } => true,
    }
}

fn lay_out_trace(
    run: &Replay,
    config: &TenantConfig,
    data: &TenantFile,
    control: &Control,
) -> Result<(), ReplayError> {
    let reader = open_trace(config)?;
    let dir = &run.config.dir;
    let pages = data.nr_pages();
    let source = [Source::new(config.name.clone(), pages, reader, dir.clone())];
    let failed = |source| ReplayError::Directory {
        dir: dir.clone(),
        source,
    };
    let mut layout = Layout::new(data).map_err(failed)?;
    // The bytes of the trace are counted when it is replayed.
    let uncounted = Control::default();
    // With one source, nothing is drawn.
    let mut rng = fastrand::Rng::with_seed(0);
    let mut batch = Vec::new();
    while schedule::next_batch(&source, &uncounted, &mut rng, &mut batch)?.is_some() {
        for access in &batch {
            if control.is_stopped() {
                return Err(ReplayError::Interrupted);
            }
            for page in access.first..access.first + access.count {
                layout.add(page).map_err(failed)?;
            }
        }
    }
    layout.write_out().map_err(failed)
}

/// A data file through the kernel's cache.
struct Layout<'a> {
    data: &'a TenantFile,
    file: File,
    page: Vec<u8>,
    nr_unwritten: u64,
}

impl<'a> Layout<'a> {
    fn new(data: &'a TenantFile) -> io::Result<Self> {
        let path = format!("/proc/self/fd/{}", data.file().as_raw_fd());
        Ok(Self {
            data,
            file: OpenOptions::new().read(true).write(true).open(path)?,
            page: vec![0; PAGE_SIZE],
            nr_unwritten: 0,
        })
    }

    /// Lays out a page if it is a hole.
    fn add(&mut self, page: u64) -> io::Result<()> {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, page * PAGE_BYTES)?;
        if !is_hole(&word) {
            return Ok(());
        }
        self.data.stamp(page, 0).fill(&mut self.page);
        self.file.write_all_at(&self.page, page * PAGE_BYTES)?;
        self.data.note_laid_out();
        self.nr_unwritten += 1;
        if self.nr_unwritten == PAGES_AT_ONCE {
            self.write_out()?;
        }
        Ok(())
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.nr_unwritten = 0;
        self.file.sync_data()?;
        Ok(fadvise(&self.file, 0, None, Advice::DontNeed)?)
    }
}
