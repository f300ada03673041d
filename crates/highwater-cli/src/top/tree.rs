//! The tree of groups as rows: folded, sorted among siblings, filtered by path.

use std::cmp::Reverse;
use std::collections::HashSet;

use super::model::{Group, State};
use super::rates::Rate;

/// Order of siblings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// By name.
    #[default]
    Name,
    /// Largest upper bound of usage first.
    Usage,
    /// Most refaults per second first.
    Refaults,
    /// Highest pressure over 10 seconds first.
    Pressure,
    /// Longest wait first.
    Waiting,
}

impl Sort {
    const ALL: [Self; 5] = [
        Self::Name,
        Self::Usage,
        Self::Refaults,
        Self::Pressure,
        Self::Waiting,
    ];

    /// Returns the order after this one, round and round.
    pub(crate) fn next(self) -> Self {
        let index = Self::ALL.iter().position(|sort| *sort == self);
        let next = index.map_or(0, |index| index + 1);
        Self::ALL[next % Self::ALL.len()]
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Usage => "usage",
            Self::Refaults => "refaults",
            Self::Pressure => "pressure",
            Self::Waiting => "waiting",
        }
    }

    /// The greater key comes first.
    fn key(self, group: &Group, rate: &Rate) -> u128 {
        match self {
            Self::Name => 0,
            Self::Usage => u128::from(group.usage.high.0),
            Self::Refaults => u128::from(rate.refaults),
            // Shares, which are not negative, order as their bits.
            Self::Pressure => u128::from(group.some.averages[0].to_bits()),
            Self::Waiting => group.waiting.longest.as_nanos() << 1 | waits(group),
        }
    }
}

fn waits(group: &Group) -> u128 {
    u128::from(group.waiting.charges > 0)
}

/// How the tree is shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape {
    /// Paths of folded groups.
    pub(crate) folded: HashSet<String>,
    pub(crate) sort: Sort,
    /// Shows groups whose path contains this, in any case, and their ancestors; all if empty.
    pub(crate) filter: String,
}

/// A group that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its index in [`State::groups`].
    pub(crate) index: usize,
    pub(crate) depth: usize,
    pub(crate) has_children: bool,
    pub(crate) is_folded: bool,
}

/// Returns the rows of `state` from top to bottom. A filter opens what is folded.
pub(crate) fn rows(state: &State, rates: &[Rate], shape: &Shape) -> Vec<Row> {
    let is_shown = shown_by_filter(state, &shape.filter);
    let mut roots = Vec::new();
    let mut children = vec![Vec::new(); state.groups.len()];
    for (index, group) in state.groups.iter().enumerate() {
        // A child that precedes its parent would not be reached: it is a root then.
        match group.parent.filter(|parent| *parent < index) {
            Some(parent) => children[parent].push(index),
            None => roots.push(index),
        }
    }
    let none = Rate::default();
    let in_order = |siblings: &mut Vec<usize>| {
        // The sort is stable: equal groups stay in the order of names.
        siblings.sort_by_key(|index| {
            let rate = rates.get(*index).unwrap_or(&none);
            Reverse(shape.sort.key(&state.groups[*index], rate))
        });
    };
    in_order(&mut roots);
    children.iter_mut().for_each(in_order);
    let mut rows = Vec::new();
    let mut next: Vec<(usize, usize)> = roots.iter().rev().map(|root| (*root, 0)).collect();
    while let Some((index, depth)) = next.pop() {
        if !is_shown[index] {
            continue;
        }
        let has_children = !children[index].is_empty();
        let is_folded = shape.filter.is_empty() && shape.folded.contains(&state.groups[index].path);
        rows.push(Row {
            index,
            depth,
            has_children,
            is_folded: is_folded && has_children,
        });
        if !is_folded {
            next.extend(
                children[index]
                    .iter()
                    .rev()
                    .map(|child| (*child, depth + 1)),
            );
        }
    }
    rows
}

/// Whether the filter shows each group: it matches, or a group below it does.
fn shown_by_filter(state: &State, filter: &str) -> Vec<bool> {
    let filter = filter.to_lowercase();
    let matches = |group: &Group| group.path.to_lowercase().contains(&filter);
    let mut is_shown: Vec<bool> = state.groups.iter().map(matches).collect();
    // Children come after their parents, so that one pass from the end reaches the roots.
    for index in (0..state.groups.len()).rev() {
        if let Some(parent) = state.groups[index].parent
            && is_shown[index]
        {
            is_shown[parent] = true;
        }
    }
    is_shown
}

#[cfg(test)]
mod tests {
    use super::super::made;
    use super::*;

    fn shown(shape: &Shape) -> Vec<String> {
        let state = made::state(20);
        let rates = vec![Rate::default(); state.groups.len()];
        let rows = rows(&state, &rates, shape);
        let named = |row: &Row| format!("{}{}", row.depth, state.groups[row.index].path);
        rows.iter().map(named).collect()
    }

    #[test]
    fn folding_hides_what_is_below() {
        let mut shape = Shape::default();
        assert_eq!(
            shown(&shape),
            [
                "0/",
                "1/batch",
                "1/db",
                "2/db/query-41",
                "2/db/query-42",
                "1/web"
            ]
        );
        shape.folded.insert("/db".to_owned());
        assert_eq!(shown(&shape), ["0/", "1/batch", "1/db", "1/web"]);
        shape.folded.insert("/".to_owned());
        assert_eq!(shown(&shape), ["0/"]);
    }

    #[test]
    fn sorting_is_among_siblings() {
        let shape = Shape {
            sort: Sort::Usage,
            ..Shape::default()
        };
        assert_eq!(
            shown(&shape),
            [
                "0/",
                "1/db",
                "2/db/query-42",
                "2/db/query-41",
                "1/web",
                "1/batch"
            ]
        );
        let shape = Shape {
            sort: Sort::Waiting,
            ..Shape::default()
        };
        assert_eq!(shown(&shape)[1], "1/db");
        let names: Vec<&str> = Sort::ALL.map(Sort::name).to_vec();
        let mut sort = Sort::default();
        for name in names {
            assert_eq!(sort.name(), name);
            sort = sort.next();
        }
        assert_eq!(sort, Sort::default());
    }

    #[test]
    fn a_filter_keeps_ancestors_and_opens_them() {
        let mut shape = Shape {
            filter: "QUERY-42".to_owned(),
            ..Shape::default()
        };
        shape.folded.insert("/db".to_owned());
        assert_eq!(shown(&shape), ["0/", "1/db", "2/db/query-42"]);
        shape.filter = "no such group".to_owned();
        assert!(shown(&shape).is_empty());
    }
}
