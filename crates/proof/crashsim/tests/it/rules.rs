//! The persistency rules, one by one, on traces written by hand.

use crashsim::image::CrashImage;
use crashsim::inflight::EPOCHS_MAX;
use crashsim::persist::{Initial, Persistency, Semantics, Unit};
use crashsim::recorder::Recorder;
use crashsim::trace::Trace;
use pmem::Medium;
use std::collections::BTreeSet;

/// Returns the states after a trace: the values of these words.
fn states(text: &str, semantics: Semantics, words: &[u32]) -> BTreeSet<Vec<u64>> {
    let trace: Trace = format!("keepstone-trace 1 4096\n{text}").parse().unwrap();
    let mut p = Persistency::new(semantics, trace.len);
    for e in &trace.events {
        p.apply(&trace, e);
    }
    states_of(&p, &p.units(), words)
}

/// Returns the states that units span: the values of these words.
fn states_of(p: &Persistency, units: &[Unit], words: &[u32]) -> BTreeSet<Vec<u64>> {
    let mut all = vec![words.iter().map(|w| p.durable(*w)).collect::<Vec<u64>>()];
    for unit in units {
        let mut next = Vec::new();
        for state in &all {
            for content in &unit.contents {
                let mut state = state.clone();
                for (word, value) in unit.words.iter().zip(content) {
                    if let Some(i) = words.iter().position(|w| w == word) {
                        state[i] = *value;
                    }
                }
                next.push(state);
            }
        }
        all = next;
    }
    all.into_iter().collect()
}

fn set(states: &[&[u64]]) -> BTreeSet<Vec<u64>> {
    states.iter().map(|s| s.to_vec()).collect()
}

const ONE: &str = "0100000000000000";
const TWO: &str = "0200000000000000";

#[test]
fn words_of_one_line_persist_in_program_order() {
    let text = format!("0 word 0 {ONE} -\n0 word 8 {ONE} -\n0 word 0 {TWO} -");
    let got = states(&text, Semantics::Adr, &[0, 1]);
    assert_eq!(got, set(&[&[0, 0], &[1, 0], &[1, 1], &[2, 1]]));
}

#[test]
fn lines_persist_in_any_order() {
    let text = format!("0 word 0 {ONE} -\n0 word 64 {ONE} -");
    let got = states(&text, Semantics::Adr, &[0, 8]);
    assert_eq!(got, set(&[&[0, 0], &[1, 0], &[0, 1], &[1, 1]]));
}

#[test]
fn a_long_store_tears_at_words_in_any_order() {
    let text = format!("0 word 16 {ONE} -\n0 store 0 {ONE}{ONE} -");
    let got = states(&text, Semantics::Adr, &[0, 1, 2]);
    assert_eq!(got, set(&[&[0, 0, 0], &[0, 0, 1], &[1, 0, 1], &[0, 1, 1], &[1, 1, 1]]));
}

#[test]
fn a_fence_needs_a_flush_of_its_own_thread() {
    let flushed = |flush: &str, fence: &str| {
        let text = format!("0 word 0 {ONE} -\n{flush} flush 0 8 -\n{fence} fence -");
        states(&text, Semantics::Adr, &[0])
    };
    assert_eq!(flushed("0", "0"), set(&[&[1]]));
    assert_eq!(flushed("1", "1"), set(&[&[1]]), "a flush covers other threads' stores");
    assert_eq!(flushed("0", "1"), set(&[&[0], &[1]]));
    let unflushed = states(&format!("0 word 0 {ONE} -\n0 fence -"), Semantics::Adr, &[0]);
    assert_eq!(unflushed, set(&[&[0], &[1]]));
}

#[test]
fn a_flush_covers_what_precedes_it_only() {
    let text = format!("0 word 0 {ONE} -\n0 flush 0 8 -\n0 word 8 {ONE} -\n0 fence -");
    assert_eq!(states(&text, Semantics::Adr, &[0, 1]), set(&[&[1, 0], &[1, 1]]));
}

#[test]
fn non_temporal_words_have_no_order_until_the_fence() {
    let text = format!("0 nt 0 {ONE}{ONE} -");
    let any = set(&[&[0, 0], &[1, 0], &[0, 1], &[1, 1]]);
    assert_eq!(states(&text, Semantics::Adr, &[0, 1]), any);
    assert_eq!(states(&text, Semantics::Eadr, &[0, 1]), any);
    let other = format!("{text}\n1 fence -");
    assert_eq!(states(&other, Semantics::Adr, &[0, 1]), any);
    let own = format!("{text}\n0 fence -");
    assert_eq!(states(&own, Semantics::Adr, &[0, 1]), set(&[&[1, 1]]));
}

#[test]
fn a_line_stored_whole_is_old_or_new() {
    let line = |word: &str| word.repeat(8);
    let text = format!("0 line 64 {} -", line(ONE));
    let words = [8, 9, 15];
    let whole = set(&[&[0, 0, 0], &[1, 1, 1]]);
    for semantics in [Semantics::Adr, Semantics::AdrWords, Semantics::Eadr, Semantics::Msync] {
        assert_eq!(states(&text, semantics, &words), whole);
    }
    let fenced = |by| states(&format!("{text}\n{by} fence -"), Semantics::Adr, &words);
    assert_eq!(fenced(0), set(&[&[1, 1, 1]]));
    assert_eq!(fenced(1), whole);
    // No order between it and other stores to the line.
    let met = format!("0 word 72 {TWO} -\n{text}\n0 nt 120 {TWO} -");
    let want = [[0, 0, 0], [0, 2, 0], [0, 0, 2], [0, 2, 2], [1, 1, 1], [1, 1, 2]];
    let want = want.iter().map(|s| s.to_vec()).collect();
    assert_eq!(states(&met, Semantics::Adr, &words), want);
}

#[test]
fn who_is_gone_leaves_nothing_on_the_way_past_the_cache() {
    let text = format!("0 nt 0 {ONE} -\n0 word 64 {ONE} -\n0 flush 64 8 -\n{{}} drain -");
    let of = |gone: &str| states(&text.replace("{}", gone), Semantics::Adr, &[0, 8]);
    assert_eq!(of("0"), set(&[&[1, 0], &[1, 1]]));
    assert_eq!(of("1"), set(&[&[0, 0], &[1, 0], &[0, 1], &[1, 1]]));
}

#[test]
fn with_eadr_stores_are_durable_at_once() {
    let text = format!("0 word 0 {ONE} -\n0 word 64 {ONE} -");
    assert_eq!(states(&text, Semantics::Eadr, &[0, 8]), set(&[&[1, 1]]));
}

#[test]
fn on_a_file_sectors_persist_in_any_order_and_any_fence_covers_all() {
    let text = format!("0 word 0 {ONE} -\n0 word 64 {ONE} -\n0 nt 512 {ONE}{ONE} -");
    let got = states(&text, Semantics::Msync, &[0, 8, 64, 65]);
    let want = [[0, 0], [1, 0], [1, 1]].map(|[a, b]| [[a, b, 0, 0], [a, b, 1, 1]]);
    assert_eq!(got, want.as_flattened().iter().map(|s| s.to_vec()).collect());
    let fenced = states(&format!("{text}\n1 fence -"), Semantics::Msync, &[0, 8, 64, 65]);
    assert_eq!(fenced, set(&[&[1, 1, 1, 1]]));
}

#[test]
fn a_store_past_the_medium_is_noticed() {
    let memory = CrashImage::new(8192);
    let recorder = Recorder::new(&memory);
    recorder.store_u64(8, 1);
    let _ = recorder.fence();
    assert_eq!(recorder.unrecorded(), None);
    memory.store_u64(4096, 1);
    let _ = recorder.fence();
    assert_eq!(recorder.unrecorded(), Some(4096));
}

#[test]
fn numbers_of_a_trace_that_do_not_fit_are_refused() {
    let store = format!("word N {ONE} -");
    for line in
        [&store, "load N 8 -", "load 0 N -", "flush N 8 -", "flush 0 N -", "begin N", "end N"]
    {
        let read = |n: &str| {
            format!("keepstone-trace 1 4096\n0 {}", line.replace('N', n)).parse::<Trace>()
        };
        assert!(read("8").is_ok(), "{line}");
        // Cut to 32 bits, both would be 8.
        assert!(read("4294967304").is_err() && read("0x100000008").is_err(), "{line}");
    }
}

#[test]
fn a_barrier_orders_without_a_flush() {
    let text = format!("0 word 0 {ONE} -\n0 fence -\n0 word 64 {ONE} -\n0 nt 128 {ONE} -");
    let got = states(&text, Semantics::Epoch, &[0, 8, 16]);
    assert_eq!(got, set(&[&[1, 0, 0], &[1, 1, 0], &[1, 0, 1], &[1, 1, 1]]));
    let flushed = format!("0 word 0 {ONE} -\n0 flush 0 8 -\n0 word 64 {ONE} -\n0 flush 64 8 -");
    let any = set(&[&[0, 0], &[1, 0], &[0, 1], &[1, 1]]);
    assert_eq!(states(&flushed, Semantics::Epoch, &[0, 8]), any, "a flush means nothing");
}

#[test]
fn stores_past_the_cache_are_stores_on_epoch_hardware() {
    let line = ONE.repeat(8);
    let text = format!("0 word 0 {TWO} -\n0 line 0 {line} -");
    let got = states(&text, Semantics::Epoch, &[0, 1]);
    assert_eq!(got, set(&[&[0, 0], &[2, 0], &[1, 0], &[2, 1], &[1, 1]]));
}

#[test]
fn without_the_capacitor_a_word_tears() {
    let text = "0 word 0 1111111111111111 -\n0 fence -\n0 word 0 2222222222222222 -";
    let of = |semantics| states(text, semantics, &[0]);
    let (old, new) = (0x1111_1111_1111_1111u64, 0x2222_2222_2222_2222u64);
    assert_eq!(of(Semantics::Epoch), set(&[&[old], &[new]]));
    let torn = of(Semantics::EpochTorn);
    assert_eq!(torn.len(), 2 + 2 * 7);
    let halves = [0x1111_1111_2222_2222, 0x2222_2222_1111_1111];
    assert!(halves.iter().all(|half| torn.contains(&vec![*half])));
}

/// Returns the states after a trace if thread `now` fences, with other threads' epochs in flight.
fn lagging(text: &str, now: u8, words: &[u32]) -> BTreeSet<Vec<u64>> {
    let trace: Trace = format!("keepstone-trace 1 4096\n{text}").parse().unwrap();
    let initial = Initial::of(&vec![0; trace.len as usize]);
    let mut p = Persistency::over(Semantics::Epoch, initial).lagging();
    for e in &trace.events {
        p.apply(&trace, e);
    }
    p.ways(now).iter().flat_map(|units| states_of(&p, units, words)).collect()
}

#[test]
fn epochs_of_contexts_that_share_no_line_have_no_order() {
    let text =
        format!("0 word 0 {ONE} -\n0 fence -\n0 word 0 {TWO} -\n0 fence -\n1 word 64 {ONE} -");
    let got = lagging(&text, 1, &[0, 8]);
    assert_eq!(got, set(&[&[0, 0], &[0, 1], &[1, 0], &[1, 1], &[2, 0], &[2, 1]]));
    // Whose epoch ends has no choice: earlier states were met before.
    assert_eq!(lagging(&text, 0, &[0, 8]), set(&[&[1, 0], &[1, 1], &[2, 0], &[2, 1]]));
}

#[test]
fn an_access_to_anothers_line_makes_its_epochs_durable() {
    for access in [format!("1 word 8 {ONE} -"), "1 load 8 8 -".to_owned()] {
        let text = format!("0 word 64 {ONE} -\n0 fence -\n0 word 0 {ONE} -\n{access}");
        assert!(lagging(&text, 1, &[8, 0]).iter().all(|state| state == &[1, 1]), "{access}");
    }
}

#[test]
fn a_ninth_epoch_waits_for_the_first() {
    let epochs = |n: u32| -> String {
        (0..n).map(|i| format!("0 word {:#x} {ONE} -\n0 fence -\n", i * 64)).collect()
    };
    let oldest = |n| lagging(&epochs(n), 1, &[0]);
    assert_eq!(oldest(EPOCHS_MAX as u32), set(&[&[0], &[1]]));
    assert_eq!(oldest(EPOCHS_MAX as u32 + 1), set(&[&[1]]));
}
