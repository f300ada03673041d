//! [`Name`]: a group's name among its siblings, stored in place if it is short: most are, and a
//! group of one query should not need memory apart from its own for that.

use std::fmt;

/// Bytes stored in place. Chosen: with their number they are three words.
const SHORT_MAX: usize = 23;

/// A name.
#[derive(Clone)]
pub(in crate::group) enum Name {
    Short(ShortName),
    Long(Box<str>),
}

/// The bytes of a short name, zeros, and the number of the bytes. Aligned: it is copied by words,
/// of which each was stored as a whole; by parts, each copy would wait for the one before it.
#[derive(Clone, Copy, PartialEq)]
#[repr(align(8))]
pub(in crate::group) struct ShortName([u8; SHORT_MAX + 1]);

const _: () = assert!(size_of::<ShortName>() == 24);

impl ShortName {
    fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; SHORT_MAX + 1];
        bytes[..SHORT_MAX]
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        bytes[SHORT_MAX] = u8::try_from(name.len()).ok()?;
        Some(Self(bytes))
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0[..usize::from(self.0[SHORT_MAX])]
    }
}

impl Name {
    pub(in crate::group) fn new(name: &str) -> Self {
        ShortName::new(name).map_or_else(|| Self::Long(name.into()), Self::Short)
    }

    pub(in crate::group) fn as_str(&self) -> &str {
        match self {
            Self::Short(name) => str::from_utf8(name.as_bytes()).expect("it was a `str`"),
            Self::Long(name) => name,
        }
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Short(one), Self::Short(other)) => one == other,
            (Self::Long(one), Self::Long(other)) => one == other,
            _ => false,
        }
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
