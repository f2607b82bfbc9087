//! Results for people, in plain text.

use crate::rounds::Outcome;
use crate::scan;
use crate::traffic;

/// Formats a time with a suitable unit.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e5 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns => format!("{:.2} ms", ns / 1e6),
    }
}

/// Prints cases.
pub fn outcomes(outcomes: &[Outcome]) {
    for outcome in outcomes {
        say!("{}: {} ({} rounds)", outcome.name, outcome.what, outcome.rounds);
        for (i, timing) in outcome.timings.iter().enumerate() {
            let speed = &timing.subject_speed;
            let ratio = if i == 0 {
                String::new()
            } else {
                format!("×{:.2} [{:.2} – {:.2}]", speed.median, speed.q1, speed.q3)
            };
            let ns = &timing.ns_per_op;
            say!(
                "  {:26} {:>9} [{:>9} – {:>9}]  {ratio}",
                timing.name,
                time(ns.median),
                time(ns.q1),
                time(ns.q3),
            );
        }
        if let Some(t) = &outcome.traffic {
            say!(
                "  traffic per operation: {:.2} lines flushed, {:.0} NT bytes, {:.2} fences",
                t.lines,
                t.nt_bytes,
                t.fences
            );
        }
        for v in &outcome.verdicts {
            let limit = v.limit.map(|limit| format!(", limit ×{limit:.2}"));
            say!(
                "  target: ×{} of {}: {} (×{:.2}{})",
                v.at_least,
                v.peer,
                if v.met { "met" } else { "MISSED" },
                v.got,
                limit.unwrap_or_default()
            );
        }
    }
}

/// Prints traffic.
pub fn traffic(rows: &[traffic::Row]) {
    say!(
        "{:28} {:>8} {:>10} {:>8} {:>8} {:>10} {:>13}",
        "traffic per operation",
        "ops",
        "NT bytes",
        "lines",
        "fences",
        "bytes",
        "amplification"
    );
    for row in rows {
        let t = &row.traffic;
        say!(
            "{:28} {:>8} {:>10.1} {:>8.2} {:>8.2} {:>10.1} {:>13}",
            row.name,
            row.ops,
            t.nt_bytes,
            t.lines,
            t.fences,
            t.bytes(),
            row.amplification().map_or(String::new(), |a| format!("{a:.2}")),
        );
    }
}

/// Prints times to mount.
pub fn scans(rows: &[scan::Row]) {
    say!(
        "{:>9} {:>7} {:>5}  {:^28}  {:^28}",
        "files",
        "bytes",
        "dirs",
        "mount, 1 thread",
        "mount, 2 threads"
    );
    for row in rows {
        let shown = row.ms.map(|ms| {
            let [median, q1, q3] = [ms.median, ms.q1, ms.q3].map(|ms| time(ms * 1e6));
            format!("{median} [{q1} – {q3}]")
        });
        say_part!(
            "{:>9} {:>7} {:>5}  {:28}  {:28}",
            row.files,
            row.file_bytes,
            row.dirs,
            shown[0],
            shown[1]
        );
        match row.met() {
            None => say!(),
            Some(met) => say!("{}", if met { "  met" } else { "  MISSED" }),
        }
    }
}
