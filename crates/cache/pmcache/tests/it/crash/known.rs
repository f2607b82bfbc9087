//! The known state of files while a cache is used, and its comparison with the state after a crash.

use super::states::{names_of, reattach};
use crate::common::content;
use pmcache::Mode;
use vfs::model::Model;
use vfs::{Caller, FileSystem, Ino, SetAttr};

/// The permissions, the owner, and an extended attribute.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    pub perm: u32,
    pub uid: u32,
    pub user: Option<Vec<u8>>,
}

/// The name of the extended attribute.
pub const USER: &[u8] = b"user.x";

impl Meta {
    pub fn of(fs: &impl FileSystem, ino: Ino) -> vfs::Result<Self> {
        let attr = fs.getattr(ino)?;
        let user = match fs.getxattr(ino, USER) {
            Err(vfs::Errno::NODATA) => None,
            user => Some(user?),
        };
        Ok(Self { perm: attr.perm, uid: attr.uid, user })
    }
}

/// The known state of a file.
#[derive(Clone)]
pub struct File {
    pub identity: Vec<u8>,
    /// The attributes that it may have: those since its last sync, and those that it is getting.
    pub metas: Vec<Meta>,
    /// The content after the calls that have returned.
    pub now: Vec<u8>,
    /// The content after the call under way.
    pub then: Option<Vec<u8>>,
    /// Whether it must exist after a power failure.
    pub is_durable: bool,
    /// Whether its last name was removed, or is being removed.
    pub is_gone: bool,
    /// Whether that removal is durable.
    pub is_gone_for_good: bool,
    /// Its durable name.
    pub durable_name: Option<usize>,
}

impl File {
    pub fn new(identity: Vec<u8>, meta: Meta, now: Vec<u8>) -> Self {
        Self {
            identity,
            metas: vec![meta],
            now,
            then: None,
            is_durable: false,
            is_gone: false,
            is_gone_for_good: false,
            durable_name: None,
        }
    }

    /// Checks that the file has one of the contents that it may have.
    pub fn compare(&self, name: &str, got: &[u8]) -> Result<(), String> {
        if got == self.now || self.then.as_ref().is_some_and(|then| got == *then) {
            return Ok(());
        }
        let differs = got.iter().zip(&self.now).position(|(a, b)| a != b);
        let then = self.then.as_ref().map(Vec::len);
        Err(format!(
            "{name}: {} bytes instead of {}, or {then:?}; first difference {differs:?}",
            got.len(),
            self.now.len()
        ))
    }
}

#[derive(Default)]
pub struct Known {
    pub files: Vec<File>,
    /// The file of each name.
    pub names: Vec<Option<usize>>,
    /// References to files, mostly new ones.
    pub held: Vec<Ino>,
    /// The operations so far, for messages.
    pub step: String,
}

impl Known {
    /// Returns the file with this identity or name. A file that was created again has another
    /// identity, but its name.
    pub fn file_of(&self, identity: &[u8], name: &[u8]) -> Option<usize> {
        let by_identity = self.files.iter().position(|file| file.identity == identity);
        by_identity.or(self.names[usize::from(name[0] - b'a')])
    }

    /// Attaches a state after a crash, and judges it.
    pub fn judge(&self, pool: &[u8], model: Model, mode: Mode) -> Result<(), String> {
        let (cache, below) = reattach(pool, model, mode);
        let mut seen = Vec::new();
        for name in names_of(&below) {
            let shown = String::from_utf8_lossy(&name).into_owned();
            let ino = cache
                .lookup(vfs::ROOT, &name)
                .map_err(|err| format!("{shown}: lookup: {err}"))?
                .ino;
            let identity = backing::Backing::identity(&below, ino).unwrap().0;
            let got = content(&cache, ino).map_err(|err| format!("{shown}: read: {err}"))?;
            let index = self.file_of(&identity, &name);
            match index.map(|index| &self.files[index]) {
                Some(file) if file.is_gone_for_good => {
                    return Err(format!("{shown}: a removed file is back"));
                }
                Some(file) => {
                    file.compare(&shown, &got)?;
                    let meta =
                        Meta::of(&cache, ino).map_err(|err| format!("{shown}: stat: {err}"))?;
                    if !file.metas.contains(&meta) {
                        return Err(format!("{shown}: {meta:?} is none of {:?}", file.metas));
                    }
                }
                None if got.is_empty() => {}
                None => return Err(format!("{shown}: a new file has {} bytes", got.len())),
            }
            let grown = got.len() as u64 + 9000;
            let set = SetAttr { size: Some(grown), ..SetAttr::default() };
            let set = cache.setattr(&Caller::ROOT, ino, &set);
            set.map_err(|err| format!("{shown}: grow: {err}"))?;
            let more = content(&cache, ino).map_err(|err| format!("{shown}: read: {err}"))?;
            if more[..got.len()] != got[..] || more[got.len()..].iter().any(|byte| *byte != 0) {
                return Err(format!(
                    "{shown}: grown from {}, it has something else than zeros",
                    got.len()
                ));
            }
            seen.push((name, ino, index, more));
        }
        for (i, file) in self.files.iter().enumerate() {
            let has_name = |name: &[u8]| {
                file.durable_name.is_none_or(|durable| name == [b'a' + durable as u8])
            };
            let is_seen =
                seen.iter().any(|(name, _, index, _)| *index == Some(i) && has_name(name));
            if file.is_durable && !file.is_gone && !is_seen {
                return Err("a file is gone".to_owned());
            }
        }
        let troubles = cache.status().troubles;
        // In the other modes, unsynced files may be lost, and are reported.
        if mode == Mode::Journal && !troubles.is_empty() {
            return Err(format!("{troubles:?}"));
        }
        cache.drain_all(&|_| {}).map_err(|err| format!("drain: {err}"))?;
        if cache.status().dirty_bytes != 0 {
            return Err("something is left to be written back".to_owned());
        }
        for (name, ino, _, shown) in &seen {
            if content(&below, *ino).unwrap() != *shown {
                return Err(format!("{}: below is something else", String::from_utf8_lossy(name)));
            }
        }
        Ok(())
    }
}
