//! A log for columns that update pages in place: an update is durable when its record is.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater::WriteGate;

use super::workload::Writes;

/// Bytes of the log before it begins anew: recovery is not measured.
const LEN_MAX: u64 = 64 << 20;

/// A log file. An LSN is the number of bytes up to the end of a record.
#[derive(Debug)]
pub struct Log {
    writes: Writes,
    state: Mutex<LogState>,
    durable: AtomicU64,
}

#[derive(Debug)]
struct LogState {
    file: File,
    /// Records that were not written.
    pending: Vec<u8>,
    appended: u64,
    written: u64,
}

impl Log {
    pub fn new(file: File, writes: Writes) -> Self {
        Self {
            writes,
            state: Mutex::new(LogState {
                file,
                pending: Vec::new(),
                appended: 0,
                written: 0,
            }),
            durable: AtomicU64::new(0),
        }
    }

    /// Appends a record of an update, if updates become durable; returns its LSN.
    pub fn append(&self, page: u64, line: usize, value: u64) -> u64 {
        let mut state = self.state.lock().expect("no panic under the lock");
        if self.writes != Writes::Durably {
            return state.appended;
        }
        for word in [page, line as u64, value] {
            state.pending.extend_from_slice(&word.to_ne_bytes());
        }
        state.appended += 24;
        state.appended
    }

    /// Makes all records durable.
    pub fn commit(&self) -> io::Result<()> {
        let mut guard = self.state.lock().expect("no panic under the lock");
        let state = &mut *guard;
        if state.written + state.pending.len() as u64 > LEN_MAX {
            io::Seek::rewind(&mut state.file)?;
            state.written = 0;
        }
        state.file.write_all(&state.pending)?;
        state.file.sync_data()?;
        state.written += state.pending.len() as u64;
        state.pending.clear();
        self.durable.store(state.appended, Ordering::Release);
        Ok(())
    }
}

impl WriteGate for Log {
    fn durable_lsn(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    fn flush(&self, _up_to: u64) -> io::Result<()> {
        self.commit()
    }
}
