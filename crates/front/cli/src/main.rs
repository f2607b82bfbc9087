//! The `keepstone` command.
//!
//! Errors name the object, the cause and the remedy. Exit status: 0 done, 1 failed, 2 wrong usage;
//! `check` adds 4 (not repairable), and the helper of `mount(8)` follows that program's rules.

#[macro_use]
mod output;

mod args;
mod attach;
mod background;
mod bdev;
mod bench;
mod branch;
mod busy;
mod check;
mod clone;
mod clone_pool;
mod copies;
mod crash_program;
mod crashtest;
mod doctor;
mod export;
mod generate;
mod info;
mod locks;
mod log;
mod mkfs;
mod mount;
mod obstacles;
mod pool;
mod program;
mod prometheus;
mod report;
mod resize;
mod run;
mod score;
mod shown;
mod signatures;
mod simulate;
mod size;
mod snapshot;
mod stats;
mod stream;
mod tags;
mod top;
mod trim;
mod trust;
mod umount;
mod unfinished;
mod utab;
mod volumes;

use std::ffi::OsString;
use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use args::{Cli, CliCommand, RunCommand};

/// Exit status of wrong usage, as that of clap.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    log::init();
    let argv: Vec<_> = std::env::args_os().collect();
    if let Some(code) = mount::run_as_helper(&argv).or_else(|| umount::run_as_helper(&argv)) {
        return code;
    }
    let cli = match Cli::of_words(&argv) {
        Ok(cli) => cli,
        Err(err) => wrong_usage(&err, &argv),
    };
    if is_server(&cli.command) {
        raise_descriptor_limit();
    } else {
        end_with_the_pipe();
    }
    match dispatch(&cli) {
        Ok(code) if code == ExitCode::SUCCESS && output::is_lost() => ExitCode::FAILURE,
        Ok(code) => code,
        Err(err) => {
            output::error(&err, cli.json);
            if err.is::<output::WrongUsage>() {
                return ExitCode::from(EXIT_USAGE);
            }
            // fsck(8): 1 means "problems were found", which is not what happened.
            let failed_check = match &cli.command {
                CliCommand::Bdev { command } => command.is_check(),
                command => matches!(command, CliCommand::Check(_)),
            };
            ExitCode::from(if failed_check { check::EXIT_FAILED } else { 1 })
        }
    }
}

/// Reports an error in the command line, or prints the requested help or version.
fn wrong_usage(err: &clap::Error, argv: &[OsString]) -> ! {
    let json = argv.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    if json && err.kind() == clap::error::ErrorKind::DisplayVersion {
        say!("{:#}", serde_json::json!({ "version": env!("CARGO_PKG_VERSION") }));
        std::process::exit(output::is_lost().into());
    }
    if !err.use_stderr() {
        let printed = err.print().and_then(|()| std::io::stdout().flush());
        let is_lost = printed.is_err_and(|err| err.kind() != ErrorKind::BrokenPipe);
        std::process::exit(is_lost.into());
    }
    if json {
        let text = err.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let _ = output::json(&serde_json::json!({ "error": first }));
    }
    err.exit()
}

fn dispatch(cli: &Cli) -> anyhow::Result<ExitCode> {
    match &cli.command {
        CliCommand::Mkfs(args) => mkfs::run(args, cli.json),
        CliCommand::Mount(args) => mount::run(args, cli.json),
        CliCommand::Attach(args) => attach::run(args, cli.json),
        CliCommand::Umount(args) => umount::run(args, cli.json),
        CliCommand::Info(args) => info::run(args, cli.json),
        CliCommand::Check(args) => check::run(args, cli.json),
        CliCommand::Trim(args) => trim::run(args, cli.json),
        CliCommand::Resize(args) => resize::run(args, cli.json),
        CliCommand::Clone(args) => clone::run(args, cli.json),
        CliCommand::ClonePool(args) => clone_pool::run(args, cli.json),
        CliCommand::Export(args) => export::run(args, cli.json),
        CliCommand::Send(args) => stream::send(args, cli.json),
        CliCommand::Receive(args) => stream::receive(args, cli.json),
        CliCommand::Snapshot { command } => snapshot::run(command, cli.json),
        CliCommand::Branch { command } => branch::run(command, cli.json),
        CliCommand::Stats(args) => stats::run(args, cli.json),
        CliCommand::Top(args) => top::run(args, cli.json),
        CliCommand::Run(RunCommand::Run(args)) => run::run(args, cli.json),
        CliCommand::Doctor(args) => doctor::run(args, cli.json),
        CliCommand::Bdev { command } => bdev::run(command, cli.json),
        CliCommand::Volumes(args) => volumes::run(args, cli.json),
        CliCommand::Bench(args) => bench::run(args, cli.json),
        CliCommand::Crashtest(args) => crashtest::run(args, cli.json),
        CliCommand::Simulate { command } => simulate::run(command, cli.json),
        CliCommand::Generate(args) => generate::run(args, cli.json),
    }
}

/// Returns whether the command may become a server, which outlives the reader of its output.
fn is_server(command: &CliCommand) -> bool {
    match command {
        CliCommand::Mount(_) | CliCommand::Volumes(_) => true,
        CliCommand::Attach(args) => args.is_server(),
        CliCommand::Bdev { command } => command.is_server(),
        _ => false,
    }
}

/// Raises the limit of descriptors as far as allowed, so that files open for one user do not
/// prevent the server from opening files for another.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    if let Err(err) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("the limit of open files stays as it is: {err}");
    }
}

/// Lets `keepstone … | head` end quietly by SIGPIPE, as other programs do. A server must not end
/// so.
#[allow(unsafe_code)]
fn end_with_the_pipe() {
    // SAFETY: the default action is no handler, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
