//! The kernel's version: `/proc/sys/kernel/osrelease`, or the third word of `/proc/version`.

use std::fmt;

use super::ParseError;

/// Version of a kernel, as its release says. Distributions also backport changes, so that a check
/// compares behaviour where it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// The 6 of 6.12.107.
    pub major: u32,
    /// The 12 of 6.12.107.
    pub minor: u32,
    /// The 107 of 6.12.107; 0 if the release has none.
    pub patch: u32,
}

impl KernelVersion {
    /// Returns whether this kernel is of series `major.minor` or a later one.
    #[must_use]
    pub fn is_from(self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Parses a release such as `6.1.0-18-amd64`, or a line that starts with `Linux version `.
///
/// # Errors
///
/// When the text does not start with two numbers and a dot between them.
pub fn kernel_version(text: &str) -> Result<KernelVersion, ParseError> {
    let text = text.trim();
    let release = text.strip_prefix("Linux version ").unwrap_or(text);
    let release = release.split_whitespace().next().unwrap_or_default();
    let mut numbers = release.split('.').map(leading_number);
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => Ok(KernelVersion {
            major,
            minor,
            patch: numbers.next().flatten().unwrap_or(0),
        }),
        _ => Err(ParseError::at(0, "no kernel version of the form 6.12.1")),
    }
}

/// Returns the number at the start of `text`.
fn leading_number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text[..end.unwrap_or(text.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (u32, u32, u32) {
        let version = kernel_version(text).unwrap();
        (version.major, version.minor, version.patch)
    }

    #[test]
    fn releases_of_distributions_are_read() {
        assert_eq!(parsed("6.18.44-fc-v769\n"), (6, 18, 44));
        assert_eq!(parsed("5.10.0-32-cloud-amd64"), (5, 10, 0));
        assert_eq!(parsed("7.3.0-rc7+"), (7, 3, 0));
        assert_eq!(parsed("7.3-rc7"), (7, 3, 0));
        assert_eq!(parsed("5.14.0-427.el9.x86_64"), (5, 14, 0));
        let version = "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org) (gcc-12)";
        assert_eq!(parsed(version), (6, 1, 0));
    }

    #[test]
    fn series_compare_by_number() {
        let version = kernel_version("6.12.107").unwrap();
        assert!(version.is_from(6, 2) && version.is_from(6, 12) && !version.is_from(6, 16));
        assert!(!version.is_from(7, 0) && version.is_from(5, 19));
        assert_eq!(version.to_string(), "6.12.107");
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "Linux", "6", "x.y", "99999999999.1", ".6.1"] {
            assert_eq!(kernel_version(text).unwrap_err().line, 1, "{text}");
        }
    }
}
