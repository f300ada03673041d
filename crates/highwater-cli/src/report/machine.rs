//! The machine of a run, as a page names it.

use highwater::units::Bytes;
use serde::Deserialize;

#[derive(Deserialize)]
pub(super) struct Machine {
    cpus_online: u64,
    // Older reports have neither.
    #[serde(default)]
    cpu_model: Option<String>,
    #[serde(default)]
    memory_bytes: Option<u64>,
    kernel_release: Option<String>,
    architecture: String,
}

impl Machine {
    /// Returns its line at the foot of a page.
    pub(super) fn line(&self) -> (String, String) {
        let kernel = self.kernel_release.as_deref().unwrap_or("unknown kernel");
        let mut said = format!("{} CPUs online", self.cpus_online);
        if let Some(model) = &self.cpu_model {
            said = format!("{said} ({model})");
        }
        if let Some(memory) = self.memory_bytes {
            said = format!("{said}, {}", Bytes(memory));
        }
        (
            "Machine".to_owned(),
            format!("{said}, {}, {kernel}", self.architecture),
        )
    }
}
