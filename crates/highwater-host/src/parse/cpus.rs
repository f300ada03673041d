//! Sets of CPUs: lists such as `0-1,4-7`, and the lines `cpuN` of `/proc/stat`.

use super::{ParseError, number};

/// Highest CPU number that is believed. The kernel's own limit is 8,192 on x86-64.
const CPU_MAX: u64 = 1 << 20;

/// Returns the number of CPUs in a list such as `0-1,4-7`, the format of
/// `/sys/devices/system/cpu/online`.
///
/// # Errors
///
/// When a part of the list is no range of CPU numbers, or the list is empty.
pub fn cpu_list(text: &str) -> Result<u64, ParseError> {
    let mut cpus = 0_u64;
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: u64 = number(0, "first CPU", first)?;
        let last: u64 = number(0, "last CPU", last)?;
        if first > last || last > CPU_MAX {
            let message = format!("CPUs {first}-{last} are no range below {CPU_MAX}");
            return Err(ParseError::at(0, message));
        }
        cpus = cpus.saturating_add(last - first + 1);
    }
    Ok(cpus)
}

/// Returns the number of CPUs that have a line in `/proc/stat`: those that are online.
///
/// # Errors
///
/// When no line is of a CPU.
pub fn cpus_of_stat(text: &str) -> Result<u64, ParseError> {
    let is_cpu = |line: &&str| {
        let number = line.strip_prefix("cpu").unwrap_or_default();
        number.starts_with(|c: char| c.is_ascii_digit())
    };
    match text.lines().filter(is_cpu).count() {
        0 => Err(ParseError::at(0, "no line of a CPU")),
        cpus => Ok(cpus as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_cpus_are_counted() {
        assert_eq!(cpu_list("0\n").unwrap(), 1);
        assert_eq!(cpu_list("0-1\n").unwrap(), 2);
        assert_eq!(cpu_list("0-3,8,10-11").unwrap(), 7);
    }

    #[test]
    fn lists_that_are_no_ranges_are_refused() {
        for text in ["", "3-1", "0-", "a", "0,,1", "0-18446744073709551615"] {
            assert!(cpu_list(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_line_of_all_cpus_is_not_counted() {
        let stat = "cpu  1 2 3\ncpu0 1 2\ncpu17 1 2\nintr 5\n";
        assert_eq!(cpus_of_stat(stat).unwrap(), 2);
        assert!(cpus_of_stat("intr 5\n").is_err());
    }
}
