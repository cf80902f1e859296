//! Every format version's pool is opened by this version, whole; what this version does not know is
//! refused.

use std::fs::File;
use std::os::unix::fs::FileExt;

use tidelog_engine::layout::FORMAT_VERSION;
use tidelog_engine::memory::Destination;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::{check, inspect};
use tidelog_engine::pool::{OpenOptions, Pool};
use tidelog_engine::schedule::Urgency;
use tidelog_tests::fixture::{self, FixtureTensor};
use tidelog_tests::machine::Directory;

fn options(share: u32) -> OpenOptions {
    OpenOptions { share, buffered: true, huge_pages: false, ..OpenOptions::default() }
}

fn tensors_of(pool: &Pool) -> Vec<FixtureTensor> {
    let read = |(id, name): (_, Option<String>)| {
        let length = pool.length(id).unwrap();
        let memory = Destination::buffer(length as usize);
        let ticket = pool.get(id, 0..length, memory, Urgency::Urgent, None).unwrap();
        ticket.wait().unwrap();
        let crc32c = crc32c::crc32c(&ticket.take_bytes().unwrap());
        FixtureTensor { id: format!("{:032x}", id.0), name, length, crc32c }
    };
    pool.durable_tensors().unwrap().into_iter().map(read).collect()
}

#[test]
fn the_pool_of_every_format_version_is_clean_and_holds_what_it_held() {
    let fixtures = fixture::all().unwrap();
    assert!(
        fixtures.iter().any(|(_, fixture)| fixture.format_version == FORMAT_VERSION),
        "the present version has no fixture: cargo run -p tidelog-tests --bin tidelog-fixture"
    );
    for (path, fixture) in fixtures {
        let version = fixture.format_version;
        let directory = Directory::new(&format!("fixture-v{version}")).unwrap();
        let specs = fixture.unpack(&path, directory.path()).unwrap();
        let report = check(&specs, true, &mut |_| ()).unwrap();
        assert_eq!(report.damage, [], "version {version}");
        let tensors = fixture.shares.iter().map(Vec::len).sum::<usize>();
        assert_eq!(report.tensors, tensors as u64);
        // The second time from the checkpoint that the first open has written.
        for _ in 0..2 {
            for (share, tensors) in (0..).zip(&fixture.shares) {
                let pool = Pool::open(&specs, &options(share)).unwrap();
                assert_eq!(tensors_of(&pool), *tensors, "version {version}, share {share}");
                pool.audit().unwrap();
                pool.close().unwrap();
            }
        }
        assert_eq!(check(&specs, true, &mut |_| ()).unwrap().damage, []);
    }
}

/// Writes a number into every superblock and makes the checksums right again.
fn forge(specs: &[DeviceSpec], offset: usize, value: &[u8]) {
    for spec in specs {
        let file = File::options().read(true).write(true).open(spec.target()).unwrap();
        for at in [4096, file.metadata().unwrap().len() - 4096] {
            let mut block = vec![0; 4096];
            file.read_exact_at(&mut block, at).unwrap();
            assert_eq!(&block[..8], b"TIDELOG\0");
            block[offset..][..value.len()].copy_from_slice(value);
            block[12..16].fill(0);
            let checksum = crc32c::crc32c(&block);
            block[12..16].copy_from_slice(&checksum.to_le_bytes());
            file.write_all_at(&block, at).unwrap();
        }
    }
}

#[test]
fn versions_and_features_that_this_version_does_not_know_are_refused_by_name() {
    let (path, fixture) = fixture::all().unwrap().pop().unwrap();
    let directory = Directory::new("fixture-newer").unwrap();
    for (offset, value, named) in [
        (8, u64::from(FORMAT_VERSION + 1).to_le_bytes()[..4].to_vec(), "format version 2"),
        (24, (1_u64 << 1).to_le_bytes().to_vec(), "data-placement"),
        (24, (1_u64 << 40).to_le_bytes().to_vec(), "bit 40"),
    ] {
        let specs = fixture.unpack(&path, directory.path()).unwrap();
        forge(&specs, offset, &value);
        let Err(error) = Pool::open(&specs, &options(0)) else { panic!("opened: {named}") };
        assert!(error.to_string().contains(named), "{error}");
        let error = check(&specs, true, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains(named), "{error}");
        assert!(inspect(&specs).is_err(), "{named}");
    }
}
