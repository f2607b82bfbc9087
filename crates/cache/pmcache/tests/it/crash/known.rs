//! What is known of files while a cache is used, and whether what a crash left of them is that.

use super::states::{names_of, reattach};
use crate::common::content;
use pmcache::Mode;
use vfs::model::Model;
use vfs::{Caller, FileSystem, Ino, SetAttr};

/// Permissions, owner, and an extended attribute.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    pub perm: u32,
    pub uid: u32,
    pub user: Option<Vec<u8>>,
}

/// The extended attribute.
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

/// What is known of a file.
#[derive(Clone)]
pub struct File {
    pub identity: Vec<u8>,
    /// The attributes that it may have: those it has had since it was synced, and is to get.
    pub metas: Vec<Meta>,
    /// What it has been told to have.
    pub now: Vec<u8>,
    /// What it has when what is under way is done.
    pub then: Option<Vec<u8>>,
    /// Whether it has to be there after a power failure.
    pub is_durable: bool,
    /// Whether its last name is gone, or going.
    pub is_gone: bool,
    /// Whether that is durable.
    pub is_gone_for_good: bool,
    /// The name that it durably has.
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

    /// Whether it has one of the contents that it may have.
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
    /// Which of them has which name.
    pub names: Vec<Option<usize>>,
    /// References to files, new ones above all.
    pub held: Vec<Ino>,
    /// What is being done.
    pub step: String,
}

impl Known {
    /// The file that is found with this identity and name. One that was made again has another identity, and its name.
    pub fn file_of(&self, identity: &[u8], name: &[u8]) -> Option<usize> {
        let by_identity = self.files.iter().position(|file| file.identity == identity);
        by_identity.or(self.names[usize::from(name[0] - b'a')])
    }

    /// Attaches what is left, and judges it.
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
        // In the other modes what nobody has synced may be lost, and is told of.
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
