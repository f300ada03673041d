//! Totals of a whole RSS trace, and the hits of an ideal cache of the active space.

use std::collections::HashMap;

use super::error::RssTraceError;
use super::event::{RssEventKind, SpaceId};
use super::reader::RssTrace;

/// Counts over a whole trace.
///
/// The last four are those of an ideal cache of the active space, one on each CPU: a change of the
/// space that is active on its CPU is a hit and stays in the cache; any other is a miss. When
/// another space or none becomes active, the cache is flushed if it holds a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RssTally {
    /// Changes of counters.
    pub rss_events: u64,
    /// Switches.
    pub switches: u64,
    /// Switches that are not in the trace ([`RssTrace::inferred_switches`]).
    pub inferred_switches: u64,
    /// Tasks made.
    pub forks: u64,
    /// Spaces replaced.
    pub execs: u64,
    /// Tasks ended.
    pub exits: u64,
    /// Lifetimes of address spaces.
    pub spaces: u64,
    /// Time from the first event to the last, in nanoseconds.
    pub span_ns: u64,
    /// Changes of the space that is active on their CPU.
    pub hits: u64,
    /// Changes of any other space.
    pub misses: u64,
    /// Events that change the active space of their CPU.
    pub activations: u64,
    /// Switches from a space with a change in the cache to another one or none.
    pub flushes: u64,
}

impl RssTally {
    /// Reads the rest of a trace.
    ///
    /// # Errors
    ///
    /// When a line is bad or the stream breaks.
    pub fn of(trace: &mut RssTrace) -> Result<Self, RssTraceError> {
        let mut tally = Self::default();
        let mut caches: HashMap<u32, Cache> = HashMap::new();
        for event in trace.by_ref() {
            let event = event?;
            tally.span_ns = event.time_ns;
            let cache = caches.entry(event.cpu).or_default();
            if cache.owner != event.active {
                tally.activations += u64::from(event.active.is_some());
                tally.flushes += u64::from(cache.is_holding);
                *cache = Cache {
                    owner: event.active,
                    is_holding: false,
                };
            }
            match event.kind {
                RssEventKind::Rss(change) => {
                    let is_hit = event.active == Some(change.space);
                    tally.rss_events += 1;
                    tally.hits += u64::from(is_hit);
                    tally.misses += u64::from(!is_hit);
                    cache.is_holding |= is_hit;
                }
                RssEventKind::Switch { .. } => tally.switches += 1,
                RssEventKind::Fork { .. } => tally.forks += 1,
                RssEventKind::Exec => tally.execs += 1,
                RssEventKind::Exit { .. } => tally.exits += 1,
            }
        }
        tally.inferred_switches = trace.inferred_switches();
        tally.spaces = trace.spaces();
        Ok(tally)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Cache {
    owner: Option<SpaceId>,
    is_holding: bool,
}
