//! Victims of a run: how often each tenant was selected, and the records of the first selections.
//!
//! A replay never stops a tenant: it goes on with less memory, so a run can have many victims.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use highwater::Manager;
use highwater::lab::sync::StatCell;
use highwater::units::GroupId;
use serde::Serialize;

use crate::report::text::to_f64;

/// Selections of which the record is kept; all are counted. Chosen: a table that people read.
const RECORDS_MAX: usize = 100;

/// One selection of a victim.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VictimRecord {
    /// Time since the accesses began; 0 for one before.
    pub at_s: f64,
    /// Path of the selected group.
    pub group: String,
    /// Its usage at selection.
    pub usage_bytes: u64,
    /// Its badness: usage plus adjustment.
    pub badness_bytes: u64,
    /// Upper bound of the next candidate's badness.
    pub runner_up_bytes: u64,
    /// Groups considered.
    pub candidates: usize,
    /// The record as one line: numbers, certainty of the choice, and its cost.
    pub record: String,
}

/// Shared by the run and the manager's handler.
#[derive(Clone, Debug, Default)]
pub(super) struct Victims(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Counts by group. Filled in once, before the run.
    counts: OnceLock<HashMap<GroupId, StatCell>>,
    start: OnceLock<Instant>,
    records: Mutex<Vec<VictimRecord>>,
}

impl Victims {
    /// Makes the manager report its victims here.
    pub(super) fn watch(manager: &Manager) -> Self {
        let this = Self::default();
        let shared = Arc::clone(&this.0);
        manager.root().on_exhausted(move |victim| {
            let counts = shared.counts.get();
            if let Some(count) = counts.and_then(|all| all.get(&victim.group().id())) {
                count.add(1);
            }
            // A panic ends the run without a report.
            let records = shared.records.lock();
            let mut records = records.unwrap_or_else(PoisonError::into_inner);
            if records.len() < RECORDS_MAX {
                let since = shared.start.get().map(Instant::elapsed);
                records.push(VictimRecord {
                    at_s: since.unwrap_or_default().as_secs_f64(),
                    group: victim.group().path().to_string(),
                    usage_bytes: victim.usage().0,
                    badness_bytes: victim.badness().0,
                    runner_up_bytes: victim.runner_up().0,
                    candidates: victim.candidates(),
                    record: victim.record().to_string(),
                });
            }
        });
        this
    }

    /// Names the groups that are counted. The first call decides.
    pub(super) fn count(&self, groups: impl Iterator<Item = GroupId>) {
        let counts = groups.map(|group| (group, StatCell::new()));
        self.0.counts.get_or_init(|| counts.collect());
    }

    /// Begins the time of records. The first call decides.
    pub(super) fn start(&self) {
        self.0.start.get_or_init(Instant::now);
    }

    /// Returns how often a group was selected.
    pub(super) fn of(&self, group: GroupId) -> u64 {
        let count = self.0.counts.get().and_then(|all| all.get(&group));
        count.map_or(0, StatCell::get)
    }

    /// Returns the records of the first selections.
    pub(super) fn records(&self) -> Vec<VictimRecord> {
        let records = self.0.records.lock();
        let mut records = records.unwrap_or_else(PoisonError::into_inner).clone();
        for record in &mut records {
            // Microseconds are enough, and shorter in JSON.
            record.at_s = to_f64(crate::report::text::round(record.at_s * 1e6)) / 1e6;
        }
        records
    }
}
