//! Snapshots that are received: streams, and commands that receive them in parts.
//!
//! A part ends anywhere, and the next one begins at the start of the stream again. So each crash
//! meets groups that are applied for the first time, and groups that were applied before.

use super::snapshots::{Earlier, digest, pool_of_commands};
use crate::{mounted, text};
use crashsim::image::CrashImage;
use crashsim::sited::Sited;
use pmem::Medium;
use pool::Error;
use pool::stream::{ReceiveError, SendRequest, StreamReader, StreamWriter};
use std::sync::LazyLock;
use vfs::Errno;

/// A stream, and the name of its snapshot.
pub struct SentStream {
    bytes: Vec<u8>,
    name: String,
}

/// A full stream, of the pool for the commands as it is.
pub static FULL: LazyLock<SentStream> = LazyLock::new(|| stream(false));

/// The difference between the snapshot that this pool has, and its state.
pub static DIFFERENCE: LazyLock<SentStream> = LazyLock::new(|| stream(true));

fn stream(has_base: bool) -> SentStream {
    let image = CrashImage::of(pool_of_commands(Earlier::OfFew).expect("the pool can be made"));
    let base = has_base.then(|| bpfs::snapshots(&image).expect("a pool").remove(0).name);
    let pool = bpfs::Bpfs::mount(Sited(&image), &mounted::mount_options()).expect("it is sound");
    let name = format!("1-{}", digest(&pool).expect("it is sound"));
    pool.create_snapshot(&name).expect("it has room");
    let request = SendRequest { snapshot: name.clone(), base, resume: None };
    let mut writer = StreamWriter::new(Vec::new()).expect("memory");
    let mut sink = |record| Ok(writer.write(&record)?);
    bpfs::send(&image, &request, &mut sink).expect("it is sound");
    SentStream { bytes: writer.finish().expect("memory"), name }
}

/// Receives the first bytes of a stream.
fn receive(medium: &impl Medium, stream: &SentStream, bytes: usize) -> Result<(), ReceiveError> {
    let pool = bpfs::Bpfs::mount(Sited(medium), &mounted::mount_options())?;
    let reader = StreamReader::new(&stream.bytes[..bytes])?;
    bpfs::receive(&pool, &stream.name, reader, &mut |_| {})
}

/// Receives a part of a stream.
fn receive_part(medium: &impl Medium, stream: &SentStream, bytes: usize) -> Result<(), Error> {
    match receive(medium, stream, bytes) {
        Err(ReceiveError::Stream(_)) => Ok(()),
        Err(ReceiveError::Pool(e)) => Err(e),
        Ok(()) | Err(_) => Err(Errno::IO.into()),
    }
}

/// Receives half of a stream.
pub fn receive_half(medium: &impl Medium, stream: &SentStream) -> Result<(), Error> {
    receive_part(medium, stream, stream.bytes.len() / 2)
}

/// Receives a part of a stream, then a longer one, then all of it.
pub fn receive_in_parts(medium: &impl Medium, stream: &SentStream) -> Result<(), Error> {
    let len = stream.bytes.len();
    receive_part(medium, stream, len / 3)?;
    receive_part(medium, stream, len * 2 / 3)?;
    receive(medium, stream, len).map_err(|e| match e {
        ReceiveError::Pool(e) => e,
        _ => Errno::IO.into(),
    })
}

/// Receives a stream after a crash, if it is not complete.
pub fn go_on(image: &CrashImage, stream: &SentStream) -> Result<(), String> {
    match receive(image, stream, stream.bytes.len()) {
        Err(ReceiveError::Exists(_)) => Ok(()),
        received => received.map_err(text),
    }
}

/// Removes what has come of a stream.
pub fn abort(medium: &impl Medium, stream: &SentStream) -> Result<(), Error> {
    let pool = bpfs::Bpfs::mount(Sited(medium), &mounted::mount_options())?;
    Ok(pool.delete_snapshot(&stream.name)?)
}

/// Removes, after a crash, what has come. All of its space must come back.
pub fn abort_all(image: &CrashImage) -> Result<(), String> {
    static USED: LazyLock<u64> = LazyLock::new(|| {
        used(&CrashImage::of(pool_of_commands(Earlier::OfFew).expect("the pool can be made")))
            .expect("it is sound")
    });
    match abort(image, &DIFFERENCE) {
        Ok(()) | Err(Error::Errno(Errno::NOENT)) => {}
        Err(e) => return Err(text(e)),
    }
    match used(image)? {
        now if now == *USED => Ok(()),
        now => Err(format!("{now} blocks are in use, of {} before", *USED)),
    }
}

/// Returns the number of blocks in use.
fn used(image: &CrashImage) -> Result<u64, String> {
    let pool = bpfs::Bpfs::mount(Sited(image), &mounted::mount_options()).map_err(text)?;
    Ok(pool.mount_report().blocks_used)
}
