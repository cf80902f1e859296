//! Writes that name a write stream (Linux 6.16), on a device that has none.

use std::fs;
use std::path::Path;

use tidelog_engine::memory::{DmaPool, Memory};
use tidelog_engine::path::{
    Action, Device, DeviceSpec, Extent, KernelDevices, OpenMode, Operation, PathChoice,
    PathProvider, PlacementHandle, Status,
};
use tidelog_engine::units::{ByteCount, DeviceIndex};
use tidelog_tests::machine::{Directory, LoopDevice, LoopOptions, skip};

use super::rig::watch;

const BLOCK: ByteCount = ByteCount(4096);

#[test]
fn the_kernel_is_told_the_write_stream_of_a_placement_handle() {
    let test = "the_kernel_is_told_the_write_stream_of_a_placement_handle";
    let _watchdog = watch(test);
    let directory = Directory::new("streams").unwrap();
    let image = directory.sparse_file("image", 1 << 20).unwrap();
    let device = match LoopDevice::attach(&image, LoopOptions::default()) {
        Ok(device) => device,
        Err(why) => return skip(test, &why),
    };
    let name = Path::new(device.node()).file_name().unwrap();
    let said = Path::new("/sys/class/block").join(name).join("queue/max_write_streams");
    match fs::read_to_string(said).as_deref().map(str::trim) {
        Ok("0") => {}
        Ok(streams) => return skip(test, &format!("a loop device has {streams} write streams")),
        Err(_) => return skip(test, "this kernel has no write streams; Linux 6.16 has"),
    }
    write(device.node(), None).unwrap();
    for place in [0, 1, 254] {
        let refused = write(device.node(), Some(PlacementHandle(place)));
        assert_eq!(refused, Err(Status::Errno(libc::EINVAL)), "stream {}", place + 1);
    }
}

/// Writes a block on a path of its own: a write that failed ends a path's writing.
fn write(node: &str, placement: Option<PlacementHandle>) -> Result<(), Status> {
    let device = Device::open(&DeviceSpec::new(node), OpenMode::default()).unwrap();
    let mut path =
        Box::new(KernelDevices::new(vec![device], PathChoice::Uring)).open(1).unwrap().path;
    assert_eq!(path.capabilities().devices[0].placement_handles, 0);
    let memory = DmaPool::new(BLOCK, false).unwrap();
    let memory = Memory::Host(memory.take(BLOCK.0 as usize).unwrap());
    let extent = Extent { offset: ByteCount(0), length: BLOCK };
    let write = Action::Write { memory, fua: false };
    let operation = Operation::new(1, DeviceIndex(0), extent, write);
    path.submit(Operation { placement, ..operation }).unwrap();
    let mut completions = Vec::new();
    while completions.is_empty() {
        path.wait(None).unwrap();
        path.poll(&mut completions);
    }
    completions.pop().unwrap().result.map_err(|error| error.status)
}
