//! The argument of `--tenant`: `NAME=TRACE[,max=SIZE][,format=FORMAT]`.

use std::path::PathBuf;
use std::str::FromStr;

use highwater::units::Bytes;
use highwater_lab::trace::Format;

/// Settings that may follow the trace.
const KEYS: &str = "max=SIZE or format=FORMAT";

/// One `--tenant`, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TenantArgument {
    pub(crate) name: String,
    pub(crate) trace: PathBuf,
    pub(crate) max: Option<Bytes>,
    pub(crate) format: Option<Format>,
}

impl FromStr for TenantArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once('=').ok_or_else(|| {
            format!("`{text}` has no `=`: expected NAME=TRACE, then perhaps ,{KEYS}")
        })?;
        let mut parts = rest.split(',');
        let trace = parts.next().unwrap_or_default();
        if name.is_empty() || trace.is_empty() {
            return Err(format!(
                "`{text}` needs a name before the `=` and a trace after it"
            ));
        }
        let mut tenant = Self {
            name: name.to_owned(),
            trace: trace.into(),
            max: None,
            format: None,
        };
        for part in parts {
            tenant.set(part)?;
        }
        Ok(tenant)
    }
}

impl TenantArgument {
    fn set(&mut self, part: &str) -> Result<(), String> {
        let unknown = || format!("`{part}` is not a setting of a tenant: expected {KEYS}");
        let (key, value) = part.split_once('=').ok_or_else(unknown)?;
        let is_repeated = match key {
            "max" => self.max.replace(parse_max(value)?).is_some(),
            "format" => {
                let format = value.parse().map_err(|e| format!("{e}"))?;
                self.format.replace(format).is_some()
            }
            _ => return Err(unknown()),
        };
        if is_repeated {
            return Err(format!("`{key}` is given twice for tenant `{}`", self.name));
        }
        Ok(())
    }
}

fn parse_max(value: &str) -> Result<Bytes, String> {
    let max: Bytes = value.parse().map_err(|e| format!("max: {e}"))?;
    if max.pages_floor().0 == 0 {
        return Err(format!(
            "max={value} holds no page: expected at least 4KiB, or no `max` for no limit"
        ));
    }
    Ok(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_with_all_its_settings() {
        let tenant: TenantArgument = "web=dir/a=b.lis,max=16MiB,format=arc".parse().unwrap();
        assert_eq!(tenant.name, "web");
        assert_eq!(tenant.trace, PathBuf::from("dir/a=b.lis"));
        assert_eq!(tenant.max, Some(Bytes::mib(16)));
        assert_eq!(tenant.format.map(|f| f.name()), Some("arc"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, said) in [
            ("web", "has no `=`"),
            ("=trace", "needs a name"),
            ("web=", "needs a name"),
            ("web=t,low=1MiB", "`low=1MiB` is not a setting"),
            ("web=t,max", "`max` is not a setting"),
            ("web=t,max=0", "holds no page"),
            ("web=t,max=4095", "holds no page"),
            ("web=t,max=1.5GiB", "`1.5GiB` is not an amount"),
            ("web=t,max=1MiB,max=2MiB", "given twice"),
            ("web=t,format=zip", "zip"),
        ] {
            let error = text.parse::<TenantArgument>().unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
