//! The grammar: lines of words. One table defines how an enum of calls is written and read
//! ([`text_form!`](crate::text_form)).

use std::borrow::Cow;
use std::fmt;
use std::iter::Peekable;
use std::str::{FromStr, SplitAsciiWhitespace};

/// The words of a line that are still to be read.
#[derive(Clone, Debug)]
pub struct Words<'a>(Peekable<SplitAsciiWhitespace<'a>>);

impl<'a> Words<'a> {
    /// Begins to read the words of `line`.
    pub fn new(line: &'a str) -> Self {
        Self(line.split_ascii_whitespace().peekable())
    }

    /// Returns the key and value of the next word, if it has both; the word is not consumed.
    pub(super) fn option(&mut self) -> Option<(&'a str, &'a str)> {
        self.0.peek()?.split_once('=')
    }

    /// Returns whether all have been read.
    pub fn is_empty(&mut self) -> bool {
        self.0.peek().is_none()
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }
}

/// An argument of a call. An argument of one word is a `Field` by `Display` and `FromStr`.
pub trait Field: Sized {
    /// Writes it, with a space before each of its words.
    fn put(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Reads it from the words that follow; `None` if they have another form.
    fn take(words: &mut Words<'_>) -> Option<Self>;
}

impl<T: fmt::Display + FromStr> Field for T {
    fn put(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, " {self}")
    }

    fn take(words: &mut Words<'_>) -> Option<Self> {
        words.next()?.parse().ok()
    }
}

/// A number with octal digits, such as permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Octal(pub u32);

impl fmt::Display for Octal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:o}", self.0)
    }
}

impl FromStr for Octal {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u32::from_str_radix(text, 8).map(Self)
    }
}

/// A line that does not parse as a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadOp(String);

impl BadOp {
    /// Makes the error of this line.
    pub fn new(line: &str) -> Self {
        Self(line.to_owned())
    }
}

impl fmt::Display for BadOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an operation: `{}`", self.0)
    }
}

impl std::error::Error for BadOp {}

/// Reads a script: calls separated by `;` or newlines; a word that begins with `#` begins a
/// comment, which ends with the line.
pub fn parse<T: FromStr<Err = BadOp>>(text: &str) -> Result<Vec<T>, BadOp> {
    let calls = text.lines().flat_map(|line| without_comment(line).split(';')).map(str::trim);
    calls.filter(|call| !call.is_empty()).map(str::parse).collect()
}

/// Returns the part of a line before its comment.
fn without_comment(line: &str) -> &str {
    let starts_word = |at: usize| {
        line[..at].ends_with(|before: char| before.is_ascii_whitespace() || before == ';')
    };
    let comment = line.match_indices('#').find(|&(at, _)| at == 0 || starts_word(at));
    &line[..comment.map_or(line.len(), |(at, _)| at)]
}

/// The word for an empty string of bytes.
const EMPTY: &str = r"\e";
/// The prefix of a byte in two hexadecimal digits.
const BYTE: &[u8] = br"\x";

/// Returns the word that stands for these bytes.
pub fn escape(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return EMPTY.to_owned();
    }
    let is_plain = |b: u8| b.is_ascii_graphic() && !br"\;|#%".contains(&b);
    let mut word = String::with_capacity(bytes.len());
    for &b in bytes {
        if is_plain(b) { word.push(b.into()) } else { word += &format!(r"\x{b:02x}") }
    }
    word
}

/// Returns the bytes that a word stands for. A `\` that begins no known escape stands for itself.
pub fn unescape(word: &str) -> Cow<'_, [u8]> {
    if word == EMPTY {
        return Cow::Borrowed(b"");
    }
    if !word.contains('\\') {
        return Cow::Borrowed(word.as_bytes());
    }
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        match rest.strip_prefix(BYTE).and_then(|digits| digits.split_first_chunk()).and_then(byte) {
            Some((byte, more)) => {
                bytes.push(byte);
                rest = more;
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    Cow::Owned(bytes)
}

/// Returns a byte of two hexadecimal digits, and what follows it.
fn byte<'a>((digits, rest): (&[u8; 2], &'a [u8])) -> Option<(u8, &'a [u8])> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    Some(((high? << 4 | low?) as u8, rest))
}

/// Declares the options of a call: `key=value` in any order after its arguments. Each is `None` if
/// it is absent.
macro_rules! options {
    ($(#[$about:meta])* $vis:vis struct $name:ident {
        $($(#[$detail:meta])* $key:ident: $kind:ty,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        $vis struct $name {
            $($(#[$detail])* pub $key: Option<$kind>,)*
        }

        impl Field for $name {
            fn put(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(if let Some(value) = &self.$key {
                    write!(to, concat!(" ", stringify!($key), "={}"), value)?;
                })*
                Ok(())
            }

            fn take(words: &mut Words<'_>) -> Option<Self> {
                let mut options = Self::default();
                while let Some((key, value)) = words.option() {
                    match key {
                        $(stringify!($key) => options.$key = Some(value.parse().ok()?),)*
                        _ => break,
                    }
                    words.next();
                }
                Some(options)
            }
        }
    };
}

pub(super) use options;

/// Declares an enum of calls and its text form, both ways, from one table: variant, arguments,
/// word. Each argument is a [`Field`].
///
/// ```
/// vfs::text_form! {
///     /// What a lamp does.
///     #[derive(Debug, PartialEq)]
///     pub enum Lamp {
///         /// Shines in this colour, for this number of seconds.
///         Shine(colour: String, seconds: u64) "shine";
///         /// Is dark.
///         Off "off";
///     }
/// }
/// let script = vfs::script::parse::<Lamp>("shine red 5; off # at last").unwrap();
/// assert_eq!(script, [Lamp::Shine("red".into(), 5), Lamp::Off]);
/// assert_eq!(script[0].to_string(), "shine red 5");
/// assert!("shine red".parse::<Lamp>().is_err());
/// ```
#[macro_export]
macro_rules! text_form {
    ($(#[$about:meta])* $vis:vis enum $call:ident {
        $($(#[$detail:meta])* $variant:ident $(($($field:ident: $kind:ty),+))? $word:literal;)*
    }) => {
        $(#[$about])*
        $vis enum $call {
            $($(#[$detail])* $variant $(($($kind),+))?,)*
        }

        impl ::std::fmt::Display for $call {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self {
                    $(Self::$variant $(($($field),+))? => {
                        f.write_str($word)?;
                        $($($crate::script::Field::put($field, f)?;)+)?
                    })*
                }
                Ok(())
            }
        }

        impl ::std::str::FromStr for $call {
            type Err = $crate::script::BadOp;

            fn from_str(line: &str) -> Result<Self, $crate::script::BadOp> {
                let read = |words: &mut $crate::script::Words<'_>| {
                    let call = match words.next()? {
                        $($word => Self::$variant $(($(
                            <$kind as $crate::script::Field>::take(words)?
                        ),+))?,)*
                        _ => return None,
                    };
                    words.is_empty().then_some(call)
                };
                let words = &mut $crate::script::Words::new(line);
                read(words).ok_or_else(|| $crate::script::BadOp::new(line))
            }
        }
    };
}
