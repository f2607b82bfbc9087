//! The options of `mount -o` for pre-allocation ([`pool::Prealloc`]).

use anyhow::{Context as _, Result};
use pool::Prealloc;

/// Sets an option. Returns false if it is not an option for pre-allocation.
pub fn set(p: &mut Prealloc, name: &str, value: &str) -> Result<bool> {
    match name {
        "prealloc" => p.enabled = on_or_off(name, value)?,
        "null_files" => (p.null_min, p.null_max) = range(name, value)?,
        "null_blocks" => p.null_blocks = number(name, value)?,
        // Also accepted under its former name.
        "prealloc_blocks" | "spare_blocks" => (p.blocks_min, p.blocks_max) = range(name, value)?,
        "collect_above" => p.collect_above = percent(name, value)?,
        "collect_below" => p.collect_below = number(name, value)?,
        "collect_step" => p.step = number(name, value)?,
        "cold_after" => p.cold_after = number(name, value)?,
        "relocate" => p.relocate = percent(name, value)?,
        "whole_below" => p.whole_below = percent(name, value)?,
        "wear" => p.wear = on_or_off(name, value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns the options that [`set`] turns into the same settings.
pub fn to_words(p: &Prealloc) -> Vec<String> {
    let switch = |is_on: bool| if is_on { "on" } else { "off" };
    let all = |p: &Prealloc| {
        [
            format!("prealloc={}", switch(p.enabled)),
            format!("null_files={}-{}", p.null_min, p.null_max),
            format!("null_blocks={}", p.null_blocks),
            format!("prealloc_blocks={}-{}", p.blocks_min, p.blocks_max),
            format!("collect_above={}", p.collect_above),
            format!("collect_below={}", p.collect_below),
            format!("collect_step={}", p.step),
            format!("cold_after={}", p.cold_after),
            format!("relocate={}", p.relocate),
            format!("whole_below={}", p.whole_below),
            format!("wear={}", switch(p.wear)),
        ]
    };
    let default = all(&Prealloc::default());
    all(p).into_iter().zip(default).filter(|(word, usual)| word != usual).map(|(w, _)| w).collect()
}

fn on_or_off(name: &str, value: &str) -> Result<bool> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => anyhow::bail!("option `{name}={value}`: needs `on` or `off`"),
    }
}

/// Parses the number of an option.
pub fn number(name: &str, value: &str) -> Result<u64> {
    let is_small = |n: &u64| *n <= u64::MAX >> 12;
    let found = value.parse().ok().filter(is_small);
    found.with_context(|| format!("option `{name}={value}`: needs a number"))
}

fn percent(name: &str, value: &str) -> Result<u64> {
    let found = number(name, value).ok().filter(|n| *n <= 100);
    found.with_context(|| format!("option `{name}={value}`: needs a number from 0 to 100"))
}

fn range(name: &str, value: &str) -> Result<(u64, u64)> {
    let wrong = || format!("option `{name}={value}`: needs two numbers, as in `{name}=16-512`");
    let (min, max) = value.split_once('-').with_context(wrong)?;
    let (min, max) = (number(name, min)?, number(name, max)?);
    (min <= max).then_some((min, max)).with_context(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back() {
        let mut p = Prealloc::default();
        assert!(to_words(&p).is_empty());
        for word in
            ["prealloc=off", "null_files=0-7", "prealloc_blocks=1-2", "relocate=0", "wear=on"]
        {
            let (name, value) = word.split_once('=').unwrap();
            assert!(set(&mut p, name, value).unwrap(), "{word}");
        }
        let mut again = Prealloc::default();
        for word in to_words(&p) {
            let (name, value) = word.split_once('=').unwrap();
            assert!(set(&mut again, name, value).unwrap(), "{word}");
        }
        assert_eq!(p, again);
        assert!(!p.enabled && p.wear && (p.null_min, p.null_max) == (0, 7));
        assert!(!set(&mut p, "colour", "blue").unwrap());
        assert!(set(&mut p, "spare_blocks", "3-4").unwrap());
        assert_eq!((p.blocks_min, p.blocks_max), (3, 4));
        for (name, value) in
            [("prealloc", ""), ("null_files", "7"), ("null_files", "9-1"), ("relocate", "101")]
        {
            assert!(set(&mut p, name, value).is_err(), "{name}={value}");
        }
    }
}
