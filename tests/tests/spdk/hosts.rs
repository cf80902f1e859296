//! Two hosts that reach one namespace over NVMe/TCP without their kernels: processes that call
//! themselves two hosts.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tidelog_tests::conformance::Failure;
use tidelog_tests::spdk::target::{Target, Transport};

/// A process that has the pool open until it is told to close it, or is killed.
struct Host(Child);

impl Drop for Host {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Host {
    /// Starts the process; returns what it said: that the pool is open, or why not.
    fn start(name: &str, devices: &str, format: bool) -> Result<Result<Self, String>, Failure> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidelog-spdk"));
        command.env("TIDELOG_HOST_ID", name).args(["--pages", "plain", "own", devices]);
        if format {
            command.arg("--format");
        }
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut host = Self(piped.spawn()?);
        let mut said = String::new();
        let out = host.0.stdout.take().ok_or("no standard output")?;
        BufReader::new(out).read_line(&mut said)?;
        if said.starts_with("ok ") { Ok(Ok(host)) } else { Ok(Err(said.trim().to_owned())) }
    }

    fn must(name: &str, devices: &str, format: bool) -> Result<Self, Failure> {
        Ok(Self::start(name, devices, format)?.map_err(|said| format!("host {name}: {said}"))?)
    }

    fn close(mut self) -> Result<(), Failure> {
        drop(self.0.stdin.take());
        let ended = self.0.wait()?;
        if ended.success() { Ok(()) } else { Err(format!("closing ended with {ended}").into()) }
    }
}

/// Checks that another host is refused, and told who has it.
fn refused(name: &str, devices: &str, format: bool, owner: &str) -> Result<String, Failure> {
    match Host::start(name, devices, format)? {
        Err(said) if said.contains(&format!("owned by host {owner}")) => Ok(said),
        Err(said) => Err(format!("host {name} is refused for another reason: {said}").into()),
        Ok(_) => Err(format!("host {name} has what host {owner} owns (format: {format})").into()),
    }
}

pub(crate) fn one_host_at_a_time(program: &Path) -> Result<String, Failure> {
    let target = Target::start(program, Transport::Tcp, 512)?;
    let devices = target.controllers()[0].to_string();
    // Killed, each of them: it gives nothing back. While it lives this host's other processes are
    // refused by its claim.
    drop(Host::must("a", &devices, true)?);
    refused("b", &devices, false, "a")?;
    let said = refused("b", &devices, true, "a")?;
    Host::must("a", &devices, false)?.close()?;
    drop(Host::must("b", &devices, false)?);
    refused("a", &devices, false, "b")?;
    Host::must("b", &devices, false)?.close()?;
    Ok(said.trim_start_matches("FAILED").trim().to_owned())
}
