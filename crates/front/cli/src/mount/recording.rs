//! Recordings of a server's accesses to its pool (`record`), of a mount or of a block device.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use memsim::record::Recorder;
use pmem::SharedObserver;

use super::options::{Options, Sharing};

/// Parses the file of the option, which becomes absolute: the server has another working directory.
pub fn file(value: &str) -> Result<PathBuf> {
    match value {
        "" => bail!("option `record`: needs a file, as in `record=/tmp/trace`"),
        _ if value.contains(',') => {
            bail!("--record: the name of the file has a comma, which separates mount options")
        }
        _ => std::path::absolute(value).with_context(|| format!("option `record={value}`")),
    }
}

/// A recording under way.
pub struct Recording {
    file: PathBuf,
    recorder: Arc<Recorder>,
}

impl Recording {
    /// Begins the recording that the options ask for.
    pub fn begin(options: &Options) -> Result<Option<Self>> {
        let Some(file) = options.record.clone() else { return Ok(None) };
        if options.sharing == Sharing::Required {
            bail!("option `direct`: not with `record`, which sees only the accesses of the server");
        }
        Ok(Some(Self::to(file)?))
    }

    /// Begins a recording to a file.
    pub fn to(file: PathBuf) -> Result<Self> {
        let output = File::create(&file).with_context(|| file.display().to_string())?;
        let recorder = Recorder::new(output, false);
        Ok(Self { file, recorder })
    }

    /// Returns the observer of the pool.
    pub fn observer(&self) -> SharedObserver {
        self.recorder.clone()
    }

    /// Completes the trace.
    pub fn finish(&self) -> Result<()> {
        let failed = || format!("{}: cannot be completed", self.file.display());
        let end = self.recorder.finish().with_context(failed)?;
        tracing::info!("{}: {} accesses recorded", self.file.display(), end.events);
        Ok(())
    }
}
