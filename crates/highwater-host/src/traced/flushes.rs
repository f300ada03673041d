//! Flushes of the statistics of groups.

use std::collections::HashMap;

use super::name_of_task;
use crate::tracefs::{Event, EventFormat, Field, Instance, TracefsError};

/// Flushes by task.
#[derive(Debug)]
pub struct Flushes {
    id: u16,
    task: Field,
    /// Both say that the call really flushed; kernels without them write no event otherwise.
    reasons: Vec<Field>,
    flushes: u64,
    skipped: u64,
    by_task: HashMap<u64, (u64, Option<String>)>,
}

impl Flushes {
    pub(super) fn enable(instance: &Instance) -> Result<Self, TracefsError> {
        Self::from_format(&instance.enable("memcg", "memcg_flush_stats", None)?)
    }

    /// Counts events of this format.
    ///
    /// # Errors
    ///
    /// When it lacks the number of the task.
    pub fn from_format(format: &EventFormat) -> Result<Self, TracefsError> {
        let reasons = ["force", "needs_flush"];
        let reasons = reasons.iter().filter_map(|name| format.field(name).ok());
        Ok(Self {
            id: format.id,
            task: format.field("common_pid")?.clone(),
            reasons: reasons.cloned().collect(),
            flushes: 0,
            skipped: 0,
            by_task: HashMap::new(),
        })
    }

    /// Counts an event; returns false if it is another one.
    pub fn count(&mut self, event: &Event<'_>) -> bool {
        if event.id() != self.id {
            return false;
        }
        let is_set = |field: &Field| field.unsigned(event.bytes) != Some(0);
        if !self.reasons.is_empty() && !self.reasons.iter().any(is_set) {
            self.skipped += 1;
            return true;
        }
        self.flushes += 1;
        if let Some(task) = self.task.unsigned(event.bytes) {
            let entry = self.by_task.entry(task);
            entry.or_insert_with(|| (0, name_of_task(task))).0 += 1;
        }
        true
    }

    /// Calls that flushed.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.flushes
    }

    /// Calls that found the statistics fresh enough.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The task that flushed most: its flushes and its name. `None` without a flush.
    #[must_use]
    pub fn most(&self) -> Option<(u64, String)> {
        let most = self
            .by_task
            .iter()
            .max_by_key(|(task, (flushes, _))| (*flushes, **task))?;
        let (task, (flushes, name)) = most;
        let name = name
            .clone()
            .unwrap_or_else(|| "a task that ended".to_owned());
        Some((*flushes, format!("{name} ({task})")))
    }
}
