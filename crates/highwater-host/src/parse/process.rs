//! Files of a process: `stat`, `statm`, `status`, `smaps_rollup`, `oom_score_adj`.

use super::{ParseError, kilobytes, number};

/// Figures of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PidStat {
    /// Number of the process.
    pub pid: u32,
    /// Name of its program, at most 15 bytes; any characters.
    pub comm: String,
    /// Number of its threads.
    pub threads: u64,
    /// Size of its address space in bytes; 0 for threads of the kernel.
    pub vsize_bytes: u64,
    /// Field 24: resident pages by the kernel's cheap counter.
    pub rss_pages: u64,
}

/// Figures of `/proc/PID/statm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PidStatm {
    /// Size of the address space in pages.
    pub size_pages: u64,
    /// Resident pages: a sum over all CPUs on newer kernels, else the cheap counter.
    pub resident_pages: u64,
}

/// Figures of `/proc/PID/status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PidStatus {
    /// Number of threads.
    pub threads: u64,
    /// Swapped-out memory in KiB; 0 for threads of the kernel.
    pub vm_swap_kib: u64,
    /// Page tables in KiB; 0 for threads of the kernel.
    pub vm_pte_kib: u64,
}

/// Parses `/proc/PID/stat`. The name stands in parentheses and may itself hold blanks and
/// parentheses; the fields behind it have no names.
///
/// # Errors
///
/// When the name or a field is missing or no number.
pub fn stat(text: &str) -> Result<PidStat, ParseError> {
    let missing = || ParseError::at(0, "no name in parentheses");
    let (pid, rest) = text.split_once('(').ok_or_else(missing)?;
    let (comm, rest) = rest.rsplit_once(')').ok_or_else(missing)?;
    // The field behind the name is number 3, the state.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |name: &str, nr: usize| match fields.get(nr - 3) {
        Some(text) => number::<i64>(0, name, text),
        None => Err(ParseError::at(0, format!("no field {nr}, `{name}`"))),
    };
    // The kernel clamps at 0 what a race made negative; so does this.
    let count = |value: i64| u64::try_from(value).unwrap_or(0);
    let vsize: u64 = match fields.get(23 - 3) {
        Some(text) => number(0, "vsize", text)?,
        None => return Err(ParseError::at(0, "no field 23, `vsize`")),
    };
    Ok(PidStat {
        pid: number(0, "pid", pid)?,
        comm: comm.to_owned(),
        threads: count(field("num_threads", 20)?),
        vsize_bytes: vsize,
        rss_pages: count(field("rss", 24)?),
    })
}

/// Parses `/proc/PID/statm`: size, resident, shared and other pages.
///
/// # Errors
///
/// When one of the first two numbers is missing.
pub fn statm(text: &str) -> Result<PidStatm, ParseError> {
    let mut words = text.split_ascii_whitespace();
    let mut next = |name| number(0, name, words.next().unwrap_or_default());
    Ok(PidStatm {
        size_pages: next("size")?,
        resident_pages: next("resident")?,
    })
}

/// Parses `/proc/PID/status`.
///
/// # Errors
///
/// When a known line holds no number.
pub fn status(text: &str) -> Result<PidStatus, ParseError> {
    let mut found = PidStatus::default();
    for (index, line) in text.lines().enumerate() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim().trim_end_matches("kB");
        match name {
            "Threads" => found.threads = number(index, name, value)?,
            "VmSwap" => found.vm_swap_kib = number(index, name, value)?,
            "VmPTE" => found.vm_pte_kib = number(index, name, value)?,
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the resident KiB of `/proc/PID/smaps_rollup`: counted page by page, hence exact.
///
/// # Errors
///
/// When the line `Rss` is missing or holds no number.
pub fn rollup(text: &str) -> Result<u64, ParseError> {
    let missing = || ParseError::at(0, "no line `Rss`");
    kilobytes(text)?.get("Rss").ok_or_else(missing)
}

/// Parses `/proc/PID/oom_score_adj`.
///
/// # Errors
///
/// When it is no number from -1,000 to 1,000.
pub fn oom_score_adj(text: &str) -> Result<i32, ParseError> {
    let adjustment = number(0, "oom_score_adj", text)?;
    if (-1000..=1000).contains(&adjustment) {
        Ok(adjustment)
    } else {
        let message = format!("`oom_score_adj` is {adjustment}, not -1000 to 1000");
        Err(ParseError::at(0, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 6.18.
    const STAT: &str = "6436 (cat) R 6433 6433 32579 0 -1 4194304 103 0 0 0 0 0 0 0 20 0 1 0 \
        1473713 3133440 412 18446744073709551615 94583030861824 94583030881705 140722534879424 0 \
        0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 94583030897712 94583030899328 94584068382720 \
        140722534886025 140722534886104 140722534886104 140722534887403 0\n";

    #[test]
    fn stat_is_read_behind_the_name() {
        let found = stat(STAT).unwrap();
        assert_eq!((found.pid, found.threads), (6436, 1));
        assert_eq!((found.vsize_bytes, found.rss_pages), (3_133_440, 412));
        let odd = STAT.replacen("(cat)", "(a) b (c) R 1)", 1);
        let odd = stat(&odd).unwrap();
        assert_eq!((&*odd.comm, odd.rss_pages), ("a) b (c) R 1", 412));
    }

    #[test]
    fn a_truncated_stat_is_refused() {
        for text in ["", "1 (a", "1 (a) R", "x (a) R", &STAT[..70]] {
            assert!(stat(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_counter_below_zero_counts_as_zero() {
        let negative = STAT.replacen(" 412 ", " -3 ", 1);
        assert_eq!(stat(&negative).unwrap().rss_pages, 0);
    }

    #[test]
    fn statm_is_in_pages() {
        let found = statm("765 441 412 5 0 123 0\n").unwrap();
        assert_eq!((found.size_pages, found.resident_pages), (765, 441));
        assert!(statm("765\n").is_err() && statm("").is_err());
    }

    #[test]
    fn status_and_rollup_are_read_by_name() {
        let text = "Name:\tVmSwap: 7\nVmPTE:\t      48 kB\nVmSwap:\t      12 kB\nThreads:\t1\n";
        let found = status(text).unwrap();
        assert_eq!(
            (found.vm_pte_kib, found.vm_swap_kib, found.threads),
            (48, 12, 1)
        );
        assert_eq!(status("Name:\tx\nVmPTE:\tz kB\n").unwrap_err().line, 2);
        let text = "5605d3f4b000-7ffc84b43000 ---p 00000000 00:00 0  [rollup]\n\
                    Rss:                1764 kB\nPss:                 805 kB\n";
        assert_eq!(rollup(text).unwrap(), 1764);
        assert!(rollup("Pss: 805 kB\n").is_err());
    }

    #[test]
    fn adjustments_have_a_range() {
        assert_eq!(oom_score_adj("-1000\n").unwrap(), -1000);
        assert!(oom_score_adj("1001").is_err() && oom_score_adj("").is_err());
    }
}
