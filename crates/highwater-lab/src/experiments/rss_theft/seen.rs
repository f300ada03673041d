//! A design's readings of a space, beside the exact sum.

use highwater::units::Estimate;

use crate::baselines::{Count, Member, SpaceId};
use crate::experiments::contenders::Contender;
use crate::experiments::pages::bytes;
use crate::report::{Row, Source};

/// One design's readings, in pages.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) name: &'static str,
    pub(super) truth: i64,
    /// Its cheap reading of the resident set.
    pub(super) shown: i64,
    /// Its interval for that.
    promised: Option<Estimate<i64>>,
    /// Its interval for the one member that has pages.
    pub(super) anon: Option<Estimate<i64>>,
    /// Its exact reading.
    pub(super) precise: i64,
}

impl Seen {
    /// Reads `space`, whose pages are all of one member, in each design.
    pub(super) fn all(contenders: &[Contender], space: SpaceId, truth: i64) -> Vec<Self> {
        let seen = |contender: &Contender| {
            let design = &contender.design;
            let member = Member::Anon;
            Self {
                name: contender.name,
                truth,
                shown: design.read_resident(space),
                promised: design.estimate_resident(space),
                anon: design.estimate(Count { space, member }),
                precise: design.precise_resident(space),
            }
        };
        contenders.iter().map(seen).collect()
    }

    /// Returns the percentage of the exact sum that is shown.
    #[expect(
        clippy::cast_precision_loss,
        reason = "pages of one machine: below 2^53"
    )]
    pub(super) fn shown_percent(&self) -> f64 {
        100.0 * self.shown as f64 / self.truth as f64
    }

    pub(super) fn row(&self, part: &'static str) -> Row {
        let mut row = Row::new(part, Source::Run, self.name)
            .with("shown_bytes", bytes(self.shown))
            .with("truth_bytes", bytes(self.truth));
        if self.truth != 0 {
            row = row.with("shown_percent", self.shown_percent());
        }
        row = row
            .with("error_bytes", bytes(self.shown - self.truth))
            .with("exact_bytes", bytes(self.precise));
        match self.promised {
            None => row,
            Some(Estimate { low, high, .. }) => row
                .with("promised_low_bytes", bytes(low.max(0)))
                .with("promised_high_bytes", bytes(high)),
        }
    }
}
