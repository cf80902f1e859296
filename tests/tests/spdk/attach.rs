//! Attaching: as whom, how many namespaces of one controller, what an error says; and what the
//! library leaves of the process and of the machine that it runs on.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::path::spdk::{AttachError, Controller, SpdkPath};
use tidelog_engine::path::{DataPath, DeviceSpec};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::units::ByteCount;
use tidelog_tests::conformance::Failure;
use tidelog_tests::machine::read_behind_the_end;
use tidelog_tests::spdk::target::{LISTED_HOST, Target};

use crate::processes::{OPEN, Row, attach, format};

pub(crate) const ROWS: &[Row] = &[
    ("a target with a list of hosts lets in the one that the name says", the_host_is_named),
    ("more commands than a queue has entries are not asked for", the_depth_is_clamped),
    ("two namespaces of one controller are one pool", two_namespaces_are_one_pool),
    ("an error says what SPDK said", an_error_says_what_spdk_said),
    ("closing prints nothing, and leaves nothing behind", closing_leaves_nothing),
    ("a fault ends the process that the library is loaded into", a_fault_ends_the_process),
];

/// Argument that makes the program read behind the end of a file.
pub(crate) const FAULT: &str = "--read-behind-the-end";

fn as_listed_host(spec: &DeviceSpec) -> DeviceSpec {
    DeviceSpec::new(format!("{spec} hostnqn:{LISTED_HOST}"))
}

fn why_not(spec: &DeviceSpec) -> Result<AttachError, Failure> {
    let name = spec.controller().ok_or("it names no controller")?;
    match Controller::attach(&name) {
        Err(why) => Ok(why),
        Ok(_) => Err(format!("{spec} was attached").into()),
    }
}

fn the_host_is_named(target: &Target) -> Result<String, Failure> {
    let unnamed = target.listed().remove(0);
    let why = why_not(&unnamed)?;
    let named = DeviceSpec::new(format!(
        "{} hostid:2f1dc2e1-6cd4-4e8a-a7b1-21bd4f0f2a6c",
        as_listed_host(&unnamed)
    ));
    drop(attach(&named)?);
    let meaningless = why_not(&DeviceSpec::new(format!("{named} hostname:x")))?.to_string();
    if !meaningless.contains("hostname:x") {
        return Err(format!("a word that means nothing: {meaningless}").into());
    }
    Ok(format!("without it: {why}"))
}

fn the_depth_is_clamped(target: &Target) -> Result<String, Failure> {
    // The target's queues have 128 entries, of which one stays empty.
    let first = target.controllers().remove(0);
    for (asked, depth) in [(127, 127), (128, 127), (4096, 127)] {
        let path = SpdkPath::new(vec![attach(&first)?], asked)?;
        let capabilities = path.capabilities();
        let is_said = capabilities.notes.iter().any(|note| note.contains("commands at once"));
        if capabilities.depth != depth || is_said != (asked > depth) {
            return Err(
                format!("{asked} became {}: {:?}", capabilities.depth, capabilities.notes).into()
            );
        }
    }
    Ok("127 of 128".into())
}

fn two_namespaces_are_one_pool(target: &Target) -> Result<String, Failure> {
    const TENSORS: u8 = 8;
    let specs: Vec<DeviceSpec> = target.listed().iter().map(as_listed_host).collect();
    let format = FormatOptions { overwrite: true, ..FormatOptions::default() };
    Pool::format(&specs, &format)?;
    let options = OpenOptions { staging: ByteCount::mib(8), ..OpenOptions::default() };
    let pool = Pool::open(&specs, &options)?;
    let bytes = |number: u8| vec![number; 2 << 20];
    for number in 0..TENSORS {
        let tensor = TensorId(number.into());
        pool.put(tensor, Source::from(bytes(number)), PutOptions::default())?.wait()?;
        if !pool.verify(tensor, Source::from(bytes(number)), None)?.wait()?.matched {
            return Err(format!("tensor {number} has other bytes").into());
        }
    }
    let twice = why_not(&specs[1])?;
    pool.close()?;
    Pool::open(&specs, &options)?.close()?;
    // One after the other, and by pools of their own, they are no hindrance to each other.
    let alone = |spec: &DeviceSpec| -> Result<Pool, Failure> {
        Pool::format(std::slice::from_ref(spec), &format)?;
        Ok(Pool::open(std::slice::from_ref(spec), &options)?)
    };
    let first = alone(&specs[0])?;
    let other = why_not(&specs[1])?;
    if other != AttachError::OtherPool {
        return Err(format!("two pools have one controller, or: {other}").into());
    }
    first.close()?;
    alone(&specs[1])?.close()?;
    Ok(format!("{twice}; {other}"))
}

fn an_error_says_what_spdk_said(target: &Target) -> Result<String, Failure> {
    let first = target.controllers().remove(0).to_string();
    let nowhere = first.replace(":disk0", ":nowhere");
    let said = why_not(&DeviceSpec::new(nowhere))?.to_string();
    let reason = said.rsplit_once("): ").map(|(_, reason)| reason.to_owned());
    let reason = reason.ok_or_else(|| format!("it says nothing more than: {said}"))?;
    if reason.is_empty() { Err(said.into()) } else { Ok(reason) }
}

fn closing_leaves_nothing(target: &Target) -> Result<String, Failure> {
    let first = format(target)?;
    let process = Command::new(std::env::current_exe()?)
        .args([OPEN, &first.to_string()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    let number = process.id();
    let Output { status, stdout, stderr } = process.wait_with_output()?;
    let said = [stdout, stderr].concat();
    let said: Vec<String> = String::from_utf8_lossy(&said)
        .lines()
        // DPDK's own, and no line about closing.
        .filter(|line| !line.starts_with("EAL:") && !line.starts_with("TELEMETRY:"))
        .map(ToOwned::to_owned)
        .collect();
    if !status.success() || !said.is_empty() {
        return Err(format!("{status}: {}", said.join("; ")).into());
    }
    let places = ["/var/run".into(), std::env::temp_dir()];
    let user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    for place in places.into_iter().chain(user) {
        let left = place.join(format!("dpdk/spdk_pid{number}"));
        if left.exists() {
            return Err(format!("{} is left behind", left.display()).into());
        }
    }
    Ok(String::new())
}

/// Prints what it has read, if it lives.
pub(crate) fn fault() -> ExitCode {
    println!("{:?}", read_behind_the_end());
    ExitCode::SUCCESS
}

fn a_fault_ends_the_process(_: &Target) -> Result<String, Failure> {
    let ended = Command::new(std::env::current_exe()?).args([FAULT, ""]).output()?;
    if ended.status.signal() != Some(libc::SIGBUS) {
        return Err(format!("it ended with {}", ended.status).into());
    }
    let library = std::env::current_exe()?.with_file_name("libtidelog.so");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/spdk/fault.py");
    match Command::new("python3").arg(script).arg(library).output() {
        Ok(ended) if ended.status.signal() == Some(libc::SIGBUS) => Ok("so it does Python".into()),
        Ok(ended) => Err(format!(
            "Python ended with {}: {}",
            ended.status,
            String::from_utf8_lossy(&ended.stderr)
        )
        .into()),
        Err(why) => Ok(format!("without Python, which does not run: {why}")),
    }
}
