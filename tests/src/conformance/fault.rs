//! Something happens to a device under load, and is undone: nothing hangs, no answer is wrong, and what was
//! acknowledged is there.

use std::process::Command;
use std::time::{Duration, Instant};

use tidelog_engine::pool::Pool;

use super::{Failure, Stage};
use crate::load::{Failure as Unanswered, Ledger, Load, LoadOptions};
use crate::machine::Watchdog;

/// What happens, as commands for a shell.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Makes it happen.
    pub begin: String,
    /// Undoes it, after the pool was closed.
    pub end: String,
    /// Whether the pool notices.
    pub noticed: Noticed,
}

/// Whether operations fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Noticed {
    /// They must.
    Always,
    /// Only what happens to be in flight just then.
    Perhaps,
    /// They must not: the kernel tries again by itself.
    Never,
}

const WRITES: u64 = 60;
const PATIENCE: Duration = Duration::from_secs(30);
/// A device that comes back takes some time to do so.
const RETURN: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(240);

impl Fault {
    /// Lets it happen to an empty pool under load. Answers what was seen.
    ///
    /// # Errors
    /// A wrong answer, a loss, or a fault that had to be noticed and was not (or the other way round). A hang
    /// ends the process.
    pub fn happen(&self, stage: &Stage) -> Result<String, Failure> {
        let _watchdog = Watchdog::watch("a fault under load", LIMIT);
        stage.format()?;
        let pool = stage.open()?;
        let ledger = Ledger::new(LoadOptions::default());
        let load = Load::start(&pool, &ledger);
        load.run(WRITES, PATIENCE);
        shell(&self.begin)?;
        load.run(WRITES, PATIENCE);
        load.stop();
        let failures = ledger.record().failures();
        let wrong = failures.iter().find(|it| matches!(it, Unanswered::Wrong(_)));
        if let Some(wrong) = wrong {
            return Err(wrong.to_string().into());
        }
        pool.audit()?;
        // A pool that lost a device may say so once more when it is closed.
        let closed =
            pool.close().err().map_or_else(String::new, |error| format!("; closing: {error}"));
        shell(&self.end)?;
        let pool = opened_again(stage)?;
        ledger.verify_durable(&pool, |_, _| false)?;
        pool.audit()?;
        pool.close()?;
        match (failures.first(), self.noticed) {
            (Some(failure), Noticed::Never) => Err(format!("it was noticed: {failure}").into()),
            (None, Noticed::Always) => Err("nothing failed: the fault did not happen".into()),
            (first, _) => {
                let first = first.map_or_else(String::new, |it| format!("; the first: {it}"));
                Ok(format!(
                    "{} writes went well, {} operations failed{first}{closed}",
                    ledger.record().writes(),
                    failures.len()
                ))
            }
        }
    }
}

fn opened_again(stage: &Stage) -> Result<Pool, Failure> {
    let deadline = Instant::now() + RETURN;
    loop {
        match stage.open() {
            Ok(pool) => return Ok(pool),
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

fn shell(command: &str) -> Result<(), Failure> {
    let status = Command::new("sh").args(["-c", command]).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}").into()) }
}
