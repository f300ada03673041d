//! The C library's symbols that locate rseq areas (`__rseq_offset`, `__rseq_size`), or their
//! absence.
//!
//! A program that is linked dynamically looks them up by name, so that one built with a library
//! that has them starts with one that lacks them: a reference, even a weak one, would be of a
//! symbol of version `GLIBC_2.35`, without which the loader ends the program. A program that is
//! linked statically (target feature `crt-static`) has no loader to ask; there a weak reference is
//! resolved by the linker, to zero if the library lacks the symbol.

/// Address of `__rseq_offset`: bytes from a thread's pointer to its area.
pub(super) fn offset() -> Option<*const isize> {
    let address = find::offset();
    (!address.is_null()).then_some(address.cast())
}

/// Address of `__rseq_size`: bytes of the area that are in use; 0 where none is registered.
pub(super) fn size() -> Option<*const u32> {
    let address = find::size();
    (!address.is_null()).then_some(address.cast())
}

#[cfg(not(target_feature = "crt-static"))]
mod find {
    use std::ffi::CStr;

    pub(super) fn offset() -> *const u8 {
        symbol(c"__rseq_offset")
    }

    pub(super) fn size() -> *const u8 {
        symbol(c"__rseq_size")
    }

    fn symbol(name: &CStr) -> *const u8 {
        // SAFETY: `dlsym` takes a terminated string, which a `CStr` is, and is thread-safe.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        address.cast_const().cast()
    }
}

#[cfg(target_feature = "crt-static")]
mod find {
    use std::arch::asm;

    /// The address that the linker gives to a symbol, or zero. Rust's own weak references are not
    /// stable.
    macro_rules! weak {
        ($name:literal) => {{
            let address: *const u8;
            // SAFETY: reads the symbol's entry of the global offset table, which the linker makes.
            unsafe {
                asm!(
                    concat!(".weak ", $name),
                    concat!("mov {address}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                    address = out(reg) address,
                    options(pure, readonly, nostack, preserves_flags),
                );
            }
            address
        }};
    }

    pub(super) fn offset() -> *const u8 {
        weak!("__rseq_offset")
    }

    pub(super) fn size() -> *const u8 {
        weak!("__rseq_size")
    }
}
