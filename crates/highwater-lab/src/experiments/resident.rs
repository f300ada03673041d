//! The resident memory of this process, by the system's exact count.

use std::fs;

/// Returns the resident memory of this process, in bytes; `None` where the system does not tell.
pub(super) fn process_rss_bytes() -> Option<u64> {
    rss_bytes(&fs::read_to_string("/proc/self/smaps_rollup").ok()?)
}

/// Returns the resident bytes that a text of `smaps_rollup` states.
fn rss_bytes(rollup: &str) -> Option<u64> {
    let kb = rollup.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    let kb: u64 = kb.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kb << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_count_is_read() {
        let rollup = "00400000-7ffc rollup\nRss:    1234 kB\nPss:  99 kB\n";
        assert_eq!(rss_bytes(rollup), Some(1234 << 10));
        assert_eq!(rss_bytes("Rss: much"), None);
    }
}
