//! What a device holds.
//!
//! libblkid knows every file system, RAID, volume manager and partition table there is, and gets better
//! with each release of the distribution. No maintained crate does; a binding would make a C library and
//! its headers a build dependency. So its own programs are asked where they are present: `wipefs`, which
//! lists every signature and not just the likeliest, else `blkid -p`. They are believed when they find
//! something, never when they find nothing: whatever they say, the first and the last MiB must be all
//! zeroes, and so must a thousand blocks between them and all that a regular file has stored, or the device
//! is refused as not blank. A machine without the programs refuses more, not less.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use serde::Deserialize;

/// This much at both ends must be zero for a device to be blank.
const BLANK_BYTES: u64 = 1 << 20;
/// Between them, so many blocks of [`SAMPLE_BYTES`] are looked at: what remains of a device whose ends were
/// cleared, such as file systems that begin behind a lost partition table.
const SAMPLES: u64 = 1024;
/// The bytes of one sample.
const SAMPLE_BYTES: u64 = 4096;

/// Something on a device that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// As in `ext4`, `LVM2_member`, `linux_raid_member`, `gpt`.
    pub name: String,
    /// Where its mark stands, if that is known.
    pub offset: Option<String>,
    /// Its label or identity, if it has one.
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

/// Where the programs are looked for. Not in `PATH`: this tool runs as root, and what it believes must not
/// depend on the caller's environment.
pub fn program_directories() -> Vec<PathBuf> {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from).to_vec()
}

/// What has a name on the device or in the file at `path`, as far as the programs tell.
pub fn signatures(path: &Path, programs: &[PathBuf]) -> Vec<Signature> {
    let find = |name: &str| programs.iter().map(|it| it.join(name)).find(|it| it.is_file());
    let by_wipefs = find("wipefs").and_then(|program| ask_wipefs(&program, path));
    let by_blkid = || find("blkid").and_then(|program| ask_blkid(&program, path));
    by_wipefs.or_else(by_blkid).unwrap_or_default()
}

/// The first byte that is not zero: of both ends, and of samples between them or all that a file has stored.
///
/// # Errors
/// It cannot be read.
pub fn first_byte_set(path: &Path, size: u64) -> io::Result<Option<u64>> {
    let file = &File::open(path)?;
    let mut read = |start, length| read_bytes(file, start, length);
    if !file.metadata()?.is_file() {
        return first_byte_set_by(read, size);
    }
    match byte_set_in_any(&mut read, ends(size))? {
        None => first_byte_stored(file, size),
        found => Ok(found),
    }
}

/// The first byte that is not zero, of both ends and of samples between them, by whatever reads `length` bytes from
/// `start` on.
pub(super) fn first_byte_set_by(
    read: impl FnMut(u64, u64) -> io::Result<Vec<u8>>,
    size: u64,
) -> io::Result<Option<u64>> {
    let last = size.saturating_sub(BLANK_BYTES);
    // Of a small device, this is every block.
    let step = (size / SAMPLES).next_multiple_of(SAMPLE_BYTES).max(SAMPLE_BYTES);
    let samples = (0..last).step_by(step as usize);
    let samples = samples.map(|start| (start, SAMPLE_BYTES.min(size - start)));
    byte_set_in_any(read, ends(size).into_iter().chain(samples))
}

/// Where both ends begin, and how long they are.
fn ends(size: u64) -> [(u64, u64); 2] {
    [0, size.saturating_sub(BLANK_BYTES)].map(|start| (start, BLANK_BYTES.min(size - start)))
}

/// The same of a regular file. The file system knows where something was written; that is not much of a file
/// that is blank, however large.
fn first_byte_stored(file: &File, size: u64) -> io::Result<Option<u64>> {
    let mut start = 0;
    while start < size {
        let from = i64::try_from(start).map_err(io::Error::other)?;
        start = match lseek(file, from, Whence::SeekData) {
            Ok(data) => data.cast_unsigned(),
            Err(Errno::ENXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let length = BLANK_BYTES.min(size.saturating_sub(start));
        let read = |start, length| read_bytes(file, start, length);
        if let found @ Some(_) = byte_set_in_any(read, [(start, length)])? {
            return Ok(found);
        }
        start += length;
    }
    Ok(None)
}

fn read_bytes(file: &File, start: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, start).map(|()| bytes)
}

fn byte_set_in_any(
    mut read: impl FnMut(u64, u64) -> io::Result<Vec<u8>>,
    parts: impl IntoIterator<Item = (u64, u64)>,
) -> io::Result<Option<u64>> {
    for (start, length) in parts {
        let bytes = read(start, length)?;
        if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
            return Ok(Some(start + at as u64));
        }
    }
    Ok(None)
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

/// `None` if the program could not tell; it says the same for "nothing" and for "two things at once".
fn ask_blkid(program: &Path, device: &Path) -> Option<Vec<Signature>> {
    let output = output(program, &["-p", "-o", "export", "--"], device)?;
    let text = String::from_utf8_lossy(&output);
    let value = |key: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned()))
    };
    let label = value("LABEL").or_else(|| value("UUID"));
    let names = [value("TYPE"), value("PTTYPE")].into_iter().flatten();
    let signature = |name| Signature { name, offset: None, label: label.clone() };
    Some(names.map(signature).collect())
}

/// What a program writes when it succeeds. It gets no environment but the language of its answers.
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
