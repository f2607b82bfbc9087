//! Plots: latency over request size (Chell, Figures 2 and 14); bandwidth by record (SCMFS, Figures
//! 6 and 7); bandwidth by load and protection or scheme (PMBD, Figures 3, 5, 6, 8, 9 and 11), and
//! sensitivity to the speed of memory (Figure 15).

use crate::iozone::Workload;
use crate::rounds::{Outcome, Timing};
use crate::sensitivity::{self, Slowed};
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

/// A line of a plot: its name, and points.
type Line = (String, Vec<(f64, f64)>);

/// Title and axes of a plot.
struct Legend<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
}

/// Writes `chell-read.svg` and `chell-write.svg` into a directory.
pub fn latencies(outcomes: &[Outcome], dir: &Path) -> Result<Vec<String>> {
    let mut drawn = Vec::new();
    for (prefix, what, file) in [
        ("pread/", "Reading from a file of tmpfs", "chell-read.svg"),
        ("pwrite/", "Overwriting a file of tmpfs", "chell-write.svg"),
    ] {
        let latency = |_, outcome: &Outcome, timing: &Timing| {
            (outcome.bytes_per_op as f64, timing.ns_per_op.median)
        };
        let mut lines = lines(outcomes, prefix, latency);
        if prefix == "pread/" {
            lines.extend(
                self::lines(outcomes, "lend/", latency)
                    .into_iter()
                    .take(1)
                    .map(|(_, points)| ("keepstone, without a copy".to_owned(), points)),
            );
        }
        if lines.iter().any(|(_, points)| points.len() > 1) {
            let (x, y) = ("request size in bytes", "time per call in ns");
            let legend = Legend { title: what, x, y };
            plot(&legend, &lines, &dir.join(file)).map_err(|err| anyhow!("{file}: {err}"))?;
            drawn.push(image(what, file));
        }
    }
    Ok(drawn)
}

/// Writes `pmbd-*.svg` into a directory: the bandwidth of each contender under each load.
pub fn bandwidths(outcomes: &[Outcome], dir: &Path) -> Result<Vec<String>> {
    let mut drawn = Vec::new();
    for (prefix, title, file) in [
        ("protect/write/", "Protection, writing", "pmbd-protection-write.svg"),
        ("protect/read/", "Protection, reading", "pmbd-protection-read.svg"),
        ("buffers/write/", "Page protection behind buffers, writing", "pmbd-buffers.svg"),
        ("scheme/write/", "Write schemes, unprotected", "pmbd-schemes.svg"),
    ] {
        let loads: Vec<&str> =
            outcomes.iter().filter_map(|outcome| outcome.name.strip_prefix(prefix)).collect();
        let bars = lines(outcomes, prefix, |load, outcome, timing| {
            (load as f64, outcome.bytes_per_op as f64 / timing.ns_per_op.median)
        });
        if !loads.is_empty() {
            let title = format!("{title} (request, pattern, threads)");
            let legend = Legend { title: &title, x: "", y: "GB/s" };
            plot_bars(&legend, &loads, &bars, &dir.join(file))
                .map_err(|err| anyhow!("{file}: {err}"))?;
            drawn.push(image(&title, file));
        }
    }
    Ok(drawn)
}

/// Writes `pmbd-slower-read.svg` and `pmbd-slower-write.svg` into a directory: how many times as
/// long each load takes.
pub fn sensitivities(outcomes: &[Outcome], dir: &Path) -> Result<Vec<String>> {
    let mut drawn = Vec::new();
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
        drawn.push(image(&title, &file));
    }
    Ok(drawn)
}

/// Writes `scmfs-*.svg` into a directory: bandwidth over the size of records, as Figures 6 and 7
/// (a, b).
pub fn iozone(outcomes: &[Outcome], dir: &Path) -> Result<Vec<String>> {
    let mut drawn = Vec::new();
    for workload in [Workload::Write, Workload::Read, Workload::RandomWrite, Workload::RandomRead] {
        let lines =
            lines(outcomes, &format!("iozone/{}/", workload.name()), |_, outcome, timing| {
                (outcome.bytes_per_op as f64, outcome.bytes_per_op as f64 / timing.ns_per_op.median)
            });
        if lines.iter().any(|(_, points)| points.len() > 1) {
            let title = format!("IOzone, {}", workload.name());
            let legend = Legend { title: &title, x: "record in bytes", y: "GB/s" };
            let file = format!("scmfs-{}.svg", workload.name().replace(' ', "-"));
            plot(&legend, &lines, &dir.join(&file)).map_err(|err| anyhow!("{file}: {err}"))?;
            drawn.push(image(&title, &file));
        }
    }
    Ok(drawn)
}

/// Returns a reference to a plot, as Markdown.
fn image(title: &str, file: &str) -> String {
    format!("![{title}]({file})")
}

/// Returns a line for each contender of the cases whose names begin with `prefix`. `point` makes a
/// point of a case and its number.
fn lines(
    outcomes: &[Outcome],
    prefix: &str,
    point: impl Fn(usize, &Outcome, &Timing) -> (f64, f64),
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let cases = outcomes.iter().filter(|outcome| outcome.name.starts_with(prefix));
    for (number, outcome) in cases.enumerate() {
        for timing in &outcome.timings {
            let point = point(number, outcome, timing);
            match lines.iter_mut().find(|(name, _)| *name == timing.name) {
                Some((_, points)) => points.push(point),
                None => lines.push((timing.name.clone(), vec![point])),
            }
        }
    }
    lines
}

/// Formats a number as short as possible.
fn label(value: &f64) -> String {
    if *value < 10.0 { format!("{}", (value * 10.0).round() / 10.0) } else { format!("{value:.0}") }
}

/// Draws the box with the names of the lines.
fn name_series<'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, SVGBackend<'a>, C>,
    position: SeriesLabelPosition,
) -> Result<(), Box<dyn std::error::Error>> {
    chart
        .configure_series_labels()
        .position(position)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

/// Draws groups of bars, named by `groups`. A point is the number of a group and a value.
fn plot_bars(
    legend: &Legend<'_>,
    groups: &[&str],
    bars: &[Line],
    path: &Path,
) -> Result<(), Box<dyn std::error::Error>> {
    let values = || bars.iter().flat_map(|(_, values)| values).map(|(_, value)| *value);
    let (least, most) = values().fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)));
    let (floor, top) = (least / 1.5, most * 2.0);
    // Room for the legend next to the bars.
    let across = groups.len() as f64 * 1.25;
    let area = SVGBackend::new(path, (960, 440)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(legend.title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..across, (floor..top).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_desc(legend.y)
        .y_label_formatter(&label)
        .draw()?;
    let width = 0.9 / bars.len() as f64;
    for (index, (name, values)) in bars.iter().enumerate() {
        let style = Palette99::pick(index).filled();
        let bar = |&(group, value): &(f64, f64)| {
            let left = group + 0.05 + index as f64 * width;
            Rectangle::new([(left, floor), (left + width * 0.9, value)], style)
        };
        chart
            .draw_series(values.iter().map(bar))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 18, y + 5)], style));
    }
    let names = groups.iter().enumerate().map(|(group, name)| {
        Text::new((*name).to_owned(), (group as f64 + 0.1, most * 1.3), ("sans-serif", 12))
    });
    chart.draw_series(names)?;
    name_series(&mut chart, SeriesLabelPosition::UpperRight)?;
    area.present()?;
    Ok(())
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
    name_series(&mut chart, SeriesLabelPosition::UpperLeft)?;
    area.present()?;
    Ok(())
}
