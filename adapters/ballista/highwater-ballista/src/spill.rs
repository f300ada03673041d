//! Where tasks spill: a directory and a budget for each tenant, so that none uses up another's. The
//! budget is DataFusion's, 100 GB; the disk below must have room for all of them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::disk_manager::{DiskManager, DiskManagerBuilder, DiskManagerMode};
use parking_lot::Mutex;

/// The directories of one executor.
#[derive(Debug)]
pub(crate) struct SpillDirs {
    /// The executor's; if none, the system's for temporary files.
    work_dir: Option<PathBuf>,
    by_tenant: Mutex<HashMap<String, Arc<DiskManager>>>,
}

impl SpillDirs {
    pub(crate) fn within(work_dir: Option<&str>) -> Self {
        Self {
            work_dir: work_dir.map(PathBuf::from),
            by_tenant: Mutex::default(),
        }
    }

    /// Returns that of a tenant. Ballista removes directories from the executor's in which nothing
    /// was written for a while, also one that is in use: it is made again then.
    pub(crate) fn of(&self, tenant: &str) -> Result<Arc<DiskManager>> {
        let mut by_tenant = self.by_tenant.lock();
        if let Some(disk) = by_tenant.get(tenant)
            && disk.temp_dir_paths().iter().all(|path| path.exists())
        {
            return Ok(Arc::clone(disk));
        }
        let mode = match &self.work_dir {
            Some(path) => DiskManagerMode::Directories(vec![path.clone()]),
            None => DiskManagerMode::OsTmpDirectory,
        };
        let disk = DiskManagerBuilder::default().with_mode(mode).build()?;
        let disk = Arc::new(disk);
        by_tenant.insert(tenant.to_owned(), Arc::clone(&disk));
        Ok(disk)
    }
}
