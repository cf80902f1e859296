//! GPU memory that gdrcopy maps: the bytes in the mapping are the GPU's.

use tidelog_engine::memory::peer::PeerMemory;
use tidelog_gds::cuda::Stream;
use tidelog_gds::gdr::{GdrError, GdrLibrary, MappedMemory};
use tidelog_tests::machine::skip;

use super::{cost, gpu, pattern};

#[test]
fn memory_that_gdrcopy_maps_is_the_gpus() {
    let test = "memory_that_gdrcopy_maps_is_the_gpus";
    const BYTES: usize = 16 << 20;
    let Some(gpu) = gpu(test) else { return };
    let library = match GdrLibrary::open(None) {
        Ok(library) => library,
        Err(why) => return skip(test, &why.to_string()),
    };
    assert_eq!(library.missing(), [""; 0], "{}", library.path().display());
    let memory = match MappedMemory::new(&library, &gpu, BYTES) {
        Ok(memory) => memory,
        // No kernel module, or one that this process may not open.
        Err(why @ GdrError::NoDriver) => return skip(test, &why.to_string()),
        Err(why) => panic!("{why}"),
    };
    let (mapped, length) = memory.span();
    assert_eq!(length, BYTES);
    let stream = Stream::new(&gpu).unwrap();
    let bytes = pattern(BYTES);
    // SAFETY: both outlive the synchronisation, and nobody else touches them.
    unsafe { stream.copy_in(bytes.as_ptr().cast_mut(), memory.base(), BYTES) }.unwrap();
    stream.synchronize().unwrap();
    let mut found = vec![0_u8; BYTES];
    let read = cost(BYTES, || {
        // SAFETY: the mapping is as long, and the GPU does not write it meanwhile.
        unsafe { mapped.as_ptr().copy_to_nonoverlapping(found.as_mut_ptr(), BYTES) };
    });
    assert!(found == bytes, "the mapping has other bytes than the GPU");
    let other: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    let written = cost(BYTES, || {
        // SAFETY: as above, and nobody reads it meanwhile.
        unsafe { mapped.as_ptr().copy_from_nonoverlapping(other.as_ptr(), BYTES) };
    });
    // SAFETY: both outlive the synchronisation, and nobody else touches them.
    unsafe { stream.copy_out(memory.base(), found.as_mut_ptr(), BYTES) }.unwrap();
    stream.synchronize().unwrap();
    assert!(found == other, "the GPU has other bytes than were written through the mapping");
    println!(
        "FACT {}: the processor reads it at {read}, and writes it at {written}",
        memory.describe()
    );
}
