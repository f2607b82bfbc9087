//! `next` finds the functions that `dlsym` finds, without calling it.

#[path = "../../src/next.rs"]
mod source;

use std::ffi::CString;

/// Returns names of all functions of libc that the library exports, or might.
fn names() -> impl Iterator<Item = CString> {
    let lines = include_str!("../../symbols.txt").lines();
    let names =
        lines.filter(|line| !line.starts_with('#')).filter_map(|line| line.split('\t').next());
    names.filter(|name| !name.is_empty()).map(|name| CString::new(name).unwrap())
}

#[test]
#[allow(unsafe_code)]
fn symbols_are_those_that_dlsym_finds() {
    let next = source::Next::list();
    let (mut same, mut asked) = (0, Vec::new());
    for name in names() {
        // SAFETY: the name is a string.
        let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        match next.find(&name, source::hash(&name)) {
            Some(found) => {
                assert_eq!(found, expected, "{name:?}");
                same += 1;
            }
            None if !expected.is_null() => asked.push(name),
            None => {}
        }
    }
    // Functions of this libc are found here, except a few that it chooses by the processor.
    assert!(same > 250 && asked.len() < 5, "{same} found, not {asked:?}");
}

#[test]
fn names_that_nobody_defines_are_not_found() {
    let next = source::Next::list();
    assert!(!next.is_empty());
    assert!(source::is_any_defined(&[c"ks_no_such_function", c"open"]));
    assert!(!source::is_any_defined(&[c"ks_no_such_function", c"open_by_nobody"]));
    for name in [c"", c"ks_no_such_function", c"open_by_nobody"] {
        assert_eq!(next.find(name, source::hash(name)), None);
    }
}
