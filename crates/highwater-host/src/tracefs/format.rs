//! `events/SYSTEM/EVENT/format`: number of an event, and where its fields lie. Fields are found by
//! name, since offsets and types differ between kernels.

use thiserror::Error;

/// Layout of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventFormat {
    /// Name of the event, without its system.
    pub name: String,
    /// Number of the event: the first two bytes of its records. It differs from boot to boot.
    pub id: u16,
    /// All fields, in the order of the file; those that every event has begin with `common_`.
    pub fields: Vec<Field>,
}

/// Place of one field in an event's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, without type and array bounds.
    pub name: String,
    /// Offset in the event, in bytes.
    pub offset: usize,
    /// Size in bytes; 4 for a dynamic array, whose bytes lie elsewhere.
    pub size: usize,
    /// Whether the number is signed.
    pub is_signed: bool,
    /// Whether the field is a dynamic array, `__data_loc` or `__rel_loc`.
    array: Array,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Array {
    /// The bytes are in the field.
    Inline,
    /// The field says where they are, from the event's beginning.
    Located,
    /// The field says where they are, from its own end.
    Relative,
}

/// Why a format file is of no use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A line that begins as a field and does not continue as one.
    #[error("line {number} of a format file is no field: `{line}`")]
    Line {
        /// Number of the line, from 1.
        number: usize,
        /// Its text.
        line: String,
    },
    /// A line that must be there is missing.
    #[error("a format file lacks its line `{line}`")]
    Missing {
        /// Beginning of the line.
        line: &'static str,
    },
    /// An event without a field that the caller needs.
    #[error("event {event} has no field `{field}` in this kernel")]
    NoField {
        /// The event.
        event: String,
        /// The field.
        field: String,
    },
}

impl EventFormat {
    /// Parses a format file.
    ///
    /// # Errors
    ///
    /// When the name, the number or a field does not parse.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let name = value_of(text, "name:")?.to_owned();
        let id = value_of(text, "ID:")?
            .parse()
            .map_err(|_| FormatError::Missing { line: "ID:" })?;
        let fields = parse_fields(text)?;
        Ok(Self { name, id, fields })
    }

    /// Returns a field.
    ///
    /// # Errors
    ///
    /// When the event has none of this name.
    pub fn field(&self, name: &str) -> Result<&Field, FormatError> {
        let found = self.fields.iter().find(|field| field.name == name);
        found.ok_or_else(|| FormatError::NoField {
            event: self.name.clone(),
            field: name.to_owned(),
        })
    }
}

fn value_of<'a>(text: &'a str, line: &'static str) -> Result<&'a str, FormatError> {
    text.lines()
        .find_map(|each| each.strip_prefix(line))
        .map(str::trim)
        .ok_or(FormatError::Missing { line })
}

/// Parses every line that begins with `field:`.
pub(super) fn parse_fields(text: &str) -> Result<Vec<Field>, FormatError> {
    let mut fields = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(rest) = line.trim_start().strip_prefix("field:") else {
            continue;
        };
        let field = parse_field(rest).ok_or_else(|| FormatError::Line {
            number: index + 1,
            line: line.trim().to_owned(),
        })?;
        fields.push(field);
    }
    Ok(fields)
}

/// Parses `unsigned long index; offset:24; size:8; signed:0;`.
fn parse_field(text: &str) -> Option<Field> {
    let mut parts = text.split(';').map(str::trim);
    let declaration = parts.next()?;
    let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
    let size = parts.next()?.strip_prefix("size:")?.parse().ok()?;
    // Kernels before 2.6.36 have no `signed`.
    let is_signed = parts.next()?.strip_prefix("signed:")? == "1";
    let array = match declaration.split_whitespace().next()? {
        "__data_loc" => Array::Located,
        "__rel_loc" => Array::Relative,
        _ => Array::Inline,
    };
    let without_bounds = declaration.split('[').next()?;
    // `__data_loc char[] name` has its bounds before the name.
    let named = match array {
        Array::Inline => without_bounds,
        Array::Located | Array::Relative => declaration,
    };
    let name = named
        .rsplit(|c: char| c.is_whitespace() || c == '*')
        .find(|word| !word.is_empty())?;
    Some(Field {
        name: name.to_owned(),
        offset,
        size,
        is_signed,
        array,
    })
}

impl Field {
    /// Returns the field's bytes in an event; of a dynamic array, the bytes of its content. `None`
    /// if the event is too short.
    #[must_use]
    pub fn bytes<'event>(&self, event: &'event [u8]) -> Option<&'event [u8]> {
        let own_end = self.offset.checked_add(self.size)?;
        let own = event.get(self.offset..own_end)?;
        let base = match self.array {
            Array::Inline => return Some(own),
            Array::Located => 0,
            Array::Relative => own_end,
        };
        let place = u32::from_ne_bytes(own.try_into().ok()?);
        let start = base.checked_add(usize::try_from(place & 0xffff).ok()?)?;
        let end = start.checked_add(usize::try_from(place >> 16).ok()?)?;
        event.get(start..end)
    }

    /// Returns the number in an event, its bits taken as unsigned; `None` if the event is too
    /// short, or the field is no number of 1, 2, 4 or 8 bytes.
    #[must_use]
    pub fn unsigned(&self, event: &[u8]) -> Option<u64> {
        let bytes = self.bytes(event)?;
        Some(match bytes.len() {
            1 => u64::from(*bytes.first()?),
            2 => u64::from(u16::from_ne_bytes(bytes.try_into().ok()?)),
            4 => u64::from(u32::from_ne_bytes(bytes.try_into().ok()?)),
            8 => u64::from_ne_bytes(bytes.try_into().ok()?),
            _ => return None,
        })
    }

    /// Returns the number in an event, with the sign that the format file says.
    #[must_use]
    pub fn signed(&self, event: &[u8]) -> Option<i64> {
        let bits = self.unsigned(event)?;
        if !self.is_signed {
            return i64::try_from(bits).ok();
        }
        let unused = 64 - 8 * u32::try_from(self.size).ok().filter(|size| *size <= 8)?;
        Some((bits << unused).cast_signed() >> unused)
    }

    /// Returns the text in an event, up to its first zero byte; bytes that are no UTF-8 are
    /// replaced.
    #[must_use]
    pub fn text(&self, event: &[u8]) -> Option<String> {
        let bytes = self.bytes(event)?;
        let text = bytes.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}
