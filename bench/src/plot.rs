//! Plots: latency over request size, as Figures 2 and 14 of Chell's paper, and sensitivity to the speed of memory, as
//! Figure 15 of PMBD's.

use crate::rounds::{Outcome, Timing};
use crate::sensitivity::{self, Slowed};
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

/// A line of a plot: its name, and points.
type Line = (String, Vec<(f64, f64)>);

/// What a plot says beside its lines.
struct Legend<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
}

/// Writes `chell-read.svg` and `chell-write.svg` into a directory.
pub fn latencies(outcomes: &[Outcome], dir: &Path) -> Result<()> {
    for (prefix, what, file) in [
        ("pread/", "Reading from a file of tmpfs", "chell-read.svg"),
        ("pwrite/", "Overwriting a file of tmpfs", "chell-write.svg"),
    ] {
        let mut lines = lines(outcomes, prefix);
        if prefix == "pread/" {
            lines.extend(
                self::lines(outcomes, "lend/")
                    .into_iter()
                    .take(1)
                    .map(|(_, points)| ("keepstone, without a copy".to_owned(), points)),
            );
        }
        if lines.iter().any(|(_, points)| points.len() > 1) {
            let (x, y) = ("request size in bytes", "time per call in ns");
            let legend = Legend { title: what, x, y };
            plot(&legend, &lines, &dir.join(file)).map_err(|err| anyhow!("{file}: {err}"))?;
        }
    }
    Ok(())
}

/// Writes `pmbd-slower-read.svg` and `pmbd-slower-write.svg` into a directory: how many times as long each load
/// takes.
pub fn sensitivities(outcomes: &[Outcome], dir: &Path) -> Result<()> {
    for slowed in Slowed::ALL {
        let word = slowed.word();
        let of = |outcome: &Outcome| {
            let load = outcome.name.strip_prefix(word)?.strip_prefix('/')?.to_owned();
            let point = |timing: &Timing| {
                Some((sensitivity::factor(&timing.name)?, timing.subject_speed.median))
            };
            Some((load, outcome.timings.iter().filter_map(point).collect()))
        };
        let lines: Vec<Line> = outcomes.iter().filter_map(of).collect();
        if lines.is_empty() {
            continue;
        }
        let title = format!("SQLite and plain I/O on ext4, with slower {word}s");
        let x = format!("slowdown of {word}s from memory, emulated");
        let legend = Legend { title: &title, x: &x, y: "time, as multiple of that at 1×" };
        let file = format!("pmbd-slower-{word}.svg");
        plot(&legend, &lines, &dir.join(&file)).map_err(|err| anyhow!("{file}: {err}"))?;
    }
    Ok(())
}

/// The contenders of all cases whose names begin with `prefix`.
fn lines(outcomes: &[Outcome], prefix: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.name.starts_with(prefix)) {
        for timing in &outcome.timings {
            let point = (outcome.bytes_per_op as f64, timing.ns_per_op.median);
            match lines.iter_mut().find(|(name, _)| *name == timing.name) {
                Some((_, points)) => points.push(point),
                None => lines.push((timing.name.clone(), vec![point])),
            }
        }
    }
    lines
}

/// A number as short as it can be.
fn label(value: &f64) -> String {
    if *value < 10.0 { format!("{}", (value * 10.0).round() / 10.0) } else { format!("{value:.0}") }
}

fn plot(
    legend: &Legend<'_>,
    lines: &[Line],
    path: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let (least, most) =
            points().map(of).fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)));
        least / 1.5..most * 1.5
    };
    let area = SVGBackend::new(path, (720, 440)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(legend.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(bounds(|p| p.0).log_scale(), bounds(|p| p.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(legend.x)
        .y_desc(legend.y)
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .draw()?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3),
            )?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}
