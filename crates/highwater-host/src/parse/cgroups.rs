//! Control groups: `/proc/PID/cgroup`, `/proc/cgroups`, and files of limits.

use super::{ParseError, number};

/// The group of a process in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Controllers of the hierarchy, separated by commas; empty for cgroup v2.
    pub controllers: String,
    /// The group, from the root of the hierarchy.
    pub path: String,
}

impl Membership {
    /// Returns whether the hierarchy has this controller of cgroup v1.
    #[must_use]
    pub fn has_controller(&self, name: &str) -> bool {
        self.controllers.split(',').any(|own| own == name)
    }
}

/// Parses `/proc/PID/cgroup`, lines of `ID:CONTROLLERS:PATH`.
///
/// # Errors
///
/// When a line has fewer than two colons.
pub fn memberships(text: &str) -> Result<Vec<Membership>, ParseError> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            return Err(ParseError::at(index, "no `ID:CONTROLLERS:PATH`"));
        };
        found.push(Membership {
            controllers: controllers.to_owned(),
            path: path.to_owned(),
        });
    }
    Ok(found)
}

/// Returns the number of memory groups that `/proc/cgroups` counts, dying ones included, or `None`
/// if it has no line of the controller.
///
/// # Errors
///
/// When the line of the controller holds no number.
pub fn memory_groups(text: &str) -> Result<Option<u64>, ParseError> {
    let mut column = 2;
    for (index, line) in text.lines().enumerate() {
        if let Some(names) = line.strip_prefix('#') {
            let named = |name: &str| name == "num_cgroups";
            let found = names.split_ascii_whitespace().position(named);
            column = found.unwrap_or(column);
            continue;
        }
        let mut words = line.split_ascii_whitespace();
        if words.next() == Some("memory") {
            let value = column.checked_sub(1).and_then(|skipped| words.nth(skipped));
            let value = value.unwrap_or_default();
            return number(index, "num_cgroups", value).map(Some);
        }
    }
    Ok(None)
}

/// Smallest value that cgroup v1 shows for a group without a limit: `i64::MAX` in whole pages, of
/// at most 64 KiB.
const NO_LIMIT_BYTES: u64 = 0x7fff_ffff_ffff_0000;

/// Parses a limit: `max` or a number of bytes. Returns `None` for a group without one.
///
/// # Errors
///
/// When it is neither.
pub fn limit_bytes(text: &str) -> Result<Option<u64>, ParseError> {
    if text.trim() == "max" {
        return Ok(None);
    }
    let bytes = number(0, "limit", text)?;
    Ok((bytes < NO_LIMIT_BYTES).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_both_versions_are_read() {
        let found = memberships("9:name=systemd:/\n4:cpu,memory:/a/b:c\n0::/x\n").unwrap();
        assert!(found[1].has_controller("memory") && !found[0].has_controller("memory"));
        assert_eq!(found[1].path, "/a/b:c");
        assert_eq!((&*found[2].controllers, &*found[2].path), ("", "/x"));
        assert_eq!(memberships("0::/\nx\n").unwrap_err().line, 2);
    }

    #[test]
    fn memory_groups_are_counted_by_the_column_of_that_name() {
        let text =
            "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nmemory\t4\t13\t1\n";
        assert_eq!(memory_groups(text).unwrap(), Some(13));
        let swapped = "#subsys_name num_cgroups hierarchy\nmemory 13 4\n";
        assert_eq!(memory_groups(swapped).unwrap(), Some(13));
        assert_eq!(
            memory_groups("#subsys_name hierarchy num_cgroups\n").unwrap(),
            None
        );
        assert!(memory_groups("memory 4\n").is_err());
        assert!(memory_groups("#num_cgroups\nmemory 4\n").is_err());
    }

    #[test]
    fn limits_of_both_versions_are_read() {
        assert_eq!(limit_bytes("max\n").unwrap(), None);
        assert_eq!(limit_bytes("9223372036854771712\n").unwrap(), None);
        assert_eq!(limit_bytes("67108864\n").unwrap(), Some(67_108_864));
        assert!(limit_bytes("-1").is_err());
    }
}
