//! The properties of a program that decide whether `keepstone run` can serve it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, elf};

/// A program file.
#[derive(Debug)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// The interpreter of a script.
    pub interpreter: Option<PathBuf>,
    /// Whether it runs with other rights than its caller's; the loader then ignores `LD_PRELOAD`.
    pub privileged: bool,
    kind: RowKind,
}

#[derive(Debug, PartialEq, Eq)]
enum RowKind {
    /// Dynamically linked.
    Dynamic {
        loader: String,
    },
    Static,
    /// Written in Go: makes system calls without libc, however it is linked.
    Go,
    /// Not an ELF file of this machine.
    Foreign,
}

impl Program {
    /// Finds the program that a shell would start by this name.
    pub fn find(name: &Path) -> Option<Self> {
        let is_program = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0)
        };
        let path = if name.parent().is_some_and(|parent| parent != Path::new("")) {
            Some(name.to_owned()).filter(is_program)
        } else {
            let dirs = std::env::var_os("PATH")?;
            std::env::split_paths(&dirs).map(|dir| dir.join(name)).find(is_program)
        };
        Self::look(path?)
    }

    fn look(path: PathBuf) -> Option<Self> {
        let content = fs::read(&path).ok()?;
        let interpreter = interpreter(&content);
        let content = match &interpreter {
            Some(interpreter) => fs::read(interpreter).ok()?,
            None => content,
        };
        let meta = fs::metadata(interpreter.as_ref().unwrap_or(&path)).ok()?;
        let own = |id: u32, mine: u32| id == mine;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let mode = meta.permissions().mode();
        let privileged = mode & 0o4000 != 0 && !own(meta.uid(), uid.as_raw())
            || mode & 0o2000 != 0 && !own(meta.gid(), gid.as_raw());
        Some(Self { path, interpreter, privileged, kind: kind(&content) })
    }

    /// Returns why the library cannot serve it; `None` if it can.
    pub fn not_served(&self) -> Option<String> {
        if self.privileged {
            return Some("set-user-ID or set-group-ID, so it loads no library".to_owned());
        }
        match &self.kind {
            RowKind::Static => Some("statically linked".to_owned()),
            RowKind::Go => Some("written in Go, so it calls the kernel without libc".to_owned()),
            RowKind::Foreign => Some("not a program for this machine".to_owned()),
            RowKind::Dynamic { loader } if !loader.contains("ld-linux") => {
                Some(format!("its libc is not glibc (loader {loader})"))
            }
            RowKind::Dynamic { .. } => None,
        }
    }
}

/// Returns the interpreter that the first line of a script names.
fn interpreter(content: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStrExt as _;
    let line = content.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let words = line.split(|byte| byte.is_ascii_whitespace());
    let path = words.into_iter().find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

fn kind(content: &[u8]) -> RowKind {
    try_kind(content).unwrap_or(RowKind::Foreign)
}

fn try_kind(content: &[u8]) -> object::read::Result<RowKind> {
    let file = ElfFile64::<Endianness>::parse(content)?;
    let endian = file.endian();
    if file.elf_header().e_machine(endian) != elf::EM_X86_64 {
        return Ok(RowKind::Foreign);
    }
    let segments = file.elf_program_headers();
    let loader = segments.iter().find_map(|segment| segment.interpreter(endian, content).ok()?);
    let Some(loader) = loader else {
        return Ok(RowKind::Static);
    };
    let sections = file.elf_section_table();
    if sections.section_by_name(endian, b".note.go.buildid").is_some() {
        return Ok(RowKind::Go);
    }
    // A file whose dynamic section is broken cannot be loaded, so it counts as foreign.
    if let Some((_, strings)) = sections.dynamic(endian, content)? {
        sections.strings(endian, content, strings)?;
    }
    Ok(RowKind::Dynamic { loader: String::from_utf8_lossy(loader).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_apart() {
        let shell = Program::find(Path::new("sh")).unwrap();
        assert_eq!(shell.not_served(), None);
        assert_eq!(interpreter(b"#! /bin/sh -e\necho"), Some("/bin/sh".into()));
        assert_eq!(kind(b"text"), RowKind::Foreign);
        assert!(Program::find(Path::new("no-such-program")).is_none());
    }
}
