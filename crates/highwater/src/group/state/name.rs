//! [`Name`]: a group's name among its siblings, stored in place if it is short: most are, and a
//! group of one query should not need memory apart from its own for that.

use std::fmt;

/// Bytes stored in place. Chosen: with them a name is no larger than three words.
const SHORT_MAX: usize = 22;

/// A name.
#[derive(Clone)]
pub(in crate::group) enum Name {
    Short { len: u8, bytes: [u8; SHORT_MAX] },
    Long(Box<str>),
}

const _: () = assert!(size_of::<Name>() == 24);

impl Name {
    pub(in crate::group) fn new(name: &str) -> Self {
        let mut bytes = [0; SHORT_MAX];
        match (bytes.get_mut(..name.len()), u8::try_from(name.len())) {
            (Some(place), Ok(len)) => {
                place.copy_from_slice(name.as_bytes());
                Self::Short { len, bytes }
            }
            _ => Self::Long(name.into()),
        }
    }

    pub(in crate::group) fn as_str(&self) -> &str {
        match self {
            Self::Short { .. } => str::from_utf8(self.as_bytes()).expect("it was a `str`"),
            Self::Long(name) => name,
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Long(name) => name.as_bytes(),
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Name {}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // Goal: names of every length come back, and are equal as their texts are. Method: pairs of
    // names around the length that is stored in place, some with characters of several bytes.
    #[test]
    fn names_are_as_their_text() {
        let texts: Vec<String> = (0..=60)
            .flat_map(|len| ["a", "b", "\u{e4}"].map(|letter| letter.repeat(len)))
            .collect();
        for one in &texts {
            assert_eq!(Name::new(one).as_str(), one);
            for other in &texts {
                let is_equal = Name::new(one) == Name::new(other);
                assert_eq!(is_equal, one == other, "{one} {other}");
            }
        }
    }
}
