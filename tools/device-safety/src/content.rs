//! Contents of a device.
//!
//! libblkid knows every file system, RAID, volume manager and partition table there is, and gets
//! better with each release of the distribution. No maintained crate does; a binding would make a C
//! library and its headers a build dependency. So its own programs are asked where they are
//! present: `wipefs`, which lists every signature and not just the likeliest, else `blkid -p`; and
//! `blkid -p` where partitions begin, whose table may be lost. They are believed when they find
//! something, never when they find nothing: whatever they say, the device must be blank where the
//! engine looks ([`first_byte_set`]). A machine without the programs refuses more, not less.
//!
//! [`first_byte_set`]: tidelog_engine::path::device::blank::first_byte_set

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use tidelog_engine::layout::{BLOCK_BYTES, SUPERBLOCK_OFFSET, UnfinishedFormat};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::path::device::blank::{START_BYTES, partition_starts};
use tidelog_engine::pool::inspect::probe;

/// Signature: something on a device that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Name, such as `ext4`, `LVM2_member`, `linux_raid_member`, `gpt`.
    pub name: String,
    /// Offset of the signature, if that is known.
    pub offset: Option<String>,
    /// Label or identity, if it has one.
    pub label: Option<String>,
}

impl std::fmt::Display for Signature {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}", self.name)?;
        if let Some(offset) = &self.offset {
            write!(out, " at {offset}")?;
        }
        match &self.label {
            Some(label) => write!(out, " ({label})"),
            None => Ok(()),
        }
    }
}

/// Returns the directories of the programs. Not in `PATH`: this tool runs as root, and what it
/// believes must not depend on the caller's environment.
pub fn program_directories() -> Vec<PathBuf> {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from).to_vec()
}

/// The pool that was to be made of the device or file at `path` by a format that was interrupted.
pub fn unfinished_pool(path: &Path) -> Option<u128> {
    UnfinishedFormat::decode(&first_superblock(path)?).map(|mark| mark.pool)
}

/// Returns whether such a format left the device or file, itself marked or with a superblock of one
/// of these pools, whose other devices are. What it may have left is nobody's
/// ([`UnfinishedFormat::may_have_left`]).
pub(super) fn is_unfinished(path: &Path, unfinished: &[u128]) -> bool {
    let pool = || probe(&DeviceSpec::new(path)).ok()?.newest.ok().map(|it| it.pool);
    unfinished_pool(path).is_some() || pool().is_some_and(|it| unfinished.contains(&it))
}

fn first_superblock(path: &Path) -> Option<Vec<u8>> {
    let mut block = vec![0; BLOCK_BYTES as usize];
    File::open(path).ok()?.read_exact_at(&mut block, SUPERBLOCK_OFFSET).ok()?;
    Some(block)
}

/// Returns the signatures on the device or in the file at `path`, as far as the programs tell.
pub fn signatures(path: &Path, programs: &[PathBuf]) -> Vec<Signature> {
    let by_wipefs = find("wipefs", programs).and_then(|program| ask_wipefs(&program, path));
    let by_blkid = || find("blkid", programs).and_then(|program| ask_blkid(&program, path, 0));
    by_wipefs.or_else(by_blkid).unwrap_or_default()
}

fn find(name: &str, programs: &[PathBuf]) -> Option<PathBuf> {
    programs.iter().map(|it| it.join(name)).find(|it| it.is_file())
}

/// Returns the signatures at places where a partition would begin, as on a device whose partition
/// table was lost.
pub fn signatures_of_partitions(path: &Path, size: u64, programs: &[PathBuf]) -> Vec<Signature> {
    let Some(program) = find("blkid", programs) else { return Vec::new() };
    let named = |start: u64| {
        let offset = Some(format!("{start:#x}"));
        let found = ask_blkid(&program, path, start).unwrap_or_default();
        found.into_iter().map(move |it| Signature { offset: offset.clone(), ..it })
    };
    let starts = partition_starts(size).into_iter();
    starts.filter(|start| something_begins(path, *start, size)).flat_map(named).collect()
}

/// Returns whether the program is worth asking: it takes longer than to see that there is nothing.
fn something_begins(path: &Path, start: u64, size: u64) -> bool {
    let mut bytes = vec![0; START_BYTES.min(size - start) as usize];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut bytes, start));
    read.is_ok() && bytes.iter().any(|byte| *byte != 0)
}

/// `None` if the program could not tell.
fn ask_wipefs(program: &Path, device: &Path) -> Option<Vec<Signature>> {
    #[derive(Deserialize)]
    struct Found {
        signatures: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(rename = "type")]
        name: String,
        offset: Option<String>,
        label: Option<String>,
        uuid: Option<String>,
    }
    let output = output(program, &["--json", "--no-act", "--"], device)?;
    if output.iter().all(u8::is_ascii_whitespace) {
        return Some(Vec::new());
    }
    let found: Found = serde_json::from_slice(&output).ok()?;
    let signature =
        |one: One| Signature { name: one.name, offset: one.offset, label: one.label.or(one.uuid) };
    Some(found.signatures.into_iter().map(signature).collect())
}

/// Asks blkid for the signature at `start`. `None` if the program could not tell; it says the same
/// for "nothing" and for "two things at once".
fn ask_blkid(program: &Path, device: &Path, start: u64) -> Option<Vec<Signature>> {
    let start = start.to_string();
    let output = output(program, &["-p", "-o", "export", "-O", &start, "--"], device)?;
    let text = String::from_utf8_lossy(&output);
    let value = |key: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned()))
    };
    let label = value("LABEL").or_else(|| value("UUID"));
    let names = [value("TYPE"), value("PTTYPE")].into_iter().flatten();
    let signature = |name| Signature { name, offset: None, label: label.clone() };
    Some(names.map(signature).collect())
}

/// Returns the output of a program that succeeds. It gets no environment but the language of its
/// messages.
fn output(program: &Path, arguments: &[&str], device: &Path) -> Option<Vec<u8>> {
    let output = Command::new(program)
        .args(arguments)
        .arg(device)
        .env_clear()
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then_some(output.stdout)
}
