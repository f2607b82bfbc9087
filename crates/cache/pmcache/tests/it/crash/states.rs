//! The states that crashes leave in the pool and in the backing store.

use super::Watched;
use super::known::Known;
use crate::common::{Below, Tested, content, mount, options};
use backing::Backing as _;
use backing::model::ModelBacking;
use bpfs::Bpfs;
use pmcache::{Cache, CacheOptions, Mode};
use pmem::{Medium as _, Region};
use rng::Rng;
use std::sync::{Arc, Mutex};
use vfs::model::Model;
use vfs::{Caller, Errno, FileSystem, ROOT, SetAttr, SetTime, Timestamp};

/// The bytes of a pool, and the backing store.
pub type Left = (Vec<u8>, Model);

pub fn bytes_of(pool: &Bpfs<Region>) -> Vec<u8> {
    let medium = pool.medium();
    let mut bytes = vec![0; medium.len() as usize];
    medium.read(0, &mut bytes);
    bytes
}

fn region_of(pool: &[u8]) -> Region {
    let region = Region::anonymous(pool.len() as u64).unwrap();
    region.write(0, pool);
    region
}

fn over(model: Model) -> Below {
    Below(Arc::new(ModelBacking::over(model)))
}

/// The states of the backing store since its last sync.
#[derive(Default)]
pub struct History {
    durable: Vec<u8>,
    since: Vec<Vec<u8>>,
}

impl History {
    /// Adds the current state, and returns a state chosen by `number`.
    pub fn note(&mut self, model: &Model, number: u64) -> Model {
        let (now, durable) = (model.save(), model.after_crash().save());
        if durable != self.durable {
            *self = Self { durable, since: Vec::new() };
        }
        if self.since.last() != Some(&now) {
            self.since.push(now);
        }
        let chosen = Rng::new(number).below(self.since.len() as u64);
        load(&self.since[chosen as usize])
    }
}

/// Returns a model with these names and files, but with the content that was synced last.
pub fn with_old_data(model: Model, synced: Model) -> Model {
    let (now, synced) = (over(model), over(synced));
    for name in names_of(&now) {
        let ino = now.lookup(ROOT, &name).unwrap().ino;
        let attr = now.getattr(ino).unwrap();
        let (mtime, ctime) = (Some(SetTime::At(attr.mtime)), Some(attr.ctime));
        let is_old = synced.identity(ino).ok() == now.identity(ino).ok();
        let old = if is_old { content(&synced, ino).unwrap() } else { Vec::new() };
        let set = |set: SetAttr| now.setattr(&Caller::ROOT, ino, &set).unwrap();
        set(SetAttr { size: Some(0), ..SetAttr::default() });
        now.write(ino, 0, &old).unwrap();
        set(SetAttr { size: Some(old.len() as u64), mtime, ctime, ..SetAttr::default() });
    }
    let saved = now.model().save();
    load(&saved)
}

/// Loads a saved model, with everything durable.
fn load(saved: &[u8]) -> Model {
    let model = Model::load(saved, Timestamp::now).unwrap();
    model.after_crash()
}

/// Returns the states that a further crash leaves at each step of attaching the state of an earlier
/// crash.
pub fn crashes_while_attaching((pool, model): &Left, mode: Mode) -> Vec<Left> {
    let pool = Arc::new(mount(region_of(pool)));
    let below = over(model.after_kill());
    let states = Arc::new(Mutex::new(Vec::new()));
    let tell: Arc<dyn Fn() + Send + Sync> = {
        let (pool, states, model) = (pool.clone(), states.clone(), Arc::downgrade(&below.0));
        Arc::new(move || {
            let Some(below) = model.upgrade() else { return };
            let mut states = states.lock().unwrap();
            let (now, synced) = (below.model().after_kill(), below.model().after_crash());
            let names = with_old_data(load(&now.save()), below.model().synced());
            states.extend([now, synced, names].map(|model| (bytes_of(&pool), model)));
        })
    };
    let told = tell.clone();
    below.fail_where(move |_| {
        told();
        None
    });
    let watched = Watched { pool, tell };
    drop(
        Cache::attach(watched, below.clone(), "/below", CacheOptions { mode, ..options() })
            .unwrap(),
    );
    below.heal();
    std::mem::take(&mut *states.lock().unwrap())
}

/// Attaches the state of a crash while one call to the store fails. Then the store works again, and
/// all files are read. Returns the states when that server is killed, and when the power fails.
pub fn attach_with_failure(
    (pool, model): &Left,
    known: &Known,
    mode: Mode,
    call: u64,
) -> Result<Vec<Left>, String> {
    let below = over(model.after_kill());
    let mut calls = 0;
    below.fail_where(move |_| {
        calls += 1;
        (calls == call).then_some(Errno::IO)
    });
    let pool = Arc::new(mount(region_of(pool)));
    let shared = Watched { pool: pool.clone(), tell: Arc::new(|| ()) };
    let cache = Cache::attach(shared, below.clone(), "/below", CacheOptions { mode, ..options() });
    below.heal();
    for name in names_of(&below) {
        let Ok(cache) = &cache else { break };
        let shown = format!("{}, after a failure of call {call}", String::from_utf8_lossy(&name));
        let ino = cache.lookup(ROOT, &name).map_err(|err| format!("{shown}: lookup: {err}"))?.ino;
        let identity = below.identity(ino).unwrap().0;
        let Some(file) = known.file_of(&identity, &name) else { continue };
        match content(cache, ino) {
            // The next attachment removes it again.
            Err(Errno::STALE) if known.files[file].is_gone => {}
            got => known.files[file]
                .compare(&shown, &got.map_err(|err| format!("{shown}: read: {err}"))?)?,
        }
    }
    drop(cache);
    let left = [below.model().after_kill(), below.model().after_crash()];
    Ok(left.map(|model| (bytes_of(&pool), model)).into())
}

pub fn reattach(pool: &[u8], model: Model, mode: Mode) -> (Tested, Below) {
    let below = over(model);
    let options = CacheOptions { mode, ..options() };
    let cache = Cache::attach(mount(region_of(pool)), below.clone(), "/below", options);
    (cache.unwrap(), below)
}

pub fn names_of(below: &Below) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut emit = |entry: &vfs::DirEntry<'_>| {
        if !matches!(entry.name, b"." | b"..") {
            names.push(entry.name.to_vec());
        }
        true
    };
    below.readdir(ROOT, 0, &mut emit).unwrap();
    names
}
