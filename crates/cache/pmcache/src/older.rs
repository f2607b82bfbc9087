//! Pools that an older version of Keepstone used as caches. They held shadows of files, not the
//! tree.

use serde::Deserialize;
use vfs::{FileKind, FileSystem};

/// Names in the root directory of such a pool. The first is a file that names the directory.
const NAMES: [&[u8]; 3] = [b"cache", b"nodes", b"dirty"];

/// The maximum size of that file in bytes.
const MARK_MAX: u64 = 16 << 10;

/// The content of that file, as far as it is read here.
#[derive(Deserialize)]
struct OlderMark {
    directory: String,
}

/// Returns the directory whose cache a pool was in an older version, if it was one.
pub fn older_cache_of(pool: &dyn FileSystem) -> Option<String> {
    let found = NAMES.map(|name| pool.peek(pool.root(), name).ok());
    let [Some(mark), Some(_), Some(_)] = found else { return None };
    if mark.kind != FileKind::File || mark.size > MARK_MAX {
        return None;
    }
    let mut bytes = vec![0; mark.size as usize];
    let len = pool.read(mark.ino, 0, &mut bytes).ok()?;
    serde_json::from_slice(&bytes[..len]).ok().map(|mark: OlderMark| mark.directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::model::Model;
    use vfs::{Caller, NewKind, NewNode};

    #[test]
    fn only_an_older_cache_is_found() {
        let pool = Model::new();
        let make = |name: &[u8], kind| {
            let node = NewNode { kind, mode: 0o700, umask: 0 };
            pool.create(&Caller::ROOT, pool.root(), name, &node).unwrap().ino
        };
        let mark = make(b"cache", NewKind::File);
        pool.write(mark, 0, br#"{"version":1,"directory":"/srv/data"}"#).unwrap();
        make(b"nodes", NewKind::Dir);
        assert_eq!(older_cache_of(&pool), None);
        make(b"dirty", NewKind::Dir);
        assert_eq!(older_cache_of(&pool), Some("/srv/data".into()));
        pool.write(mark, 0, b"no ").unwrap();
        assert_eq!(older_cache_of(&pool), None);
    }
}
