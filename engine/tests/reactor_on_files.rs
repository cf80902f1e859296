//! The reactor on real files without the page cache, by both kernel paths.

use std::path::PathBuf;
use std::time::Duration;

use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::{Device, DeviceSpec, Extent, KernelDevices, OpenMode, PathChoice};
use tidelog_engine::schedule::{
    Finish, Piece, Reactor, ReactorOptions, Transfer, TransferError, Urgency,
};
use tidelog_engine::units::{ByteCount, DeviceIndex};

const CHUNK: u32 = 64 << 10;

/// A directory that goes when the test ends. `/var/tmp` is on a disk where `/tmp` may be memory.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = format!("/var/tmp/tidelog-reactor-{}-{name}", std::process::id());
        std::fs::create_dir(&path).unwrap();
        Self(path.into())
    }

    fn start(&self, choice: PathChoice, chunks: u64) -> Reactor {
        let open = |name| {
            let spec = DeviceSpec::new(self.0.join(name));
            if spec.exists() {
                return Device::open(&spec, OpenMode::default()).unwrap();
            }
            Device::create(&spec, ByteCount::mib(32), false, OpenMode::default()).unwrap()
        };
        let devices = vec![open("a"), open("b")];
        let chunk = ByteCount(CHUNK.into());
        let staging = ByteCount(chunk.0 * chunks);
        let options = ReactorOptions { staging, chunk, ..ReactorOptions::default() };
        Reactor::start(Box::new(KernelDevices::new(devices, choice)), options).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn bytes(length: usize, seed: u32) -> Vec<u8> {
    (0..length as u32)
        .map(|index| ((index ^ seed).wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect()
}

/// The pieces of `length` bytes, striped over two devices from `offset` on.
fn striped(bytes: &[u8], offset: u64) -> Vec<Piece> {
    let piece = |(index, part): (usize, &[u8])| {
        let at = ByteCount(offset + (index as u64 / 2) * u64::from(CHUNK));
        let (device, start) = (DeviceIndex(index as u8 % 2), index as u64 * u64::from(CHUNK));
        Piece::new(device, at, start, part.len() as u32).expecting(crc32c::crc32c(part))
    };
    bytes.chunks(CHUNK as usize).enumerate().map(piece).collect()
}

#[test]
fn what_one_reactor_writes_another_reads_by_the_other_path() {
    let directory = Directory::new("both");
    let tensor = bytes((20 << 20) + 12_345, 1);
    let pieces = striped(&tensor, 4096);
    for (writer, reader, chunks) in [
        (PathChoice::Uring, PathChoice::Posix, 16),
        (PathChoice::Posix, PathChoice::Uring, 16),
        (PathChoice::Uring, PathChoice::Uring, 1),
    ] {
        let reactor = directory.start(writer, chunks);
        let source = Source::from(tensor.clone());
        let write = Transfer::Write { source, pieces: pieces.clone() };
        let ticket = reactor.submit(write, Urgency::Ahead, None, Finish::nothing()).unwrap();
        assert_eq!(ticket.wait().unwrap().bytes, tensor.len() as u64);
        reactor.flush(&[DeviceIndex(0), DeviceIndex(1)]).unwrap();
        reactor.close().unwrap();

        let reactor = directory.start(reader, chunks);
        let destination = Destination::buffer(tensor.len());
        let read = Transfer::Read { destination, pieces: pieces.clone() };
        let ticket = reactor.submit(read, Urgency::Urgent, None, Finish::nothing()).unwrap();
        ticket.wait().unwrap();
        assert!(ticket.take_bytes().unwrap() == tensor, "{writer:?} to {reader:?}");
        let zeroes: Vec<_> =
            (0..2).map(|device| (DeviceIndex(device), Extent::new(4096, 16 << 20))).collect();
        reactor.write_zeroes(&zeroes).unwrap().wait().unwrap();
        reactor.close().unwrap();
    }
}

#[test]
fn bytes_changed_behind_our_back_are_found_and_named() {
    use std::os::unix::fs::FileExt;
    for (choice, name) in [(PathChoice::Uring, "rot-uring"), (PathChoice::Posix, "rot-posix")] {
        let directory = Directory::new(name);
        let reactor = directory.start(choice, 4);
        let tensor = bytes(1 << 20, 2);
        let pieces = striped(&tensor, 0);
        let write = Transfer::Write { source: tensor.clone().into(), pieces: pieces.clone() };
        reactor.submit(write, Urgency::Ahead, None, Finish::nothing()).unwrap().wait().unwrap();
        reactor.flush(&[DeviceIndex(1)]).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(directory.0.join("b")).unwrap();
        file.write_at(b"not what was written", 3 * u64::from(CHUNK)).unwrap();
        file.sync_all().unwrap();
        let destination = Destination::buffer(tensor.len());
        let read = Transfer::Read { destination, pieces };
        let ticket = reactor.submit(read, Urgency::Urgent, None, Finish::nothing()).unwrap();
        let TransferError::Checksum { device, offset, .. } = ticket.wait().unwrap_err() else {
            panic!("{choice:?}: a checksum error was expected")
        };
        assert_eq!((device, offset), (DeviceIndex(1), ByteCount(3 * u64::from(CHUNK))));
    }
}

#[test]
fn many_threads_share_a_reactor_and_each_finds_its_own_bytes() {
    let directory = Directory::new("threads");
    let reactor = directory.start(PathChoice::Auto, 8);
    std::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let reactor = &reactor;
            scope.spawn(move || {
                for round in 0..16 {
                    let tensor = bytes(100_000 + 1000 * round as usize, thread * 100 + round);
                    let pieces = striped(&tensor, u64::from(thread) << 20);
                    let urgency = [Urgency::Ahead, Urgency::Urgent][round as usize % 2];
                    let source = Source::from(tensor.clone());
                    let write = Transfer::Write { source, pieces: pieces.clone() };
                    let ticket = reactor.submit(write, urgency, None, Finish::nothing()).unwrap();
                    ticket.wait().unwrap();
                    let destination = Destination::buffer(tensor.len());
                    let read = Transfer::Read { destination, pieces };
                    let ticket = reactor.submit(read, urgency, None, Finish::nothing()).unwrap();
                    assert!(ticket.wait_timeout(Duration::from_secs(60)).unwrap().is_ok());
                    assert!(ticket.take_bytes().unwrap() == tensor);
                }
            });
        }
    });
    let stats = reactor.stats();
    assert!(stats.devices.iter().all(|device| device.errors == 0 && device.bytes_written > 0));
}
