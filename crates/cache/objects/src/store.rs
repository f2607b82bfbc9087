//! The objects below a prefix of a store, with blocking calls.

use crate::Error;
use crate::format::{Id, Kind, Part, checksum};
use crate::http::{LenMax, time_for};
use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions,
    PutPayload, PutResult, UpdateVersion,
};
use std::future::Future;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::time::timeout;

/// Larger objects are put in parts of this number of bytes.
const PART: usize = 8 << 20;
/// The most parts of one object that are sent at once.
const PARALLEL: usize = 4;
/// The most parts of a tree that are fetched at once.
const PARTS_AT_ONCE: usize = 16;
/// The time for connecting and for repeated requests, in addition to the time for the bytes.
const REPEATS_TIME: Duration = Duration::from_secs(10);
/// The most objects of a folder; a longer list is an error.
const OBJECTS_MAX: usize = 1 << 24;
/// The time limit for listing a folder.
const LIST_TIME: Duration = Duration::from_secs(600);
/// The time for deleting an object, in addition to the time for a request.
const DELETE_TIME: Duration = Duration::from_millis(20);

/// The reason why a request failed.
pub type Failure = object_store::Error;

/// Objects below a prefix.
pub struct RemoteStore {
    inner: Arc<dyn ObjectStore>,
    prefix: String,
    runtime: Runtime,
}

/// An object that was fetched.
pub struct Got {
    /// The whole object.
    pub bytes: Bytes,
    /// Its version, for a conditional put.
    pub version: UpdateVersion,
}

impl RemoteStore {
    /// Makes the store of the objects of `inner` whose names begin with `prefix` and a slash.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(inner: Arc<dyn ObjectStore>, prefix: &Path) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("object-store")
            .enable_all()
            .build()?;
        Ok(Self { inner, prefix: prefix.to_string(), runtime })
    }

    /// Waits for requests to the store, up to the time limit of a request with `bytes` bytes.
    ///
    /// # Errors
    /// If the time is over; or if the client panics, as it may for an unexpected answer.
    fn wait<T, E: From<Failure>>(
        &self,
        bytes: u64,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.wait_for(REPEATS_TIME + time_for(bytes), future)
    }

    /// As [`wait`](Self::wait), up to `time`.
    fn wait_for<T, E: From<Failure>>(
        &self,
        time: Duration,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let future = AssertUnwindSafe(future).catch_unwind();
        let late = || wrong(format!("the store did not answer within {} s", time.as_secs()));
        match self.runtime.block_on(async { timeout(time, future).await }) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(wrong("an answer of the store was not understood".into()).into()),
            Err(_) => Err(late().into()),
        }
    }

    fn path(&self, name: &str) -> Path {
        let slash = if self.prefix.is_empty() { "" } else { "/" };
        Path::from(format!("{}{slash}{name}", self.prefix))
    }

    /// Fetches a whole object of at most `len_max` bytes; `None` if it does not exist.
    pub fn get(&self, name: &str, len_max: u64) -> Result<Option<Got>, Failure> {
        self.wait(len_max, self.get_whole(name, len_max))
    }

    async fn get_whole(&self, name: &str, len_max: u64) -> Result<Option<Got>, Failure> {
        let mut options = GetOptions::default();
        options.extensions.insert(LenMax(len_max));
        let got = match self.inner.get_opts(&self.path(name), options).await {
            Err(Failure::NotFound { .. }) => return Ok(None),
            got => got?,
        };
        if got.meta.size > len_max {
            return Err(wrong(format!("{name} has {} bytes", got.meta.size)));
        }
        let (e_tag, version) = (got.meta.e_tag.clone(), got.meta.version.clone());
        Ok(Some(Got {
            bytes: read(got, len_max).await?,
            version: UpdateVersion { e_tag, version },
        }))
    }

    /// Fetches these parts of a tree completely, and checks them.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a part is missing, or has changed.
    pub fn get_parts(&self, folder: &str, parts: &[Part]) -> Result<Vec<Bytes>, Error> {
        let len = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.len));
        if len > rustix::system::sysinfo().totalram as u64 / 2 {
            let what =
                format!("it names {len} bytes of the tree, more than half of the memory here");
            return Err(Error::Damaged { object: "manifest".to_owned(), what });
        }
        let gets = parts.iter().map(|part| self.get_part(folder, part));
        let got = stream::iter(gets).buffered(PARTS_AT_ONCE).try_collect();
        self.wait(len, got)
    }

    async fn get_part(&self, folder: &str, part: &Part) -> Result<Bytes, Error> {
        let name = part.id.name(folder);
        let damaged = |what: &str| Error::Damaged { object: name.clone(), what: what.to_owned() };
        let got = self.get_whole(&name, part.len).await.map_err(|err| Error::store(&name, err))?;
        let bytes = got.ok_or_else(|| damaged("it is not there, but the manifest names it"))?.bytes;
        let is_it = bytes.len() as u64 == part.len && checksum(&bytes) == part.crc;
        if is_it { Ok(bytes) } else { Err(damaged("it is not the one that the manifest names")) }
    }

    /// Fetches a range of bytes within an object. Fails if the store returns fewer bytes.
    pub fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, Failure> {
        let len = range.end - range.start;
        let bytes = self.wait(len, async {
            let range = Some(GetRange::Bounded(range));
            let options = GetOptions { range, ..GetOptions::default() };
            read(self.inner.get_opts(&self.path(name), options).await?, len).await
        })?;
        let is_whole = bytes.len() as u64 == len;
        if is_whole {
            Ok(bytes)
        } else {
            Err(wrong(format!("{name} gave {} bytes of {len}", bytes.len())))
        }
    }

    /// Puts several objects at once.
    ///
    /// # Errors
    /// The error of the first object that could not be put, with its name.
    pub fn put_all(&self, objects: Vec<(String, Vec<u8>)>) -> Result<(), (String, Failure)> {
        let len = objects.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let puts = objects.into_iter().map(async |(name, bytes)| {
            let put = self.put_whole(&name, bytes.into()).await;
            put.map_err(|err| Named(name, err))
        });
        self.wait(len, try_join_all(puts)).map_err(|Named(name, err)| (name, err)).map(drop)
    }

    /// Puts an object that no other process puts. Large objects are put in parts.
    pub fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), Failure> {
        self.wait(bytes.len() as u64, self.put_whole(name, bytes.into()))
    }

    async fn put_whole(&self, name: &str, mut bytes: Bytes) -> Result<(), Failure> {
        let path = self.path(name);
        if bytes.len() <= PART {
            return self.inner.put(&path, bytes.into()).await.map(drop);
        }
        let mut upload = self.inner.put_multipart(&path).await?;
        let mut parts = Vec::new();
        while !bytes.is_empty() {
            parts.push(upload.put_part(bytes.split_to(PART.min(bytes.len())).into()));
        }
        let put = stream::iter(parts).buffer_unordered(PARALLEL).try_collect::<Vec<()>>().await;
        if let Err(err) = put {
            // Remaining parts would cost money.
            let _ = upload.abort().await;
            return Err(err);
        }
        upload.complete().await.map(drop)
    }

    /// Puts an object that must not exist.
    ///
    /// # Errors
    /// [`Failure::AlreadyExists`] if it does.
    pub fn create(&self, name: &str, bytes: Vec<u8>) -> Result<UpdateVersion, Failure> {
        self.put_if(name, bytes, PutMode::Create)
    }

    /// Replaces an object of this version.
    ///
    /// # Errors
    /// [`Failure::Precondition`] if it has another version.
    pub fn update(
        &self,
        name: &str,
        bytes: Vec<u8>,
        version: &UpdateVersion,
    ) -> Result<UpdateVersion, Failure> {
        self.put_if(name, bytes, PutMode::Update(version.clone()))
    }

    /// Puts an object in one request under the condition of `mode`. Returns its version.
    fn put_if(&self, name: &str, bytes: Vec<u8>, mode: PutMode) -> Result<UpdateVersion, Failure> {
        let options = PutOptions { mode, ..PutOptions::default() };
        let payload = PutPayload::from(bytes);
        let len = payload.content_length() as u64;
        let path = self.path(name);
        let put: PutResult = self.wait(len, self.inner.put_opts(&path, payload, options))?;
        Ok(UpdateVersion { e_tag: put.e_tag, version: put.version })
    }

    /// Deletes objects. Returns those that may not be deleted.
    pub fn delete(&self, folder: &str, ids: Vec<Id>) -> Vec<Id> {
        let paths: Vec<_> = ids.iter().map(|id| Ok(self.path(&id.name(folder)))).collect();
        let deleted = self.inner.delete_stream(stream::iter(paths).boxed());
        let time = REPEATS_TIME + time_for(0) + DELETE_TIME * ids.len() as u32;
        let results = self.wait_for(time, deleted.map(Ok::<_, Failure>).try_collect::<Vec<_>>());
        let is_done = |result: &Result<Path, Failure>| {
            matches!(result, Ok(_) | Err(Failure::NotFound { .. }))
        };
        // The results are not in the order of the objects, so return all of them: deleting one
        // twice does no harm.
        if results.is_ok_and(|results| results.iter().all(is_done)) { Vec::new() } else { ids }
    }

    /// Lists the objects of a folder whose names have our format.
    pub fn list(&self, folder: &str) -> Result<Vec<Id>, Failure> {
        self.wait_for(LIST_TIME, async {
            let mut listed = self.inner.list(Some(&self.path(folder)));
            let (mut ids, mut count) = (Vec::new(), 0);
            while let Some(meta) = listed.try_next().await? {
                count += 1;
                if count > OBJECTS_MAX {
                    return Err(wrong(format!("{folder} has more than {OBJECTS_MAX} objects")));
                }
                ids.extend(meta.location.filename().and_then(Id::parse));
            }
            Ok(ids)
        })
    }

    /// Returns the name of some object below the prefix that is not in `known`; `None` if all are
    /// known.
    pub fn stranger(&self, known: &[&str]) -> Result<Option<String>, Failure> {
        let known: Vec<Path> = known.iter().map(|name| self.path(name)).collect();
        let prefix = (!self.prefix.is_empty()).then(|| Path::from(self.prefix.as_str()));
        self.wait(0, async {
            // No object is listed twice, so among one more than `known`, one must be unknown.
            let mut listed = self.inner.list(prefix.as_ref()).take(known.len() + 1);
            while let Some(meta) = listed.try_next().await? {
                if !known.contains(&meta.location) {
                    return Ok(Some(meta.location.to_string()));
                }
            }
            Ok(None)
        })
    }
}

/// The name of an object that could not be put, and the reason.
struct Named(String, Failure);

impl From<Failure> for Named {
    /// Makes the error of a put of several objects.
    fn from(err: Failure) -> Self {
        Self("data".to_owned(), err)
    }
}

/// Reads a whole reply, up to `len_max` bytes: its announced length may be wrong.
async fn read(got: GetResult, len_max: u64) -> Result<Bytes, Failure> {
    let mut pieces = got.into_stream();
    let mut whole = BytesMut::new();
    while let Some(piece) = pieces.try_next().await? {
        if piece.len() as u64 > len_max - whole.len() as u64 {
            return Err(wrong(format!("a reply of more than {len_max} bytes")));
        }
        if whole.is_empty() && piece.len() as u64 == len_max {
            // Most replies come in one piece.
            return Ok(piece);
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

/// Returns the error for an invalid answer.
fn wrong(what: String) -> Failure {
    Failure::Generic { store: "keepstone", source: what.into() }
}

impl Part {
    /// Puts an object of the tree.
    pub fn put(store: &RemoteStore, kind: Kind, id: Id, object: Vec<u8>) -> Result<Self, Failure> {
        let part = Self::of(id, &object);
        store.put(&id.name(folder_of(kind)), object)?;
        Ok(part)
    }
}

/// Returns the folder of the objects of a kind.
fn folder_of(kind: Kind) -> &'static str {
    if kind == Kind::Log { "log" } else { "snapshot" }
}
