//! Putting a moment together from the payloads of its records.

use std::collections::HashMap;
use std::time::Duration;

use super::codec::GroupNumbers;
use super::format::In;
use super::moment::{FileMoment, FramesMoment, GroupMoment, LockMoment, Moment, PcpMoment};
use crate::group::DEPTH_MAX;
use crate::units::GroupId;

/// What an item of a whole moment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Item {
    Group = 1,
    Frames = 2,
    Pcp = 3,
    ZoneLock = 4,
    Lock = 5,
    File = 6,
    FilesOmitted = 7,
    Counter = 8,
}

impl Item {
    fn of(byte: u8) -> Option<Self> {
        let all = [
            Self::Group,
            Self::Frames,
            Self::Pcp,
            Self::ZoneLock,
            Self::Lock,
            Self::File,
            Self::FilesOmitted,
            Self::Counter,
        ];
        all.into_iter().find(|item| *item as u8 == byte)
    }
}

/// A moment in the making.
#[derive(Debug)]
pub(super) struct Assembly {
    moment: Moment,
    by_id: HashMap<u32, usize>,
}

impl Assembly {
    /// Begins with a moment whose times are known.
    pub(super) fn new(moment: Moment) -> Self {
        Self {
            moment,
            by_id: HashMap::new(),
        }
    }

    /// Adds a part of the whole moment; `None` if it is not encoded as such.
    pub(super) fn add_whole(&mut self, payload: &[u8]) -> Option<()> {
        let mut input = In(payload);
        let (_is_last, _tick, _part) = (input.byte()?, input.number()?, input.number()?);
        while !input.0.is_empty() {
            let item = Item::of(input.byte()?)?;
            self.add_item(item, &mut input)?;
        }
        Some(())
    }

    fn add_item(&mut self, item: Item, input: &mut In<'_>) -> Option<()> {
        let moment = &mut self.moment;
        match item {
            Item::Group => self.add_group(input)?,
            Item::Frames => {
                let lists = std::mem::take(&mut moment.frames.lists);
                let zone_lock = std::mem::take(&mut moment.frames.zone_lock);
                moment.frames = FramesMoment {
                    lists,
                    zone_lock,
                    ..FramesMoment::decode(input)?
                };
            }
            Item::Pcp => moment.frames.lists.push(PcpMoment::decode(input)?),
            Item::ZoneLock => moment.frames.zone_lock = LockMoment::decode(input)?,
            Item::Lock => moment.locks.push(LockMoment::decode(input)?),
            Item::File => moment.files.push(FileMoment::decode(input)?),
            Item::FilesOmitted => moment.files_omitted = input.number()?,
            Item::Counter => {
                let counter = (input.text()?, input.number()?);
                moment.counters.push(counter);
            }
        }
        Some(())
    }

    fn add_group(&mut self, input: &mut In<'_>) -> Option<()> {
        let id = input.small()?;
        let parent = input.small()?.checked_sub(1);
        let depth = input.small()?;
        let name = input.text()?;
        let numbers = GroupNumbers::decode(input)?;
        let groups = &mut self.moment.groups;
        // No path of a group is longer than its depth allows, whatever the record says.
        let parent = parent.and_then(|id| self.by_id.get(&id)).copied();
        let parent = parent.filter(|index| {
            depth <= DEPTH_MAX && groups[*index].depth.checked_add(1) == Some(depth)
        });
        let path = match parent.map(|index| groups[index].path.trim_end_matches('/')) {
            Some(above) => format!("{above}/{name}"),
            None => format!("/{name}"),
        };
        self.by_id.insert(id, groups.len());
        let group = GroupMoment {
            id: GroupId(id),
            parent,
            depth,
            name,
            path,
            read_at: self.moment.whole_at,
            usage: numbers.usage,
            peak: numbers.peak,
            limits: numbers.limits,
            events: numbers.events,
            pressure: numbers.pressure,
            stat: numbers.stat,
            stat_staleness: numbers.stat_staleness,
            stat_age: numbers.stat_age,
            waiting: numbers.waiting,
        };
        groups.push(group);
        debug_assert!(
            self.by_id.len() <= groups.len(),
            "each number is that of a group"
        );
        Some(())
    }

    /// Adds a record of groups that had changed by `time`; `None` if it is not encoded as such.
    pub(super) fn add_changes(&mut self, time: Duration, payload: &[u8]) -> Option<()> {
        let mut input = In(payload);
        let (_flags, _tick, _base) = (input.byte()?, input.number()?, input.number()?);
        while !input.0.is_empty() {
            let id = input.small()?;
            let numbers = GroupNumbers::decode(&mut input)?;
            // The record of the group itself may be lost.
            if let Some(index) = self.by_id.get(&id) {
                self.moment.groups[*index].set(time, &numbers);
            }
        }
        Some(())
    }

    pub(super) fn finish(self, time: Duration) -> Moment {
        Moment {
            time,
            ..self.moment
        }
    }
}

impl GroupMoment {
    fn set(&mut self, read_at: Duration, numbers: &GroupNumbers) {
        self.read_at = read_at;
        self.usage = numbers.usage;
        self.peak = numbers.peak;
        self.limits = numbers.limits;
        self.events = numbers.events;
        self.pressure = numbers.pressure;
        self.stat = numbers.stat;
        self.stat_staleness = numbers.stat_staleness;
        self.stat_age = numbers.stat_age;
        self.waiting = numbers.waiting;
    }
}
