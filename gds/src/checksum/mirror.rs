//! The kernel's algorithm on the host, thread for thread.

const POLYNOMIAL: u32 = 0x82F6_3B78;
const ONE: u32 = 0x8000_0000;
const THREADS: u32 = 256;

fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = ONE;
    while bit != 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = (b >> 1) ^ if b & 1 == 1 { POLYNOMIAL } else { 0 };
        bit >>= 1;
    }
    product
}

fn past(mut bytes: u32) -> u32 {
    let (mut power, mut square) = (ONE, ONE >> 8);
    while bytes != 0 {
        if bytes & 1 == 1 {
            power = multiply(power, square);
        }
        square = multiply(square, square);
        bytes >>= 1;
    }
    power
}

/// The entry of the table that thread `thread` makes.
fn entry(thread: u32) -> u32 {
    (0..8).fold(thread, |entry, _| (entry >> 1) ^ if entry & 1 == 1 { POLYNOMIAL } else { 0 })
}

/// What one block of the kernel makes of its unit.
pub(super) fn unit(data: &[u8]) -> u32 {
    let size = data.len() as u32;
    let segment = size.div_ceil(THREADS);
    let mut sum = 0;
    for thread in 0..THREADS {
        let begin = (thread * segment).min(size);
        let end = (begin + segment).min(size);
        let bytes = &data[begin as usize..end as usize];
        let crc =
            bytes.iter().fold(0, |crc, byte| (crc >> 8) ^ entry((crc ^ u32::from(*byte)) & 0xff));
        sum ^= multiply(crc, past(size - end));
    }
    !(sum ^ multiply(u32::MAX, past(size)))
}
