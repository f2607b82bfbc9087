//! Sizes in the form that users write and read.

use anyhow::{Context as _, Result, bail};

/// Units in powers of 1024, smallest first.
const UNITS: [(&str, u32); 5] = [("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50)];

/// Parses `4G`, `512M`, `1.5T`, `4GiB` or a plain number of bytes.
pub fn parse(text: &str) -> Result<u64> {
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim().to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit);
    let shift = match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, shift)) => *shift,
        None if unit.is_empty() => 0,
        None => bail!("`{text}` is no size: write a number and K, M, G or T, for example 4G"),
    };
    let no_size = || format!("`{text}` is no size: write for example 4G, 512M or 1.5T");
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().with_context(no_size)?;
    let mut bytes = whole
        .checked_mul(1 << shift)
        .with_context(|| format!("`{text}` is more bytes than can be counted"))?;
    if number.contains('.') {
        let digits: u32 = fraction.len().try_into()?;
        let part: u64 = fraction.parse().with_context(no_size)?;
        let part = u128::from(part) * (1u128 << shift) / 10u128.pow(digits.min(30));
        bytes = bytes.saturating_add(u64::try_from(part).unwrap_or(0));
    }
    if bytes == 0 {
        bail!("`{text}` is no size here: it must be above zero");
    }
    Ok(bytes)
}

/// Formats a size without rounding it, such as `16 TiB less 4 KiB`.
pub fn show_exactly(bytes: u64) -> String {
    let text = show(bytes);
    let above = bytes.checked_next_power_of_two().unwrap_or(bytes);
    match above - bytes {
        _ if !text.contains('.') => text,
        less if less < bytes >> 10 => format!("{} less {}", show(above), show_exactly(less)),
        _ => format!("{bytes} B"),
    }
}

/// Formats a size, such as `1.5 GiB`. Whole numbers of units have no decimals.
pub fn show(bytes: u64) -> String {
    match UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0) {
        None => format!("{bytes} B"),
        Some((unit, shift)) if bytes.trailing_zeros() >= *shift => {
            format!("{} {unit}iB", bytes >> shift)
        }
        Some((unit, shift)) => format!("{:.1} {unit}iB", bytes as f64 / (1u64 << shift) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood() {
        for (text, bytes) in [
            ("4096", 4096),
            ("512M", 512 << 20),
            ("4G", 4 << 30),
            ("4GiB", 4 << 30),
            ("4 gb", 4 << 30),
            ("1.5T", 3 << 39),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "G", "4X", "-1", "4.G", "1.2.3G", "0", "99999999P"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(4 << 30), "4 GiB");
        assert_eq!(show(1536), "1.5 KiB");
        assert_eq!(show_exactly(256 << 10), "256 KiB");
        assert_eq!(show_exactly((16 << 40) - (4 << 10)), "16 TiB less 4 KiB");
        assert_eq!(show_exactly(3 << 30), "3 GiB");
        assert_eq!(show_exactly(6_000_001), "6000001 B");
    }
}
