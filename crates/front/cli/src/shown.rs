//! Escaping of text that other users have chosen (names of files, processes and exports, answers of
//! stores) for terminals and logs. Escaped text cannot imitate other output, and its length is
//! bounded.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Longest shown name, in bytes.
const NAME_BYTES_MAX: usize = 1024;

/// Escapes a name or a path: the result does not end the line, control a terminal or change the
/// order of letters.
pub fn name(text: &str) -> String {
    cut(&escaped(text, |_| false), NAME_BYTES_MAX)
}

/// Escapes a path of a list, and cuts nothing: a path has an end.
pub fn path(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// Escapes a line that contains names, and cuts it to `len_max` bytes.
pub fn line(text: &str, len_max: usize) -> String {
    cut(&escaped(text, |_| false), len_max)
}

/// Escapes text of several lines.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_plain = |c: char| stays(c) || !is_treacherous(c);
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_plain(c) { out.push(c) } else { out.extend(c.escape_default()) }
    }
    Cow::Owned(out)
}

/// Returns whether a terminal does not simply show the character: controls, including C1; marks
/// that change the direction of text; line separators; characters without width.
pub fn is_treacherous(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Shortens a text that is longer than `len_max` bytes to its beginning and end.
fn cut(text: &str, len_max: usize) -> String {
    if text.len() <= len_max {
        return text.to_owned();
    }
    let start = text.floor_char_boundary(len_max / 2);
    let end = text.ceil_char_boundary(text.len() - len_max / 2);
    let mut out = text[..start].to_owned();
    let _ = write!(out, "…({} bytes)…", end - start);
    out.push_str(&text[end..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_acts_on_a_terminal() {
        for (text, shown) in [
            ("plain ünïcode", "plain ünïcode"),
            ("a\nb", "a\\nb"),
            ("\x1b]0;owned\x07", "\\u{1b}]0;owned\\u{7}"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("gpj\u{202e}exe", "gpj\\u{202e}exe"),
            ("\u{2066}x\u{2069}\u{feff}", "\\u{2066}x\\u{2069}\\u{feff}"),
        ] {
            assert_eq!(name(text), shown);
        }
        assert_eq!(lines("a\n\tb\x1b"), "a\n\tb\\u{1b}");
        assert_eq!(name(&String::from_utf8_lossy(b"x\xff\x9by")), "x\u{fffd}\u{fffd}y");
    }

    #[test]
    fn what_is_long_is_cut_in_the_middle() {
        let long = "ä".repeat(10_000);
        let shown = name(&long);
        assert!(shown.len() < NAME_BYTES_MAX + 40, "{}", shown.len());
        assert!(shown.starts_with('ä') && shown.ends_with('ä') && shown.contains("bytes)"));
    }
}
