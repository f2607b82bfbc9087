//! Gives the library its soname, by which programs linked with `-lkeepstone` find it, and versions
//! to the symbols of the C interface; makes links of that name in the directories of the build.
//!
//! The versions need LLD, the default linker of Rust on this platform: the compiler passes a list
//! without versions, and GNU ld takes only one.

use std::io::ErrorKind;
use std::path::Path;

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    let soname = format!("libkeepstone.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=libkeepstone.map");
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={here}/libkeepstone.map");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // OUT_DIR is `target/PROFILE/build/PACKAGE/out`.
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let target = Path::new(&out).ancestors().nth(3).expect("cargo made it");
    for dir in [target, &target.join("deps")] {
        match std::os::unix::fs::symlink("libkeepstone.so", dir.join(&soname)) {
            Err(err) if err.kind() != ErrorKind::AlreadyExists => {
                println!("cargo::warning={}: {err}", dir.display());
            }
            _ => {}
        }
    }
}
