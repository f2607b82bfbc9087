//! Latency over request size, as plots: Figures 2 and 14 of the paper.

use crate::rounds::Outcome;
use anyhow::{Result, anyhow};
use plotters::prelude::*;
use std::path::Path;

/// A line of a plot: name, and size in bytes against ns.
type Line = (String, Vec<(f64, f64)>);

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
            plot(what, &lines, &dir.join(file)).map_err(|err| anyhow!("{file}: {err}"))?;
        }
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

fn plot(title: &str, lines: &[Line], path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let (least, most) =
            points().map(of).fold((f64::MAX, 0f64), |(a, b), v| (a.min(v), b.max(v)));
        least / 1.5..most * 1.5
    };
    let area = SVGBackend::new(path, (720, 440)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(bounds(|p| p.0).log_scale(), bounds(|p| p.1).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("request size in bytes")
        .y_desc("time per call in ns")
        .x_label_formatter(&|bytes| format!("{bytes:.0}"))
        .y_label_formatter(&|ns| format!("{ns:.0}"))
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
