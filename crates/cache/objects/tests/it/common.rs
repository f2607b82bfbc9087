//! Trees in a store in memory, with faults on demand.

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use objects::{Location, ObjectFs, StoreOptions};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vfs::{Caller, FileSystem, Ino, NewKind, NewNode, ROOT};

/// The prefix of trees in these tests.
pub const PREFIX: &str = "some/prefix";

pub fn options() -> StoreOptions {
    StoreOptions {
        staging: "/dev/shm".into(),
        chunk_bytes: 8192,
        staged_max: 1 << 20,
        lease: Duration::from_millis(60),
        ..StoreOptions::default()
    }
}

pub fn open(store: &Arc<Faulty>, options: StoreOptions) -> ObjectFs {
    try_open(store, options).unwrap_or_else(|err| panic!("{err}"))
}

pub fn try_open(
    store: &Arc<Faulty>,
    options: StoreOptions,
) -> std::result::Result<ObjectFs, objects::Error> {
    ObjectFs::open(Location::new(store.clone(), PREFIX), options)
}

pub fn create(fs: &dyn FileSystem, dir: Ino, name: &str) -> Ino {
    let node = NewNode { kind: NewKind::File, mode: 0o644, umask: 0 };
    fs.create(&Caller::ROOT, dir, name.as_bytes(), &node).unwrap().ino
}

/// Returns the inode of a name in the root.
pub fn find(fs: &dyn FileSystem, name: &str) -> vfs::Result<Ino> {
    fs.lookup(ROOT, name.as_bytes()).map(|entry| entry.ino)
}

/// Returns the content of a file.
pub fn content(fs: &dyn FileSystem, ino: Ino) -> Vec<u8> {
    let mut bytes = vec![0xee; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut bytes), Ok(bytes.len()));
    bytes
}

/// A fault of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// All requests from this one on fail without effect.
    From(u64),
    /// This request fails without effect.
    At(u64),
    /// This request has its effect, and its answer is lost.
    Lost(u64),
}

/// The treatment of conditions of puts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    Kept,
    Ignored,
    Unknown,
}

/// A store in memory that counts requests and has faults on demand.
#[derive(Debug)]
pub struct Faulty {
    inner: InMemory,
    fault: Mutex<Fault>,
    count: Mutex<u64>,
    /// The delay of each request.
    delay: Mutex<Duration>,
    conditions: Conditions,
}

impl std::fmt::Display for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faulty")
    }
}

fn failure() -> object_store::Error {
    object_store::Error::Generic { store: "Faulty", source: "it was told to".into() }
}

impl Faulty {
    pub fn new() -> Arc<Self> {
        Self::over(InMemory::new(), Conditions::Kept)
    }

    pub fn over(inner: InMemory, conditions: Conditions) -> Arc<Self> {
        let (fault, count) = (Mutex::new(Fault::None), Mutex::new(0));
        Arc::new(Self { inner, fault, count, delay: Mutex::default(), conditions })
    }

    /// Sets the fault, and counts requests from 0 again.
    pub fn fail(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    /// Sets the delay of each request.
    pub fn delay(&self, time: Duration) {
        *self.delay.lock().unwrap() = time;
    }

    /// Returns the number of requests.
    pub fn count(&self) -> u64 {
        *self.count.lock().unwrap()
    }

    /// Whether the fault has occurred.
    pub fn has_failed(&self) -> bool {
        match *self.fault.lock().unwrap() {
            Fault::None => false,
            Fault::From(n) | Fault::At(n) | Fault::Lost(n) => self.count() > n,
        }
    }

    /// Copies the objects to a store without faults, whose lease has ended.
    pub fn fork(&self) -> Arc<Self> {
        let inner = self.inner.fork();
        let _ = wait(inner.delete(&Path::from(format!("{PREFIX}/lease"))));
        Self::over(inner, Conditions::Kept)
    }

    /// Returns the names of all objects, relative to the prefix.
    pub fn names(&self) -> Vec<String> {
        let listed: Vec<_> = wait(self.inner.list(None).collect());
        let name = |meta: Result<ObjectMeta>| {
            meta.unwrap()
                .location
                .to_string()
                .strip_prefix(&format!("{PREFIX}/"))
                .unwrap()
                .to_owned()
        };
        let mut names: Vec<String> = listed.into_iter().map(name).collect();
        names.sort();
        names
    }

    pub fn get_bytes(&self, name: &str) -> Vec<u8> {
        let path = Path::from(format!("{PREFIX}/{name}"));
        wait(async { self.inner.get(&path).await.unwrap().bytes().await }).unwrap().to_vec()
    }

    pub fn put_bytes(&self, name: &str, bytes: Vec<u8>) {
        wait(self.inner.put(&Path::from(format!("{PREFIX}/{name}")), bytes.into())).unwrap();
    }

    pub fn remove(&self, name: &str) {
        wait(self.inner.delete(&Path::from(format!("{PREFIX}/{name}")))).unwrap();
    }

    /// Counts a request. Returns whether its answer is lost.
    fn request(&self) -> Result<bool> {
        std::thread::sleep(*self.delay.lock().unwrap());
        let mut count = self.count.lock().unwrap();
        let number = *count;
        *count += 1;
        match *self.fault.lock().unwrap() {
            Fault::From(n) if number >= n => Err(failure()),
            Fault::At(n) if number == n => Err(failure()),
            Fault::Lost(n) => Ok(number == n),
            _ => Ok(false),
        }
    }
}

/// Runs a request to a store in memory, which ends at once.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(future)
}

fn answer<T>(is_lost: bool, result: Result<T>) -> Result<T> {
    if is_lost { Err(failure()) } else { result }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        let is_lost = self.request()?;
        match (self.conditions, &options.mode) {
            (Conditions::Ignored, _) => options.mode = PutMode::Overwrite,
            (Conditions::Unknown, PutMode::Update(_)) => {
                let (operation, implementer) = ("update".into(), "Faulty".into());
                return Err(object_store::Error::NotImplemented { operation, implementer });
            }
            _ => {}
        }
        answer(is_lost, self.inner.put_opts(path, payload, options).await)
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let is_lost = self.request()?;
        answer(is_lost, self.inner.put_multipart_opts(path, options).await)
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let is_lost = self.request()?;
        answer(is_lost, self.inner.get_opts(path, options).await)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        match self.request() {
            Ok(_) => self.inner.delete_stream(paths),
            Err(err) => futures_util::stream::iter([Err(err)]).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.request() {
            Ok(_) => self.inner.list(prefix),
            Err(err) => futures_util::stream::iter([Err(err)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
