//! Processes and names: who may have a controller, and what one that is slow does to others.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::attach;
use tidelog_engine::path::spdk::{Controller, EnvironmentOptions, Pages, SpdkPath, configure};
use tidelog_engine::path::{Action, Completion, DataPath, DeviceSpec, Extent, Operation};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool};
use tidelog_engine::units::{ByteCount, DeviceIndex};
use tidelog_tests::conformance::Failure;
use tidelog_tests::spdk::COMMAND_TIMEOUT;
use tidelog_tests::spdk::target::{Target, Transport};

pub(crate) type Row = (&'static str, fn(&Target) -> Result<String, Failure>);

const ROWS: &[Row] = &[
    ("a second process is refused until the first has closed", a_second_process_is_refused),
    ("two names of one namespace are one device", two_names_are_one_device),
    ("an owner counts however the transport is spelled", an_owner_counts),
    ("a fork is told that it is one", a_fork_is_told),
    ("a controller that does not answer keeps nobody waiting", the_slow_hold_up_nobody),
    ("what waits for room is served oldest first", the_oldest_is_served_first),
];

/// Argument that tells the program that it is another process of a row.
pub(crate) const OPEN: &str = "--open-in-another-process";
const LEAVE: &str = "--open-and-leave";

/// Returns the rows that run with a target of their own each.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(attach::ROWS)
}

/// Runs the rows, and says of each how it went.
pub(crate) fn run(program: &Path, tell: &mut dyn FnMut(&str, Result<String, Failure>)) {
    for (name, row) in rows() {
        let target = Target::start(program, Transport::Tcp, 512);
        tell(name, target.and_then(|target| row(&target)));
    }
}

/// Runs the part of another process of a row, and reports the result on its output. It says on its
/// output what came of it.
pub(crate) fn other_process() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, part, name] = arguments.as_slice() else { return None };
    if part == attach::FAULT {
        return Some(attach::fault());
    }
    if part != OPEN && part != LEAVE {
        return None;
    }
    let said = options().map_err(Failure::from).and_then(|()| Ok(open(&spec(name))?));
    let code = ExitCode::from(u8::from(said.is_err()));
    match said {
        Ok(pool) if part == LEAVE => std::mem::forget(pool),
        Ok(pool) => drop(pool.close()),
        Err(error) => println!("{error}"),
    }
    Some(code)
}

pub(crate) fn options() -> Result<(), tidelog_engine::path::spdk::EnvironmentError> {
    configure(EnvironmentOptions {
        pages: Pages::Plain,
        timeout: COMMAND_TIMEOUT,
        ..EnvironmentOptions::default()
    })
}

fn spec(name: &str) -> DeviceSpec {
    DeviceSpec::new(name)
}

fn open(spec: &DeviceSpec) -> Result<Pool, tidelog_engine::pool::OpenError> {
    let options = OpenOptions { staging: ByteCount::mib(4), ..OpenOptions::default() };
    Pool::open(std::slice::from_ref(spec), &options)
}

/// A pool on the target's first device alone.
pub(crate) fn format(target: &Target) -> Result<DeviceSpec, Failure> {
    let first = target.controllers().remove(0);
    let options = FormatOptions { overwrite: true, ..FormatOptions::default() };
    Pool::format(std::slice::from_ref(&first), &options)?;
    Ok(first)
}

/// Returns the report of another process: nothing if all went well.
fn elsewhere(part: &str, name: &str, host: Option<&str>) -> Result<String, Failure> {
    let mut process = Command::new(std::env::current_exe()?);
    process.args([part, name]);
    if let Some(host) = host {
        process.env("TIDELOG_HOST_ID", host);
    }
    let output = process.output()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match (output.status.code(), said.is_empty()) {
        (Some(0), true) | (Some(1), false) => Ok(said),
        _ => Err(format!(
            "the other process ended with {}: {said} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into()),
    }
}

fn a_second_process_is_refused(target: &Target) -> Result<String, Failure> {
    let first = format(target)?;
    let pool = open(&first)?;
    let name = first.to_string();
    let this = format!("process {}", std::process::id());
    let mut said = String::new();
    for name in [name.clone(), name.replace("127.0.0.1", "127.1")] {
        said = elsewhere(OPEN, &name, None)?;
        if !said.contains(&this) {
            return Err(format!("{name} was not refused because of {this}: {said:?}").into());
        }
    }
    pool.close()?;
    match elsewhere(OPEN, &name, None)? {
        nothing if nothing.is_empty() => Ok(said),
        refused => Err(format!("closed, and refused: {refused}").into()),
    }
}

fn two_names_are_one_device(target: &Target) -> Result<String, Failure> {
    let first = target.controllers().remove(0);
    let twin = spec(&first.to_string().replace("127.0.0.1", "127.1"));
    let options = FormatOptions { overwrite: true, ..FormatOptions::default() };
    let refused = Pool::format(&[first.clone(), twin], &options).err();
    let said = refused.ok_or("a device was striped against itself")?.to_string();
    if said.contains(&first.to_string()) { Ok(said) } else { Err(said.into()) }
}

fn an_owner_counts(target: &Target) -> Result<String, Failure> {
    let first = format(target)?.to_string();
    let spelled = [first.replace("trtype:TCP", "trtype=TCP"), first.replace("trtype:", "TRTYPE:")];
    let left = elsewhere(LEAVE, &spelled[0], Some("host-one"))?;
    if !left.is_empty() {
        return Err(left.into());
    }
    let mut said = String::new();
    for name in spelled {
        said = elsewhere(OPEN, &name, Some("host-two"))?;
        if !said.contains("host-one") {
            return Err(format!("another host was let in by {name}: {said:?}").into());
        }
    }
    Ok(said)
}

#[allow(unsafe_code)]
fn a_fork_is_told(target: &Target) -> Result<String, Failure> {
    let first = target.controllers().remove(0);
    let held = attach(&first)?;
    // SAFETY: the child ends by itself (`_exit`), or by the alarm's signal; the parent waits for
    // it.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(20);
            let told = open(&first).err().is_some_and(|error| error.to_string().contains("fork"));
            libc::_exit(i32::from(!told));
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        status
    };
    drop(held);
    match status {
        0 => Ok("and the parent goes on".into()),
        status if libc::WIFSIGNALED(status) => Err("the child waits for ever".into()),
        _ => Err("it was told something else".into()),
    }
}

pub(crate) fn attach(spec: &DeviceSpec) -> Result<Arc<Controller>, Failure> {
    Ok(Controller::attach(&spec.controller().ok_or("it names no controller")?)?)
}

fn the_slow_hold_up_nobody(target: &Target) -> Result<String, Failure> {
    const TRIES: usize = 3;
    let first = target.controllers().remove(0);
    // It is connected to, by the kernel, and never responds.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = silent.local_addr()?.port();
    let slow = format!(
        "spdk:trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:nqn.2026-01.io.tidelog:silent"
    );
    let mut last = Duration::ZERO;
    for _ in 0..TRIES {
        let slow = spec(&slow);
        let waits = std::thread::spawn(move || attach(&slow).is_ok());
        std::thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        let controller = attach(&first)?;
        last = begun.elapsed();
        let waited = !waits.is_finished();
        drop(controller);
        if waits.join().map_err(|_| "the thread that waited panicked")? {
            return Err("nobody answered, and it was attached".into());
        }
        if waited {
            return Ok(format!("attached in {:.1} s beside it", last.as_secs_f64()));
        }
    }
    Err(format!("attaching took {last:?}, until the silent one was given up").into())
}

fn the_oldest_is_served_first(target: &Target) -> Result<String, Failure> {
    const LARGE: u64 = 8 << 20;
    /// Number of operations that, in parts of 128 KiB, are more commands than a queue pair has
    /// requests (512).
    const COUNT: u64 = 10;
    let first = target.controllers().remove(0);
    let mut path = SpdkPath::new(vec![attach(&first)?], 16)?;
    let pool = path.allocate(ByteCount((COUNT + 1) * LARGE), false)?;
    let read = |tag: u64, length: u64| {
        let buffer = pool.take(length as usize).ok_or("no buffer")?;
        let extent = Extent::new(tag * LARGE, length);
        let (device, action) = (DeviceIndex(0), Action::read(buffer));
        Ok::<_, Failure>(Operation::new(tag, device, extent, action))
    };
    for tag in 0..COUNT {
        path.submit(read(tag, LARGE)?).map_err(|refused| refused.reason)?;
    }
    // Little, and last: it has no business before those that wait.
    path.submit(read(COUNT, 4096)?).map_err(|refused| refused.reason)?;
    let mut done: Vec<Completion> = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    while done.len() <= COUNT as usize && Instant::now() < deadline {
        path.poll(&mut done);
        path.ring()?;
    }
    for it in &done {
        it.result?;
    }
    let tags: Vec<u64> = done.iter().map(|it| it.tag).collect();
    let place = |tag: u64| tags.iter().position(|&it| it == tag);
    // A device completes its commands in any order, but has those of the last but one long before
    // those of the last two.
    let before = |one, other| place(one).zip(place(other)).is_some_and(|(one, other)| one < other);
    if before(COUNT - 2, COUNT - 1) && before(COUNT - 2, COUNT) {
        Ok(format!("{tags:?}"))
    } else {
        Err(format!("they came back as {tags:?}").into())
    }
}
