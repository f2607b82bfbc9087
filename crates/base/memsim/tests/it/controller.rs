//! The memory controller against a model that goes through time step by step, and knows the rules
//! only as sentences: no heaps, no counts, no work ahead.

use memsim::caches::controller::{Controller, EpochId, LineWrite, WriteEnd};
use memsim::caches::{Channels, RowBuffers, Timing};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A write at a time, to a line, in an epoch of a context.
type Request = (u64, u64, Option<EpochId>);

#[derive(Clone, Debug)]
struct Bank {
    busy_until: u64,
    /// Rows in buffers, and whether they were stored to; the last used at the end.
    open: Vec<(u64, bool)>,
}

/// Returns the channel, the bank and the row of a line.
fn place(timing: &Timing, line: u64) -> (usize, usize, u64) {
    let Channels { count, interleave_bytes, .. } = timing.channels;
    let (mut channel, mut within) = (0, 0);
    // Deals out pieces, one line after the other.
    let mut given = vec![0; count as usize];
    for l in 0..=line {
        channel = (l * 64 / interleave_bytes) as usize % count as usize;
        within = given[channel];
        given[channel] += 1;
    }
    let row = within * 64 / timing.rows.map_or(64, |rows| rows.bytes);
    (channel, (row % u64::from(timing.banks)) as usize, row)
}

/// Serves all writes, nanosecond by nanosecond. The queue has room for all.
fn by_steps(timing: &Timing, requests: &[Request]) -> Vec<(u64, u64)> {
    let bank = Bank { busy_until: 0, open: Vec::new() };
    let channels = timing.channels.count as usize;
    let mut banks = vec![vec![bank; timing.banks as usize]; channels];
    let mut bus = vec![0; channels];
    let mut times: Vec<Option<(u64, u64)>> = vec![None; requests.len()];
    let mut now = 0;
    while times.iter().any(Option::is_none) {
        // Several banks can begin at one time: the oldest of all first.
        loop {
            let may_begin = |i: usize| {
                let (came, line, epoch) = requests[i];
                let (channel, bank, _) = place(timing, line);
                let earlier_ended = (0..requests.len()).all(|j| {
                    let (Some(mine), Some(other)) = (epoch, requests[j].2) else { return true };
                    let is_earlier = other.context == mine.context && other.number < mine.number;
                    !is_earlier || times[j].is_some_and(|(_, end)| end <= now)
                });
                let is_free = banks[channel][bank].busy_until <= now;
                times[i].is_none() && came <= now && is_free && earlier_ended
            };
            let is_hit = |i: usize| {
                let (channel, bank, row) = place(timing, requests[i].1);
                timing.rows.is_none() || banks[channel][bank].open.iter().any(|(r, _)| *r == row)
            };
            let choice = (0..requests.len()).filter(|i| may_begin(*i));
            let Some(i) = choice.min_by_key(|i| (!is_hit(*i), *i)) else { break };
            let (channel, bank, row) = place(timing, requests[i].1);
            let mut took = timing.write_ns;
            if let Some(RowBuffers { buffers, hit_ns, .. }) = timing.rows {
                let open = &mut banks[channel][bank].open;
                took = hit_ns;
                if let Some(at) = open.iter().position(|(r, _)| *r == row) {
                    open.remove(at);
                } else if open.len() == buffers as usize && open.remove(0).1 {
                    took += timing.write_ns;
                }
                open.push((row, true));
            }
            let mut end = now + took;
            if timing.channels.bus_ns > 0 {
                end = end.max(bus[channel]) + timing.channels.bus_ns;
                bus[channel] = end;
            }
            banks[channel][bank].busy_until = end;
            times[i] = Some((now, end));
        }
        now += 1;
    }
    times.into_iter().flatten().collect()
}

fn timing() -> impl Strategy<Value = Timing> {
    let rows = prop::option::of((1u64..4, 1u32..3, 0u64..5));
    (1u64..20, 1u32..4, rows, 1u32..3, 0u64..4).prop_map(
        |(write_ns, banks, rows, count, bus_ns)| {
            let channels = Channels { count, interleave_bytes: 128, bus_ns, fixed_ns: 0 };
            let rows = rows.map(|(lines, buffers, hit_ns)| RowBuffers {
                bytes: lines * 64,
                buffers,
                // A request that takes no time would begin and end before another of its time.
                hit_ns: hit_ns + 1,
            });
            Timing {
                l1_ns: 1,
                l2_ns: 1,
                read_ns: 9,
                write_ns,
                banks,
                queue: 64,
                rows,
                channels,
                volatile: None,
            }
        },
    )
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let one = (0u64..12, 0u64..12, prop::option::of((0u32..2, 0u64..2)));
    prop::collection::vec(one, 1..24).prop_map(|steps| {
        let (mut now, mut numbers) = (0, [0u64; 2]);
        let next = |(gap, line, epoch): (u64, u64, Option<(u32, u64)>)| {
            now += gap;
            let epoch = epoch.map(|(context, more)| {
                numbers[context as usize] += more;
                EpochId { context, number: numbers[context as usize] }
            });
            (now, line, epoch)
        };
        steps.into_iter().map(next).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn requests_are_served_as_by_steps(timing in timing(), requests in requests()) {
        let mut controller = Controller::new(timing, 2, false);
        for (now, line, epoch) in &requests {
            let write = LineWrite { line: *line, epoch: *epoch, fenced_by: None };
            prop_assert_eq!(controller.write(*now, write).at, *now);
        }
        controller.finish();
        let ends: BTreeMap<u64, WriteEnd> =
            controller.take_ends().map(|end| (end.number, end)).collect();
        let got: Vec<_> = ends.values().map(|end| (end.begun, end.ended)).collect();
        prop_assert_eq!(got, by_steps(&timing, &requests));
    }

    /// A controller that is asked about epochs in between, and so works ahead, serves all writes
    /// and keeps the order of epochs.
    #[test]
    fn questions_do_not_break_the_order(
        timing in timing(), requests in requests(), asked in prop::collection::vec(any::<bool>(), 24),
    ) {
        let timing = Timing { queue: 4, ..timing };
        let mut controller = Controller::new(timing, 2, false);
        let mut now = 0;
        for ((came, line, epoch), ask) in requests.iter().zip(asked) {
            let write = LineWrite { line: *line, epoch: *epoch, fenced_by: None };
            now = controller.write(now.max(*came), write).at;
            if let Some(id) = epoch.filter(|_| ask) {
                now = now.max(controller.epoch_end(id));
                prop_assert!(controller.is_epoch_durable(id, now));
            }
        }
        controller.finish();
        let ends: BTreeMap<u64, WriteEnd> =
            controller.take_ends().map(|end| (end.number, end)).collect();
        prop_assert_eq!(ends.len(), requests.len());
        for (i, (.., epoch)) in requests.iter().enumerate() {
            for (j, (.., other)) in requests.iter().enumerate() {
                let (Some(epoch), Some(other)) = (epoch, other) else { continue };
                if epoch.context == other.context && epoch.number < other.number {
                    prop_assert!(ends[&(i as u64)].ended <= ends[&(j as u64)].begun);
                }
            }
        }
    }
}
