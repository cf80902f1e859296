//! Throughput of the device under a folder, past the page cache, as the base of comparisons.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;

use super::cost::{Cost, cost};

/// Bytes of one transfer; as many of them at once as there are threads.
const PIECE: usize = 1 << 20;
const THREADS: usize = 8;

/// Throughput of a device.
pub struct Ssd {
    pub written: Cost,
    pub read: Cost,
}

impl Ssd {
    /// Measures with a file of `whole` bytes, a multiple of 1 MiB, in a folder.
    ///
    /// # Errors
    /// The file system's, which may have no `O_DIRECT`.
    pub fn measure(folder: &Path, whole: usize) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(libc::O_DIRECT)
            .open(folder.join("what-the-device-does"))?;
        let mut results = Vec::new();
        let written = cost(whole, || {
            results.push(in_threads(whole, |piece, at| file.write_all_at(piece, at)));
            results.push(file.sync_all());
        });
        let read =
            cost(whole, || results.push(in_threads(whole, |piece, at| read(&file, piece, at))));
        results.into_iter().collect::<io::Result<()>>()?;
        Ok(Self { written, read })
    }

    /// The faster of both directions, in 10^9 bytes a second.
    pub fn rate(&self) -> f64 {
        self.written.rate().max(self.read.rate())
    }
}

/// A piece, and whether it is what was written there.
fn read(file: &File, piece: &mut [u8], at: u64) -> io::Result<()> {
    piece.fill(0);
    file.read_exact_at(piece, at)?;
    assert!(piece.iter().all(|byte| *byte == mark(at)), "other bytes than were written at {at}");
    Ok(())
}

fn mark(at: u64) -> u8 {
    (at / PIECE as u64 % 255 + 1) as u8
}

/// Each piece of `whole` bytes by one of the threads, which find it marked.
fn in_threads(
    whole: usize,
    transfer: impl Fn(&mut [u8], u64) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let transfer = &transfer;
    thread::scope(|scope| {
        let work = |thread: usize| {
            move || {
                let mut memory = vec![0; PIECE + 4096];
                let aligned = memory.as_ptr().align_offset(4096);
                let piece = &mut memory[aligned..aligned + PIECE];
                for at in (thread * PIECE..whole).step_by(THREADS * PIECE) {
                    piece.fill(mark(at as u64));
                    transfer(piece, at as u64)?;
                }
                Ok(())
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}
