//! Tries of calls of io_uring that the system refuses, perhaps for a moment.

use std::io;
use std::time::Duration;

use crate::sync::thread;

/// Refusals after which a ring is given up, if they may pass. Chosen: the system is out of memory
/// for one request for less than ten milliseconds, or for good.
const TRIES: u32 = 10;

/// Tries again what the system refuses for a moment.
pub(super) struct RingTries(u32);

impl RingTries {
    pub(super) fn new() -> Self {
        Self(TRIES)
    }

    /// Returns, after a pause, whether to try again: the system had no memory for a request
    /// (EAGAIN), or no room for its completion (EBUSY). The caller holds no lock.
    pub(super) fn again(&mut self, error: &io::Error) -> bool {
        let may_pass = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY));
        if !may_pass || self.0 == 0 {
            return false;
        }
        self.0 -= 1;
        thread::sleep(Duration::from_millis(1));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: only refusals that may pass are tried again, and not for ever.
    #[test]
    fn refusals_that_may_pass_are_tried_again() {
        let mut tries = RingTries::new();
        let mut again = |errno| tries.again(&io::Error::from_raw_os_error(errno));
        assert!(!again(libc::EPERM));
        assert!((0..TRIES).all(|nth| again([libc::EAGAIN, libc::EBUSY][nth as usize % 2])));
        assert!(!again(libc::EAGAIN));
    }
}
