//! The argument of `--set`: `KNOB=VALUE`.

use std::str::FromStr;

use highwater::frame::Tunables;

/// A knob and its value, both checked.
#[derive(Clone, Debug)]
pub(crate) struct Knob {
    pub(crate) name: String,
    pub(crate) value: i64,
}

impl Knob {
    /// Returns `tunables` with this knob set.
    pub(crate) fn turn(&self, tunables: Tunables) -> Tunables {
        // Checked when it was parsed, and no knob's range depends on another.
        tunables.with(&self.name, self.value).unwrap_or(tunables)
    }
}

impl FromStr for Knob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("expected KNOB=VALUE")?;
        let value = value
            .parse()
            .map_err(|_| format!("`{value}` is not a whole number"))?;
        Tunables::default()
            .with(name, value)
            .map_err(|e| e.to_string())?;
        Ok(Self {
            name: name.to_owned(),
            value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knobs_are_refused_with_their_range() {
        let refused = |text: &str| text.parse::<Knob>().expect_err("not a knob");
        assert!(refused("pcp_batch_scale_max=7").contains("give 0 to 6"));
        assert!(refused("percpu_pagelist_high_fraction=3").contains("give -1, 0, or 8"));
        assert!(refused("swappiness=60").contains("pcp_batch_scale_max"));
        assert_eq!(refused("pcp_batch_scale_max"), "expected KNOB=VALUE");
        let knob: Knob = "pcp_batch_scale_max=0".parse().expect("in range");
        let turned = knob.turn(Tunables::default());
        assert_eq!(turned.get("pcp_batch_scale_max"), Some(0));
    }
}
