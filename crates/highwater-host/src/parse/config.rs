//! The kernel's build configuration: `/proc/config.gz`, `/boot/config-RELEASE`.

/// Returns the value of an option such as `CONFIG_PCP_BATCH_SCALE_MAX`, if it is set.
#[must_use]
pub fn config_value<'a>(text: &'a str, option: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let value = line.trim().strip_prefix(option)?.strip_prefix('=')?;
        Some(value.trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_name_matches() {
        let text = "# CONFIG_LRU_GEN is not set\nCONFIG_PCP_BATCH_SCALE_MAX=5\nCONFIG_PSI=y\n";
        assert_eq!(config_value(text, "CONFIG_PCP_BATCH_SCALE_MAX"), Some("5"));
        assert_eq!(config_value(text, "CONFIG_PCP_BATCH"), None);
        assert_eq!(config_value(text, "CONFIG_LRU_GEN"), None);
    }
}
