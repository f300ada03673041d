//! Names of the kernel's functions by address, from `/proc/kallsyms`.

use std::fs;

/// Functions of the kernel, sorted by address.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    addresses: Vec<u64>,
    names: Vec<String>,
}

impl Symbols {
    /// Reads `/proc/kallsyms`. It has no address for a user without the right to see them, and
    /// then there are no symbols.
    #[must_use]
    pub fn of_this_kernel() -> Self {
        Self::parse(&fs::read_to_string("/proc/kallsyms").unwrap_or_default())
    }

    /// Parses lines of `ADDRESS TYPE NAME`; others, and those with address 0, are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut found: Vec<(u64, &str)> = text.lines().filter_map(symbol).collect();
        found.sort_unstable();
        Self {
            addresses: found.iter().map(|(address, _)| *address).collect(),
            names: found.iter().map(|(_, name)| (*name).to_owned()).collect(),
        }
    }

    /// Returns whether no symbol is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Returns the function that `address` lies in, without suffixes of the compiler, such as
    /// `.isra.0`.
    #[must_use]
    pub fn name_at(&self, address: u64) -> Option<&str> {
        let after = self.addresses.partition_point(|start| *start <= address);
        let name = self.names.get(after.checked_sub(1)?)?;
        name.split('.').find(|part| !part.is_empty())
    }
}

fn symbol(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?;
    let is_code = matches!(kind, "t" | "T" | "w" | "W");
    (is_code && address != 0).then_some((address, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_function_before_it() {
        let text = "\
ffffffff81200000 T rmqueue_bulk
ffffffff81300000 t folio_lruvec_lock.isra.0
ffffffff81250000 D data_in_between
0000000000000000 T hidden
nonsense
";
        let symbols = Symbols::parse(text);
        assert_eq!(symbols.name_at(0xffff_ffff_811f_ffff), None);
        assert_eq!(symbols.name_at(0xffff_ffff_8120_0000), Some("rmqueue_bulk"));
        assert_eq!(symbols.name_at(0xffff_ffff_8126_0000), Some("rmqueue_bulk"));
        assert_eq!(symbols.name_at(u64::MAX), Some("folio_lruvec_lock"));
        assert!(Symbols::parse("0000000000000000 T a\n").is_empty());
    }
}
