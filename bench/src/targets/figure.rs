//! The plot of all cases: the ratio of each target, with its interval, on a logarithmic axis. It
//! follows the reader's choice of light or dark.

use super::results::Report;
use std::fmt::Write as _;

/// Ratios beyond these are drawn at the edge.
const RATIO_MAX: f64 = 1024.0;
const WIDTH: f64 = 960.0;
/// Room for the names of cases.
const LEFT: f64 = 170.0;
const RIGHT: f64 = 24.0;
const ROW: f64 = 22.0;

/// Colours of targets, which people who confuse colours can tell apart (Okabe and Ito), for light
/// and for dark backgrounds.
pub const COLOURS: [(&str, &str); 7] = [
    ("#6b7280", "#9ca3af"),
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff9d5c"),
    ("#007a55", "#2fd6a3"),
    ("#a64d84", "#e29fc6"),
    ("#8a6d00", "#f0e442"),
    ("#5b3fb8", "#b39ddb"),
];

/// Returns the rules of colours: the class `cN` draws in the colour of target N.
pub fn style() -> String {
    let rules = |dark: bool| -> String {
        let colour =
            |(light, night): &(&'static str, &'static str)| if dark { *night } else { *light };
        let each = COLOURS.iter().enumerate();
        each.map(|(i, pair)| format!(".c{i}{{color:{0};stroke:{0};fill:{0}}}", colour(pair)))
            .collect()
    };
    format!("{}@media (prefers-color-scheme:dark){{{}}}", rules(false), rules(true))
}

/// Escapes text for HTML and SVG.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The axis of ratios: their logarithms, from the least to the greatest.
pub struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// Makes an axis for all ratios of a report, from a power of two to another.
    pub fn of(report: &Report) -> Self {
        let rows = report.cases.iter().flat_map(|case| &case.rows);
        let speeds = rows.filter_map(|row| row.numbers?.speed);
        let (mut low, mut high): (f64, f64) = (-1.0, 1.0);
        for speed in speeds {
            low = low.min(log(speed.low).floor());
            high = high.max(log(speed.high).ceil());
        }
        Self { low, high }
    }

    /// Returns the place of a ratio, from 0 to 1.
    pub fn place(&self, ratio: f64) -> f64 {
        ((log(ratio) - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Returns up to some nine ratios to mark, 1 among them.
    pub fn ticks(&self) -> Vec<f64> {
        let step = (((self.high - self.low) / 8.0).ceil() as i32).max(1);
        let all = self.low as i32..=self.high as i32;
        all.filter(|power| power % step == 0).map(|power| 2f64.powi(power)).collect()
    }
}

fn log(ratio: f64) -> f64 {
    ratio.clamp(1.0 / RATIO_MAX, RATIO_MAX).log2()
}

/// Formats a ratio of an axis.
pub fn tick(ratio: f64) -> String {
    if ratio < 1.0 { format!("1/{:.0}", 1.0 / ratio) } else { format!("{ratio:.0}") }
}

/// Draws the plot as a file of its own.
pub fn svg(report: &Report) -> String {
    let axis = Axis::of(report);
    let targets: Vec<&str> =
        report.targets.iter().filter(|t| !t.is_repeat).map(|t| t.name.as_str()).collect();
    let lines = targets.len().saturating_sub(1).max(1) as f64;
    let block = (lines * 9.0 + 8.0).max(ROW);
    let top = 62.0 + 18.0 * (targets.len() as f64 / 3.0).ceil();
    let height = top + block * report.cases.len() as f64 + 16.0;
    let x = |ratio| LEFT + axis.place(ratio) * (WIDTH - LEFT - RIGHT);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
         aria-label=\"Speeds as multiples of {0}\"><style>\
         .back{{fill:#fff}}text{{font:13px system-ui,sans-serif;fill:#1f2933}}\
         .title{{font-size:17px;font-weight:600}}.grid{{stroke:#d5dae1}}.one{{stroke:#1f2933}}\
         .noise{{fill:#8884}}{1}\
         @media (prefers-color-scheme:dark){{.back{{fill:#14181d}}text{{fill:#e6e9ed}}\
         .grid{{stroke:#39424d}}.one{{stroke:#e6e9ed}}}}</style>\
         <rect class=\"back\" width=\"100%\" height=\"100%\"/>\
         <text class=\"title\" x=\"12\" y=\"26\">Speed as a multiple of {0}</text>",
        escaped(report.baseline()),
        style()
    );
    for (i, name) in targets.iter().enumerate().skip(1) {
        let place = i - 1;
        let (at, down) = (12.0 + 310.0 * (place % 3) as f64, 46.0 + 18.0 * (place / 3) as f64);
        let _ = write!(
            out,
            "<circle class=\"c{}\" cx=\"{:.0}\" cy=\"{:.0}\" r=\"5\"/><text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            i % COLOURS.len(),
            at + 5.0,
            down - 4.0,
            at + 16.0,
            down,
            escaped(name)
        );
    }
    for ratio in axis.ticks() {
        let class = if ratio == 1.0 { "one" } else { "grid" };
        let _ = write!(
            out,
            "<line class=\"{class}\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.0}\" y2=\"{2:.0}\"/>\
             <text x=\"{0:.1}\" y=\"{3:.0}\" text-anchor=\"middle\">×{4}</text>",
            x(ratio),
            top,
            height - 12.0,
            top - 5.0,
            tick(ratio)
        );
    }
    for (number, case) in report.cases.iter().enumerate() {
        let from = top + block * number as f64;
        let _ = write!(
            out,
            "<text x=\"12\" y=\"{:.1}\">{}</text>",
            from + block / 2.0 + 4.0,
            escaped(&case.name)
        );
        if let Some(noise) = case.noise(report) {
            let (left, right) = (x(noise.low), x(noise.high));
            let _ = write!(
                out,
                "<rect class=\"noise\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
                from + 2.0,
                (right - left).max(1.0),
                block - 4.0
            );
        }
        for (i, name) in targets.iter().enumerate().skip(1) {
            let Some(speed) = case.numbers(name).and_then(|numbers| numbers.speed) else {
                continue;
            };
            let y = from + block / 2.0 + 9.0 * (i as f64 - (lines + 1.0) / 2.0);
            let _ = write!(
                out,
                "<g class=\"c{}\"><title>{}: ×{:.2}</title><line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" \
                 y2=\"{y:.1}\" stroke-width=\"2\"/><circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\"/></g>",
                i % COLOURS.len(),
                escaped(name),
                speed.median,
                x(speed.low),
                x(speed.high),
                x(speed.median)
            );
        }
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::tests::report;

    #[test]
    fn the_axis_goes_from_a_power_of_two_to_another() {
        let axis = Axis::of(&report(&[("disk", 1.0, 0.02), ("pool", 3.0, 0.1)]));
        assert_eq!(axis.ticks(), [0.5, 1.0, 2.0, 4.0]);
        assert_eq!([0.1, 0.5, 4.0, 99.0].map(|r| axis.place(r)), [0.0, 0.0, 1.0, 1.0]);
        let wide = Axis::of(&report(&[("disk", 1.0, 0.02), ("pool", 900.0, 100.0)]));
        assert!(wide.ticks().len() <= 9 && wide.ticks().contains(&1.0), "{:?}", wide.ticks());
    }

    #[test]
    fn the_plot_names_cases_and_targets() {
        let plot = svg(&report(&[("a<b", 1.0, 0.02), ("pool", 3.0, 0.1)]));
        assert!(plot.contains("a&lt;b") && plot.contains(">pool</text>"), "{plot}");
        assert!(plot.contains("write+fsync/4K") && plot.contains("prefers-color-scheme:dark"));
        assert!(!plot.contains("a<b"));
    }
}
