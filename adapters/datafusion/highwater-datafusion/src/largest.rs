//! What uses most of a tenant's memory, for the text of a refusal.

use std::fmt;

use highwater::Bytes;

use crate::refusal::{left, size};
use crate::stop::queries_of;
use crate::tenant::Shared;

/// Uses that a text names.
const NAMED: usize = 3;

/// What one consumer of a query has reserved; or, without a name, what the query has beside the
/// consumers that are counted.
#[derive(Debug)]
struct Use {
    bytes: Bytes,
    consumer: Option<String>,
    query: String,
}

/// The largest uses of those offered, the largest first.
#[derive(Debug, Default)]
pub(crate) struct Largest(Vec<Use>);

impl Largest {
    /// Finds them. Visits the consumers of the queries that may have one of them, and the CPUs that
    /// charged to these.
    pub(crate) fn of(tenant: &Shared) -> Self {
        let mut largest = Self::default();
        for (group, consumers) in queries_of(tenant) {
            if !largest.has_place_for(group.usage().high) {
                continue;
            }
            let name = || {
                let path = group.path().to_string();
                path.rsplit('/').next().unwrap_or_default().to_owned()
            };
            let mut counted = Bytes::ZERO;
            for slot in consumers.iter().flat_map(|it| it.slots()) {
                let bytes = Bytes(slot.bytes());
                counted += bytes;
                // Names are read for few.
                if largest.has_place_for(bytes)
                    && let Some(reading) = slot.reading()
                {
                    let consumer = String::from_utf8_lossy(&reading.name).into_owned();
                    largest.add(bytes, Some(consumer), name());
                }
            }
            let rest = left(group.usage_precise(), counted);
            if largest.has_place_for(rest) {
                largest.add(rest, None, name());
            }
        }
        largest
    }

    fn has_place_for(&self, bytes: Bytes) -> bool {
        let least = self.0.get(NAMED - 1).map_or(Bytes::ZERO, |it| it.bytes);
        bytes > least
    }

    fn add(&mut self, bytes: Bytes, consumer: Option<String>, query: String) {
        let nth = self.0.partition_point(|it| it.bytes >= bytes);
        let it = Use {
            bytes,
            consumer,
            query,
        };
        self.0.insert(nth, it);
        self.0.truncate(NAMED);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Largest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, it) in self.0.iter().enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            let consumer = it.consumer.as_deref().unwrap_or("other memory");
            write!(f, "{comma}{consumer} of {} {}", it.query, size(it.bytes))?;
        }
        Ok(())
    }
}
