//! Programs below a filter of system calls, as units of systemd have them (`SystemCallFilter=`).
//!
//! Needs root and `/dev/fuse`.

#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt as _;

use libc::{c_long, sock_filter, sock_fprog};

use serde_json::Value;

use crate::common::Sandbox;

/// Calls that Debian's hardened units do not allow (`~@privileged @resources`, and groups outside
/// `@system-service`), as far as a shell does not make them itself.
const FORBIDDEN: [c_long; 40] = [
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_chown,
    libc::SYS_fchown,
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_capset,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_bpf,
    libc::SYS_quotactl,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_ioprio_set,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_set_mempolicy,
    libc::SYS_setpriority,
    libc::SYS_setrlimit,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_kcmp,
    // statmount, listmount
    457,
    458,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_mprotect,
];

/// Lets each of these calls end the process, by `SIGSYS`.
fn forbid(calls: &[c_long]) -> io::Result<()> {
    let step = |code: u32, jt: u8, k: u32| sock_filter { code: code as u16, jt, jf: 0, k };
    let mut program = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (at, call) in calls.iter().enumerate() {
        // To the last step.
        let beyond = (calls.len() - at) as u8;
        program.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, beyond, *call as u32));
    }
    program.push(step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    program.push(step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_KILL_PROCESS));
    let filter = sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a number, and a program that lives until the call returns.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[test]
fn a_program_below_a_filter_of_system_calls_is_served() {
    let sandbox = Sandbox::mounted_as("bpfs", &["-o", "direct"]);
    let script = "mkdir d; echo content >d/file; mv d/file d/name; cat d/name; ls d";
    let mut command = sandbox.served_script(&["--stats", "--json"], script);
    // SAFETY: it makes system calls, and allocates in a child of a process of one thread.
    let output = unsafe { command.pre_exec(|| forbid(&FORBIDDEN)) }.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let report = text.strip_prefix("content\nname\n").unwrap_or_else(|| panic!("{text}"));
    let report: Value = serde_json::from_str(report).unwrap();
    assert!(report["served"]["calls"].as_u64() > Some(5), "{report}");
}
