//! Mounted file systems: `/proc/self/mountinfo`.

use super::ParseError;

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The directory of the file system that is its root here, such as `/` or `/docker/1f`.
    pub root: String,
    /// Where it is mounted.
    pub point: String,
    /// Type of the file system, such as `cgroup2`.
    pub kind: String,
    /// Options of the file system, such as `rw,memory`.
    pub options: String,
}

impl Mount {
    /// Returns whether the options include `name`, or `name=VALUE`.
    #[must_use]
    pub fn has_option(&self, name: &str) -> bool {
        self.option_value(name).is_some()
    }

    /// Returns the value of the option `name`: empty for an option without one.
    #[must_use]
    pub fn option_value(&self, name: &str) -> Option<&str> {
        self.options.split(',').find_map(|option| {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            (key == name).then_some(value)
        })
    }
}

/// Parses `/proc/self/mountinfo`.
///
/// # Errors
///
/// When a line has no mount point, or no file system behind a lone `-`.
pub fn mounts(text: &str) -> Result<Vec<Mount>, ParseError> {
    let mut mounts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let mount = line.split_once(" - ").and_then(|(place, file_system)| {
            let mut place = place.split(' ').skip(3);
            let (root, point) = (place.next()?, place.next()?);
            let mut file_system = file_system.split(' ');
            Some(Mount {
                root: unescaped(root),
                point: unescaped(point),
                kind: file_system.next()?.to_owned(),
                options: file_system.nth(1).unwrap_or_default().to_owned(),
            })
        });
        mounts.push(mount.ok_or_else(|| ParseError::at(index, "no mount point"))?);
    }
    Ok(mounts)
}

/// Replaces the octal escapes of blanks and backslashes.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_and_hidden_processes_are_seen() {
        let text = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 /docker/1f /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
41 31 0:38 / /mnt/my\\040groups rw - cgroup2 cgroup2 rw,nsdelegate
22 28 0:20 / /proc rw,nosuid - proc proc rw,hidepid=invisible,gid=4
";
        let found = mounts(text).unwrap();
        assert_eq!(found.len(), 4);
        assert_eq!((&*found[1].root, &*found[1].kind), ("/docker/1f", "cgroup"));
        assert!(found[1].has_option("memory") && !found[1].has_option("mem"));
        assert_eq!(found[2].point, "/mnt/my groups");
        assert_eq!(found[3].option_value("hidepid"), Some("invisible"));
    }

    #[test]
    fn a_line_without_a_file_system_is_refused() {
        assert_eq!(
            mounts("1 2 3:4 / / rw - a b c\nnonsense\n")
                .unwrap_err()
                .line,
            2
        );
    }
}
