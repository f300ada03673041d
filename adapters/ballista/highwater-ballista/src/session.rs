//! The tenant of a session: a setting that travels with it.

use std::any::Any;
use std::sync::Arc;

use ballista_core::ConfigProducer;
use datafusion::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::SessionConfig;

/// Settings of a session with the prefix `highwater`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HighwaterOptions {
    /// The session's tenant. Empty: the default tenant.
    pub tenant: String,
}

const TENANT: &str = "tenant";

// The macro of DataFusion leaves the prefix out of the keys of entries, and Ballista sends them as
// they are, so that they would be lost.
impl ExtensionOptions for HighwaterOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        if key != TENANT {
            let text = format!("`highwater.{key}` is not a setting; `highwater.{TENANT}` is");
            return Err(DataFusionError::Configuration(text));
        }
        self.tenant = value.into();
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        vec![ConfigEntry {
            key: format!("{}.{TENANT}", Self::PREFIX),
            // A session without a tenant says nothing, so that an executor's own stays in force.
            value: (!self.tenant.is_empty()).then(|| self.tenant.clone()),
            description: "tenant of the session, whose maximum holds on each executor",
        }]
    }
}

impl ConfigExtension for HighwaterOptions {
    const PREFIX: &'static str = "highwater";
}

/// Names the tenant of a client's session. The name travels to scheduler and executors, where
/// [`config_producer`] must be in use: a process without it drops the name, and the session is of
/// the default tenant there.
///
/// The name is the client's claim. A gateway that authenticates clients should set it.
///
/// # Examples
///
/// ```
/// use datafusion::prelude::SessionConfig;
/// use highwater_ballista::{tenant, tenant_of};
///
/// let config = tenant(SessionConfig::new(), "reports");
/// assert_eq!(tenant_of(&config), "reports");
/// assert_eq!(config.options().entries().iter().find(|it| it.key == "highwater.tenant")
///     .and_then(|it| it.value.clone()), Some("reports".into()));
/// ```
#[must_use]
pub fn tenant(config: SessionConfig, name: &str) -> SessionConfig {
    let tenant = name.into();
    config.with_option_extension(HighwaterOptions { tenant })
}

/// Returns the name of a session's tenant; empty if it has none.
#[must_use]
pub fn tenant_of(config: &SessionConfig) -> &str {
    let options = config.options().extensions.get::<HighwaterOptions>();
    options.map_or("", |it| it.tenant.as_str())
}

/// Returns a producer of `base` that keeps the names of tenants which come with sessions: for
/// `SchedulerConfig::override_config_producer`. [`Executors::configure`] sets it for executors.
///
/// [`Executors::configure`]: crate::Executors::configure
#[must_use]
pub fn config_producer(base: ConfigProducer) -> ConfigProducer {
    Arc::new(move || {
        let config = base();
        // The base of an executor for one tenant names it.
        match config.options().extensions.get::<HighwaterOptions>() {
            Some(_) => config,
            None => config.with_option_extension(HighwaterOptions::default()),
        }
    })
}
