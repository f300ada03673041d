//! Fields of a line of text, parsed in place without allocation.

/// The fields of one line, separated by spaces or tabs.
pub(crate) struct Fields<'line> {
    rest: &'line [u8],
}

impl<'line> Fields<'line> {
    pub(crate) const fn new(line: &'line [u8]) -> Self {
        Self { rest: line }
    }

    #[inline]
    fn skip_blanks(&mut self) {
        while let [b' ' | b'\t' | b'\r', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// Returns the next field if it is a whole decimal number of at most 64 bits.
    #[inline]
    pub(crate) fn number(&mut self) -> Option<u64> {
        self.skip_blanks();
        let (value, rest) = leading_number(self.rest)?;
        self.rest = rest;
        self.is_at_boundary().then_some(value)
    }

    /// Returns the next field if it is a hexadecimal number that begins with `0x`.
    #[inline]
    pub(super) fn hexadecimal(&mut self) -> Option<u64> {
        self.skip_blanks();
        let [b'0', b'x' | b'X', rest @ ..] = self.rest else {
            return None;
        };
        self.rest = rest;
        self.hexadecimal_digits()
    }

    /// Returns the next field if it is a hexadecimal number without a prefix.
    #[inline]
    pub(crate) fn bare_hexadecimal(&mut self) -> Option<u64> {
        self.skip_blanks();
        self.hexadecimal_digits()
    }

    #[inline]
    fn hexadecimal_digits(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        let mut digits = 0;
        for &byte in self.rest {
            let digit = HEX_DIGITS[usize::from(byte)];
            if digit == NO_DIGIT {
                break;
            }
            if value >> 60 != 0 {
                return None;
            }
            value = value << 4 | u64::from(digit);
            digits += 1;
        }
        self.rest = &self.rest[digits..];
        (digits > 0 && self.is_at_boundary()).then_some(value)
    }

    /// Returns the next field if it is one byte long.
    #[inline]
    pub(crate) fn letter(&mut self) -> Option<u8> {
        self.skip_blanks();
        let (&letter, rest) = self.rest.split_first()?;
        self.rest = rest;
        self.is_at_boundary().then_some(letter)
    }

    /// Returns whether only blanks are left.
    #[inline]
    pub(crate) fn is_at_end(&mut self) -> bool {
        self.skip_blanks();
        self.rest.is_empty()
    }

    #[inline]
    fn is_at_boundary(&self) -> bool {
        matches!(self.rest, [] | [b' ' | b'\t' | b'\r', ..])
    }
}

/// Value of a byte that is not a hexadecimal digit.
const NO_DIGIT: u8 = 0xff;

/// Values of the hexadecimal digits. A table, because branch prediction cannot guess whether the
/// next digit of an address is a letter, and a misprediction costs more than the whole field.
const HEX_DIGITS: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let digits = b"0123456789abcdef";
    let mut value = 0_u8;
    while value < 16 {
        let digit = digits[value as usize];
        values[digit as usize] = value;
        values[digit.to_ascii_uppercase() as usize] = value;
        value += 1;
    }
    values
};

/// Number of decimal digits that always fit 64 bits.
const DIGITS_SURE: usize = 19;

/// Returns the decimal number at the start of `bytes`, and the rest.
#[inline]
pub(super) fn leading_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (index, &byte) in bytes.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return (index > 0).then(|| (value, &bytes[index..]));
        }
        if index == DIGITS_SURE {
            return leading_long_number(value, &bytes[index..]);
        }
        value = value * 10 + u64::from(digit);
    }
    (!bytes.is_empty()).then_some((value, &[]))
}

/// Returns the rest of a number whose first digits are `value`, and checks every digit for
/// overflow.
#[cold]
fn leading_long_number(mut value: u64, bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut digits = 0;
    for byte in bytes.iter().take_while(|byte| byte.is_ascii_digit()) {
        let digit = u64::from(byte - b'0');
        value = value.checked_mul(10)?.checked_add(digit)?;
        digits += 1;
    }
    Some((value, &bytes[digits..]))
}

/// Returns whether a line holds only blanks.
#[inline]
pub(super) fn is_blank(line: &[u8]) -> bool {
    Fields::new(line).is_at_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_at_a_blank_and_fit_64_bits() {
        let mut fields = Fields::new(b"  7\t18446744073709551615 0xfF 18446744073709551616");
        assert_eq!(fields.number(), Some(7));
        assert_eq!(fields.number(), Some(u64::MAX));
        assert_eq!(fields.hexadecimal(), Some(255));
        assert_eq!(fields.number(), None);
        assert_eq!(Fields::new(b"00000000000000000000012 ").number(), Some(12));
        assert_eq!(Fields::new(b"12x").number(), None);
        assert_eq!(Fields::new(b"").number(), None);
        assert_eq!(Fields::new(b"0x").hexadecimal(), None);
        assert_eq!(
            Fields::new(b"0xffffffffffffffff").hexadecimal(),
            Some(u64::MAX)
        );
        assert_eq!(Fields::new(b"0x10000000000000000").hexadecimal(), None);
        assert_eq!(Fields::new(b" fF 1").bare_hexadecimal(), Some(255));
        assert_eq!(Fields::new(b"0x1").bare_hexadecimal(), None);
        assert!(is_blank(b" \t\r") && is_blank(b"") && !is_blank(b"*"));
    }
}
