//! Named memories ([`pmem::memories`]) as hardware of the models.

use super::config::{Channels, RowBuffers, Timing};
pub use pmem::memories::{MEMORIES, NamedMemory};

/// Returns the times of a memory, with the caches of `timing`. The controller's queues have room
/// for at least a write for each bank.
pub fn timing(memory: &NamedMemory, timing: Timing) -> Timing {
    let NamedMemory { read_ns, write_ns, banks, rows, channels, .. } = *memory;
    Timing {
        read_ns,
        write_ns,
        banks,
        queue: timing.queue.max(banks),
        rows: rows.map(|rows| RowBuffers {
            bytes: rows.bytes,
            buffers: rows.buffers,
            hit_ns: rows.hit_ns,
        }),
        channels: Channels {
            count: channels.count,
            interleave_bytes: channels.interleave_bytes,
            bus_ns: channels.bus_ns,
            fixed_ns: channels.fixed_ns,
        },
        ..timing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LINE;
    use crate::caches::HardwareConfig;
    use crate::caches::controller::{Controller, LineWrite};
    use rng::Rng;
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    #[test]
    fn the_default_hardware_has_the_first() {
        let default = HardwareConfig::default().timing;
        assert_eq!(timing(&MEMORIES[0], default), default);
    }

    #[test]
    fn all_are_hardware() {
        for memory in MEMORIES {
            let timing = timing(&memory, HardwareConfig::default().timing);
            assert_eq!(HardwareConfig { timing, ..HardwareConfig::default() }.check(), Ok(()));
        }
    }

    fn optane() -> Controller {
        let optane: NamedMemory = "optane".parse().expect("a memory");
        Controller::new(timing(&optane, HardwareConfig::default().timing), 1, true)
    }

    /// Threads that read or write at the same time, one for each channel.
    const THREADS: u64 = 6;
    const LINES: u64 = 200_000;

    /// Returns the line of a thread that has gone through `i` lines of its part. All channels are
    /// used at any time.
    fn sequential(thread: u64, i: u64) -> u64 {
        const PART: u64 = 6 << 20;
        thread * (PART + 64) + i
    }

    fn within(value: f64, published: f64) -> bool {
        let is_near = (value / published - 1.0).abs() < 0.1;
        println!("{value:.2}, published {published}");
        is_near
    }

    /// Returns 10^9 bytes per second of threads. Each has `depth` accesses at a time. An access
    /// gets the time, the thread and the number of those before it, and returns its end.
    fn rate(depth: u64, mut access: impl FnMut(u64, u64, u64) -> u64) -> f64 {
        let requests = (0..THREADS * depth).map(|i| Reverse((0, i)));
        let mut ready: BinaryHeap<_> = requests.collect();
        let (mut done, mut last) = ([0; THREADS as usize], 0);
        for _ in 0..LINES {
            let Reverse((now, request)) = ready.pop().expect("no request is lost");
            let thread = request % THREADS;
            let end = access(now, thread, done[thread as usize]);
            done[thread as usize] += 1;
            last = last.max(end);
            ready.push(Reverse((end, request)));
        }
        (LINES * LINE) as f64 / last as f64
    }

    /// Processors fetch 64 lines ahead, in all: less does not use the memory.
    fn read_rate() -> f64 {
        let mut controller = optane();
        rate(64, |now, thread, i| controller.read(now, sequential(thread, i)))
    }

    fn write_rate(line: impl Fn(&mut Rng, u64, u64) -> u64) -> f64 {
        let (mut controller, mut rng) = (optane(), Rng::new(1));
        rate(1, |now, thread, i| {
            let line = line(&mut rng, thread, i);
            controller.write(now, LineWrite { line, ..LineWrite::default() }).at
        })
    }

    /// Izraelevitz et al., 2019; Yang et al., FAST 2020, Figure 2: within 10 %.
    #[test]
    fn optane_reads_at_the_published_times() {
        let mut controller = optane();
        let mut now = 0;
        let mut average = |lines: &[u64]| {
            let begin = now;
            lines.iter().for_each(|line| now = controller.read(now, *line));
            (now - begin) as f64 / lines.len() as f64
        };
        let mut rng = Rng::new(1);
        let random: Vec<u64> = (0..10_000).map(|_| rng.below(1 << 30)).collect();
        assert!(within(average(&random), 305.0), "random");
        let next: Vec<u64> = (0..10_000).map(|i| (1 << 31) + i).collect();
        assert!(within(average(&next), 169.0), "sequential");
    }

    #[test]
    fn optane_moves_the_published_bytes() {
        let rates = (read_rate(), write_rate(|_, thread, i| sequential(thread, i)));
        assert!(within(rates.0, 39.4) & within(rates.1, 13.9));
    }

    /// Yang et al., FAST 2020, §4.1: of 256 bytes that are written, random stores use 64.
    #[test]
    fn random_stores_to_optane_have_a_quarter_of_the_rate() {
        let random = write_rate(|rng, _, _| rng.below(1 << 30));
        let whole = write_rate(|_, thread, i| sequential(thread, i));
        println!("{random:.2} of {whole:.2} GB/s");
        assert!(within(random / whole, 0.25));
    }
}
