//! Opening and making devices, on a real file system.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::path::tests::Directory;

const BUFFERED: OpenMode = OpenMode { buffered: true, exclusive: false, read_only: false };
const SIZE: ByteCount = ByteCount::mib(2);

#[test]
fn a_list_of_devices_is_read_in_order() {
    let specs = DeviceSpec::parse_list("/a/tide, /b/tide").unwrap();
    assert_eq!(specs, [DeviceSpec::new("/a/tide"), DeviceSpec::new("/b/tide")]);
    assert_eq!("/dev/nvme0n1".parse(), Ok(DeviceSpec::new("/dev/nvme0n1")));
}

#[test]
fn lists_that_name_no_pool_are_refused() {
    let empty = |list: &str, position| SpecError::Empty { position, list: list.into() };
    assert_eq!(DeviceSpec::parse_list(""), Err(empty("", 1)));
    assert_eq!(DeviceSpec::parse_list("/a,"), Err(empty("/a,", 2)));
    assert_eq!("".parse::<DeviceSpec>(), Err(empty("", 1)));
    let twice = DeviceSpec::parse_list("/a,/b,/a").unwrap_err().to_string();
    assert!(twice.starts_with("/a is named twice"), "{twice}");
    let many: Vec<String> = (0..65).map(|index| format!("/{index}")).collect();
    assert_eq!(DeviceSpec::parse_list(&many.join(",")), Err(SpecError::TooMany { count: 65 }));
    assert_eq!(DeviceSpec::parse_list(&many[1..].join(",")).unwrap().len(), DEVICES_MAX);
}

#[test]
fn a_comma_of_a_name_is_escaped_and_one_that_may_be_of_a_name_is_refused() {
    let names = |list: &str| {
        let specs = DeviceSpec::parse_list(list);
        specs.map(|specs| specs.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(names(r"/no\,one/tide,/b").unwrap(), ["/no,one/tide", "/b"]);
    assert_eq!(names(r"/a\b, /c\\, /d\\\, ").unwrap(), [r"/a\b", r"/c\", r"/d\,"]);
    assert_eq!(names(r"/e\").unwrap(), [r"/e\"]);
    let directory = Directory::new();
    let within = |name: &str| directory.path().join(name).display().to_string();
    std::fs::create_dir(within("a,b")).unwrap();
    std::fs::create_dir(within("c")).unwrap();
    let (folder, other, new) = (within("a,b"), within("c"), within("x,y"));
    for list in [
        folder.clone(),
        format!("{folder}/tide"),
        format!("{other},{folder}"),
        format!("{folder},{other}"),
        new.clone(),
        format!("{other},tide.img"),
    ] {
        let refused = names(&list);
        assert!(matches!(refused, Err(SpecError::CommaInName { .. })), "{list}: {refused:?}");
        assert!(refused.unwrap_err().to_string().contains(r"write \,"));
    }
    let escaped = format!("{},{other}", folder.replace(',', r"\,"));
    assert_eq!(names(&escaped).unwrap(), [folder, other]);
    assert_eq!(names(&new.replace(',', r"\,")).unwrap(), [new]);
}

#[test]
fn a_directory_is_a_device_by_the_file_in_it() {
    let directory = Directory::new();
    let spec = DeviceSpec::new(directory.path());
    assert!(!spec.exists());
    assert!(matches!(Device::open(&spec, BUFFERED), Err(DeviceOpenError::Missing { .. })));
    let device = Device::create(&spec, SIZE, false, OpenMode::default()).unwrap();
    assert_eq!(device.path(), directory.path().join(FILE_IN_DIRECTORY));
    assert_eq!((device.kind(), device.size()), (DeviceKind::File, SIZE));
    assert!(spec.exists() && device.is_direct());
    assert!(device.has_volatile_cache(), "the file system has records of its own to write");
    drop(device);
    assert_eq!(Device::open(&spec, BUFFERED).unwrap().size(), SIZE);
}

#[test]
fn a_disk_has_a_volatile_cache_unless_the_kernel_says_that_it_has_none() {
    let directory = Directory::new();
    let disk = directory.path().join("disk");
    let partition = disk.join("partition");
    std::fs::create_dir_all(disk.join("queue")).unwrap();
    std::fs::create_dir(&partition).unwrap();
    assert!(!says_write_through(&disk), "it says nothing");
    for (said, through) in [("write back\n", false), ("write through\n", true)] {
        std::fs::write(disk.join("queue/write_cache"), said).unwrap();
        assert_eq!([&disk, &partition].map(|it| says_write_through(it)), [through; 2], "{said}");
    }
}

#[test]
fn a_disk_has_as_many_write_streams_as_the_kernel_says_and_a_partition_none() {
    let directory = Directory::new();
    let disk = directory.path().join("disk");
    let partition = disk.join("partition");
    std::fs::create_dir_all(disk.join("queue")).unwrap();
    std::fs::create_dir(&partition).unwrap();
    assert_eq!(write_streams_of(&disk), 0, "kernels before 6.16 say nothing");
    for (said, streams) in [("0\n", 0), ("8\n", 8), ("65535\n", 255), ("many\n", 0)] {
        std::fs::write(disk.join("queue/max_write_streams"), said).unwrap();
        assert_eq!([&disk, &partition].map(|it| write_streams_of(it)), [streams, 0], "{said}");
    }
}

#[test]
fn the_controllers_of_a_namespace_are_above_it_or_linked_from_its_subsystem() {
    let directory = Directory::new();
    let make = |path: &str, transport: Option<&str>| {
        let path = directory.path().join(path);
        std::fs::create_dir_all(&path).unwrap();
        if let Some(transport) = transport {
            std::fs::write(path.join("transport"), transport).unwrap();
            std::fs::write(path.join("subsysnqn"), "nqn").unwrap();
        }
        path
    };
    let alone = make("pci/nvme/nvme0", Some("pcie\n"));
    let partition = make("pci/nvme/nvme0/nvme0n1/nvme0n1p1", None);
    let found = std::slice::from_ref(&alone);
    assert_eq!(controllers_of(&partition), found);
    assert_eq!(controllers_of(partition.parent().unwrap()), found);
    assert!(!is_over_a_fabric(&partition));

    let remote = make("fabrics/nvme1", Some("tcp\n"));
    let shared = make("virtual/nvme-subsys0/nvme0n1", None);
    let subsystem = shared.parent().unwrap();
    std::fs::write(subsystem.join("subsysnqn"), "nqn").unwrap();
    std::os::unix::fs::symlink(&alone, subsystem.join("nvme0")).unwrap();
    assert_eq!(controllers_of(&shared), [subsystem.join("nvme0")]);
    assert!(!is_over_a_fabric(&shared));
    std::os::unix::fs::symlink(&remote, subsystem.join("nvme1")).unwrap();
    assert_eq!(controllers_of(&shared).len(), 2);
    assert!(is_over_a_fabric(&shared));

    assert!(controllers_of(&make("virtual/block/loop0", None)).is_empty());
}

#[test]
fn every_byte_of_a_new_file_is_reserved_unless_sparse_was_asked_for() {
    let directory = Directory::new();
    for (name, sparse) in [("full", false), ("sparse", true)] {
        let device = Device::create(&directory.spec(name), SIZE, sparse, BUFFERED).unwrap();
        let blocks = device.file().metadata().unwrap().blocks() * 512;
        assert_eq!(blocks >= SIZE.0, !sparse, "{name}: {blocks} bytes are on disk");
        assert_eq!(device.size(), SIZE);
    }
}

#[test]
fn a_file_that_exists_is_never_made_again_nor_shortened() {
    let directory = Directory::new();
    let spec = directory.spec("precious");
    std::fs::write(spec.target(), b"somebody's data").unwrap();
    let again = Device::create(&spec, SIZE, false, BUFFERED);
    assert!(matches!(again, Err(DeviceOpenError::Exists { .. })));
    assert_eq!(std::fs::read(spec.target()).unwrap(), b"somebody's data");
    let mut device = Device::open(&spec, BUFFERED).unwrap();
    device.grow(ByteCount(4), false).unwrap();
    assert_eq!(device.size(), ByteCount(15));
    device.grow(SIZE, false).unwrap();
    assert_eq!((device.size().0, device.file().metadata().unwrap().len()), (SIZE.0, SIZE.0));
    assert!(std::fs::read(spec.target()).unwrap().starts_with(b"somebody's data"));
}

#[test]
fn no_file_is_made_where_a_device_was_meant() {
    let mistyped = DeviceSpec::new(format!("/dev/nvme99n{}", std::process::id()));
    let made = Device::create(&mistyped, SIZE, true, BUFFERED);
    let is_there = mistyped.exists();
    let _ = std::fs::remove_file(mistyped.target());
    assert!(matches!(made, Err(DeviceOpenError::Missing { .. })), "{made:?}");
    assert!(!is_there);
    let in_memory = DeviceSpec::new(format!("/dev/shm/tidelog-{}", std::process::id()));
    let made = Device::create(&in_memory, SIZE, true, BUFFERED).map(drop);
    let _ = std::fs::remove_file(in_memory.target());
    made.unwrap();
}

#[test]
fn a_sparse_file_is_reserved_unless_it_is_to_stay_sparse() {
    let directory = Directory::new();
    let spec = directory.spec("sparse");
    std::fs::File::create(spec.target()).unwrap().set_len(SIZE.0).unwrap();
    let mut device = Device::open(&spec, BUFFERED).unwrap();
    let reserved = |device: &Device| device.file().metadata().unwrap().blocks() * 512;
    device.grow(SIZE, true).unwrap();
    assert_eq!(reserved(&device), 0);
    device.grow(SIZE, false).unwrap();
    assert!(reserved(&device) >= SIZE.0, "{} bytes are reserved", reserved(&device));
    assert_eq!(device.size(), SIZE);
}

#[test]
fn a_file_that_does_not_fit_is_refused_with_its_size_and_leaves_nothing_behind() {
    let directory = Directory::new();
    let spec = directory.spec("huge");
    let refused = Device::create(&spec, ByteCount(1 << 60), false, BUFFERED).unwrap_err();
    assert!(matches!(refused, DeviceOpenError::Reserve { .. }), "{refused}");
    assert!(refused.to_string().contains("1 EiB"), "{refused}");
    assert!(!spec.exists());
    let beyond = Device::create(&spec, ByteCount(u64::MAX), false, BUFFERED);
    assert!(matches!(beyond, Err(DeviceOpenError::Reserve { .. })));
}

#[test]
fn what_is_no_device_is_refused_by_what_it_is() {
    let refused = Device::open(&DeviceSpec::new("/dev/null"), BUFFERED).unwrap_err();
    assert!(refused.to_string().contains("/dev/null is a character device"), "{refused}");
    let directory = Directory::new();
    std::fs::create_dir(directory.path().join(FILE_IN_DIRECTORY)).unwrap();
    let refused = Device::open(&DeviceSpec::new(directory.path()), BUFFERED).unwrap_err();
    assert!(refused.to_string().contains("is a directory"), "{refused}");
}

#[test]
fn a_file_system_without_o_direct_is_refused_unless_buffered_was_asked_for() {
    // procfs has files, and no O_DIRECT.
    let spec = DeviceSpec::new("/proc/self/comm");
    let refused = Device::open(&spec, OpenMode::default()).unwrap_err();
    assert!(matches!(refused, DeviceOpenError::NoDirect { .. }), "{refused}");
    assert!(!Device::open(&spec, BUFFERED).unwrap().is_direct());
}

#[test]
#[ignore = "loses the contents of the block device named by TIDELOG_BLOCK_DEVICE"]
fn a_block_device_is_measured_claimed_and_deallocated() {
    use crate::memory::DmaPool;
    use crate::path::{Action, Extent, KernelDevices, Operation, PathChoice, PathProvider};
    use crate::units::DeviceIndex;

    let spec = DeviceSpec::new(std::env::var("TIDELOG_BLOCK_DEVICE").unwrap());
    let claim = OpenMode { exclusive: true, ..OpenMode::default() };
    let device = Device::open(&spec, claim).unwrap();
    assert_eq!(device.kind(), DeviceKind::Block);
    assert!(device.size() >= ByteCount::mib(1), "{}", device.size());
    assert!([512, 4096].contains(&device.logical_block()));
    assert!(matches!(Device::open(&spec, claim), Err(DeviceOpenError::InUse { .. })));
    for choice in [PathChoice::Uring, PathChoice::Posix] {
        let devices = vec![Device::open(&spec, OpenMode::default()).unwrap()];
        let mut path = Box::new(KernelDevices::new(devices, choice)).open(4).unwrap().path;
        let pool = DmaPool::new(ByteCount::kib(8), false).unwrap();
        let extent = Extent::new(4096, 4096);
        let mut run = |action: Action| {
            let operation = Operation::new(1, DeviceIndex(0), extent, action);
            path.submit(operation).unwrap();
            let mut completions = Vec::new();
            while path.poll(&mut completions) == 0 {
                path.wait(None).unwrap();
            }
            completions.pop().unwrap()
        };
        let mut buffer = pool.take(4096).unwrap();
        buffer.fill(6);
        run(Action::write(buffer, true)).result.unwrap();
        let read = run(Action::read(pool.take(4096).unwrap()));
        assert!(read.into_buffer().unwrap().iter().all(|&byte| byte == 6));
        run(Action::WriteZeroes).result.unwrap();
        let read = run(Action::read(pool.take(4096).unwrap()));
        assert!(read.into_buffer().unwrap().iter().all(|&byte| byte == 0));
        run(Action::Deallocate).result.unwrap();
    }
}
