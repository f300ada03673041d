//! The variants: sizing rules of per-CPU lists, transfer sizes, drain modes, and back ends of the
//! frame pool.

use highwater::frame::{PoolConfig, TunableError, Tunables};

use crate::baselines::{BackendKind, Drain, Sizing};
use crate::experiments::Setup;
use crate::report::{Figures, Row};

/// Tenants that exit at once, as in the discussion.
pub(super) const TENANTS: usize = 18;

/// The discussion's variants, by its letters.
pub(super) const A: &str = "legacy (A)";
pub(super) const B: &str = "fraction 0x7fffffff (B)";
pub(super) const C: &str = "auto, scale 5 (C)";
pub(super) const D: &str = "auto, scale 0 (D)";
/// Small lists of a fixed size.
pub(super) const FIXED: &str = "fixed, scale 5";
/// Drops the zone's lock between batches.
pub(super) const PIECES: &str = "auto, scale 5, in pieces";
/// The library's defaults.
pub(super) const OURS: &str = "Highwater";
/// The other back ends.
pub(super) const SHARDED: &str = "sharded";
pub(super) const TREES: &str = "trees";

/// The fraction that makes lists as small as possible, as in the discussion.
const FRACTION_HUGE: i64 = 0x7fff_ffff;

/// The fraction that makes the legacy lists as large as possible. Those of the discussion were 100
/// batches, from watermarks that a pool of this size cannot have.
const FRACTION_LEGACY: i64 = 8;

/// Locks of the sharded variant.
const SHARDS: u32 = 8;

/// How tenants exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exits {
    /// All at once, beside a bystander.
    AtOnce,
    /// One after the other, without a bystander: the same frames, without lock contention.
    InTurn,
}

/// A configuration of the pool, and its number of tenants.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Variant {
    pub(super) name: String,
    pub(super) tenants: usize,
    pub(super) exits: Exits,
    pub(super) scale: u8,
    fraction: i64,
    pub(super) policy: Sizing,
    pub(super) drain: Drain,
    pub(super) backend: BackendKind,
}

impl Variant {
    /// The discussion's design: one lock, one hold, auto-tuned lists.
    fn auto(name: impl Into<String>, scale: u8) -> Self {
        Self {
            name: name.into(),
            tenants: TENANTS,
            exits: Exits::AtOnce,
            scale,
            fraction: 0,
            policy: Sizing::Auto,
            drain: Drain::OneHold,
            backend: BackendKind::SingleLock,
        }
    }

    /// The library's defaults.
    fn ours(nr_cpus: usize) -> Self {
        let tunables = PoolConfig::new(nr_cpus).tunables;
        let knob = |name| tunables.get(name).expect("the knob is there");
        Self {
            name: OURS.to_owned(),
            tenants: TENANTS,
            exits: Exits::AtOnce,
            scale: u8::try_from(knob("pcp_batch_scale_max")).expect("0 to 6"),
            fraction: knob("percpu_pagelist_high_fraction"),
            policy: Sizing::Auto,
            drain: Drain::Capped,
            backend: BackendKind::default(),
        }
    }

    /// Returns the configuration of the pool.
    pub(super) fn config(&self, nr_cpus: usize) -> PoolConfig {
        PoolConfig {
            policy: self.policy.with(self.drain),
            backend: self.backend.make(),
            tunables: self.tunables().expect("values within the knobs' ranges"),
            ..PoolConfig::new(nr_cpus)
        }
    }

    fn tunables(&self) -> Result<Tunables, TunableError> {
        Tunables::default()
            .with("pcp_batch_scale_max", self.scale.into())?
            .with("percpu_pagelist_high_fraction", self.fraction)
    }

    /// Returns `row` with the variant's settings.
    pub(super) fn on(&self, row: Row) -> Row {
        row.with("tenants", self.tenants)
            .with("backend", self.backend.to_string())
            .with("policy", self.policy.to_string())
            .with("scale", u64::from(self.scale))
            .with("drain", self.drain.to_string())
    }
}

/// Returns the name of a variant whose tenants exit one after the other.
pub(super) fn in_turn(scale: u8) -> String {
    format!("auto, scale {scale}, in turn")
}

/// Scales over which the hold time should be linear.
pub(super) const SCALES: [u8; 6] = [0, 1, 2, 3, 4, 5];

/// Scales at which contention should be conserved: both ends, and one between.
pub(super) const CONSERVED: [&str; 3] = [D, SCALE_2, C];
pub(super) const SCALE_2: &str = "auto, scale 2";

/// Returns the variants that the checks need, or every combination.
pub(super) fn variants(setup: &Setup) -> Vec<Variant> {
    let nr_cpus = setup.topology.nr_cpus();
    let mut variants = needed(nr_cpus);
    if setup.options.is_matrix {
        variants.extend(matrix());
    }
    variants
}

/// Returns the variants that the checks need.
fn needed(nr_cpus: usize) -> Vec<Variant> {
    let mut variants = vec![
        Variant {
            fraction: FRACTION_LEGACY,
            policy: Sizing::Legacy,
            ..Variant::auto(A, 5)
        },
        Variant {
            fraction: FRACTION_HUGE,
            ..Variant::auto(B, 5)
        },
        Variant::auto(C, 5),
        Variant::auto(SCALE_2, 2),
        Variant::auto(D, 0),
        Variant {
            policy: Sizing::Fixed,
            ..Variant::auto(FIXED, 5)
        },
        Variant {
            drain: Drain::Pieces,
            ..Variant::auto(PIECES, 5)
        },
        Variant {
            backend: BackendKind::Sharded { shards: SHARDS },
            ..Variant::auto(SHARDED, 5)
        },
        Variant {
            backend: BackendKind::Trees,
            ..Variant::auto(TREES, 5)
        },
        Variant::ours(nr_cpus),
    ];
    variants.extend(SCALES.map(|scale| Variant {
        exits: Exits::InTurn,
        ..Variant::auto(in_turn(scale), scale)
    }));
    variants
}

/// Returns every policy with every scale, drain and back end, with one, two and all tenants.
fn matrix() -> Vec<Variant> {
    let mut all = Vec::new();
    for tenants in [1, 2, TENANTS] {
        for backend in [
            BackendKind::SingleLock,
            BackendKind::Sharded { shards: SHARDS },
            BackendKind::Trees,
        ] {
            for (policy, fraction) in [
                (Sizing::Legacy, FRACTION_LEGACY),
                (Sizing::Fixed, 0),
                (Sizing::Auto, 0),
            ] {
                for drain in [Drain::OneHold, Drain::Pieces] {
                    all.extend([0, 1, 2, 3, 5, 6].map(|scale| Variant {
                        name: format!("{tenants}, {backend}, {policy}, {scale}, {drain}"),
                        tenants,
                        exits: Exits::AtOnce,
                        scale,
                        fraction,
                        policy,
                        drain,
                        backend,
                    }));
                }
            }
        }
    }
    all
}

/// Adds the settings that all variants share.
pub(super) fn setting(config: Figures) -> Figures {
    config
        .with("legacy_fraction", FRACTION_LEGACY.unsigned_abs())
        .with("shards", u64::from(SHARDS))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Goal: every row has its own name, and the matrix is complete. Method: names, and products.
    #[test]
    fn variants_have_names_of_their_own() {
        let all: Vec<_> = needed(19).into_iter().chain(matrix()).collect();
        let names: BTreeSet<_> = all.iter().map(|variant| &variant.name).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(matrix().len(), 3 * 3 * 3 * 2 * 6);
        for variant in all {
            let policy = variant.policy.with(variant.drain);
            assert!(std::ptr::addr_eq(variant.config(19).policy, policy));
        }
    }
}
