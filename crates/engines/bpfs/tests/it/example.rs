//! The example works as documented.

#[path = "../../examples/counter.rs"]
mod counter;

#[test]
fn it_counts_its_runs() {
    let pool =
        std::path::PathBuf::from(format!("/dev/shm/keepstone-example-{}", std::process::id()));
    let region = pmem::Region::create(&pool, 4 << 20).unwrap();
    bpfs::format(&region, &bpfs::FormatOptions::default()).unwrap();
    drop(region);
    let first = counter::run(&pool);
    let second = counter::run(&pool);
    std::fs::remove_file(&pool).unwrap();
    assert_eq!(first.unwrap(), "run 1\n");
    assert_eq!(second.unwrap(), "run 1\nrun 2\n");
}
