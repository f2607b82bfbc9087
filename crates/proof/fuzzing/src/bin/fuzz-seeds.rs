//! Writes the valid inputs of each target into `DIRECTORY/TARGET/`: the first corpus of cargo-fuzz.

use std::fs;
use std::io;
use std::path::PathBuf;

fn main() -> io::Result<()> {
    let dir: PathBuf = std::env::args_os().nth(1).unwrap_or_else(|| "corpus".into()).into();
    for target in fuzzing::TARGETS {
        let corpus = dir.join(target.name);
        fs::create_dir_all(&corpus)?;
        for (i, seed) in (target.seeds)().iter().enumerate() {
            fs::write(corpus.join(format!("seed-{i}")), seed)?;
        }
    }
    Ok(())
}
