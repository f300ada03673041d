//! What pages are read from, and the group that pays for them.

use crate::cache::{FileEntry, Readahead, VmArea};
use crate::group::GroupNode;
use crate::sync::Arc;
use crate::units::{Bytes, Pages};

/// The file to read from and the group that pays.
#[derive(Clone, Copy)]
pub(super) struct FillSource<'a> {
    pub(super) file: &'a Arc<FileEntry>,
    pub(super) readahead: &'a Readahead,
    /// The group that pays.
    pub(super) group: &'a GroupNode,
    /// The mapping, unless the pages are for a handle of the file.
    pub(super) area: Option<&'a Arc<VmArea>>,
}

impl<'a> FillSource<'a> {
    /// Returns the source for pages of a mapping.
    pub(super) fn of(area: &'a Arc<VmArea>) -> Self {
        Self {
            file: area.file(),
            readahead: area.readahead(),
            group: area.group(),
            area: Some(area),
        }
    }

    /// Returns the source for pages that a handle of the file reads.
    pub(super) fn of_file(file: &'a Arc<FileEntry>, group: &'a GroupNode) -> Self {
        Self {
            file,
            readahead: file.readahead(),
            group,
            area: None,
        }
    }

    pub(super) fn for_flight(self) -> FlightSource {
        match self.area {
            Some(area) => FlightSource::Mapping(Arc::clone(area)),
            None => FlightSource::File(Box::new((Arc::clone(self.file), self.group.clone()))),
        }
    }

    /// Returns the memory of so many of its pages.
    pub(super) fn bytes_of(self, pages: usize) -> Bytes {
        Pages(pages as u64 * self.file.order().pages().0).bytes()
    }
}

/// A [`FillSource`] that a flight takes along.
#[derive(Debug)]
pub(super) enum FlightSource {
    Mapping(Arc<VmArea>),
    /// Boxed, because it is larger and rarer.
    File(Box<(Arc<FileEntry>, GroupNode)>),
}

impl FlightSource {
    pub(super) fn file(&self) -> &Arc<FileEntry> {
        match self {
            Self::Mapping(area) => area.file(),
            Self::File(of) => &of.0,
        }
    }

    pub(super) fn as_fill(&self) -> FillSource<'_> {
        match self {
            Self::Mapping(area) => FillSource::of(area),
            Self::File(of) => FillSource::of_file(&of.0, &of.1),
        }
    }
}
