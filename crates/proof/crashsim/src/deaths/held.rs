//! Files and directories without a name, held by a process when it or another one dies.

use vfs::script::{Driver, Op, content, parse};
use vfs::{Caller, Errno, FileKind, FileSystem, Ino};

/// A file with a name, which the process also holds.
const NAMED: &str = "/d/z";

/// Operations that make a directory of several blocks and remove it while it is open.
const REMOVED: &str = "mkdir /d/held; open /d/held 0; link /o %0/LONG-0; link /o %0/LONG-1; link /o %0/LONG-2; link /o %0/LONG-3; \
    link /o %0/LONG-4; link /o %0/LONG-5; link /o %0/LONG-6; link /o %0/LONG-7; link /o %0/LONG-8; link /o %0/LONG-9; \
    unlink %0/LONG-0; unlink %0/LONG-1; unlink %0/LONG-2; unlink %0/LONG-3; unlink %0/LONG-4; unlink %0/LONG-5; unlink %0/LONG-6; \
    unlink %0/LONG-7; unlink %0/LONG-8; unlink %0/LONG-9; rmdir /d/held";

/// A file without a name and a removed directory, held by a process.
pub struct HeldResources {
    ino: Ino,
    /// The directory.
    removed: Ino,
    content: Vec<u8>,
    /// The file with a name and its size, if the base has it.
    named: Option<(Ino, u64)>,
    /// Free blocks after it was made.
    free: u64,
}

impl HeldResources {
    /// Makes both, and opens `NAMED` if the base has it. The process of `fs` holds them.
    pub fn make(fs: &dyn FileSystem) -> Result<Self, String> {
        let text = |e: Errno| format!("a file to hold: {e}");
        let made = fs.tmpfile(&Caller::ROOT, fs.root(), 0o600, 0).map_err(text)?;
        let mut driver = Driver::new(fs);
        for op in parse(&REMOVED.replace("LONG", &"l".repeat(250))).map_err(|e| e.to_string())? {
            driver.run(&op, 0).map_err(|e| format!("a directory to hold: {op}: {e}"))?;
        }
        let removed = driver.handles()[0].ok_or("a directory to hold is not held")?;
        let content = content(HELD_SALT, 3 * 4096);
        fs.write(made.ino, 0, &content).map_err(text)?;
        let named = match Driver::new(fs).held(NAMED) {
            Some(ino) => Some((ino, fs.getattr(ino).map_err(text)?.size)),
            None => None,
        };
        Ok(Self { ino: made.ino, removed, content, named, free: fs.statfs().blocks_free })
    }

    /// Removes the name of the file with a name, and checks that the file exists as long as it is
    /// held.
    pub fn take_name(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let Some((ino, size)) = self.named else { return Ok(()) };
        let unlinked = Driver::new(fs).run(&Op::Unlink(NAMED.into()), 0);
        unlinked.map_err(|e| format!("unlink {NAMED} after a death: {e}"))?;
        match fs.getattr(ino) {
            Ok(attr) if attr.size == size => Ok(()),
            found => {
                Err(format!("a held file is gone with its last name after a recovery: {found:?}"))
            }
        }
    }

    /// Removes the name of the file with a name, and checks that the file is gone: the process that
    /// held it is dead.
    pub fn lose_name(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let Some((ino, _)) = self.named else { return Ok(()) };
        let before = fs.statfs().blocks_free;
        let unlinked = Driver::new(fs).run(&Op::Unlink(NAMED.into()), 0);
        unlinked.map_err(|e| format!("unlink {NAMED} after a death: {e}"))?;
        match fs.getattr(ino).is_err() && fs.statfs().blocks_free > before {
            true => Ok(()),
            false => Err(format!("{NAMED} outlives its last name, held by no living process")),
        }
    }

    /// Checks that its blocks are in use, and no others.
    pub fn count(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let free = fs.statfs().blocks_free;
        match free == self.free {
            true => Ok(()),
            false => {
                Err(format!("space: {free} blocks are free after a recovery, not {}", self.free))
            }
        }
    }

    /// Checks that the removed directory is still a directory, takes no names, and that no other
    /// inode has its number.
    fn look_at_removed(&self, fs: &dyn FileSystem) -> Result<(), String> {
        let kind = fs.getattr(self.removed).map(|attr| attr.kind);
        let handles = [Some(self.removed), None, None, None, None, None];
        let made = Driver::with_handles(fs, handles).run(&Op::create("%0/n"), 0);
        if kind != Ok(FileKind::Dir) || made != Err(Errno::NOENT) {
            let what = "a held, removed directory after a recovery";
            return Err(format!("{what}: {kind:?}, and a name in it: {made:?}"));
        }
        let make = |_| fs.tmpfile(&Caller::ROOT, fs.root(), 0o600, 0).map(|made| made.ino);
        let made: Vec<Ino> = (0..FILES_AFTER).map_while(|i| make(i).ok()).collect();
        made.iter().for_each(|ino| fs.forget(*ino, 1));
        match made.iter().find(|ino| [self.removed, self.ino].contains(ino)) {
            Some(ino) => Err(format!("{ino:?} is held, and after a recovery another file")),
            None => Ok(()),
        }
    }

    /// Checks that it holds its content, and gives it back.
    pub fn end(self, fs: &dyn FileSystem) -> Result<(), String> {
        let mut found = vec![0; self.content.len() + 1];
        let n = fs.read(self.ino, 0, &mut found).map_err(|e| format!("a held file: {e}"))?;
        if found[..n] != self.content {
            return Err("a file without a name has lost its content in a recovery".into());
        }
        self.look_at_removed(fs)?;
        let before = fs.statfs().blocks_free;
        if let Some((ino, _)) = self.named {
            fs.forget(ino, 1);
        }
        fs.forget(self.ino, 1);
        fs.forget(self.removed, 1);
        match fs.statfs().blocks_free > before {
            true => Ok(()),
            false => Err("a held file does not give its blocks back after a recovery".into()),
        }
    }
}

/// Files that are made after a recovery, to see which inode numbers they get.
const FILES_AFTER: usize = 8;

/// A salt by which the content of held files differs from others.
const HELD_SALT: u64 = 99;

/// Number of free blocks and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldSpace {
    blocks: u64,
    inodes: u64,
}

impl HeldSpace {
    /// Returns the current numbers.
    pub fn of(fs: &dyn FileSystem) -> Self {
        let stat = fs.statfs();
        Self { blocks: stat.blocks_free, inodes: stat.inodes_free }
    }

    /// Checks that files that a dead process held and mapped since then have been given back.
    pub fn is_as_before(self, fs: &dyn FileSystem) -> Result<(), String> {
        let now = Self::of(fs);
        match now == self {
            true => Ok(()),
            false => Err(format!("space: {now:?} are free after a death, not {self:?}")),
        }
    }
}
