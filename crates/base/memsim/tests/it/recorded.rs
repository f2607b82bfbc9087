//! The recorder: what a region is asked for is in the trace, with its bytes, thread and time.

use memsim::record::Recorder;
use memsim::trace::{Action, MemoryEvent, Reader};
use pmem::{Medium, OpenOptions};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An output that the test reads.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns what `run` does to a region of 64 KiB, each event as text; and its threads.
fn recorded(has_data: bool, run: impl FnOnce(&pmem::Region)) -> (Vec<String>, Vec<u16>, u64) {
    let output = Shared::default();
    let recorder = Recorder::new(output.clone(), has_data);
    let observer = Some(recorder.clone() as pmem::SharedObserver);
    let region = OpenOptions { observer, ..OpenOptions::default() }.anonymous(64 << 10).unwrap();
    run(&region);
    let end = recorder.finish().unwrap();
    region.store_u64(0, 1);
    let bytes = output.0.lock().unwrap().clone();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    assert_eq!(reader.region_len(), 64 << 10);
    let (mut texts, mut threads, mut gaps) = (Vec::new(), Vec::new(), 0);
    while let Some(MemoryEvent { thread, gap_ns, action }) = reader.next_event().unwrap() {
        texts.push(match action {
            Action::Load { addr, len } => format!("load {addr} {len}"),
            Action::Store { way, addr, len, data } => {
                let data = data.map_or("-".to_owned(), |data| format!("{:?}", &data[..2]));
                format!("{way:?} {addr} {len} {data}")
            }
            Action::Flush { addr, len } => format!("flush {addr} {len}"),
            other => format!("{other:?}"),
        });
        threads.push(thread);
        gaps += gap_ns;
    }
    assert_eq!(reader.finished(), Some(end));
    assert!(end.elapsed_ns >= gaps / 2, "two threads at most");
    (texts, threads, gaps)
}

fn everything(region: &pmem::Region) {
    region.write(10, &[1, 2, 3]);
    region.write_nt(4096, &[4; 100]);
    region.copy_nt(8192, 4096, 64);
    region.zero_nt(100, 6000);
    region.store_u64(16, 0x0605);
    region.flush(16, 8);
    let _ = region.fence();
    region.read(10, &mut [0; 3]);
    region.equals(10, &[1, 2, 3]);
    region.load_u64(16);
    assert!(region.mapped(0, 8).is_none(), "reads in place would not be seen");
}

#[test]
fn all_accesses_are_in_the_trace() {
    let loads = ["load 10 3", "load 10 3", "load 16 8"];
    let (texts, ..) = recorded(true, everything);
    let stores = [
        "Cached 10 3 [1, 2]",
        "PastCache 4096 100 [4, 4]",
        "load 4096 64",
        "PastCache 8192 64 [4, 4]",
        "PastCache 100 4096 [0, 0]",
        "PastCache 4196 1904 [0, 0]",
        "Word 16 8 [5, 6]",
        "flush 16 8",
        "Fence",
    ];
    assert_eq!(texts, [&stores[..], &loads].concat());
    let (texts, ..) = recorded(false, everything);
    let stores = [
        "Cached 10 3 -",
        "PastCache 4096 100 -",
        "load 4096 64",
        "PastCache 8192 64 -",
        "PastCache 100 6000 -",
        "Word 16 8 -",
        "flush 16 8",
        "Fence",
    ];
    assert_eq!(texts, [&stores[..], &loads].concat());
}

#[test]
fn lines_are_stored_whole() {
    let (texts, ..) = recorded(true, |region| {
        if region.stores_lines() {
            region.store_line(64, &[7; 64]);
        }
    });
    assert!(texts.iter().all(|text| text == "Line 64 64 [7, 7]"), "{texts:?}");
}

#[test]
fn threads_and_their_computation_are_told_apart() {
    let (texts, threads, gaps) = recorded(false, |region| {
        region.store_u64(0, 1);
        std::thread::sleep(Duration::from_millis(20));
        region.store_u64(8, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| region.store_u64(16, 1));
        });
        region.store_u64(24, 1);
    });
    assert_eq!(texts.len(), 4);
    assert_eq!(threads, [0, 0, 1, 0]);
    assert!(gaps >= 20_000_000, "{gaps}");
}

#[test]
fn an_output_that_fails_is_reported() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let recorder = Recorder::new(Full, false);
    let observer = Some(recorder.clone() as pmem::SharedObserver);
    let region = OpenOptions { observer, ..OpenOptions::default() }.anonymous(4096).unwrap();
    for _ in 0..100_000 {
        region.store_u64(0, 1);
    }
    assert_eq!(recorder.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    let unused = Recorder::new(Full, false);
    assert!(unused.finish().unwrap_err().to_string().contains("nothing"));
}
