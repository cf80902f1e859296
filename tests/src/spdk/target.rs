//! SPDK's target program, serving files.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidelog_engine::path::DeviceSpec;

use crate::conformance::Failure;

/// Number of files that are served.
pub const DEVICES: usize = 2;
const DEVICE_BYTES: u64 = 256 << 20;
/// The most that a device zeroes by one command.
pub const ZEROES_MAX: u64 = 64 << 10;
/// The most that it deallocates by one command.
pub const DEALLOCATE_MAX: u64 = 1 << 20;
/// Time of a read of the other namespace, in microseconds: much longer than any test.
const HELD_US: u64 = 60_000_000;
/// The one host that the subsystem with a list of hosts lets in.
pub const LISTED_HOST: &str = "nqn.2026-01.io.tidelog:listed-host";
const LISTED: &str = "nqn.2026-01.io.tidelog:listed";
/// The namespaces of that subsystem.
const LISTED_NAMESPACES: usize = 2;
/// The target starts slowly on a machine that others use too.
const START: Duration = Duration::from_secs(60);
/// Time for a target to end.
const END: Duration = Duration::from_secs(10);

/// Transport of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// NVMe over TCP, on the loopback.
    Tcp,
    /// The registers and queues of a controller, between two processes.
    VfioUser,
}

/// A running target. It ends, and its files go, when this is dropped.
pub struct Target {
    program: PathBuf,
    process: Child,
    directory: PathBuf,
    transport: Transport,
    /// A port for each device. They are opened in their order, so the last one says that all are
    /// served.
    ports: [u16; DEVICES],
}

/// The target program of the installed SPDK: `$TIDELOG_NVMF_TGT`, in the path, or beside SPDK's
/// libraries.
pub fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("TIDELOG_NVMF_TGT") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = Command::new("pkg-config").args(["--libs-only-L", "spdk_nvme"]).output();
    let found = found.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
    let beside = found.unwrap_or_default();
    let beside = beside.split_whitespace().filter_map(|flag| flag.strip_prefix("-L"));
    let beside = beside.map(|libraries| Path::new(libraries).join("../bin"));
    let mut places = std::env::split_paths(&path).chain(beside);
    places.find_map(|place| Some(place.join("nvmf_tgt")).filter(|program| program.exists()))
}

impl Target {
    /// Serves files with blocks of `block` bytes.
    ///
    /// # Errors
    /// It does not serve them.
    pub fn start(program: &Path, transport: Transport, block: u32) -> Result<Self, Failure> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let target = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidelog-spdk-{}-{target}", std::process::id());
        let directory = PathBuf::from("/var/tmp").join(name);
        fs::create_dir(&directory)?;
        for number in 0..DEVICES {
            File::create_new(file(&directory, number))?.set_len(DEVICE_BYTES)?;
        }
        let ports = free_ports()?;
        let content = configure((&directory, target), transport, ports, block)?;
        fs::write(configuration(&directory), serde_json::to_vec_pretty(&content)?)?;
        let process = spawn(program, &directory)?;
        let mut target = Self { program: program.to_owned(), process, directory, transport, ports };
        target.wait_until_it_listens()?;
        Ok(target)
    }

    /// Starts the program once more, after it was killed: with the same files, at the same
    /// addresses.
    ///
    /// # Errors
    /// It does not serve them.
    pub fn restart(&mut self) -> Result<(), Failure> {
        self.process = spawn(&self.program, &self.directory)?;
        self.wait_until_it_listens()
    }

    /// The devices by the names that go to SPDK.
    pub fn controllers(&self) -> Vec<DeviceSpec> {
        let name = |number: usize| match self.transport {
            Transport::Tcp => format!(
                "spdk:trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{} subnqn:{}",
                self.ports[number],
                subsystem(number)
            ),
            Transport::VfioUser => {
                format!("spdk:trtype:VFIOUSER traddr:{}", socket(&self.directory, number).display())
            }
        };
        (0..DEVICES).map(|number| DeviceSpec::new(name(number))).collect()
    }

    /// Returns namespaces of the same controllers whose reads take a minute.
    pub fn held(&self) -> Vec<DeviceSpec> {
        let held = |spec: &DeviceSpec| DeviceSpec::new(format!("{spec} ns:2"));
        self.controllers().iter().map(held).collect()
    }

    /// Returns the namespaces of a controller over TCP, in a subsystem that lets in [`LISTED_HOST`]
    /// alone, who is not named.
    pub fn listed(&self) -> Vec<DeviceSpec> {
        let port = self.ports[0];
        let name = |number| {
            DeviceSpec::new(format!(
                "spdk:trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:{LISTED} ns:{number}"
            ))
        };
        (1..=LISTED_NAMESPACES).map(name).collect()
    }

    /// The files behind them.
    pub fn files(&self) -> Vec<DeviceSpec> {
        (0..DEVICES).map(|number| DeviceSpec::new(file(&self.directory, number))).collect()
    }

    /// Stops the program where it is, or lets it go on.
    ///
    /// # Errors
    /// It cannot be sent a signal.
    pub fn hang(&self, hangs: bool) -> Result<(), Failure> {
        let signal = if hangs { "-STOP" } else { "-CONT" };
        let sent = Command::new("kill").args([signal, &self.process.id().to_string()]).status()?;
        if sent.success() { Ok(()) } else { Err(format!("kill {signal}: {sent}").into()) }
    }

    /// Ends the program without a warning, as a crash would.
    ///
    /// # Errors
    /// The system does not end it.
    pub fn kill(&mut self) -> Result<(), Failure> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Asks the target to end (SIGTERM), and makes it where it does not.
    fn end(&mut self) {
        let _ =
            Command::new("kill").arg(self.process.id().to_string()).stderr(Stdio::null()).status();
        let asked = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && asked.elapsed() < END {
            sleep(Duration::from_millis(50));
        }
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn wait_until_it_listens(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        let last = socket(&self.directory, DEVICES - 1).join("cntrl");
        loop {
            let listens = match self.transport {
                Transport::Tcp => {
                    TcpStream::connect((Ipv4Addr::LOCALHOST, self.ports[DEVICES - 1])).is_ok()
                }
                Transport::VfioUser => last.exists(),
            };
            if listens {
                return Ok(());
            }
            let ended = self.process.try_wait()?;
            if ended.is_some() || begun.elapsed() > START {
                let said = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                let last = said.lines().last().unwrap_or_default();
                return Err(format!("the target does not serve ({ended:?}): {last}").into());
            }
            sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.end();
        // Where it is killed, what it traces into is left behind.
        let _ = fs::remove_file(format!("/dev/shm/nvmf_trace.pid{}", self.process.id()));
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Ports that are free now, which is as much as can be known.
fn free_ports() -> Result<[u16; DEVICES], Failure> {
    let mut held = Vec::new();
    for _ in 0..DEVICES {
        held.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    }
    let mut ports = [0; DEVICES];
    for (port, listener) in ports.iter_mut().zip(&held) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

fn configuration(directory: &Path) -> PathBuf {
    directory.join("target.json")
}

fn spawn(program: &Path, directory: &Path) -> Result<Child, Failure> {
    let log = File::create(directory.join("log"))?;
    let process = Command::new(program)
        // Or DPDK makes a directory elsewhere, and leaves it.
        .env("RUNTIME_DIRECTORY", directory)
        .args(["--no-huge", "-s", "512", "--no-pci", "-m", "0x1", "--disable-cpumask-locks"])
        .arg("-r")
        .arg(directory.join("rpc"))
        .arg("--json")
        .arg(configuration(directory))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?;
    Ok(process)
}

fn file(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("disk{number}"))
}

fn socket(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("controller{number}"))
}

fn subsystem(number: usize) -> String {
    format!("nqn.2026-01.io.tidelog:disk{number}")
}

/// Makes the calls by which the target configures itself at its start.
fn configure(
    (directory, target): (&Path, u32),
    transport: Transport,
    ports: [u16; DEVICES],
    block: u32,
) -> Result<Value, Failure> {
    let call = |method: &str, params: Value| json!({ "method": method, "params": params });
    let kind = if transport == Transport::Tcp { "TCP" } else { "VFIOUSER" };
    let (mut disks, mut served) = (Vec::new(), Vec::new());
    // Or it would look for partitions, by reads that are held.
    disks.push(call("bdev_set_options", json!({ "bdev_auto_examine": false })));
    served.push(call("nvmf_create_transport", json!({ "trtype": kind })));
    if transport == Transport::Tcp {
        let address = json!({
            "trtype": kind, "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": ports[0].to_string(),
        });
        let subsystem =
            json!({ "nqn": LISTED, "allow_any_host": false, "serial_number": "listed" });
        served.push(call("nvmf_create_subsystem", subsystem));
        for number in 0..LISTED_NAMESPACES {
            let (disk, filename) =
                (format!("listed{number}"), directory.join(format!("listed{number}")));
            File::create_new(&filename)?.set_len(DEVICE_BYTES)?;
            let aio = json!({ "name": disk, "filename": filename, "block_size": block, "fallocate": true });
            disks.push(call("bdev_aio_create", aio));
            let namespace = json!({ "nqn": LISTED, "namespace": { "bdev_name": disk } });
            served.push(call("nvmf_subsystem_add_ns", namespace));
        }
        let host = json!({ "nqn": LISTED, "host": LISTED_HOST });
        served.push(call("nvmf_subsystem_add_host", host));
        let listener = json!({ "nqn": LISTED, "listen_address": address });
        served.push(call("nvmf_subsystem_add_listener", listener));
    }
    for (number, port) in ports.into_iter().enumerate() {
        let (disk, nqn) = (format!("disk{number}"), subsystem(number));
        let filename = file(directory, number);
        // Or it has another one each time that it is started.
        let nguid = format!("{:016x}{target:08x}{number:08x}", std::process::id());
        disks.push(call(
            "bdev_aio_create",
            json!({ "name": disk, "filename": filename, "block_size": block, "fallocate": true }),
        ));
        let (memory, held) = (format!("memory{number}"), format!("held{number}"));
        disks.extend([
            call(
                "bdev_malloc_create",
                json!({ "name": memory, "num_blocks": (8 << 20) / block, "block_size": block }),
            ),
            call(
                "bdev_delay_create",
                json!({
                    "name": held, "base_bdev_name": memory, "avg_read_latency": HELD_US,
                    "p99_read_latency": HELD_US, "avg_write_latency": 0, "p99_write_latency": 0,
                }),
            ),
        ]);
        let address = match transport {
            Transport::Tcp => json!({
                "trtype": kind, "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port.to_string(),
            }),
            Transport::VfioUser => {
                let socket = socket(directory, number);
                fs::create_dir(&socket)?;
                json!({ "trtype": kind, "traddr": socket, "trsvcid": "0" })
            }
        };
        served.extend([
            call(
                "nvmf_create_subsystem",
                json!({
                    "nqn": nqn, "allow_any_host": true, "serial_number": disk,
                    "max_write_zeroes_size_kib": ZEROES_MAX >> 10,
                    "max_discard_size_kib": DEALLOCATE_MAX >> 10,
                }),
            ),
            call(
                "nvmf_subsystem_add_ns",
                json!({ "nqn": nqn, "namespace": { "bdev_name": disk, "nguid": nguid } }),
            ),
            call(
                "nvmf_subsystem_add_ns",
                json!({ "nqn": nqn, "namespace": { "bdev_name": held } }),
            ),
            call("nvmf_subsystem_add_listener", json!({ "nqn": nqn, "listen_address": address })),
        ]);
    }
    Ok(json!({ "subsystems": [
        { "subsystem": "bdev", "config": disks },
        { "subsystem": "nvmf", "config": served },
    ] }))
}
