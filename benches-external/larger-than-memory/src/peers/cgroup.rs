//! A memory cgroup for one turn, of version 1 or 2.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Error;

/// A group below the root, removed when dropped.
pub struct MemoryGroup {
    path: PathBuf,
    /// Name of the file with the most memory that it has used.
    peak: &'static str,
}

impl MemoryGroup {
    /// Creates a group that may use so many bytes.
    pub fn new(limit: u64) -> Result<Self, Error> {
        let name = format!("larger-than-memory-{}", std::process::id());
        let first = Path::new("/sys/fs/cgroup/memory");
        let (root, limit_file, peak) = if first.join("memory.limit_in_bytes").exists() {
            (first, "memory.limit_in_bytes", "memory.max_usage_in_bytes")
        } else {
            let root = Path::new("/sys/fs/cgroup");
            // Fails if it is so already, or not permitted; the limit tells.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
            (root, "memory.max", "memory.peak")
        };
        let path = root.join(name);
        let group = Self { path, peak };
        let made = fs::create_dir(&group.path)
            .and_then(|()| fs::write(group.path.join(limit_file), limit.to_string()));
        made.map_err(|error| format!("no memory cgroup (root needed): {error}"))?;
        Ok(group)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the most memory that it has used, in bytes.
    pub fn peak(&self) -> Result<u64, Error> {
        let text = fs::read_to_string(self.path.join(self.peak))?;
        Ok(text.trim().parse()?)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}
