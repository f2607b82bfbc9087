//! The server of a mount in a process of its own.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{MountPlan, Ready, serve};
use crate::{background, pool, utab};

/// Starts a server for `plan` and waits until it is ready.
pub fn start(plan: &MountPlan) -> Result<Ready> {
    let (info, _) = pool::info(&plan.pool)?;
    let log = plan.log_path(&info.uuid.to_string());
    let ready: Ready = background::start(arguments(plan), &log)?;
    utab::register(&plan.source(), &plan.dir);
    Ok(Ready { log: (!background::logs_to_journal()).then_some(log), ..ready })
}

/// Returns the path of the log that the last server of a pool has left, unless it is empty.
pub fn log_of(pool: &Path) -> Option<PathBuf> {
    let (info, _) = pool::info(pool).ok()?;
    let log = background::log_path(&info.uuid.to_string());
    log.metadata().is_ok_and(|log| log.len() > 0).then_some(log)
}

/// Runs the server that [`start`] started. Does not return before the mount ends.
pub fn serve(plan: &MountPlan) {
    let log = OnceCell::new();
    background::serve(|ready| {
        serve::run(plan, |mounted: &Ready| {
            let _ = log.set(plan.log_path(&mounted.uuid));
            ready(mounted)
        })
    });
    let _ = log.get().map(|log| background::remove_if_empty(log));
}

/// Returns the command line that gives the server the same plan.
fn arguments(plan: &MountPlan) -> Vec<OsString> {
    let options = &plan.options;
    let mut args: Vec<OsString> = vec!["mount".into(), "--daemon".into()];
    let list = options.to_list();
    if !list.is_empty() {
        args.extend(["-o".into(), list.into()]);
    }
    args.extend(["--".into(), plan.source().into(), plan.dir.clone().into()]);
    args
}
