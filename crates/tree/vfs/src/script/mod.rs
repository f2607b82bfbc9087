//! File-system operations as data: one line of text each, run on any
//! [`FileSystem`](crate::FileSystem).
//!
//! `docs/format/script.md` describes the language for its users. [`Op`] lists the calls of the
//! contract, and a [`Driver`] makes them. The calls of another layer, such as those of a process,
//! are another enum with the same grammar. Such an enum is declared by
//! [`text_form`](crate::text_form), with [`escape`] and [`unescape`] for bytes that do not fit into
//! a word.

mod driver;
mod op;
mod text;

pub use driver::{Driver, Given, HANDLES, Handles, Stop, content};
pub use op::{AclOf, Attrs, BadWord, Batch, By, Data, How, Keep, New, Only, Op, Part, Pos, When};
pub use text::{BadOp, Field, Octal, Words, escape, parse, unescape};
