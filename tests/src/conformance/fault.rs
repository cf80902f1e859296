//! Fault of a device under load, and its repair: nothing hangs, no answer is wrong, and what was
//! acknowledged is there.

use std::process::Command;
use std::str::FromStr;
use std::time::{Duration, Instant};

use tidelog_engine::path::Status;
use tidelog_engine::pool::Pool;

use super::{Failure, Stage};
use crate::load::{Failure as Unanswered, Ledger, Load, LoadOptions};
use crate::machine::Watchdog;

/// Fault, as commands for a shell.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Command that makes the fault happen.
    pub begin: String,
    /// Command that undoes the fault, after the pool was closed.
    pub end: String,
    /// Notice that the pool takes.
    pub noticed: Noticed,
    /// Statuses that devices may return then, and no other.
    pub statuses: Vec<InjectedStatus>,
}

/// Status of a device, as a plan names it: `ENODEV`, or the type and the code of an NVMe status,
/// `2:80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedStatus {
    /// An error number.
    Errno(i32),
    /// Status code type and status code.
    Nvme(u8, u8),
    /// Nothing: a read of a disk that is gone ends at once. `nothing`.
    Nothing,
}

impl FromStr for InjectedStatus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = ERRNOS.iter().find(|(name, _)| *name == text).map(|it| Self::Errno(it.1));
        let nvme = || {
            let (code_type, code) = text.split_once(':')?;
            let number = |text| u8::from_str_radix(text, 16).ok();
            Some(Self::Nvme(number(code_type)?, number(code)?))
        };
        let nothing = (text == "nothing").then_some(Self::Nothing);
        known.or(nothing).or_else(nvme).ok_or_else(|| format!("{text:?} is no answer of a device"))
    }
}

impl InjectedStatus {
    fn is(self, status: Status) -> bool {
        match status {
            Status::Errno(errno) => self == Self::Errno(errno),
            Status::Nvme { code_type, code, .. } => self == Self::Nvme(code_type, code),
            Status::Short { moved: 0 } => self == Self::Nothing,
            _ => false,
        }
    }
}

const ERRNOS: [(&str, i32); 6] = [
    ("ENODEV", libc::ENODEV),
    ("ENXIO", libc::ENXIO),
    ("EIO", libc::EIO),
    ("ENOSPC", libc::ENOSPC),
    ("EINVAL", libc::EINVAL),
    ("ETIMEDOUT", libc::ETIMEDOUT),
];

/// Notice of a fault: failed operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Noticed {
    /// Devices must return it.
    Always,
    /// Devices may return it for operations in flight.
    Perhaps,
    /// Devices must not return it: the kernel retries by itself.
    Never,
}

const WRITES: u64 = 60;
const TIMEOUT: Duration = Duration::from_secs(30);
/// A device that comes back takes some time to do so. If it has lost a request, the kernel waits 30
/// seconds for that, as long for an abort, and up to 60 for each command of the reset that follows;
/// until then the pool that was closed keeps the share.
const RETURN: Duration = Duration::from_secs(240);
/// A machine that is emulated beside others takes minutes to let a device go and come.
const LIMIT: Duration = Duration::from_secs(480);

impl Fault {
    /// Makes the fault happen to an empty pool under load. Returns what was seen.
    ///
    /// # Errors
    /// A wrong answer, a loss, or a fault that had to be noticed and was not (or the other way
    /// round). A hang ends the process.
    pub fn happen(&self, stage: &Stage) -> Result<String, Failure> {
        let watchdog = Watchdog::watch("a fault under load", LIMIT);
        stage.format()?;
        let pool = stage.open()?;
        let ledger = Ledger::new(LoadOptions::default());
        let load = Load::start(&pool, &ledger);
        load.run(WRITES, TIMEOUT);
        let before = ledger.record().writes();
        if before < WRITES || !ledger.record().failures().is_empty() {
            let first = ledger.record().failures().first().map(ToString::to_string);
            return Err(format!("{before} writes before anything happened; {first:?}").into());
        }
        watchdog.note("the fault is begun");
        shell(&self.begin)?;
        watchdog.note("the load goes on with the fault");
        if self.noticed == Noticed::Always {
            load.run_until(|record| !record.failures().is_empty(), TIMEOUT);
        }
        load.run(WRITES, TIMEOUT);
        watchdog.note("the load ends");
        load.stop();
        let failures = ledger.record().failures();
        let audited = pool.audit();
        // A pool that lost a device may say so once more when it is closed.
        watchdog.note("the pool is closed");
        let closed =
            pool.close().err().map_or_else(String::new, |error| format!("; closing: {error}"));
        // Undone before anything is judged: what comes next needs the device.
        watchdog.note("the fault is undone");
        shell(&self.end)?;
        let wrong = failures.iter().find(|it| matches!(it, Unanswered::Wrong(_)));
        if let Some(wrong) = wrong {
            return Err(wrong.to_string().into());
        }
        audited?;
        watchdog.note("the pool is opened again and read");
        let pool = opened_again(stage).map_err(|error| format!("{error}{closed}"))?;
        ledger.verify_durable(&pool, |_, _| false)?;
        pool.audit()?;
        pool.close()?;
        let answered = self.expect_answers(&failures)?;
        match (failures.first(), self.noticed) {
            (Some(failure), Noticed::Never) => Err(format!("it was noticed: {failure}").into()),
            (None, Noticed::Always) => Err("nothing failed: the fault did not happen".into()),
            (Some(first), _) if answered == 0 => {
                Err(format!("no failure says what a device answered: {first}").into())
            }
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

impl Fault {
    /// Checks that each device returned an expected status. Says how many failures told of it.
    fn expect_answers(&self, failures: &[Unanswered]) -> Result<usize, Failure> {
        let mut answered = 0;
        for failure in failures {
            let Unanswered::Refused { status: Some(status), what } = failure else { continue };
            if !self.statuses.iter().any(|answer| answer.is(*status)) {
                return Err(
                    format!("it ended as {status:?}, which was not expected: {what}").into()
                );
            }
            answered += 1;
        }
        Ok(answered)
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
