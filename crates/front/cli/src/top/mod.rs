//! `keepstone top`: shows the activity of all servers of this machine: mounts, caches and block
//! devices.
//!
//! At every interval it finds the servers and asks each for its counters: mounts as `keepstone
//! stats` does, servers of block devices over their control sockets. A server that does not answer
//! delays one table by at most `PATIENCE`, and later tables not at all.

mod ask;
mod metrics;
mod sample;
mod source;
mod terminal;
mod text;
mod view;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::args::TopArgs;
use crate::output;
use ask::Questions;
use source::{Source, Target};
use terminal::{Terminal, TerminalEvent};
use view::{TopTable, View};

/// Longest time that a table waits for servers that answered the last time, or were never asked.
const PATIENCE: Duration = Duration::from_secs(2);

/// Shows tables until the user ends it, or as many as `args` asks for.
pub fn run(args: &TopArgs, json: bool) -> Result<ExitCode> {
    let targets = args.targets.iter().map(|name| Target::new(name)).collect::<Result<Vec<_>>>()?;
    if args.prometheus {
        return metrics::run(targets);
    }
    let redraws = !json && args.count != Some(1) && terminal::can_redraw();
    let mut top = Top {
        view: View::new(targets),
        questions: Questions::new()?,
        awaited: BTreeSet::new(),
        terminal: redraws.then(Terminal::begin).transpose()?,
        shown: None,
    };
    top.show_all(args, json)?;
    Ok(ExitCode::SUCCESS)
}

struct Top {
    view: View,
    questions: Questions,
    /// Servers that were asked for the next table and have not answered.
    awaited: BTreeSet<Source>,
    /// The terminal, if tables are redrawn in place.
    terminal: Option<Terminal>,
    /// The table that was shown last.
    shown: Option<TopTable>,
}

/// Whether to show more tables.
#[derive(PartialEq, Eq)]
enum NextStep {
    GoOn,
    Quit,
}

impl Top {
    /// Shows table after table.
    fn show_all(&mut self, args: &TopArgs, json: bool) -> Result<()> {
        let mut left = args.count;
        loop {
            let began = Instant::now();
            for source in self.view.found(source::find()?) {
                self.questions.ask(&source)?;
                if self.view.is_awaited(&source) {
                    self.awaited.insert(source);
                }
            }
            if self.wait(began + PATIENCE, |top| top.awaited.is_empty())? == NextStep::Quit {
                return Ok(());
            }
            // This table no longer waits for late servers; a later table shows their answers.
            self.awaited.clear();
            let table = self.view.table();
            if table.totals {
                self.view.require_targets()?;
            }
            self.show(table, json)?;
            left = left.map(|count| count - 1);
            if left == Some(0) || output::is_lost() {
                return self.end();
            }
            if self.wait(began + args.interval, |_| false)? == NextStep::Quit {
                return Ok(());
            }
        }
    }

    fn show(&mut self, table: TopTable, json: bool) -> Result<()> {
        if json {
            say!("{}", table.to_json()?);
        } else if self.terminal.is_none() {
            if !table.totals {
                say!();
            }
            print(&table);
        }
        self.shown = Some(table);
        Ok(self.redraw()?)
    }

    /// Draws the last table again, if tables are redrawn in place.
    fn redraw(&mut self) -> io::Result<()> {
        let (Some(terminal), Some(table)) = (&mut self.terminal, &self.shown) else {
            return Ok(());
        };
        let (width, height) = terminal::size().unwrap_or(terminal::DEFAULT_SIZE);
        terminal.draw(&text::lines(table, width, height))
    }

    /// Leaves the last table on the terminal.
    fn end(&mut self) -> Result<()> {
        if let Some(mut terminal) = self.terminal.take() {
            terminal.leave()?;
            self.shown.iter().for_each(print);
        }
        Ok(())
    }

    /// Handles answers, keys and signals, until a time or until `done` returns true.
    fn wait(&mut self, until: Instant, done: impl Fn(&Self) -> bool) -> Result<NextStep> {
        loop {
            while let Some((source, at, answer)) = self.questions.heard() {
                self.awaited.remove(&source);
                self.view.heard(&source, at, answer);
            }
            let left = until.saturating_duration_since(Instant::now());
            if done(self) || left.is_zero() {
                return Ok(NextStep::GoOn);
            }
            let ready = self.poll(left)?;
            let Some(terminal) = &mut self.terminal else { continue };
            match terminal.event(&ready)? {
                Some(TerminalEvent::Quit) => return Ok(NextStep::Quit),
                Some(TerminalEvent::Redraw) => self.redraw()?,
                None => {}
            }
        }
    }

    /// Waits for answers and for events of the terminal. Returns which of the latter have come.
    fn poll(&self, left: Duration) -> Result<Vec<bool>> {
        let stdin = io::stdin();
        let answers = PollFd::from_borrowed_fd(self.questions.as_fd(), PollFlags::IN);
        let of_terminal = self.terminal.iter().flat_map(|terminal| terminal.waited_for(&stdin));
        let mut all: Vec<_> = [answers].into_iter().chain(of_terminal).collect();
        match poll(&mut all, Some(&Timespec::try_from(left)?)) {
            Err(Errno::INTR) => {}
            result => drop(result?),
        }
        Ok(all[1..].iter().map(|fd| !fd.revents().is_empty()).collect())
    }
}

/// Prints a table, as wide as the terminal, if any.
fn print(table: &TopTable) {
    let width = terminal::size().map_or(usize::MAX, |(width, _)| width);
    text::lines(table, width, usize::MAX).iter().for_each(|line| say!("{line}"));
}
