//! Zones of memory and the per-CPU lists (pcp) before them: `/proc/zoneinfo`.

use super::{ParseError, number};

/// The per-CPU list of one CPU and zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageSet {
    /// Free pages on the list.
    pub count_pages: u64,
    /// Pages that the list may hold now.
    pub high_pages: u64,
    /// Lowest value of `high_pages` under auto-tuning; from 6.7.
    pub high_min_pages: Option<u64>,
    /// Highest value of `high_pages` under auto-tuning; from 6.7.
    pub high_max_pages: Option<u64>,
    /// Pages of one transfer to or from the zone.
    pub batch_pages: u64,
}

/// A zone of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// NUMA node of the zone.
    pub node: u32,
    /// Name of the zone, such as `Normal`.
    pub name: String,
    /// Pages that the allocator manages.
    pub managed_pages: u64,
    /// The list of each CPU that is online.
    pub page_sets: Vec<PageSet>,
}

/// Parses `/proc/zoneinfo`.
///
/// # Errors
///
/// When a known line holds no number, stands outside a zone, or there is no zone at all.
pub fn zoneinfo(text: &str) -> Result<Vec<Zone>, ParseError> {
    let mut zones: Vec<Zone> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("Node ") {
            zones.push(zone(index, line)?);
            continue;
        }
        let Some(zone) = zones.last_mut() else {
            continue;
        };
        let mut words = line.split_ascii_whitespace();
        let (Some(name), Some(value)) = (words.next(), words.next()) else {
            continue;
        };
        if name == "managed" {
            zone.managed_pages = number(index, name, value)?;
        } else if name == "cpu:" {
            zone.page_sets.push(PageSet::default());
        } else if let Some(list) = zone.page_sets.last_mut() {
            // The watermark `high` of the zone has no colon.
            match name {
                "count:" => list.count_pages = number(index, name, value)?,
                "high:" => list.high_pages = number(index, name, value)?,
                "batch:" => list.batch_pages = number(index, name, value)?,
                "high_min:" => list.high_min_pages = Some(number(index, name, value)?),
                "high_max:" => list.high_max_pages = Some(number(index, name, value)?),
                _ => {}
            }
        }
    }
    if zones.is_empty() {
        return Err(ParseError::at(0, "no zone"));
    }
    Ok(zones)
}

/// Parses `Node 0, zone   Normal`.
fn zone(index: usize, line: &str) -> Result<Zone, ParseError> {
    let missing = || ParseError::at(index, "no `Node N, zone NAME`");
    let rest = line.strip_prefix("Node ").ok_or_else(missing)?;
    let (node, rest) = rest.split_once(',').ok_or_else(missing)?;
    let name = rest.trim_start().strip_prefix("zone").ok_or_else(missing)?;
    Ok(Zone {
        node: number(index, "Node", node)?,
        name: name.trim().to_owned(),
        managed_pages: 0,
        page_sets: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An older kernel without auto-tuning: a fixture of `node_exporter` (Apache-2.0).
    const OLD: &str = include_str!("../../tests/fixtures/zoneinfo-node_exporter.txt");
    /// Linux 6.18, 2 CPUs.
    const NEW: &str = include_str!("../../tests/fixtures/zoneinfo-6.18.txt");

    #[test]
    fn zones_of_an_old_kernel_have_no_tuning() {
        let zones = zoneinfo(OLD).unwrap();
        let names: Vec<&str> = zones.iter().map(|zone| &*zone.name).collect();
        assert_eq!(names, ["DMA", "DMA32", "Normal", "Movable", "Device"]);
        let lists: usize = zones.iter().map(|zone| zone.page_sets.len()).sum();
        assert!(lists > 0);
        let tuned = |list: &PageSet| list.high_max_pages.is_some();
        assert!(!zones.iter().flat_map(|zone| &zone.page_sets).any(tuned));
    }

    #[test]
    fn zones_of_a_new_kernel_have_tuned_lists() {
        let zones = zoneinfo(NEW).unwrap();
        let dma32 = &zones[1];
        assert_eq!((&*dma32.name, dma32.managed_pages), ("DMA32", 772_808));
        assert_eq!(dma32.page_sets.len(), 2);
        let list = dma32.page_sets[0];
        assert!(list.high_max_pages > list.high_min_pages && list.batch_pages == 63);
        // The watermark `high` of the zone is not taken for the list's.
        assert_ne!(list.high_pages, 3659);
    }

    #[test]
    fn wrong_lines_are_named() {
        let error = zoneinfo("Node 0, zone DMA\n  managed x\n").unwrap_err();
        assert_eq!(error.line, 2);
        assert!(zoneinfo("").is_err() && zoneinfo("Node x, zone DMA\n").is_err());
    }
}
