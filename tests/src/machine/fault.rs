//! A fault, as of a program whose mapped file was cut.

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// Reads behind the end of a file that is mapped: the system sends `SIGBUS`. A process that neither
/// ends nor reads anything is ended after 20 seconds, by another signal.
///
/// # Errors
/// There is no such file.
#[allow(unsafe_code)]
pub fn read_behind_the_end() -> io::Result<u8> {
    let path = std::env::temp_dir().join(format!("tidelog-fault-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    file.set_len(4096)?;
    // SAFETY: it is not changed, but for its length, of which the fault is to tell.
    let map = unsafe { Mmap::map(&file)? };
    file.set_len(0)?;
    // SAFETY: it has no conditions.
    unsafe { libc::alarm(20) };
    // SAFETY: the address is mapped.
    Ok(unsafe { map.as_ptr().read_volatile() })
}
