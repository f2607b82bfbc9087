//! `keepstone simulate memory`: traces in, results of models out. Needs neither root nor a mount.

use std::path::PathBuf;
use std::process::{Command, Output};

use memsim::trace::{Action, MemoryEvent, StoreWay, Writer};
use serde_json::Value;

fn memory(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    command.args(["simulate", "memory"]).args(args).output().unwrap()
}

fn ok(args: &[&str]) -> String {
    let output = memory(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must fail with this status, and returns its standard error.
fn fails(args: &[&str], status: i32) -> String {
    let output = memory(args);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(&[args, &["--json"]].concat())).unwrap()
}

/// A directory with a trace.
struct Traced {
    dir: tempfile::TempDir,
    trace: String,
}

impl Traced {
    fn new(region_len: u64, elapsed_ns: u64, actions: &[Action<'_>]) -> Self {
        let dir = tempfile::Builder::new().prefix("keepstone-").tempdir().unwrap();
        let trace = dir.path().join("trace");
        let mut writer = Writer::new(std::fs::File::create(&trace).unwrap(), region_len);
        for action in actions {
            writer.push(&MemoryEvent { thread: 0, gap_ns: 10, action: *action }).unwrap();
        }
        writer.finish(elapsed_ns).unwrap();
        let trace = trace.to_str().unwrap().to_owned();
        Self { dir, trace }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A store of a word that is made durable, after a load.
fn commit() -> Vec<Action<'static>> {
    vec![
        Action::Load { addr: 0, len: 128 },
        Action::Store { way: StoreWay::Word, addr: 64, len: 8, data: None },
        Action::Flush { addr: 64, len: 8 },
        Action::Fence,
    ]
}

#[test]
fn a_trace_is_counted() {
    let traced = Traced::new(4096, 5000, &commit());
    let found = json(&["describe", &traced.trace]);
    assert_eq!((&found["events"], &found["elapsed_ns"]), (&4.into(), &5000.into()));
    assert_eq!((&found["loads"]["lines"], &found["flushes"]["lines"]), (&2.into(), &1.into()));
    assert!(ok(&["describe", &traced.trace]).contains("region"));
}

#[test]
fn a_file_that_is_no_trace_is_refused() {
    let traced = Traced::new(4096, 0, &commit());
    let whole = std::fs::read(&traced.trace).unwrap();
    let cut = traced.path("cut");
    std::fs::write(&cut, &whole[..whole.len() - 3]).unwrap();
    let told = fails(&["describe", cut.to_str().unwrap()], 1);
    let place = format!("byte {}: the trace ends without an end record", whole.len() - 3);
    assert!(told.contains(&place), "{told}");
    std::fs::write(&cut, "1 4096\n").unwrap();
    assert!(fails(&["describe", cut.to_str().unwrap()], 1).contains("not a memory trace"));
    assert!(fails(&["describe", "/no/such"], 1).contains("/no/such"));
    fails(&["describe"], 2);
}

#[test]
fn less_throughput_takes_longer() {
    let run = ["throughput", "--time", "2", "--read", "0", "--written", "100M", "--at", "34,800"];
    let found = json(&[&run[..], &["--peer", "disk=4", "--peer", "ram=1"]].concat());
    let time = |i: usize| found["rates"][i]["time_s"].as_f64().unwrap();
    assert!((time(0) - 2.0 - f64::from(100 << 20) / 34e6).abs() < 1e-9, "{found}");
    assert!(time(1) < time(0));
    let faster = found["peers"][0]["faster_from_mb_per_s"].as_f64().unwrap();
    assert!((faster - f64::from(100 << 20) / 2e6).abs() < 1e-9);
    assert_eq!(found["peers"][1]["faster_from_mb_per_s"], Value::Null);
    assert!(ok(&[&run[..], &["--peer", "disk=4"]].concat()).contains("faster than disk"));

    let traced = Traced::new(4096, 5000, &commit());
    let found = json(&["throughput", &traced.trace]);
    assert_eq!(found["rates"].as_array().unwrap().len(), 9);
    assert_eq!(found["run"]["dram_s"], 5e-6);
    assert_eq!(
        (&found["run"]["read_bytes"], &found["run"]["written_bytes"]),
        (&128.into(), &64.into())
    );
    for wrong in [
        &["throughput"][..],
        &["throughput", "--time", "1"],
        &["throughput", "--time", "-1", "--written", "1"],
        &["throughput", "--time", "1", "--written", "1", "--at", "0"],
        &["throughput", "--time", "1", "--written", "1", "--peer", "disk"],
    ] {
        fails(wrong, 2);
    }
}

#[test]
fn engines_are_recorded_and_replayed() {
    let traced = Traced::new(4096, 0, &[]);
    let trace = &traced.trace[..];
    for (layout, workload) in
        [("bpfs", "append"), ("bpfs", "overwrite"), ("bpfs", "postmark"), ("scmfs", "create")]
    {
        let args = ["record", trace, "--layout", layout, "--workload", workload];
        let made = json(&[&args[..], &["--operations", "200", "--size", "16M"]].concat());
        let found = json(&["describe", trace]);
        assert_eq!(found["operations"], 200, "{layout} {workload}");
        assert_eq!(found["events"], made["events"]);
        assert!(found["fences"].as_u64().unwrap() > 100, "{found}");
        assert!(found["flushes"]["count"].as_u64().unwrap() > 0, "{found}");
        let found = json(&["caches", trace]);
        let of = |i: usize, name: &str| found["modes"][i]["counts"][name].as_u64().unwrap();
        let modes: Vec<_> = (0..5).map(|i| &found["modes"][i]["mode"]).collect();
        assert_eq!(modes, ["clwb", "write-through", "flush-all", "eadr", "epoch"]);
        assert!(of(4, "memory_writes") < of(1, "memory_writes"), "epochs combine stores");
        assert!(of(4, "epochs") > 0 && of(4, "epochs_in_flight_max") <= 8, "{found}");
        assert!(of(4, "fence_wait_ns") <= of(1, "fence_wait_ns"), "{found}");
        let by_model = json(&["throughput", trace, "--model"]);
        let by_counters = json(&["throughput", trace]);
        let read = |found: &Value| found["run"]["read_bytes"].as_u64().unwrap();
        assert!(read(&by_model) < read(&by_counters), "{by_model} {by_counters}");
    }
    assert!(ok(&["caches", trace, "--mode", "epoch"]).contains("epochs in flight"));
}

#[test]
fn wear_is_counted() {
    let traced = Traced::new(1 << 20, 0, &[&commit()[..], &commit()].concat());
    let found = json(&["wear", &traced.trace, "--time", "3600"]);
    assert_eq!(
        (&found["totals"]["line_writes"], &found["totals"]["line_max"]),
        (&2.into(), &2.into())
    );
    assert_eq!(found["hottest"][0], serde_json::json!({ "addr": 64, "writes": 2 }));
    let lives = found["lifetimes"].as_array().unwrap();
    assert_eq!(lives.len(), 5 * 6);
    assert_eq!(lives[0]["levelling"], "none");
    assert_eq!(lives[0]["hours"], 1e8 / 2.0);
    assert!(ok(&["wear", &traced.trace]).contains("start-gap"));
    assert!(fails(&["wear", &traced.trace, "--count-memory", "1"], 1).contains("--count-memory"));
}

#[test]
fn hardware_has_its_cost() {
    let found = json(&["costs"]);
    assert_eq!(found["total_bytes"], 40_576);
    assert!(ok(&["costs"]).contains("39.6 KiB"));
    let optane = found["memories"].as_array().unwrap().iter().find(|m| m["name"] == "optane");
    assert_eq!(optane.unwrap()["read_ns"], 181);
    for wrong in
        [&["costs", "--l1", "3K"][..], &["costs", "--cores", "0"], &["costs", "--droop", "0"]]
    {
        fails(wrong, 2);
    }
}

#[test]
fn traces_of_other_simulators_are_converted() {
    let traced = Traced::new(4096, 0, &commit());
    let (text, back) = (traced.path("text"), traced.path("back"));
    let (text, back) = (text.to_str().unwrap(), back.to_str().unwrap());
    let found = json(&["export", &traced.trace, text, "--to", "ramulator2"]);
    assert_eq!((&found["accesses"], &found["left_out"]), (&3.into(), &2.into()));
    assert_eq!(std::fs::read_to_string(text).unwrap(), "LD 0x0\nLD 0x40\nST 0x40\n");
    assert_eq!(json(&["import", text, back, "--from", "ramulator2"])["events"], 3);
    assert_eq!(json(&["describe", back])["loads"]["count"], 2);
    json(&["export", &traced.trace, text, "--to", "dramsim3", "--through", "clwb"]);
    assert!(std::fs::read_to_string(text).unwrap().ends_with("0x40 WRITE 142\n"));
    assert!(fails(&["import", text, back, "--from", "nvmain"], 1).contains("line 1"));
    fails(&["import", text, back, "--from", "gem6"], 2);
    fails(&["export", text, back, "--to", "gem6"], 2);
    assert!(fails(&["export", &traced.trace, text, "--to", "crash"], 1).contains("its bytes"));
}

#[test]
fn a_recording_with_content_is_linted() {
    let traced = Traced::new(4096, 0, &[]);
    let text = traced.path("text");
    let text = text.to_str().unwrap();
    let args = ["record", &traced.trace, "--workload", "create", "--operations", "5"];
    json(&[&args[..], &["--size", "4M", "--content"]].concat());
    json(&["export", &traced.trace, text, "--to", "crash"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    let output = command.args(["crashtest", "--from-trace", text]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    assert!(!told.contains("not an event"), "{told}");
}
