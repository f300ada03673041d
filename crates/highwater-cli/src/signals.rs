//! Signals that end a run: the first one sets a flag that is polled, the second ends the program.
//!
//! Applies to those of SIGINT, SIGTERM and SIGHUP that were not ignored when the program started:
//! `nohup` and shells that start a job in the background ignore some of them, and a handler would
//! undo that. SIGXFSZ, which the system sends when a file would exceed `ulimit -f`, is caught, so
//! that the write returns an error.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use highwater_lab::control::{Control, Stop};
use highwater_lab::replay::TenantConfig;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

/// Signals received so far.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    /// The signal, or 0. Written by: signal handlers. Read by: the thread that watches the run.
    /// Publishes: only itself.
    received: Arc<AtomicUsize>,
    stop: Stop,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    ///
    /// When the system refuses one.
    pub(crate) fn install() -> io::Result<Self> {
        let received = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        let stop = Stop::default();
        for signal in heeded(&[SIGINT, SIGTERM, SIGHUP]) {
            let number = usize::try_from(signal).map_err(io::Error::other)?;
            // Handlers run in the order of registration: the first to arrive finds the flag unset.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
            flag::register(signal, Arc::clone(&again))?;
            flag::register_usize(signal, Arc::clone(&received), number)?;
            flag::register(signal, stop.flag())?;
        }
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(Self { received, stop })
    }

    /// Returns the control of a run that ends at a signal.
    pub(crate) fn control(&self) -> Control {
        Control::stopped_by(self.stop.clone())
    }

    /// Lets a signal end the reading of these traces, also while a reader waits for a pipe.
    pub(crate) fn end_reading(&self, tenants: &mut [TenantConfig]) {
        for tenant in tenants {
            tenant.options.stop = self.stop.clone();
        }
    }

    /// Returns the signal that asked to end, if one did.
    pub(crate) fn received(&self) -> Option<u8> {
        // Relaxed: the number publishes no other data.
        match self.received.load(Ordering::Relaxed) {
            0 => None,
            signal => u8::try_from(signal).ok(),
        }
    }
}

/// Where signals came from: a terminal sends them to all processes in its foreground, so those that
/// this program started have them too.
#[derive(Debug)]
pub(crate) struct Origins(SignalsInfo<WithOrigin>);

impl Origins {
    /// Notes the origin of signals from now on.
    ///
    /// # Errors
    ///
    /// When the system refuses a handler.
    pub(crate) fn install() -> io::Result<Self> {
        Ok(Self(SignalsInfo::new(heeded(&[SIGINT, SIGHUP]))?))
    }

    /// Returns whether a terminal has sent one since the last call.
    pub(crate) fn is_from_terminal(&mut self) -> bool {
        self.0.pending().any(|origin| origin.cause == Cause::Kernel)
    }
}

/// Returns those of `signals` that this process does not ignore.
fn heeded(signals: &[i32]) -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored_mask(&status);
    let is_heeded = |signal: &&i32| ignored >> (**signal - 1) & 1 == 0;
    signals.iter().filter(is_heeded).copied().collect()
}

/// Returns the mask of ignored signals in `/proc/PID/status`, signal 1 in the lowest bit; 0 where
/// the file does not tell.
fn ignored_mask(status: &str) -> u64 {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
