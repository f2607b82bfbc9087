//! File-system operations as data: one line of text each, run on any [`FileSystem`](crate::FileSystem).
//!
//! `docs/format/script.md` describes the language for those who write it. [`Op`] are the calls of the contract, a [`Driver`]
//! makes them. Calls of another layer, such as those of a process, are another enum of the same grammar, by
//! [`text_form`](crate::text_form), with [`escape`] and [`unescape`] for what does not fit into a word.

mod driver;
mod op;
mod text;

pub use driver::{Driver, Given, HANDLES, Handles, Stop, content};
pub use op::{AclOf, Attrs, BadWord, Batch, By, Data, How, Keep, New, Only, Op, Part, Pos, When};
pub use text::{BadOp, Field, Octal, Words, escape, parse, unescape};
