//! Sizes as people write them.

use tidelog_engine::units::ByteCount;

/// Reads `4096`, `256KiB`, `256K`, `1.5T`, `24GB`. `K` and `KiB` are 1024 bytes, `KB` is 1000, and
/// so on; capitals do not matter. Python's `_options.size` takes the same and says the same.
///
/// # Errors
/// What is wrong with it, for a message that has shown it.
pub fn parse_size(text: &str) -> Result<ByteCount, String> {
    let text = text.trim_matches(' ');
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let read = factor(unit.trim_start_matches(' ')).zip(parts(number));
    let (factor, (whole, fraction, scale)) =
        read.ok_or("expected a size such as 20GiB, 24GB (10^9 bytes each) or 21474836480")?;
    let rest = fraction * factor / scale;
    let bytes = whole.checked_mul(factor).and_then(|whole| whole.checked_add(rest));
    match bytes.and_then(|bytes| u64::try_from(bytes).ok()) {
        None => Err("more than any device has".to_owned()),
        Some(0) => Err("must be above zero".to_owned()),
        Some(bytes) => Ok(ByteCount(bytes)),
    }
}

/// The bytes of a unit.
fn factor(unit: &str) -> Option<u128> {
    let unit = unit.to_ascii_lowercase();
    let mut letters = unit.chars();
    let power = match letters.next() {
        None => return Some(1),
        Some('b') if unit.len() == 1 => return Some(1),
        Some(letter) => "kmgtp".find(letter)? as u32 + 1,
    };
    match letters.as_str() {
        "" | "i" | "ib" => Some(1 << (10 * power)),
        "b" => Some(1000_u128.pow(power)),
        _ => None,
    }
}

/// The number before the point, that behind it, and what the latter is divided by.
fn parts(number: &str) -> Option<(u128, u128, u128)> {
    let (whole, fraction) = match number.split_once('.') {
        None => (number, "0"),
        Some((whole, fraction)) => (whole, fraction),
    };
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok().filter(|it| *it <= 18)?);
    Some((whole.parse().ok()?, fraction.parse().ok()?, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_table_says() {
        let table = include_str!("sizes.tsv").lines().filter(|line| !line.starts_with('#'));
        for line in table {
            let (text, expected) = line.split_once('\t').expect("two columns");
            let expected = match expected.parse() {
                Ok(bytes) => Ok(ByteCount(bytes)),
                Err(_) => Err(expected.to_owned()),
            };
            assert_eq!(parse_size(text), expected, "{text:?}");
        }
    }
}
