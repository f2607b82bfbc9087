//! The shortest negotiation of a client, for programs that pass the connection to the kernel, or
//! measure a server.

use crate::wire::{OPTION_MAGIC, OptionHeader, handshake, option};
use std::io::{self, Read, Write};
use zerocopy::{FromZeros as _, IntoBytes as _};

/// The properties of a session's export, from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Its size in bytes.
    pub size: u64,
    /// Its capabilities ([`crate::wire::export`]).
    pub flags: u16,
}

/// Begins a session on the default export of the server at the other end of `stream`, with simple
/// replies.
///
/// # Errors
/// Those of the stream. A server without a default export closes it.
pub fn begin(stream: &mut (impl Read + Write)) -> io::Result<Begun> {
    let mut greeting = crate::wire::Greeting::new_zeroed();
    stream.read_exact(greeting.as_mut_bytes())?;
    let flags = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    stream.write_all(&flags.to_be_bytes())?;
    let request = OptionHeader {
        magic: OPTION_MAGIC.into(),
        code: option::EXPORT_NAME.into(),
        len: 0.into(),
    };
    stream.write_all(request.as_bytes())?;
    let (mut size, mut flags) = ([0; 8], [0; 2]);
    stream.read_exact(&mut size)?;
    stream.read_exact(&mut flags)?;
    Ok(Begun { size: u64::from_be_bytes(size), flags: u16::from_be_bytes(flags) })
}
