//! Integers as they stand on the media: little endian, alignment one, so that a structure has no
//! padding and means the same on every machine.

use bytemuck::{Pod, Zeroable};

macro_rules! little_endian {
    ($(#[$doc:meta])* $name:ident, $native:ty, $bytes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
        #[repr(transparent)]
        pub(super) struct $name([u8; $bytes]);

        impl $name {
            /// The value in the machine's own byte order.
            pub(super) const fn get(self) -> $native {
                <$native>::from_le_bytes(self.0)
            }
        }

        impl From<$native> for $name {
            fn from(value: $native) -> Self {
                Self(value.to_le_bytes())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.get().fmt(out)
            }
        }
    };
}

little_endian!(
    /// 16 bits on the media.
    U16,
    u16,
    2
);
little_endian!(
    /// 32 bits on the media.
    U32,
    u32,
    4
);
little_endian!(
    /// 64 bits on the media.
    U64,
    u64,
    8
);
little_endian!(
    /// 128 bits on the media.
    U128,
    u128,
    16
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_byte_comes_first() {
        assert_eq!(bytemuck::bytes_of(&U32::from(0x0403_0201)), [1, 2, 3, 4]);
        assert_eq!(U128::from(7).get(), 7);
        assert_eq!(size_of::<(U16, U64)>(), 10, "no padding");
    }
}
