//! What is run on them.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::path::checked::Checked;
use tidelog_engine::path::spdk::{Controller, EnvironmentOptions, Pages, SpdkPath, configure};
use tidelog_engine::path::{
    Action, Completion, DataPath, DeviceSpec, Extent, Operation, OperationKind, PathKind, Refusal,
    Status,
};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::Ticket;
use tidelog_engine::units::{ByteCount, DeviceIndex};
use tidelog_tests::conformance::{Failure, ROWS, Stage};
use tidelog_tests::machine::Watchdog;

use crate::rig::{self, Target, Transport};

/// Soon enough for a test, late enough for a machine that others use too.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(600);
const BLOCK: u64 = 4096;

/// All rows; a line for each.
pub(crate) fn run() -> ExitCode {
    let Some(program) = rig::program() else {
        println!(
            "SKIPPED spdk: SPDK's target program nvmf_tgt is not installed ($TIDELOG_NVMF_TGT names it)"
        );
        return ExitCode::SUCCESS;
    };
    let _watchdog = Watchdog::watch("the rows over spdk", LIMIT);
    let before = affinity();
    let options = EnvironmentOptions {
        pages: Pages::Plain,
        timeout: COMMAND_TIMEOUT,
        ..EnvironmentOptions::default()
    };
    configure(options).expect("nothing has started the environment yet");
    let mut failed = 0;
    let mut tell = |name: &str, result: Result<String, Failure>| match result {
        Ok(fact) => println!("ok      {name}: {fact}"),
        Err(why) => {
            failed += 1;
            println!("FAILED  {name}: {why}");
        }
    };
    for (transport, block) in [(Transport::Tcp, 512), (Transport::VfioUser, 4096)] {
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
        tell("an error is that operation's, with its status", an_error_is_reported(&specs));
        if transport == Transport::Tcp {
            // Over vfio-user nothing gets a command back, and the controller stays with this process.
            tell("what takes too long times out and comes back", a_time_out_ends(&specs));
        }
        tell("what is aborted comes back", an_abort_ends(&specs));
        tell("memory of another pool is refused or works", foreign_memory(&specs));
        tell("a controller that goes under load fails what it had", a_controller_goes(target));
    }
    println!();
    tell("the names that mean nothing are refused with a reason", bad_names(&program));
    tell(
        "this thread may run where it could before",
        if before == affinity() { Ok(before) } else { Err("it is bound to other cores".into()) },
    );
    println!("spdk: {failed} rows failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The cores that this thread may run on, as the kernel says them.
fn affinity() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list"));
    line.unwrap_or_default().to_owned()
}

// -- the path by itself ------------------------------------------------------------------------------------------

/// A path to the first controller.
fn path_to(specs: &[DeviceSpec], depth: u32) -> Result<SpdkPath, Failure> {
    let name = specs[0].controller().ok_or("it names no controller")?;
    Ok(SpdkPath::new(vec![Controller::attach(&name)?], depth)?)
}

fn operation(tag: u64, at: u64, length: u64, action: Action) -> Operation {
    Operation { tag, device: DeviceIndex(0), extent: Extent::new(at, length), action }
}

fn collect(path: &mut dyn DataPath, count: usize) -> Result<Vec<Completion>, Failure> {
    let deadline = Instant::now() + 20 * COMMAND_TIMEOUT;
    let mut completions = Vec::new();
    while completions.len() < count {
        if path.poll(&mut completions) == 0 {
            path.wait(Some(Duration::from_millis(100)))?;
        }
        if Instant::now() > deadline {
            return Err(format!("{} of {count} came back", completions.len()).into());
        }
    }
    Ok(completions)
}

fn an_error_is_reported(specs: &[DeviceSpec]) -> Result<String, Failure> {
    const WRITE_FAULT: (u8, u8) = (2, 0x80);
    const READ_ERROR: (u8, u8) = (2, 0x81);
    let mut path = path_to(specs, 4)?;
    let pool = path.allocate(ByteCount::kib(64), false)?;
    path.register(&pool);
    let buffer = || pool.take(BLOCK as usize).ok_or("no buffer");
    path.inject(DeviceIndex(0), OperationKind::Read, 1, READ_ERROR, None)?;
    path.inject(DeviceIndex(0), OperationKind::Write, 1, WRITE_FAULT, None)?;
    let mut path = Checked::new(Box::new(path));
    let mut run = |action: Action| -> Result<Completion, Failure> {
        path.submit(operation(1, BLOCK, BLOCK, action)).map_err(|refused| refused.reason)?;
        collect(&mut path, 1)?.pop().ok_or_else(|| "nothing came back".into())
    };
    let failed = run(Action::Read(buffer()?))?.result.err().ok_or("the read went well")?;
    let said = failed.to_string();
    if !matches!(failed.status, Status::Nvme { code_type: 2, code: 0x81, .. }) {
        return Err(format!("another status: {said}").into());
    }
    run(Action::Read(buffer()?))?.result?;
    let write = || Ok::<_, Failure>(Action::Write { buffer: buffer()?, fua: true });
    let failed = run(write()?)?.result.err().ok_or("the write went well")?;
    if !matches!(failed.status, Status::Nvme { code_type: 2, code: 0x80, .. }) {
        return Err(format!("another status: {failed}").into());
    }
    run(Action::Read(buffer()?))?.result?;
    let refused = path.submit(operation(2, 0, BLOCK, write()?)).err().ok_or("not latched")?;
    match refused.reason {
        Refusal::Latched(cause) if cause == failed => Ok(said),
        other => Err(format!("refused as {other}").into()),
    }
}

fn a_time_out_ends(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let mut path = path_to(specs, 4)?;
    let pool = path.allocate(ByteCount::kib(64), false)?;
    path.register(&pool);
    // Held back by SPDK for longer than the abort and the reset take, with an answer that no device gives.
    let held = Some(COMMAND_TIMEOUT * 8);
    path.inject(DeviceIndex(0), OperationKind::Read, 1, (7, 0x77), held)?;
    let buffer = pool.take(BLOCK as usize).ok_or("no buffer")?;
    let begun = Instant::now();
    let submitted = path.submit(operation(1, 0, BLOCK, Action::Read(buffer)));
    submitted.map_err(|refused| refused.reason)?;
    let done = collect(&mut path, 1)?.pop().ok_or("nothing came back")?;
    let took = begun.elapsed();
    match done.result {
        Err(error) if error.status == Status::Errno(libc::ETIMEDOUT) => {
            Ok(format!("after {:.1} s", took.as_secs_f64()))
        }
        other => Err(format!("{other:?} after {took:?}").into()),
    }
}

fn an_abort_ends(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let mut path = path_to(specs, 8)?;
    let pool = path.allocate(ByteCount::mib(4), false)?;
    path.register(&pool);
    for tag in 0..8 {
        let buffer = pool.take(512 << 10).ok_or("no buffer")?;
        let submitted = path.submit(operation(tag, tag << 20, 512 << 10, Action::Read(buffer)));
        submitted.map_err(|refused| refused.reason)?;
    }
    path.ring()?;
    path.abort_all();
    let done = collect(&mut path, 8)?;
    let wrong =
        done.iter().find_map(|it| it.result.err().filter(|error| !error.status.is_aborted()));
    if let Some(wrong) = wrong {
        return Err(wrong.to_string().into());
    }
    let aborted = done.iter().filter(|it| it.result.is_err()).count();
    Ok(format!("{aborted} of 8 were aborted in time"))
}

fn foreign_memory(specs: &[DeviceSpec]) -> Result<String, Failure> {
    let mut path = path_to(specs, 4)?;
    let pool = tidelog_engine::memory::DmaPool::new(ByteCount::mib(2), false)?;
    let submit = |path: &mut SpdkPath| {
        let buffer = pool.take(BLOCK as usize).ok_or("no buffer")?;
        let taken = path.submit(operation(1, 0, BLOCK, Action::Read(buffer)));
        Ok::<_, Failure>(taken.map_err(|refused| refused.reason))
    };
    match submit(&mut path)? {
        Ok(()) => collect(&mut path, 1)?
            .remove(0)
            .result
            .map(|()| "it works".to_owned())
            .map_err(Into::into),
        Err(reason @ Refusal::Invalid(_)) => Ok(reason.to_string()),
        Err(other) => Err(other.into()),
    }
}

// -- with a pool on it -------------------------------------------------------------------------------------------

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
