//! Results of `scale` as one HTML page: a plot for each kind of cost, with logarithmic axes.

use super::figure::{COLOURS, escaped};
use super::page;
use super::scale::{Growth, GrowthPoint};
use crate::machine::Origin;
use std::fmt::Write as _;

const STYLE: &str = "text{font:12px system-ui,sans-serif;fill:currentColor;stroke:none}\
    .plots{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(min(22rem,100%),1fr))}\
    .plots figure{margin:0}.plots svg{width:100%}";
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 30.0;

/// Makes the page.
pub fn html(origin: &Origin, growth: &Growth) -> String {
    let mut targets: Vec<&str> = Vec::new();
    for point in &growth.points {
        if !targets.contains(&point.target.as_str()) {
            targets.push(&point.target);
        }
    }
    let machine: Vec<String> =
        origin.machine.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let mut out = page::opening("Keepstone bench: growth", STYLE);
    let _ = write!(
        out,
        "<h1>Growth, by <code>keepstone bench scale</code></h1>\n<p class=\"facts\">{} UTC. {}. \
         Command: <code>{}</code>.</p>\n<p>",
        escaped(&origin.date),
        escaped(&machine.join("; ")),
        escaped(&origin.command)
    );
    for (i, target) in targets.iter().enumerate() {
        let colour = i % COLOURS.len();
        let name = escaped(target);
        let _ = write!(out, "<i class=\"dot c{colour}\"></i>{name}&emsp;");
    }
    out += "</p>\n<div class=\"plots\">\n";
    for plot in growth.plots() {
        let _ = writeln!(
            out,
            "<figure class=\"case\"><h2>{}: {}</h2>{}</figure>",
            escaped(plot.0),
            escaped(plot.1),
            chart(&growth.of(plot), &targets)
        );
    }
    out += "</div>\n";
    for (target, part, why) in &growth.failures {
        let _ = writeln!(
            out,
            "<p><b class=\"bad\">failed:</b> {}, {}: {}</p>",
            escaped(target),
            escaped(part),
            escaped(why)
        );
    }
    out + "</html>\n"
}

/// The axis of one of the coordinates.
struct LogAxis {
    low: f64,
    high: f64,
}

impl LogAxis {
    /// Makes an axis for these values, with whole powers of ten at its ends.
    fn decades(values: impl Iterator<Item = f64> + Clone) -> Self {
        let logs = values.map(|value| value.max(1.0).log10());
        let low = logs.clone().fold(f64::MAX, f64::min).floor();
        Self { low, high: logs.fold(low + 1.0, f64::max).ceil() }
    }

    /// Makes an axis from the least to the greatest of these values.
    fn exact(values: impl Iterator<Item = f64> + Clone) -> Self {
        let logs = values.map(|value| value.max(1.0).log10());
        let low = logs.clone().fold(f64::MAX, f64::min);
        Self { low, high: logs.fold(low + 0.001, f64::max) }
    }

    /// Returns the place of a value, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        (value.max(1.0).log10() - self.low) / (self.high - self.low)
    }
}

/// Draws a plot.
fn chart(points: &[&GrowthPoint], targets: &[&str]) -> String {
    let across = LogAxis::exact(points.iter().map(|point| point.x));
    let up = LogAxis::decades(points.iter().map(|point| point.y));
    let x = |value| LEFT + across.place(value) * (WIDTH - LEFT - RIGHT);
    let y = |value| HEIGHT - BOTTOM - up.place(value) * (HEIGHT - TOP - BOTTOM);
    let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    for power in up.low as i32..=up.high as i32 {
        let value = 10f64.powi(power);
        let label = points.first().map_or_else(String::new, |point| point.unit.show(value));
        let label = label.replace(".00 ", " ").replace(".0 ", " ");
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {0:.1}H{1}\"/><text x=\"{2}\" y=\"{3:.1}\" \
             text-anchor=\"end\">{label}</text>",
            y(value),
            WIDTH - RIGHT,
            LEFT - 6.0,
            y(value) + 4.0
        );
    }
    let mut places: Vec<(f64, String)> = points.iter().map(|p| (p.x, p.place())).collect();
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    places.dedup();
    for (value, label) in places {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            x(value),
            HEIGHT - 8.0
        );
    }
    for (i, target) in targets.iter().enumerate() {
        let own: Vec<_> = points.iter().filter(|point| point.target == *target).collect();
        let line: Vec<String> =
            own.iter().map(|point| format!("{:.1},{:.1}", x(point.x), y(point.y))).collect();
        let colour = i % COLOURS.len();
        let _ = write!(
            out,
            "<g class=\"c{colour}\"><title>{}</title><polyline class=\"line\" fill=\"none\" \
             style=\"fill:none\" stroke-width=\"2\" points=\"{}\"/>",
            escaped(target),
            line.join(" ")
        );
        for point in own {
            let _ = write!(
                out,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}, {}: {}</title></circle>",
                x(point.x),
                y(point.y),
                escaped(target),
                point.place(),
                point.unit.show(point.y)
            );
        }
        out += "</g>";
    }
    out + "</svg>"
}
