//! Lists of pages, linked through arrays that are indexed by page. A hit on a page of most
//! algorithms touches two bytes of the smaller array.
//!
//! Invariant: a page is on one list at most; `lens` counts the pages on each. Pages enter at the
//! head; the tail is the page that has been on the list for longest.

/// No page.
const NONE: u32 = u32::MAX;
/// On no list.
const NOWHERE: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    /// The neighbour towards the head.
    newer: u32,
    /// The neighbour towards the tail.
    older: u32,
}

#[derive(Clone, Copy, Debug)]
struct State {
    list: u8,
    /// Number of accesses, as far as the algorithm counts.
    mark: u8,
}

/// `N` lists, numbered from 0.
#[derive(Debug)]
pub(super) struct Lists<const N: usize> {
    links: Vec<Link>,
    states: Vec<State>,
    heads: [u32; N],
    tails: [u32; N],
    lens: [usize; N],
}

impl<const N: usize> Lists<N> {
    /// Creates empty lists for the pages `0 .. footprint`.
    pub(super) fn new(footprint: usize) -> Self {
        let link = Link {
            newer: NONE,
            older: NONE,
        };
        let state = State {
            list: NOWHERE,
            mark: 0,
        };
        Self {
            links: vec![link; footprint],
            states: vec![state; footprint],
            heads: [NONE; N],
            tails: [NONE; N],
            lens: [0; N],
        }
    }

    /// Returns the list that a page is on.
    pub(super) fn list_of(&self, page: u32) -> Option<usize> {
        let list = self.states[page as usize].list;
        (list != NOWHERE).then_some(usize::from(list))
    }

    pub(super) fn len(&self, list: usize) -> usize {
        self.lens[list]
    }

    pub(super) fn mark(&self, page: u32) -> u8 {
        self.states[page as usize].mark
    }

    pub(super) fn set_mark(&mut self, page: u32, mark: u8) {
        self.states[page as usize].mark = mark;
    }

    /// Counts an access, up to `max`.
    pub(super) fn raise_mark(&mut self, page: u32, max: u8) {
        let mark = &mut self.states[page as usize].mark;
        *mark = (*mark + 1).min(max);
    }

    /// Returns the page that has been on a list for longest.
    pub(super) fn tail(&self, list: usize) -> Option<u32> {
        some(self.tails[list])
    }

    /// Returns the page that entered the same list next after `page`.
    pub(super) fn newer(&self, page: u32) -> Option<u32> {
        some(self.links[page as usize].newer)
    }

    /// Adds a page that is on no list at the head of `list`; keeps its mark.
    pub(super) fn push(&mut self, list: usize, page: u32) {
        let older = self.heads[list];
        let state = &mut self.states[page as usize];
        assert_eq!(state.list, NOWHERE, "page {page} is on a list already");
        state.list = u8::try_from(list).expect("few lists");
        self.links[page as usize] = Link { newer: NONE, older };
        match older {
            NONE => self.tails[list] = page,
            older => self.links[older as usize].newer = page,
        }
        self.heads[list] = page;
        self.lens[list] += 1;
    }

    /// Removes the page from its list; keeps its mark.
    pub(super) fn remove(&mut self, page: u32) {
        let Link { newer, older } = self.links[page as usize];
        let list = std::mem::replace(&mut self.states[page as usize].list, NOWHERE);
        assert_ne!(list, NOWHERE, "page {page} is on no list");
        let list_index = usize::from(list);
        match newer {
            NONE => self.heads[list_index] = older,
            newer => self.links[newer as usize].older = older,
        }
        match older {
            NONE => self.tails[list_index] = newer,
            older => self.links[older as usize].newer = newer,
        }
        self.lens[list_index] -= 1;
    }

    /// Removes and returns the page that has been on a list for longest.
    pub(super) fn pop(&mut self, list: usize) -> Option<u32> {
        let page = self.tail(list)?;
        self.remove(page);
        Some(page)
    }

    /// Moves a page to the head of `list`, from any list or none.
    pub(super) fn move_to(&mut self, list: usize, page: u32) {
        self.remove(page);
        self.push(list, page);
    }
}

fn some(page: u32) -> Option<u32> {
    (page != NONE).then_some(page)
}
