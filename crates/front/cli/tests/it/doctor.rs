//! Unsafe set-ups that `keepstone doctor` finds: pools, caches and shared memory that other users
//! may write.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use serde_json::Value;

use crate::common::Sandbox;

/// A user without privileges.
const STRANGER: u32 = 61_002;

/// Returns the unsafe findings of `keepstone doctor TARGET` about a subject.
fn unsafe_of(sandbox: &Sandbox, target: &str, subject: &str) -> Vec<Value> {
    let report = serde_json::from_str::<Value>(&sandbox.ok(["doctor", "--json", target])).unwrap();
    let findings = report["findings"].as_array().unwrap().clone();
    let is_of = |finding: &Value| finding["level"] == "unsafe" && finding["subject"] == subject;
    findings.into_iter().filter(is_of).collect()
}

#[test]
fn a_pool_that_every_user_may_write_is_unsafe() {
    let s = Sandbox::mounted(&[]);
    let found = || unsafe_of(&s, s.dir_str(), "pool");
    assert_eq!(found(), [] as [Value; 0]);
    set_permissions(&s.pool, Permissions::from_mode(0o666)).unwrap();
    let [finding] = &found()[..] else { panic!("{:?}", found()) };
    assert!(finding["remedy"].as_str().unwrap().contains("chmod"), "{finding}");
    let text = s.ok(["doctor", s.pool_str()]);
    assert!(text.contains("UNSAFE   pool: "), "{text}");
    s.umount();
}

#[test]
fn a_cache_whose_pool_others_may_write_is_unsafe() {
    let s = Sandbox::formatted();
    s.ok(["mkfs", "--force", "--cache", s.pool_str()]);
    let below = s.outside("below");
    std::fs::create_dir(&below).unwrap();
    s.ok(["attach", s.pool_str(), below.to_str().unwrap(), s.dir_str()]);
    let is_named = |found: Vec<Value>| {
        found.iter().any(|f| f["found"].as_str().unwrap().contains(s.pool_str()))
    };
    assert!(!is_named(unsafe_of(&s, s.dir_str(), "cache")));
    set_permissions(&s.pool, Permissions::from_mode(0o660)).unwrap();
    let found = is_named(unsafe_of(&s, s.dir_str(), "cache"));
    s.umount();
    assert!(found);
}

#[test]
fn names_that_a_stranger_took_in_shared_memory_are_unsafe() {
    let s = Sandbox::formatted();
    let name = Path::new("/dev/shm").join(format!("keepstone-taken-{}", std::process::id()));
    symlink("/etc/passwd", &name).unwrap();
    std::os::unix::fs::lchown(&name, Some(STRANGER), Some(STRANGER)).unwrap();
    let found = unsafe_of(&s, s.pool_str(), "/dev/shm");
    std::fs::remove_file(&name).unwrap();
    let names = |f: &Value| f["found"].as_str().unwrap().contains(name.to_str().unwrap());
    assert!(found.iter().any(names), "{found:?}");
}
