//! Formats a table as text, as wide as the terminal.

use super::sample::{
    ERRORS, Gauges, OPERATIONS, READ_BYTES, READS, Rates, Sample, WRITES, WRITTEN_BYTES,
};
use super::view::{Row, RowState, TopTable};
use crate::{shown, size};

/// Space between two columns.
const GAP: usize = 2;

/// A column: its titles, and how it shrinks if there is too little room.
struct Column {
    /// Titles in a table with totals, and in one with rates.
    titles: [&'static str; 2],
    align: Align,
    /// Least width; a narrower column is left out. `None` if the column is never shortened.
    least: Option<usize>,
    /// Columns with higher ranks are shortened, and left out, first.
    rank: u8,
}

/// The alignment of a text that is narrower than its column, and the part that is kept of a wider
/// one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Align {
    /// Aligned left; the beginning is kept.
    Text,
    /// Aligned left; the end is kept, which is the most specific part of a path.
    Path,
    /// Aligned right.
    Number,
}

const fn column(titles: [&'static str; 2], align: Align, least: Option<usize>, rank: u8) -> Column {
    Column { titles, align, least, rank }
}

const COLUMNS: [Column; 10] = [
    column(["KIND"; 2], Align::Text, None, 2),
    column(["NAME"; 2], Align::Path, Some(12), 0),
    column(["POOL"; 2], Align::Path, Some(12), 9),
    column(["OPS", "OPS/s"], Align::Number, None, 1),
    column(["READ", "READ/s"], Align::Number, None, 3),
    column(["WRITTEN", "WRITTEN/s"], Align::Number, None, 4),
    column(["P50"; 2], Align::Number, None, 8),
    column(["P99"; 2], Align::Number, None, 6),
    column(["ERRORS"; 2], Align::Number, None, 5),
    column(["STATE"; 2], Align::Text, Some(12), 7),
];

/// The texts of a row, one for each column.
type Cells = [String; COLUMNS.len()];

/// Formats a table: a summary, titles and rows, each at most `width` characters wide. Returns at
/// most `height` lines, but at least one. If there are more, the last one gives the number left
/// out.
pub fn lines(table: &TopTable, width: usize, height: usize) -> Vec<String> {
    let mut lines = vec![shorten(&summary(table), width, Align::Text)];
    if !table.rows.is_empty() {
        let titles = COLUMNS.map(|column| column.titles[usize::from(!table.totals)].to_owned());
        let rows = table.rows.iter().map(|row| cells(row, table.totals));
        lines.extend(columns([titles].into_iter().chain(rows).collect(), width));
    }
    let height = height.max(1);
    if lines.len() > height {
        let hidden = lines.len() - height + 1;
        lines.truncate(height - 1);
        lines.push(shorten(&format!("{hidden} more"), width, Align::Text));
    }
    lines
}

fn summary(table: &TopTable) -> String {
    let count = |n: usize| if n == 1 { "1 server".to_owned() } else { format!("{n} servers") };
    let mut text = match table.rows.len() {
        0 => "nothing is served here; `keepstone mount POOL DIR` mounts a pool".to_owned(),
        rows => {
            let what = if table.totals { "since each was started" } else { "per second" };
            format!("{rows} served, {what}")
        }
    };
    if table.silent() > 0 {
        text += &format!("; {} without an answer", table.silent());
    }
    if table.forbidden > 0 {
        text +=
            &format!("; {} of other users, which this user may not query", count(table.forbidden));
    }
    text
}

/// Returns the texts of a row, in the order of the columns.
fn cells(row: &Row, totals: bool) -> Cells {
    let current = row.current();
    let amount = |name: &'static str| match (current, &row.per_s) {
        (Some(sample), _) if totals => Some(sample.counters[name] as f64),
        (Some(_), Some(rates)) => Some(rates[name]),
        _ => None,
    };
    let none = || "-".to_owned();
    let bytes = |name| amount(name).map_or_else(none, |bytes| size::show(bytes as u64));
    let percentile = |share| {
        let sample = current?;
        let times = if totals { Some(&sample.latencies) } else { sample.recent.as_ref() };
        times?.percentile(share)
    };
    let took = |share| percentile(share).map_or_else(none, time);
    [
        row.kind.name().to_owned(),
        clean(&row.name),
        clean(&row.pool),
        amount(OPERATIONS).map_or_else(none, number),
        bytes(READ_BYTES),
        bytes(WRITTEN_BYTES),
        took(0.5),
        took(0.99),
        current.map_or_else(none, |sample| sample.counters[ERRORS].to_string()),
        match (&row.state, current) {
            (RowState::Answers, Some(sample)) => about(sample, row.per_s.as_ref(), totals),
            (RowState::Died, _) => "its server has died".to_owned(),
            (RowState::Failed(why), _) => clean(why),
            _ => "no answer".to_owned(),
        },
    ]
}

/// Formats a time, with three digits at most.
fn time(ns: u64) -> String {
    let (amount, unit) = match ns {
        ..1_000 => (ns as f64, "ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    format!("{} {unit}", number(amount))
}

/// Formats a number, with a decimal if it is below 10 and not whole.
fn number(number: f64) -> String {
    if number.fract() == 0.0 || number >= 10.0 {
        format!("{number:.0}")
    } else {
        format!("{number:.1}")
    }
}

/// Describes the state of a service, by its kind.
fn about(sample: &Sample, rates: Option<&Rates>, totals: bool) -> String {
    let of = |name: &'static str| match rates {
        _ if totals => Some(sample.counters[name] as f64),
        rates => Some(rates?[name]),
    };
    let used = |used, all| format!("{} of {} used", size::show(used), size::show(all));
    match sample.gauges {
        Gauges::Mount { size_bytes, used_bytes, processes } => {
            let beside = match processes {
                None => String::new(),
                Some(1) => ", 1 process beside the server".to_owned(),
                Some(n) => format!(", {n} processes beside the server"),
            };
            used(used_bytes, size_bytes) + &beside
        }
        Gauges::Cache {
            size_bytes, used_bytes, dirty_bytes, oldest_dirty_ms, troubles, ..
        } => {
            let attention = match troubles {
                0 => String::new(),
                n => format!("{n} files need attention, "),
            };
            let age = match dirty_bytes {
                0 => String::new(),
                _ => format!(" for {} s", number(oldest_dirty_ms as f64 / 1000.0)),
            };
            format!(
                "{attention}dirty {}{age}, {}",
                size::show(dirty_bytes),
                used(used_bytes, size_bytes)
            )
        }
        Gauges::Device { size_bytes, clients } => {
            let per = if totals { "" } else { "/s" };
            let requests = of(READS).zip(of(WRITES)).map_or_else(String::new, |(reads, writes)| {
                format!("reads{per} {}, writes{per} {}, ", number(reads), number(writes))
            });
            let clients = match clients {
                None => String::new(),
                Some(1) => "1 client, ".to_owned(),
                Some(n) => format!("{n} clients, "),
            };
            format!("{requests}{clients}size {}", size::show(size_bytes))
        }
    }
}

/// Formats rows in columns that fit the width.
fn columns(rows: Vec<Cells>, width: usize) -> Vec<String> {
    let longest = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths = fit(std::array::from_fn(longest), width);
    rows.iter().map(|row| line(row, &widths)).collect()
}

fn line(row: &Cells, widths: &[Option<usize>; COLUMNS.len()]) -> String {
    let mut line = String::new();
    for ((column, width), text) in COLUMNS.iter().zip(widths).zip(row) {
        let Some(width) = *width else { continue };
        if !line.is_empty() {
            line += &" ".repeat(GAP);
        }
        let text = shorten(text, width, column.align);
        line += &match column.align {
            Align::Number => format!("{text:>width$}"),
            Align::Text | Align::Path => format!("{text:<width$}"),
        };
    }
    line.truncate(line.trim_end().len());
    line
}

/// Returns the width of each column, given its longest text; `None` for columns that are left out.
fn fit(longest: [usize; COLUMNS.len()], width: usize) -> [Option<usize>; COLUMNS.len()] {
    let least = |at: usize| COLUMNS[at].least.unwrap_or(longest[at]).min(longest[at]);
    let mut kept: Vec<usize> = (0..COLUMNS.len()).collect();
    kept.sort_by_key(|at| COLUMNS[*at].rank);
    let needed = |kept: &[usize]| {
        kept.iter().map(|at| least(*at)).sum::<usize>() + GAP * kept.len().saturating_sub(1)
    };
    while kept.len() > 1 && needed(&kept) > width {
        kept.pop();
    }
    let mut left = width.saturating_sub(needed(&kept));
    let mut widths = [None; COLUMNS.len()];
    for at in kept {
        let more = left.min(longest[at] - least(at));
        left -= more;
        widths[at] = Some((least(at) + more).min(width));
    }
    widths
}

/// Replaces characters that could control a terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if shown::is_treacherous(c) { '?' } else { c }).collect()
}

/// Shortens a text to at most `width` characters.
fn shorten(text: &str, width: usize, align: Align) -> String {
    let count = text.chars().count();
    match width {
        _ if count <= width => text.to_owned(),
        0 => String::new(),
        _ if align == Align::Path => {
            ['…'].into_iter().chain(text.chars().skip(count - (width - 1))).collect()
        }
        _ => text.chars().take(width - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn row(name: &str, reads: u64) -> Row {
        let stats = serde_json::json!({
            "pool": "/dev/shm/some-pool", "dir": name, "pid": 1, "direct": true, "requests": { "read": reads },
            "read_bytes": 4096 * reads, "latency": { "read": { "buckets": [[12288, reads]] } },
            "space": { "block_size": 4096, "blocks": 1024, "blocks_free": 768 },
        });
        let sample = Sample::of_mount(Instant::now(), &stats, Some(2));
        Row {
            name: sample.name.clone(),
            pool: sample.pool.clone(),
            kind: sample.kind,
            state: RowState::Answers,
            per_s: None,
            sample: Some(sample),
        }
    }

    fn table() -> TopTable {
        let silent = Row { state: RowState::NoAnswer, ..row("/mnt/\u{1b}[2Jsilent", 3) };
        TopTable {
            totals: true,
            rows: vec![row("/mnt/a/long/way/down", 12345), silent],
            forbidden: 1,
        }
    }

    #[test]
    fn a_table_that_has_room_says_everything() {
        assert_eq!(
            lines(&table(), usize::MAX, usize::MAX),
            [
                "2 served, since each was started; 1 without an answer; 1 server of other users, which this user may not query",
                "KIND   NAME                  POOL                  OPS      READ  WRITTEN    P50    P99  ERRORS  STATE",
                "mount  /mnt/a/long/way/down  /dev/shm/some-pool  12345  48.2 MiB      0 B  12 us  12 us       0  \
                 1 MiB of 4 MiB used, 2 processes beside the server",
                "mount  /mnt/?[2Jsilent       /dev/shm/some-pool      -         -        -      -      -       -  no answer",
            ]
        );
    }

    #[test]
    fn every_terminal_is_wide_and_high_enough() {
        for width in 0..150 {
            for height in [1, 2, 3, 4, 24] {
                let lines = lines(&table(), width, height);
                assert!(lines.len() <= height, "{width} {height}: {lines:#?}");
                let longest = lines.iter().map(|line| line.chars().count()).max().unwrap();
                assert!(longest <= width, "{width} {height}: {lines:#?}");
            }
        }
    }

    #[test]
    fn the_pool_goes_first_and_the_name_stays() {
        let at = |width| lines(&table(), width, 24)[2].clone();
        assert_eq!(
            at(80),
            "mount  …t/a/long/way/down  12345  48.2 MiB      0 B  12 us       0  1 MiB of 4 …"
        );
        assert_eq!(at(30), "mount  …a/long/way/down  12345");
        assert_eq!(at(12), "…ng/way/down");
        assert_eq!(lines(&table(), 80, 3)[2], "2 more");
    }

    #[test]
    fn what_a_server_is_about_is_said_of_the_last_interval() {
        let stats = serde_json::json!({ "mount": "/m", "cache": {
            "size_bytes": 4096, "used_bytes": 2048, "dirty_bytes": 1024, "oldest_dirty_ms": 1500,
            "troubles": [], "counters": {} } });
        let cache = Sample::of_mount(Instant::now(), &stats, None);
        assert_eq!(about(&cache, None, true), "dirty 1 KiB for 1.5 s, 2 KiB of 4 KiB used");
        let export = serde_json::json!({ "name": "d", "size_bytes": 4096, "device": { "reads": 2, "writes": 1 } });
        let device =
            Sample::of_device(Instant::now(), &serde_json::json!({ "clients": 1 }), &export);
        assert_eq!(about(&device, None, true), "reads 2, writes 1, 1 client, size 4 KiB");
        let rates = Rates::from([(READS, 0.5), (WRITES, 20.25)]);
        assert_eq!(
            about(&device, Some(&rates), false),
            "reads/s 0.5, writes/s 20, 1 client, size 4 KiB"
        );
    }

    #[test]
    fn nothing_is_said_to_be_served_where_nothing_is() {
        let empty = TopTable { totals: true, ..TopTable::default() };
        let lines = lines(&empty, usize::MAX, usize::MAX);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("nothing is served"), "{lines:?}");
    }
}
