//! Mappings of files in pools, and programs whose memory is special.

use super::*;

#[test]
fn files_are_mapped_where_they_lie() {
    let sandbox = Sandbox::mounted_as("scmfs", &["-o", "direct"]);
    let report = on_pool(&sandbox, &compiled("mapped", &[]), &[], &[]);
    let map = &report["calls"]["map"];
    // The kernel returns the errors of mappings that are not possible at all.
    assert!(map["served"].as_u64() > Some(25) && map["by_kernel"] == 3, "{report}");
    assert_eq!(sandbox.requests("read") + sandbox.requests("write"), 0, "{}", sandbox.stats());
    sandbox.umount();
    let checked = sandbox.ok(["check", sandbox.pool_str()]);
    assert!(checked.contains("clean"), "{checked}");
}

/// Two users map files of a pool that both may open. Each can do the same as on tmpfs.
#[test]
fn who_may_only_read_maps_only_that() {
    let mut sandbox = Sandbox::empty();
    sandbox.ok(["mkfs", sandbox.pool_str(), "--size", "256M", "--layout", "scmfs"]);
    std::os::unix::fs::chown(&sandbox.pool, None, Some(65534)).unwrap();
    fs::set_permissions(&sandbox.pool, fs::Permissions::from_mode(0o660)).unwrap();
    sandbox.mount(&["-o", "direct"]);
    let (program, dir) = (compiled("others", &[]), sandbox.path("others"));
    fs::create_dir(&dir).unwrap();
    // A copy that all users can load, wherever the build directory is.
    let lib = sandbox.outside("libkeepstone.so");
    fs::copy(library(), &lib).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    run.args(["run", "--stats", "--json", "--"]).args([&program, &dir]);
    let output = output_of(run.env("KEEPSTONE_LIBRARY", &lib));
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let report = text.strip_prefix(&on_tmpfs(&program)).unwrap_or_else(|| panic!("{text}"));
    let report: Value = serde_json::from_str(report).unwrap();
    // One mapping belongs to the owner, three belong to the reader.
    assert!(report["calls"]["map"]["served"].as_u64() >= Some(4), "{report}");
    assert_eq!(sandbox.requests("read") + sandbox.requests("write"), 0, "{}", sandbox.stats());
    sandbox.umount();
    let checked = sandbox.ok(["check", sandbox.pool_str()]);
    assert!(checked.contains("clean"), "{checked}");
}

/// A user that may not open the pool uses the mount. It sees what others store through mappings,
/// and gets no other access.
#[test]
fn who_may_not_open_the_pool_sees_what_others_map() {
    let sandbox = Sandbox::mounted_as("scmfs", &["-o", "direct"]);
    let [open, closed] = ["open", "closed"].map(|name| sandbox.path(name));
    for (path, mode) in [(&open, 0o644), (&closed, 0o600)] {
        fs::write(path, vec![b'a'; 100_000]).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let script = "import mmap, sys
for name in sys.argv[1:]:
    f = open(name, 'r+b')
    m = mmap.mmap(f.fileno(), 0)
    m[5:11] = b'stored'
    globals()[name] = m
print('mapped', flush=True)
sys.stdin.read()";
    let mut owner = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    owner.args(["run", "--", "python3", "-c", script]).args([&open, &closed]);
    owner.env("KEEPSTONE_LIBRARY", library()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut owner = owner.spawn().unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(owner.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "mapped\n");
    let script = format!(
        "head -c 11 {0}; ! cat {1} 2>&1; ! true 2>&1 >> {0}; ! true 2>&1 <> {0}; ! test -r {2} -o -w {2}",
        open.display(),
        closed.display(),
        sandbox.pool.display()
    );
    let seen = as_nobody(&script);
    assert!(seen.starts_with("aaaaastored"), "{seen}");
    drop(owner.stdin.take());
    assert!(owner.wait().unwrap().success());
    sandbox.umount();
    let checked = sandbox.ok(["check", sandbox.pool_str()]);
    assert!(checked.contains("clean"), "{checked}");
}

/// A program without the library reads what is stored, and its mapping fails if it would not show
/// that.
#[test]
fn what_is_mapped_where_it_lies_the_kernel_does_not_map() {
    let sandbox = Sandbox::mounted_as("scmfs", &["-o", "direct"]);
    let path = sandbox.path("f");
    fs::write(&path, vec![b'a'; 100_000]).unwrap();
    let script = "import mmap, sys
f = open(sys.argv[1], 'r+b')
m = mmap.mmap(f.fileno(), 0)
m[5:11] = b'stored'
print('mapped', flush=True)
sys.stdin.read()";
    let mut program = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    program.args(["run", "--", "python3", "-c", script]).arg(&path);
    program.env("KEEPSTONE_LIBRARY", library()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = program.spawn().unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(program.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "mapped\n");
    assert_eq!(&fs::read(&path).unwrap()[5..11], b"stored");
    let both = || fs::OpenOptions::new().read(true).write(true).open(&path);
    assert_eq!(both().unwrap_err().raw_os_error(), Some(libc::EBUSY));
    // Another program with the library can map the file, and sees writes.
    let reader = "import mmap, sys
f = open(sys.argv[1], 'rb')
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
print(m[5:11].decode())";
    let args = ["--", "python3", "-c", reader, path.to_str().unwrap()];
    assert_eq!(String::from_utf8_lossy(&keepstone_run(args).stdout), "stored\n");
    // After it is killed, its mappings block no other process.
    program.kill().unwrap();
    program.wait().unwrap();
    let file = both().unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(&fs::read(&path).unwrap()[5..11], b"stored");
    sandbox.umount();
}

/// Runs a program of `preload/tests/c` that uses the C interface on a pool without a mount. It must
/// print its name.
fn uses_the_c_interface(sandbox: &Sandbox, name: &str) {
    let (library, root) = (library(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.."));
    let dir = library.parent().unwrap();
    let program = sandbox.outside(name);
    let source = root.join(format!("crates/front/preload/tests/c/{name}.c"));
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    gcc.arg(source).arg("-I").arg(root.join("include"));
    let output = gcc.arg("-L").arg(dir).arg("-lkeepstone").output().expect("gcc: install it");
    assert!(output.status.success(), "{output:?}");
    let done = output_of(Command::new(&program).arg(&sandbox.pool).env("LD_LIBRARY_PATH", dir));
    assert_eq!(String::from_utf8_lossy(&done.stdout), format!("{name}\n"), "{done:?}");
}

/// Bad pointers and a truncated pool give errors, in a program that uses no mount.
#[test]
fn the_c_interface_survives_wild_pointers_and_lost_pools() {
    for layout in ["bpfs", "scmfs"] {
        uses_the_c_interface(&Sandbox::formatted_as(layout), "wild");
    }
}

#[test]
fn the_c_interface_has_names_and_attributes() {
    for layout in ["bpfs", "scmfs"] {
        let mut sandbox = Sandbox::formatted_as(layout);
        uses_the_c_interface(&sandbox, "attributed");
        sandbox.mount(&["-o", "direct"]);
        let names = fs::read_dir(sandbox.path("dir")).unwrap().count();
        assert_eq!(names, 200);
        assert_eq!(fs::read_link(sandbox.path("link")).unwrap(), Path::new("dir/0"));
        sandbox.umount();
    }
}

#[test]
fn the_c_interface_has_snapshots_and_branches() {
    uses_the_c_interface(&Sandbox::formatted_as("bpfs"), "trees");
}

#[test]
fn the_c_interface_maps_files_and_makes_pools() {
    for layout in ["bpfs", "scmfs"] {
        uses_the_c_interface(&Sandbox::formatted_as(layout), "mapping");
    }
}

#[test]
fn the_c_interface_lends_any_range_as_one() {
    let mut sandbox = Sandbox::empty();
    sandbox.ok(["mkfs", sandbox.pool_str(), "--size", "64M", "--layout", "scmfs"]);
    uses_the_c_interface(&sandbox, "lent");
    sandbox.mount(&["-o", "direct"]);
    assert_eq!(&fs::read(sandbox.path("scattered")).unwrap()[4000..4010], b"through it");
    sandbox.umount();
}

#[test]
fn a_file_that_grows_is_mapped_while_others_lock_it() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    on_pool(&sandbox, &compiled("grown", &[]), &[], &[]);
    sandbox.umount();
}

#[test]
fn programs_with_sanitizers_are_served() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let kinds = [
        &["-fsanitize=address"][..],
        &["-fsanitize=address", "-static-libasan"],
        &["-fsanitize=thread"],
        &["-fsanitize=undefined"],
        &["-fsanitize=leak"],
    ];
    for options in kinds {
        let program = compiled("sanitized", options);
        let expected = on_tmpfs(&program);
        let report = on_pool(&sandbox, &program, &[], &[]);
        assert!(report["calls"]["read"]["served"].as_u64() >= Some(2), "{options:?}: {report}");
        // As a child of another program, which has cleaned the environment.
        let dir = sandbox.path(&format!("child{}", options.concat()));
        fs::create_dir(&dir).unwrap();
        let script = format!(
            "unset LD_PRELOAD; export ASAN_OPTIONS=verbosity=0; {} {}",
            program.display(),
            dir.display()
        );
        let output = keepstone_run(["--quiet", "--", "sh", "-c", &script]);
        assert!(output.status.success(), "{options:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{options:?}");
    }
    // The sanitizer still finds errors.
    let program = compiled("sanitized", &["-fsanitize=address"]);
    let dir = sandbox.path("found");
    fs::create_dir(&dir).unwrap();
    let args = [
        "--quiet".as_ref(),
        "--".as_ref(),
        program.as_os_str(),
        dir.as_os_str(),
        "overflow".as_ref(),
    ];
    let output = keepstone_run(args);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("heap-buffer-overflow"), "{output:?}");
    sandbox.umount();
}

/// Each program passes its references and its slot among the users of the pool to the next.
#[test]
fn a_program_can_be_replaced_more_often_than_processes_can_use_a_pool() {
    let s = Sandbox::mounted(&["-o", "direct"]);
    fs::write(s.path("file"), "content").unwrap();
    let again = r#"cd "$2" && [ -e file ] && [ "$1" = 0 ] && exec cat file
        exec bash "$0" $(($1 - 1)) "$2""#;
    fs::write(s.path("again"), again).unwrap();
    let script = format!("KEEPSTONE_DEBUG=1 exec bash {0}/again 300 {0}", s.dir_str());
    let output = keepstone_run(["--quiet", "--", "bash", "-c", &script]);
    assert!(output.status.success() && output.stdout == b"content", "{output:?}");
    assert!(output.stderr.is_empty(), "somebody was left to the kernel: {output:?}");
    s.umount();
}

#[test]
fn a_program_that_locks_its_memory_locks_no_pool() {
    is_done("bpfs", "locked");
}

/// A program with a low limit on its address space uses the mount, and a notice explains why.
#[test]
fn programs_with_little_address_space_use_the_mount() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let file = sandbox.path("file");
    let program = format!(
        "ulimit -v 409600; {} run --stats -- sh -c 'echo content > {1}; cat {1}'",
        env!("CARGO_BIN_EXE_keepstone"),
        file.display()
    );
    let mut command = Command::new("bash");
    command.args(["-c", &program]).env("KEEPSTONE_LIBRARY", library());
    let output = output_of(&mut command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output.stdout.starts_with(b"content\n"), "{output:?}");
    assert!(said.contains("limited to 400 MiB") && said.contains("through the mount"), "{said}");
    sandbox.umount();
}

#[test]
fn relative_paths_from_outside_are_served() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let outside = sandbox.outside("").canonicalize().unwrap();
    // `outside.c` makes calls at each of seven places, ROUNDS times.
    let rounds = 7 * 100;
    let options = ["--stats", "--json", "--"].map(OsStr::new);
    let program = compiled("outside", &[]);
    let output =
        keepstone_run(options.into_iter().chain([program.as_os_str(), outside.as_os_str()]));
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let served = |class: &str| report["calls"][class]["served"].as_u64().unwrap_or(0);
    for (class, calls) in [("open", 1), ("write", 1), ("stat", 3), ("names", 2), ("close", 1)] {
        assert!(served(class) >= calls * rounds, "{class}: {report}");
    }
    // With ordinary programs.
    let script = "mkdir mnt/tree && tar cf - -C /etc passwd group | tar xf - -C mnt/tree &&
        cat mnt/tree/passwd >mnt/copy && cd mnt/tree && cmp passwd ../copy && cd ../.. && rm -r mnt/tree";
    let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
    command.args(["run", "--stats", "--json", "--", "sh", "-c", script]).current_dir(&outside);
    let output = output_of(command.env("KEEPSTONE_LIBRARY", library()));
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for class in ["open", "write", "names", "list"] {
        assert!(report["calls"][class]["served"].as_u64() > Some(0), "{class}: {report}");
    }
    assert_eq!(fs::read(sandbox.path("copy")).unwrap(), fs::read("/etc/passwd").unwrap());
    sandbox.umount();
}

#[test]
fn a_static_program_uses_the_mount() {
    let sandbox = Sandbox::mounted(&["-o", "direct"]);
    let calls = compiled("calls", &["-static"]);
    let dir = sandbox.path("dir");
    fs::create_dir(&dir).unwrap();
    let output = keepstone_run([calls.as_os_str(), dir.as_os_str()]);
    assert!(output.status.success(), "{output:?}");
    let notice = String::from_utf8_lossy(&output.stderr);
    assert!(notice.contains("statically linked; it uses the mount"), "{notice}");
    sandbox.umount();
}
