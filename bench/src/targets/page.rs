//! Results of `run` as one HTML page: it needs no other file and no network, follows the reader's
//! choice of light or dark, prints, and has a box that filters cases.

use super::durability::Class;
use super::figure::{self, Axis, COLOURS, escaped, tick};
use super::results::{CaseResult, Numbers, Report, Row};
use super::words;
use crate::machine::Origin;
use crate::statistics::Interval;
use crate::text::time;
use std::fmt::Write as _;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Makes the page.
pub fn html(origin: &Origin, report: &Report) -> String {
    let axis = Axis::of(report);
    let title = format!("Keepstone bench: {}", names(report).join(", "));
    let mut out = opening(&title, "");
    let _ = writeln!(
        out,
        "<h1>Measurements by <code>keepstone bench</code></h1>\n<p class=\"facts\">{}</p>",
        escaped(&words::head(origin, report).replace('`', ""))
    );
    out += &targets(report);
    let has_ratios = report.targets.len() > 2;
    if has_ratios {
        let _ = writeln!(out, "<figure class=\"plot\">{}</figure>", figure::svg(report));
    }
    out += "<p class=\"search\"><label>Filter cases <input id=\"filter\" type=\"search\" \
            placeholder=\"fsync\" autocomplete=\"off\"></label> <span id=\"found\"></span></p>\n";
    for case in &report.cases {
        out += &section(case, report, &axis);
    }
    let _ = writeln!(
        out,
        "<footer><p>{}</p><p>{}</p></footer>\n<script>\n{SCRIPT}</script>\n</html>",
        escaped(words::NOTE),
        escaped(Class::LEGEND)
    );
    out
}

/// Begins a page. `style` are rules for it alone.
pub fn opening(title: &str, style: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n\
         <style>\n{STYLE}{}{style}\n</style>\n",
        escaped(title),
        figure::style()
    )
}

/// Returns the names of targets.
fn names(report: &Report) -> Vec<&str> {
    report.targets.iter().filter(|t| !t.is_repeat).map(|t| t.name.as_str()).collect()
}

/// Returns the class of a target's colour; that of the baseline for the baseline again.
fn colour(report: &Report, target: &str) -> usize {
    names(report).iter().position(|name| *name == target).unwrap_or(0) % COLOURS.len()
}

/// Makes the list of targets.
fn targets(report: &Report) -> String {
    let mut out = "<dl class=\"targets\">\n".to_owned();
    for target in report.targets.iter().filter(|target| !target.is_repeat) {
        let medium = target.durability.as_ref().map(|durability| escaped(&durability.medium));
        let failed = target.error.as_ref();
        let failed = failed.map(|why| format!("<b class=\"bad\">failed:</b> {}", escaped(why)));
        let _ = writeln!(
            out,
            "<dt><i class=\"dot c{}\"></i>{}</dt><dd>{}</dd>",
            colour(report, &target.name),
            escaped(&target.name),
            failed.or(medium).unwrap_or_default()
        );
    }
    out + "</dl>\n"
}

/// Makes the section of a case.
fn section(case: &CaseResult, report: &Report, axis: &Axis) -> String {
    let mut ticks = String::new();
    for ratio in axis.ticks() {
        let (place, ratio) = (axis.place(ratio) * 100.0, tick(ratio));
        let _ = write!(ticks, "<span style=\"left:{place:.1}%\">×{ratio}</span>");
    }
    let mut out = format!(
        "<section class=\"case\" data-words=\"{0} {1}\">\n<h2>{0} <small>{1}{2}</small></h2>\n\
         <div class=\"row head\"><span>target</span><span>time</span><span>ratio</span>\
         <span>durability</span><span class=\"axis\">{ticks}</span></div>\n",
        escaped(&case.name),
        escaped(&case.what),
        words::steal(case),
    );
    let noise = case.noise(report);
    for row in &case.rows {
        let name = format!(
            "<span class=\"name\"><i class=\"dot c{}\"></i>{}</span>",
            colour(report, &row.target),
            escaped(&row.target)
        );
        let Some(numbers) = &row.numbers else {
            let why = escaped(row.error.as_deref().unwrap_or_default());
            let _ = writeln!(
                out,
                "<div class=\"row\">{name}<span class=\"why\"><b class=\"bad\">failed:</b> {why}</span></div>"
            );
            continue;
        };
        let _ = writeln!(
            out,
            "<div class=\"row\">{name}{}{}</div>",
            cells(row, numbers),
            lane(numbers, noise, axis, colour(report, &row.target))
        );
    }
    out + "</section>\n"
}

/// Makes the cells with numbers.
fn cells(row: &Row, numbers: &Numbers) -> String {
    let ratio = numbers.speed.map_or_else(
        || "baseline".to_owned(),
        |speed| {
            format!(
                "×{:.2}{} <small>{}</small>",
                speed.median,
                if numbers.differs { "" } else { "&nbsp;=" },
                words::between(&speed)
            )
        },
    );
    let calls = match words::calls(numbers) {
        calls if calls.is_empty() => calls,
        calls => format!("; {calls}"),
    };
    let percentiles = match numbers.latency {
        Some(_) => {
            let [p50, p99, p999] = words::percentiles(numbers);
            // A number stays beside its name.
            let all = format!("p50 {p50}, p99 {p99}, p99.9 {p999}; ");
            all.replace(' ', "&nbsp;").replace(",&nbsp;", ", ").replace(";&nbsp;", "; ")
        }
        None => String::new(),
    };
    format!(
        "<span class=\"time\">{} <small>{percentiles}CPU {}{calls}</small></span><span class=\"ratio\">{ratio}</span>\
         <span class=\"class {}\">{}</span>",
        time(numbers.ns.median),
        time(numbers.cpu_ns),
        match row.durability {
            Class::Durable => "good",
            Class::Dram | Class::NotSynced => "bad",
            Class::Reads | Class::Unknown => "plain",
        },
        row.durability.word()
    )
}

/// Draws the ratio of a target with its interval, above the noise.
fn lane(numbers: &Numbers, noise: Option<Interval>, axis: &Axis, colour: usize) -> String {
    let x = |ratio| axis.place(ratio) * 100.0;
    let mut out =
        "<svg class=\"lane\" viewBox=\"0 0 100 20\" preserveAspectRatio=\"none\" aria-hidden=\"true\">".to_owned();
    if let Some(noise) = noise {
        let (left, right) = (x(noise.low), x(noise.high));
        let wide = (right - left).max(0.3);
        let _ = write!(
            out,
            "<rect class=\"noise\" x=\"{left:.2}\" width=\"{wide:.2}\" height=\"20\"/>"
        );
    }
    for ratio in axis.ticks() {
        let class = if ratio == 1.0 { "one" } else { "grid" };
        let _ = write!(out, "<path class=\"{class}\" d=\"M{:.2} 0V20\"/>", x(ratio));
    }
    if let Some(speed) = numbers.speed {
        let (low, high, at) = (x(speed.low), x(speed.high), x(speed.median));
        let _ = write!(
            out,
            "<path class=\"c{colour} bar\" d=\"M{low:.2} 10H{high:.2}\"/>\
             <path class=\"c{colour} point\" d=\"M{at:.2} 10h0\"/>"
        );
    }
    out + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::tests::report;

    #[test]
    fn the_page_is_complete_and_alone() {
        let page = html(&Origin::here(true), &report(&[("d<k", 1.0, 0.02), ("pool", 4.0, 0.1)]));
        for part in [
            "prefers-color-scheme",
            "@media print",
            "id=\"filter\"",
            "d&lt;k",
            "×4.00",
            "p99.9&nbsp;90.00",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("d<k"), "unescaped");
        // The name space of SVG is no address that a browser visits.
        let addresses = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!addresses.contains("http:") && !addresses.contains("https:"));
        assert!(!page.contains("src=") && !page.contains("href="));
    }
}
