//! Files of a name and a number in each line: `vmstat`, `meminfo`, `memory.stat` and the like.

use std::collections::HashMap;

use super::{ParseError, number};

/// Values by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    by_name: HashMap<String, u64>,
}

impl Counters {
    /// Returns the value of `name`, if the file has such a line.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.by_name.get(name).copied()
    }

    /// Returns the sum of those of `names` that exist, or `None` if none does.
    #[must_use]
    pub fn sum(&self, names: &[&str]) -> Option<u64> {
        let mut found = names.iter().filter_map(|name| self.get(name)).peekable();
        found.peek()?;
        Some(found.fold(0, u64::saturating_add))
    }

    /// Returns the sum of all values whose names start with `prefix`, or `None` if none does.
    #[must_use]
    pub fn sum_of_prefix(&self, prefix: &str) -> Option<u64> {
        let of_prefix = |(name, _): &(&String, &u64)| name.starts_with(prefix);
        let mut found = self.by_name.iter().filter(of_prefix).peekable();
        found.peek()?;
        Some(found.fold(0, |sum, (_, value)| sum.saturating_add(*value)))
    }

    /// Returns how much each value has grown since `before`; a value that fell counts as 0.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let grown = |(name, value): (&String, &u64)| {
            let was = before.get(name).unwrap_or(0);
            (name.clone(), value.saturating_sub(was))
        };
        Self {
            by_name: self.by_name.iter().map(grown).collect(),
        }
    }

    /// Returns the number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns whether there is no name.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}

/// Parses lines of a name and a number: `/proc/vmstat`, `memory.stat`, `memory.events`,
/// `cgroup.stat`. A name that repeats keeps its first value.
///
/// # Errors
///
/// When a line has no number after its name. Lines of a name alone or of more words are skipped.
pub fn counters(text: &str) -> Result<Counters, ParseError> {
    let mut by_name = HashMap::with_capacity(text.len() / 24);
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_ascii_whitespace();
        let (Some(name), Some(value), None) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let value = number(index, name, value)?;
        by_name.entry(name.to_owned()).or_insert(value);
    }
    Ok(Counters { by_name })
}

/// Parses lines such as `MemTotal:  24576 kB`, as in `/proc/meminfo`. The values are in KiB.
///
/// # Errors
///
/// When a value in kB is no number. Lines without `kB` are skipped.
pub fn kilobytes(text: &str) -> Result<Counters, ParseError> {
    let mut by_name = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let Some(value) = value.trim_end().strip_suffix("kB") else {
            continue;
        };
        let value = number(index, name, value)?;
        by_name.entry(name.trim().to_owned()).or_insert(value);
    }
    Ok(Counters { by_name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vmstat_is_read_by_name() {
        let text = "pgscan_kswapd 5\nallocstall_dma 1\nallocstall_movable 3\nnr_dirty 0\n";
        let vmstat = counters(text).unwrap();
        assert_eq!(vmstat.len(), 4);
        assert_eq!(vmstat.get("pgscan_kswapd"), Some(5));
        assert_eq!(vmstat.get("pgscan"), None);
        assert_eq!(vmstat.sum(&["pgscan_kswapd", "absent"]), Some(5));
        assert_eq!(vmstat.sum(&["absent"]), None);
        assert_eq!(vmstat.sum_of_prefix("allocstall_"), Some(4));
        assert_eq!(vmstat.sum_of_prefix("absent"), None);
    }

    #[test]
    fn growth_is_never_negative() {
        let before = counters("a 5\nb 9\n").unwrap();
        let after = counters("b 7\na 8\nc 2\n").unwrap();
        let grown = after.since(&before);
        assert_eq!(
            ["a", "b", "c"].map(|name| grown.get(name)),
            [3, 0, 2].map(Some)
        );
    }

    #[test]
    fn a_wrong_number_names_its_line() {
        let error = counters("a 1\npgscan_kswapd x\n").unwrap_err();
        assert_eq!(error.line, 2);
        assert!(error.to_string().contains("pgscan_kswapd"), "{error}");
        assert_eq!(
            kilobytes("MemTotal: 5 kB\nMemFree: -1 kB\n")
                .unwrap_err()
                .line,
            2
        );
    }

    #[test]
    fn meminfo_is_in_kilobytes() {
        let meminfo = kilobytes("MemTotal:  24622120 kB\nHugePages_Total:   7\n").unwrap();
        assert_eq!(meminfo.get("MemTotal"), Some(24_622_120));
        assert_eq!(meminfo.get("HugePages_Total"), None);
    }
}
