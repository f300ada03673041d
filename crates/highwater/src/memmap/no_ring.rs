//! In place of `ring.rs` and `write_ring.rs` where there is no io_uring: other systems, and models.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::marker::PhantomData;

use super::done::{Broken, Done};
use super::frames::{Frame, FrameMemory};
use super::vectored::PlacedWrite;
use crate::sync::Arc;

/// See `ring.rs`.
#[derive(Debug)]
pub(crate) struct NoRing<T>(Infallible, PhantomData<T>);

/// See `write_ring.rs`.
#[derive(Debug)]
pub(crate) struct NoWriteRing;

impl NoWriteRing {
    pub(crate) const fn new() -> Self {
        Self
    }

    pub(crate) fn take(&self) -> Option<NoTakenRing<'_>> {
        None
    }
}

/// See `write_ring.rs`.
#[derive(Debug)]
pub(crate) struct NoTakenRing<'a>(Infallible, PhantomData<&'a ()>);

impl NoTakenRing<'_> {
    pub(crate) fn write_all(&mut self, _: &mut [PlacedWrite<'_>]) {
        match self.0 {}
    }
}

/// See `ring.rs`.
#[derive(Debug)]
pub(crate) struct NoBell(Infallible);

impl<T> NoRing<T> {
    pub(crate) fn new(_: Arc<FrameMemory>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn read(
        &self,
        _: &File,
        _: u64,
        _: Vec<Frame>,
        _: T,
    ) -> Result<(), (Vec<Frame>, T)> {
        match self.0 {}
    }

    pub(crate) fn has_room(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn nr_in_flight(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn nr_queued(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn submit(&self) -> Result<usize, Broken<T>> {
        match self.0 {}
    }

    pub(crate) fn reap(&self, _: &mut Vec<Done<T>>) -> usize {
        match self.0 {}
    }

    pub(crate) fn wait(&self, _: &NoBell) -> bool {
        match self.0 {}
    }
}

impl NoBell {
    pub(crate) fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn ring(&self) {
        match self.0 {}
    }

    pub(crate) fn silence(&self) {
        match self.0 {}
    }
}
