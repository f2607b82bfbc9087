//! Traces of other simulators: written as they read them, and read as they write them.

use memsim::caches::{HardwareConfig, Simulator};
use memsim::foreign::{ImportError, TextFormat, TextWriter, import};
use memsim::trace::{Action, MemoryEvent, Reader, StoreWay, Writer};
use proptest::prelude::*;

fn imported(format: TextFormat, text: &str) -> Result<Vec<(u16, u64, String)>, ImportError> {
    let mut trace = Vec::new();
    import(format, text.as_bytes(), 2.0, &mut trace)?;
    let mut reader = Reader::new(&trace[..]).unwrap();
    let mut events = Vec::new();
    while let Some(MemoryEvent { thread, gap_ns, action }) = reader.next_event().unwrap() {
        let text = match action {
            Action::Load { addr, len } => format!("load {addr} {len}"),
            Action::Store { way: StoreWay::Cached, addr, len, .. } => format!("store {addr} {len}"),
            other => format!("{other:?}"),
        };
        events.push((thread, gap_ns, text));
    }
    Ok(events)
}

fn trace() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), 1 << 20);
    let store = |addr, len| Action::Store { way: StoreWay::Cached, addr, len, data: None };
    let actions = [Action::Load { addr: 60, len: 8 }, store(128, 8), Action::Fence];
    for (thread, action) in (0..).zip(actions) {
        writer.push(&MemoryEvent { thread, gap_ns: 100, action }).unwrap();
    }
    writer.finish(0).unwrap().0
}

fn exported(format: TextFormat) -> (String, u64) {
    let mut output = Vec::new();
    let mut writer = TextWriter::new(format, &mut output, 2.0);
    let left_out = writer.export(&mut Reader::new(&trace()[..]).unwrap()).unwrap();
    assert_eq!(writer.finish().unwrap(), 3);
    (String::from_utf8(output).unwrap(), left_out)
}

#[test]
fn accesses_are_written_in_the_form_of_each_simulator() {
    let zeros = "0".repeat(128);
    for (format, text) in [
        (TextFormat::Ramulator2, "LD 0x0\nLD 0x40\nST 0x80\n".to_owned()),
        (TextFormat::DramSim3, "0x0 READ 50\n0x40 READ 50\n0x80 WRITE 100\n".to_owned()),
        (
            TextFormat::NvMain,
            format!("50 R 0x0 {zeros} 0\n50 R 0x40 {zeros} 0\n100 W 0x80 {zeros} 1\n"),
        ),
        (TextFormat::Gem5, "r,0,64,50000\nr,64,64,50000\nw,128,64,100000\n".to_owned()),
    ] {
        assert_eq!(exported(format), (text.clone(), 1), "{format}");
        let events = imported(format, &text).unwrap();
        let texts: Vec<_> = events.iter().map(|(.., text)| &text[..]).collect();
        assert_eq!(texts, ["load 0 64", "load 64 64", "store 128 64"]);
        assert_eq!(format.name().parse(), Ok(format));
    }
}

#[test]
fn texts_of_others_are_understood() {
    let ramulator = imported(TextFormat::Ramulator2, "ST 130\n\nLD 0XFF\n").unwrap();
    assert_eq!(ramulator[0].2, "store 128 64");
    assert_eq!(ramulator[1].2, "load 192 64");
    let dramsim = imported(TextFormat::DramSim3, "100 P_MEM_WR 3\n0x40 read 13\n").unwrap();
    assert_eq!(dramsim, [(0, 6, "store 256 64".into()), (0, 20, "load 64 64".into())]);
    let nvmain = "NVMV1\n10 W 0x40 00ff 00aa 3\n12 R 0x80 00 00 4\n";
    let nvmain = imported(TextFormat::NvMain, nvmain).unwrap();
    assert_eq!(nvmain, [(3, 20, "store 64 64".into()), (4, 4, "load 128 64".into())]);
}

#[test]
fn errors_name_the_line() {
    for (format, text) in [
        (TextFormat::Ramulator2, "LD 0x0\nXX 0x0\n"),
        (TextFormat::Ramulator2, "LD 0\nLD 0x0 5\n"),
        (TextFormat::Ramulator2, "LD 0\nLD 0xffffffffffffffff\n"),
        (TextFormat::DramSim3, "0x0 READ 5\n0x0 READ x\n"),
        (TextFormat::DramSim3, "0x0 READ 5\n0x0 FENCE 5\n"),
        (TextFormat::NvMain, "1 R 0x0 0 0\n2 R 0x0 0\n"),
        (TextFormat::NvMain, "NVMV0\nNVMV2\n"),
        (TextFormat::NvMain, "NVMV1\n2 R 0x0 0 0\n"),
    ] {
        let err = imported(format, text).unwrap_err();
        assert!(err.to_string().contains("line 2"), "{err}");
    }
    let long = format!("LD {}1\n", "0".repeat(10_000));
    assert!(imported(TextFormat::Ramulator2, &long).is_err());
    assert!("gem6".parse::<TextFormat>().is_err());
}

#[test]
fn the_traffic_behind_caches_can_be_written() {
    let mut output = Vec::new();
    let writer = TextWriter::new(TextFormat::Ramulator2, &mut output, 1.0);
    let mut simulator = Simulator::new(HardwareConfig::default(), writer).unwrap();
    simulator.replay(&mut Reader::new(&trace()[..]).unwrap()).unwrap();
    let (_, writer) = simulator.finish();
    writer.finish().unwrap();
    assert_eq!(String::from_utf8(output).unwrap(), "LD 0x0\nLD 0x40\nLD 0x80\nST 0x80\n");
}

proptest! {
    #[test]
    fn arbitrary_text_is_an_error_or_a_trace(text in "[LDST0-9xRWa-f \n]{0,200}") {
        for format in TextFormat::ALL {
            let _ = imported(format, &text);
        }
    }
}

#[test]
fn packets_of_gem5_may_have_more_fields() {
    for text in ["r,70,4,500", "17,r,70,4,500", "r,70,4,256,500", "17,r,70,4,256,500,4096"] {
        let events = imported(TextFormat::Gem5, text).unwrap();
        assert_eq!(events, [(0, 1, "load 64 64".to_owned())], "{text}");
    }
    for text in ["u,70,4,500", "r,70,4", "r,0x40,4,500", "r 70 4 500"] {
        assert!(imported(TextFormat::Gem5, text).is_err(), "{text}");
    }
}
