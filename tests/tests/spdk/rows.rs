//! Rows that run on targets.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::{hang, hosts, limits, reconnect};
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::path::spdk::{EnvironmentOptions, Pages, configure};
use tidelog_engine::path::{DeviceSpec, PathKind};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::Ticket;
use tidelog_engine::units::ByteCount;
use tidelog_tests::conformance::{Failure, NOTHING_TO_DO, ROWS, Stage, line};
use tidelog_tests::machine::Watchdog;
use tidelog_tests::spdk::target::{self, Target, Transport};
use tidelog_tests::spdk::{
    COMMAND_TIMEOUT, ON_EVERY_CONTROLLER, WHERE_COMMANDS_COME_BACK, WHERE_READS_ARE_HELD,
};

use super::processes;

const LIMIT: Duration = Duration::from_secs(900);
const TRANSPORTS: [(Transport, u32); 2] = [(Transport::Tcp, 512), (Transport::VfioUser, 4096)];

/// All rows; a line for each.
pub(crate) fn run() -> ExitCode {
    let Some(program) = target::program() else {
        return crate::skip(
            "SPDK's target program nvmf_tgt is not installed ($TIDELOG_NVMF_TGT names it)",
        );
    };
    let _watchdog = Watchdog::watch("the rows over spdk", LIMIT);
    let before = affinity();
    let options = EnvironmentOptions {
        pages: Pages::Plain,
        timeout: COMMAND_TIMEOUT,
        ..EnvironmentOptions::default()
    };
    configure(options).expect("nothing has started the environment yet");
    let (mut ok, mut failed, mut skipped) = (0, 0, 0);
    let mut tell = |name: &str, result: Result<String, Failure>| {
        let line = line(name, &result);
        match line.split(' ').next() {
            Some("ok") => ok += 1,
            Some("SKIPPED") => skipped += 1,
            _ => failed += 1,
        }
        println!("{line}");
    };
    for (transport, block) in TRANSPORTS {
        println!("\n{transport:?}, {block}-byte blocks");
        let target = match Target::start(&program, transport, block) {
            Ok(target) => target,
            Err(why) => {
                tell("the target starts", Err(why));
                continue;
            }
        };
        let (specs, files) = (target.controllers(), target.files());
        let stage = Stage {
            specs: specs.clone(),
            path: PathKind::Spdk,
            backend: None,
            elsewhere: Some(files),
        };
        for (name, row) in ROWS {
            tell(name, row(&stage));
        }
        let cut = limits::what_is_zeroed_and_deallocated_is_cut(&specs);
        tell("zeroes and deallocations are cut at what the controller takes", cut);
        // Over vfio-user nothing gets a command back, and the controller stays with this process.
        let lost = if transport == Transport::Tcp { WHERE_COMMANDS_COME_BACK } else { &[] };
        for (name, row) in ON_EVERY_CONTROLLER.iter().chain(lost) {
            tell(name, row(&specs));
        }
        let held = if transport == Transport::Tcp { WHERE_READS_ARE_HELD } else { &[] };
        for (name, row) in held {
            tell(name, row(&target.held()));
        }
        tell("a controller that goes under load fails what it had", a_controller_goes(target));
        let hung = hang::a_target_hangs(&program, transport);
        tell("a target that hangs keeps the memory that it may still write", hung);
    }
    println!();
    for (name, row) in reconnect::ROWS {
        tell(name, row(&program));
    }
    tell("one host at a time has a namespace", hosts::one_host_at_a_time(&program));
    tell("a process may end with a pool under load", processes_end(&program));
    processes::run(&program, &mut tell);
    match python() {
        Ok(()) => {
            tell("a Python program stays on the cores that it chose", affinity_in_python(&program));
        }
        Err(why) => {
            let why = format!("{NOTHING_TO_DO}{why}");
            tell("a Python program stays on the cores that it chose", Ok(why));
        }
    }
    tell("the names that mean nothing are refused with a reason", bad_names(&program));
    tell(
        "this thread may run where it could before",
        if before == affinity() { Ok(before) } else { Err("it is bound to other cores".into()) },
    );
    let all = planned();
    println!("spdk: {ok} of {all} rows ok, {failed} failed, {skipped} skipped");
    if ok + skipped == all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the number of planned rows, whether they come to run or not.
fn planned() -> usize {
    /// Number of targets that run at once, on every transport.
    const GOING: usize = 2;
    const CUT: usize = 1;
    const ALONE: usize = 5;
    let each = ROWS.len() + ON_EVERY_CONTROLLER.len() + CUT + GOING;
    let of_some = WHERE_COMMANDS_COME_BACK.len() + WHERE_READS_ARE_HELD.len();
    TRANSPORTS.len() * each + of_some + reconnect::ROWS.len() + processes::rows().count() + ALONE
}

/// The cores that this thread may run on, as the kernel says them.
fn affinity() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list"));
    line.unwrap_or_default().to_owned()
}

// -- with a pool on it
// -------------------------------------------------------------------------------------------

fn a_controller_goes(mut target: Target) -> Result<String, Failure> {
    let specs = target.controllers();
    let format = FormatOptions { overwrite: true, ..FormatOptions::default() };
    Pool::format(&specs, &format)?;
    let options = OpenOptions { staging: ByteCount::mib(8), ..OpenOptions::default() };
    let pool = Pool::open(&specs, &options)?;
    let tickets: Vec<_> = (0..16_u8)
        .map(|number| {
            let bytes = Source::from(vec![number; 8 << 20]);
            pool.put(TensorId(number.into()), bytes, PutOptions::default())
        })
        .collect::<Result<_, _>>()?;
    target.kill()?;
    let begun = Instant::now();
    let outcomes: Vec<_> = tickets.iter().map(Ticket::wait).collect();
    let failed: Vec<String> =
        outcomes.iter().filter_map(|it| it.as_ref().err().map(ToString::to_string)).collect();
    // It says that a device is gone; that it ends is what matters.
    let closed = pool.close();
    match failed.first() {
        Some(first) => Ok(format!(
            "{} of 16 failed within {:.1} s: {first}; closing: {}",
            failed.len(),
            begun.elapsed().as_secs_f64(),
            closed.err().map_or_else(|| "well".into(), |error| error.to_string()),
        )),
        None => Err("everything went well".into()),
    }
}

fn processes_end(program: &Path) -> Result<String, Failure> {
    const TIMES: usize = 6;
    let target = Target::start(program, Transport::Tcp, 512)?;
    for _ in 0..TIMES {
        let ended = Command::new(env!("CARGO_BIN_EXE_tidelog-spdk"))
            .args(["--pages", "plain", "leave", &names(&target)])
            .output()?;
        if !ended.status.success() {
            return Err(format!("{}: {}", ended.status, text(&ended.stderr)).into());
        }
    }
    Ok(format!("{TIMES} of them"))
}

fn names(target: &Target) -> String {
    let names: Vec<_> = target.controllers().iter().map(ToString::to_string).collect();
    names.join(",")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// Checks that there is a Python.
fn python() -> Result<(), String> {
    let asked = Command::new("python3").arg("--version").output();
    asked.map(drop).map_err(|error| format!("python3 does not run: {error}"))
}

fn affinity_in_python(program: &Path) -> Result<String, Failure> {
    let target = Target::start(program, Transport::Tcp, 512)?;
    let format = FormatOptions { overwrite: true, ..FormatOptions::default() };
    Pool::format(&target.controllers(), &format)?;
    // Cargo has built it for this very program.
    let library = std::env::current_exe()?.with_file_name("libtidelog.so");
    let said = Command::new("python3")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spdk/affinity.py"))
        .arg(library)
        .arg(names(&target))
        .output()?;
    if said.status.success() { Ok(text(&said.stdout)) } else { Err(text(&said.stderr).into()) }
}

fn bad_names(program: &Path) -> Result<String, Failure> {
    let target = Target::start(program, Transport::Tcp, 512)?;
    let mut said = Vec::new();
    let first = target.controllers()[0].to_string();
    let names = [
        "spdk:trtype:nonsense".to_owned(),
        "spdk:ffff:ff:1f.7".to_owned(),
        "spdk:trtype:VFIOUSER traddr:/var/tmp/nowhere".to_owned(),
        format!("{first} ns:7"),
    ];
    for name in names {
        let error = Pool::open(&[DeviceSpec::new(&name)], &OpenOptions::default()).err();
        let error = error.ok_or_else(|| format!("{name} was opened"))?.to_string();
        if !error.contains("spdk:") {
            return Err(format!("{name} is not named: {error}").into());
        }
        said.push(error);
    }
    // A mixture, and a choice that does not fit.
    let mixed = [target.controllers()[0].clone(), target.files()[1].clone()];
    let format = FormatOptions { overwrite: true, ..FormatOptions::default() };
    let error = Pool::format(&mixed, &format).err().ok_or("a mixture was formatted")?;
    said.push(error.to_string());
    Ok(said.join("; "))
}
