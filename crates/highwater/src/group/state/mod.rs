//! What a tree of groups is: its words, ledgers, groups and wait queues, and walks over them. No
//! file here decides about a charge.

mod cell;
mod far;
mod ledger;
mod gate;
mod limits;
mod name;
mod names;
mod data;
mod meta;
mod waiters;
mod standing;
mod slot;
mod slots;
mod collect;
mod parked;
mod stock;
mod tree;
mod path;

pub(super) use cell::{CELL_MAX, Cell, Ending, GRANT_MAX, Made, OpenCell, Site, Word, Words};
pub(super) use collect::Collect;
pub(crate) use data::KeptData;
pub(super) use far::Far;
pub(super) use ledger::{Balance, RESERVED_MAX};
pub(super) use limits::{Event, EventCounts};
pub use limits::{GroupEvents, Limits, LimitsError};
pub use meta::GroupKey;
pub(super) use meta::Meta;
pub(super) use names::FullName;
pub(super) use parked::ParkedHint;
pub use path::GroupPath;
pub(super) use slot::{ActingCpu, FirstNote, Slot};
pub(super) use standing::SlotStanding;
pub(super) use stock::{STOCK_MAX, StockEntry, TokenStock};
pub use tree::DEPTH_MAX;
pub(crate) use tree::Groups;
pub(super) use tree::{HandleOwner, TreeOwner, TreeShape};
pub(crate) use waiters::QueueView;
pub(super) use waiters::{Calls, Lines, Ticket, Wakes};
