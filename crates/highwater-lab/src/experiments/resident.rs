//! The resident memory of this process, by the system's exact count.

use std::fs;

/// Returns the resident memory of this process, in bytes; `None` where the system does not tell.
pub(super) fn process_rss_bytes() -> Option<u64> {
    bytes_of(&rollup()?, "Rss:")
}

/// Returns the resident memory of this process that no file backs, in bytes; `None` where the
/// system does not tell. The rest grows by 64 KiB when code that was reclaimed runs again.
pub(super) fn process_anonymous_bytes() -> Option<u64> {
    bytes_of(&rollup()?, "Anonymous:")
}

fn rollup() -> Option<String> {
    fs::read_to_string("/proc/self/smaps_rollup").ok()
}

/// Returns the bytes in the line of that name of a text of `smaps_rollup`.
fn bytes_of(rollup: &str, name: &str) -> Option<u64> {
    let kb = rollup.lines().find_map(|line| line.strip_prefix(name))?;
    let kb: u64 = kb.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kb << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_count_is_read() {
        let rollup = "00400000-7ffc rollup\nRss:    1234 kB\nPss:  99 kB\nAnonymous:   7 kB\n";
        assert_eq!(bytes_of(rollup, "Rss:"), Some(1234 << 10));
        assert_eq!(bytes_of(rollup, "Anonymous:"), Some(7 << 10));
        assert_eq!(bytes_of("Rss: much", "Rss:"), None);
    }
}
