//! Peer DMA: controllers write out of the memory of another PCI device and read into it, and nobody
//! but them moves a byte. What lies in that memory is seen from its other side, by whoever serves
//! the device.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use tidelog_engine::memory::Memory;
use tidelog_engine::memory::peer::{PciBar, PeerBuffer, PeerRegion};
use tidelog_engine::path::checked::Checked;
use tidelog_engine::path::{Action, DataPath, DeviceSpec, Extent, Refusal};
use tidelog_engine::units::ByteCount;

use super::{collect, operation, path_to};
use crate::conformance::Failure;
use crate::peer::{CHUNK, pattern};

/// Byte that fills the host's memory, and must stay.
const HOST: u8 = 0xA5;
/// Byte that fills the second half before controllers fill it.
const BEFORE: u8 = 0x5A;
const DEPTH: u32 = 8;
/// One page, two, a list of them; what a controller takes at once, a page more, several times as
/// much.
const LENGTHS: [usize; 6] = [4 << 10, 8 << 10, 12 << 10, 256 << 10, 260 << 10, 768 << 10];

/// Fills the memory on the other side: the first half of the memory holds what the seed decides,
/// the second half something else.
///
/// # Errors
/// The file cannot be written, or is no whole mebibytes.
pub fn fill(file: &Path, seed: u64) -> Result<String, Failure> {
    let file = File::options().write(true).open(file)?;
    let half = half_of(&file)?;
    let mut chunk = vec![BEFORE; CHUNK];
    for at in (half..2 * half).step_by(CHUNK) {
        file.write_all_at(&chunk, at)?;
    }
    for at in (0..half).step_by(CHUNK) {
        pattern(seed, at, &mut chunk);
        file.write_all_at(&chunk, at)?;
    }
    Ok(format!("{} of it", ByteCount(half)))
}

/// Verifies the memory on the other side: both halves hold what the seed decides.
///
/// # Errors
/// The first byte that is another.
pub fn verify(file: &Path, seed: u64) -> Result<String, Failure> {
    let file = File::open(file)?;
    let half = half_of(&file)?;
    let (mut expected, mut found) = (vec![0; CHUNK], vec![0; CHUNK]);
    for at in (0..half).step_by(CHUNK) {
        pattern(seed, at, &mut expected);
        for side in [at, half + at] {
            file.read_exact_at(&mut found, side)?;
            if let Some(byte) = (0..CHUNK).find(|&byte| expected[byte] != found[byte]) {
                let (place, found, expected) = (side + byte as u64, found[byte], expected[byte]);
                return Err(format!("byte {place} is {found:#04x} and not {expected:#04x}").into());
            }
        }
    }
    Ok(format!("{} compared", ByteCount(2 * half)))
}

fn half_of(file: &File) -> Result<u64, Failure> {
    let half = file.metadata()?.len() / 2;
    let whole = half > 0 && half.is_multiple_of(CHUNK as u64);
    if whole { Ok(half) } else { Err("it must be whole mebibytes twice over".into()) }
}

/// Writes the first half of a BAR to the controllers, striped over all of them, and reads it back
/// into the second.
///
/// # Errors
/// The memory cannot be reached, an operation fails, or the host's memory was touched.
pub fn move_through(specs: &[DeviceSpec], address: &str, bar: u8) -> Result<String, Failure> {
    let region = PeerRegion::new(Box::new(PciBar::open(address, bar)?));
    let mut path = Checked::new(Box::new(path_to(specs, DEPTH)?));
    // All memory that this path could move bytes through.
    let pool = path.allocate(ByteCount::mib(8), false)?;
    path.register(&pool);
    let mut host = pool.take(8 << 20).ok_or("no buffer")?;
    host.fill(HOST);

    let early = region.take(4096).ok_or("no peer memory")?;
    let refused = path.submit(operation(0, 0, Extent::new(0, 4096), Action::read(early)));
    match refused.map_err(|refused| refused.reason) {
        Err(Refusal::Invalid(_)) => {}
        other => return Err(format!("memory that was not registered: {other:?}").into()),
    }
    let reach = path.register_peer(&region)?;
    let half = region.size().0 as usize / 2;
    let outward = parts(&region, half)?;
    let inward = parts(&region, half)?;
    let places = places(&outward, specs.len());
    let write = |buffer| Action::write(buffer, false);
    run(&mut path, outward, &places, write)?;
    for device in 0..specs.len() as u8 {
        path.submit(operation(0, device, Extent::NOTHING, Action::Flush))
            .map_err(|refused| refused.reason)?;
        collect(&mut path, 1)?.remove(0).result?;
    }
    let count = inward.len();
    run(&mut path, inward, &places, Action::read)?;
    match host.iter().position(|&byte| byte != HOST) {
        Some(at) => Err(format!("byte {at} of the host's memory was touched").into()),
        None => Ok(format!(
            "{} out and in again {reach}, in {count} parts over {} controllers; no byte of the host's touched",
            ByteCount(half as u64),
            specs.len()
        )),
    }
}

/// The next `bytes` of a region in parts of many lengths, one behind the other.
fn parts(region: &PeerRegion, bytes: usize) -> Result<Vec<PeerBuffer>, Failure> {
    let (mut parts, mut left) = (Vec::new(), bytes);
    for length in LENGTHS.into_iter().cycle() {
        if left == 0 {
            break;
        }
        let length = length.min(left);
        parts.push(region.take(length).ok_or("the region is smaller than it says")?);
        left -= length;
    }
    Ok(parts)
}

/// Returns the place of each part: one device after the other.
fn places(parts: &[PeerBuffer], devices: usize) -> Vec<(u8, Extent)> {
    let mut ends = vec![0; devices];
    let place = |(index, part): (usize, &PeerBuffer)| {
        let device = index % devices;
        let extent = Extent::new(ends[device], part.len() as u64);
        ends[device] += part.len() as u64;
        (device as u8, extent)
    };
    parts.iter().enumerate().map(place).collect()
}

/// Moves all parts, as many at once as there is room for.
fn run(
    path: &mut dyn DataPath,
    parts: Vec<PeerBuffer>,
    places: &[(u8, Extent)],
    action: fn(PeerBuffer) -> Action,
) -> Result<(), Failure> {
    let (mut done, count) = (Vec::new(), parts.len());
    for (tag, (part, &(device, extent))) in (0..).zip(parts.into_iter().zip(places)) {
        if path.in_flight() >= DEPTH as usize {
            done.extend(collect(path, 1)?);
        }
        let submitted = path.submit(operation(tag, device, extent, action(part)));
        submitted.map_err(|refused| refused.reason)?;
    }
    done.extend(collect(path, count - done.len())?);
    for it in &done {
        it.result?;
        if !matches!(it.memory, Some(Memory::Peer(_))) {
            return Err("another buffer came back".into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Directory;

    #[test]
    fn the_other_side_notices_a_single_byte() {
        let directory = Directory::new("peer").unwrap();
        let path = directory.path().join("memory");
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
        fill(&path, 7).unwrap();
        let error = verify(&path, 7).unwrap_err().to_string();
        assert!(error.starts_with("byte 2097152 is 0x5a"), "{error}");
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut half = vec![0; 2 << 20];
        file.read_exact_at(&mut half, 0).unwrap();
        file.write_all_at(&half, 2 << 20).unwrap();
        verify(&path, 7).unwrap();
        file.write_all_at(&[half[4097] ^ 1], (2 << 20) + 4097).unwrap();
        assert!(verify(&path, 7).unwrap_err().to_string().starts_with("byte 2101249 is"));
        assert!(verify(&path, 8).is_err(), "another seed decides otherwise");
    }
}
