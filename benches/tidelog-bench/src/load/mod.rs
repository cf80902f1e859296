//! Order and sizes of the next bytes, and the stamps that tell right bytes from wrong ones.

mod content;
mod lfsr;
mod stamp;
mod stream;
mod zones;

pub use content::Filler;
pub use lfsr::Lfsr;
pub use stamp::{BadBlock, Origin, STAMP_BYTES, check, stamp};
pub use stream::{BlockRange, FileOrder, FileWindow, OffsetStream, seed_of};
pub use zones::{Zoned, Zones};
