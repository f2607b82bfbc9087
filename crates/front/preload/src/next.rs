//! Finds the symbols of the objects behind this library, all by one walk.
//!
//! `dlsym(RTLD_NEXT, …)` takes 0.4 µs. The library asks for hundreds of functions, and that was the
//! largest part of its start. Here the objects that the loader would search are listed once, and
//! their hash tables are read as the loader reads them.
//!
//! - **next-N1** The walk finds the symbols that `dlsym(RTLD_NEXT, …)` finds. That searches the
//!   program's objects in the order in which they were loaded, from the one behind this library on.
//!   So objects are listed only up to libc, and only if libc comes behind this library. That holds
//!   if the library was loaded with the program, as all objects up to libc were; an object that is
//!   opened later never comes between. `dlsym` is left the symbols that are not found among them,
//!   and those of a function that chooses an address (`STT_GNU_IFUNC`). It is left all symbols if
//!   one object lacks the table (`DT_GNU_HASH`).

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};

use libc::{Elf64_Addr, Elf64_Phdr, Elf64_Sym, dl_phdr_info};
use smallvec::SmallVec;

/// The name of libc (`DT_SONAME`).
const LIBC: &CStr = c"libc.so.6";
/// The kernel's own object. It defines functions under names of libc, and `dlsym` does not search
/// it.
const VDSO: &CStr = c"linux-vdso.so.1";

// Tags of a dynamic section.
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;

// Kinds of symbols, and their places.
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;
const STB_GLOBAL: u8 = 1;
const STB_WEAK: u8 = 2;
const SHN_UNDEF: u16 = 0;
/// Bit of a symbol's version: the version is not the default one.
const HIDDEN: u16 = 0x8000;

/// An entry of a dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// Computes the hash of a symbol's name (`DT_GNU_HASH`).
pub const fn hash(name: &CStr) -> u32 {
    let name = name.to_bytes();
    let (mut hash, mut at) = (5381_u32, 0);
    while at < name.len() {
        hash = hash.wrapping_mul(33).wrapping_add(name[at] as u32);
        at += 1;
    }
    hash
}

/// A loaded object, with the tables of its symbols. They stay while it is loaded: preloaded
/// libraries and libc are never unloaded.
#[derive(Clone, Copy)]
struct Object {
    base: usize,
    symbols: *const Elf64_Sym,
    strings: *const libc::c_char,
    /// A version for each symbol; null if the object has no versions.
    versions: *const u16,
    /// Number of buckets, first symbol that is hashed, words of the filter, its second shift.
    counts: [u32; 4],
    filter: *const u64,
    buckets: *const u32,
    /// For each symbol that is hashed: its hash. The lowest bit is set in the last one of a bucket.
    chain: *const u32,
    is_libc: bool,
    is_vdso: bool,
}

impl Object {
    /// Reads the dynamic section of an object; `None` if a table is missing.
    ///
    /// # Safety
    /// As `dl_iterate_phdr` describes it.
    unsafe fn of(info: &dl_phdr_info) -> Option<Self> {
        let base = info.dlpi_addr as usize;
        // SAFETY: the loader has mapped the section, and ends it by an entry of zeros.
        unsafe {
            let mut entry = dynamic_section(info)?;
            let (mut symbols, mut strings, mut versions, mut hashed) = (0, 0, 0, 0);
            let mut soname = None;
            while (*entry).tag != 0 {
                let value = (*entry).value as usize;
                // glibc adds the base if the section is writable, other loaders do not.
                let address = if value < base { value.wrapping_add(base) } else { value };
                match (*entry).tag {
                    DT_SYMTAB => symbols = address,
                    DT_STRTAB => strings = address,
                    DT_VERSYM => versions = address,
                    DT_GNU_HASH => hashed = address,
                    DT_SONAME => soname = Some(value),
                    _ => {}
                }
                entry = entry.add(1);
            }
            if symbols == 0 || strings == 0 || hashed == 0 {
                return None;
            }
            let strings = strings as *const libc::c_char;
            let counts = (hashed as *const [u32; 4]).read();
            let filter = (hashed as *const u32).add(4).cast::<u64>();
            let buckets = filter.add(counts[2] as usize).cast::<u32>();
            let is_named = |name| soname.is_some_and(|at| CStr::from_ptr(strings.add(at)) == name);
            Some(Self {
                base,
                symbols: symbols as *const Elf64_Sym,
                strings,
                versions: versions as *const u16,
                counts,
                filter,
                buckets,
                chain: buckets.add(counts[0] as usize),
                is_libc: is_named(LIBC),
                is_vdso: is_named(VDSO),
            })
        }
    }

    /// Finds the symbol of this name that the loader would take: global, and of the default
    /// version.
    ///
    /// # Safety
    /// The object is loaded.
    unsafe fn find(&self, name: &CStr, hash: u32) -> Option<&Elf64_Sym> {
        let [buckets, first, words, shift] = self.counts;
        if buckets == 0 || words == 0 {
            return None;
        }
        // SAFETY: the tables have the sizes in their headers; an object's own tables are as trusted
        // as its code.
        unsafe {
            let word = *self.filter.add((hash / 64 % words) as usize);
            let bits = 1 << (hash % 64) | 1 << ((hash >> shift) % 64);
            if word & bits != bits {
                return None;
            }
            let mut index = *self.buckets.add((hash % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let hashed = *self.chain.add((index - first) as usize);
                let symbol = &*self.symbols.add(index as usize);
                if hashed | 1 == hash | 1
                    && symbol.st_shndx != SHN_UNDEF
                    && matches!(symbol.st_info >> 4, STB_GLOBAL | STB_WEAK)
                    && (self.versions.is_null() || *self.versions.add(index as usize) & HIDDEN == 0)
                    && is_string(self.strings.add(symbol.st_name as usize), name)
                {
                    return Some(symbol);
                }
                if hashed & 1 != 0 {
                    return None;
                }
                index += 1;
            }
        }
    }
}

/// Compares a string with a name, byte by byte, as names are short.
///
/// # Safety
/// `at` is a string.
unsafe fn is_string(at: *const libc::c_char, name: &CStr) -> bool {
    // SAFETY: the first difference ends it, at the NUL at the latest.
    let is = |(index, byte)| unsafe { *at.add(index) as u8 == byte };
    name.to_bytes_with_nul().iter().copied().enumerate().all(is)
}

/// Returns the address of an object's dynamic section.
///
/// # Safety
/// As [`Object::of`].
unsafe fn dynamic_section(info: &dl_phdr_info) -> Option<*const Dynamic> {
    let dynamic = headers(info).iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
    Some((info.dlpi_addr as usize + dynamic.p_vaddr as usize) as *const Dynamic)
}

fn headers(info: &dl_phdr_info) -> &[Elf64_Phdr] {
    // SAFETY: as `dl_iterate_phdr` describes it.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) }
}

/// Checks whether an address lies in an object.
fn contains(info: &dl_phdr_info, address: Elf64_Addr) -> bool {
    headers(info).iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
        let start = info.dlpi_addr + header.p_vaddr;
        (start..start + header.p_memsz).contains(&address)
    })
}

/// The objects behind this library, up to libc; empty if they cannot be listed (next-N1).
pub struct Next(SmallVec<[Object; 8]>);

/// The state of a listing.
#[derive(Default)]
struct Listing {
    is_behind: bool,
    is_complete: bool,
    objects: SmallVec<[Object; 8]>,
}

impl Next {
    /// Lists the objects.
    pub fn list() -> Self {
        let mut listing = Listing::default();
        // SAFETY: the callback gets the listing back.
        unsafe { libc::dl_iterate_phdr(Some(list), (&raw mut listing).cast()) };
        Self(if listing.is_complete { listing.objects } else { SmallVec::new() })
    }

    /// Checks whether no object could be listed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the address of a function (or of data); `None` if `dlsym` has to find it.
    pub fn find(&self, name: &CStr, hash: u32) -> Option<*mut c_void> {
        // SAFETY: they are loaded.
        let found =
            self.0.iter().find_map(|object| unsafe { Some((object, object.find(name, hash)?)) });
        let (object, symbol) = found?;
        let is_there =
            matches!(symbol.st_info & 0xf, STT_FUNC | STT_OBJECT) && symbol.st_value != 0;
        is_there.then_some((object.base + symbol.st_value as usize) as *mut c_void)
    }
}

/// Checks whether a loaded object defines one of these functions. Called when the program starts:
/// all objects are global then, and `dlsym(RTLD_DEFAULT, …)` would find the function.
pub fn is_any_defined(names: &[&CStr]) -> bool {
    let mut search = Search { names, is_found: false };
    // SAFETY: the callback gets the search back.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.is_found
}

/// A search through all objects.
struct Search<'n> {
    names: &'n [&'n CStr],
    is_found: bool,
}

unsafe extern "C" fn look(info: *mut dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes a description, and what it was given.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    // SAFETY: as above.
    search.is_found = unsafe {
        match Object::of(info) {
            Some(object) => search.names.iter().any(|name| object.find(name, hash(name)).is_some()),
            // The loader reads the older table of this object.
            None => search
                .names
                .iter()
                .any(|name| !libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).is_null()),
        }
    };
    search.is_found.into()
}

unsafe extern "C" fn list(info: *mut dl_phdr_info, _: usize, listing: *mut c_void) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes a description, and what it was given.
    let (info, listing) = unsafe { (&*info, &mut *listing.cast::<Listing>()) };
    if !listing.is_behind {
        listing.is_behind = contains(info, list as *const () as Elf64_Addr);
        return 0;
    }
    // SAFETY: as above.
    let Some(object) = (unsafe { Object::of(info) }) else { return 1 };
    listing.is_complete = object.is_libc;
    if !object.is_vdso {
        listing.objects.push(object);
    }
    object.is_libc.into()
}
