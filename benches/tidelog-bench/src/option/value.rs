//! Values as fio parses them.

use std::time::Duration;

/// Base of `k`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KbBase {
    /// fio's default: `k` and `kb` are 1024, and `kib` is 1000.
    #[default]
    Compatible,
    /// `kb_base=1000`: `k` and `kb` are 1000, and `kib` is 1024.
    International,
}

/// An amount of a device: bytes, or a share of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Bytes.
    Bytes(u64),
    /// Percent of the device.
    Percent(u8),
}

impl Amount {
    /// The bytes, of a device of `whole` bytes.
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (u128::from(whole) * u128::from(percent) / 100) as u64,
        }
    }
}

/// Reads a number of bytes: `4096`, `4k`, `1m`, `2GiB`.
///
/// # Errors
/// What is wrong with it.
pub fn bytes(text: &str, base: KbBase) -> Result<u64, String> {
    const UNITS: &str = "kmgtp";
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    let wrong = || format!("{text:?} is no number of bytes; write 4096, 4k, 1m, 2g");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let (prefix, rest) = match unit.chars().next() {
        None | Some('b') if unit.len() <= 1 => return Ok(number),
        Some(prefix) => (prefix, &unit[prefix.len_utf8()..]),
        None => return Err(wrong()),
    };
    let power = UNITS.find(prefix).ok_or_else(wrong)? as u32 + 1;
    let swapped = match rest {
        "" | "b" | "i" => false,
        "ib" => true,
        _ => return Err(wrong()),
    };
    let binary = swapped == (base == KbBase::International);
    let factor: u64 = if binary { 1 << (10 * power) } else { 1000_u64.pow(power) };
    number.checked_mul(factor).ok_or_else(|| format!("{text} is more than any device has"))
}

/// Reads a number of bytes, or a percentage.
///
/// # Errors
/// What is wrong with it.
pub fn amount(text: &str, base: KbBase) -> Result<Amount, String> {
    match text.trim().strip_suffix('%') {
        None => bytes(text, base).map(Amount::Bytes),
        Some(percent) => self::percent(percent).map(Amount::Percent),
    }
}

/// Reads a percentage.
///
/// # Errors
/// What is wrong with it.
pub fn percent(text: &str) -> Result<u8, String> {
    let number = text.trim().parse::<u8>().ok().filter(|percent| *percent <= 100);
    number.ok_or_else(|| format!("{text:?} is no percentage; write 0 to 100"))
}

/// Reads a time: seconds, or with a unit `us`, `ms`, `s`, `m`, `h`, `d`.
///
/// # Errors
/// What is wrong with it.
pub fn time(text: &str) -> Result<Duration, String> {
    time_in(text, 1_000_000)
}

/// Reads a time range, `4` or `4-8`, of seconds where there is no unit.
///
/// # Errors
/// What is wrong with it.
pub fn delay(text: &str) -> Result<(Duration, Duration), String> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let (from, to) = (time(from)?, time(to)?);
    if from > to { Err(format!("{text}: the shorter time comes first")) } else { Ok((from, to)) }
}

/// Reads a time in units of `unit_micros` microseconds where none is given.
///
/// # Errors
/// What is wrong with it.
pub fn time_in(text: &str, unit_micros: u64) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("{text:?} is no time; write 30, 500ms, 2m");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let micros = match unit.to_ascii_lowercase().as_str() {
        "us" | "usec" => 1,
        "ms" | "msec" => 1000,
        "" => unit_micros,
        "s" | "sec" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(micros).map(Duration::from_micros).ok_or_else(wrong)
}

/// Reads a switch. A switch without a value is on; the callers give that as `1`.
///
/// # Errors
/// What is wrong with it.
pub fn switch(text: &str) -> Result<bool, String> {
    match text.trim() {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(format!("{text:?} is no switch; write 0 or 1")),
    }
}

/// Reads a whole number of at least `least`.
///
/// # Errors
/// What is wrong with it.
pub fn number(text: &str, least: u64) -> Result<u64, String> {
    let number = text.trim().parse().ok().filter(|number| *number >= least);
    number.ok_or_else(|| format!("{text:?} is no number; write a whole one of at least {least}"))
}

/// Reads a list separated by colons, in which `\:` is a colon.
pub fn colon_list(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut letters = text.trim().chars().peekable();
    while let Some(letter) = letters.next() {
        let last = parts.len() - 1;
        match letter {
            '\\' if letters.next_if_eq(&':').is_some() => parts[last].push(':'),
            ':' => parts.push(String::new()),
            other => parts[last].push(other),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Reads a set of processors: `0-3,8`.
///
/// # Errors
/// What is wrong with it.
pub fn processors(text: &str) -> Result<Vec<usize>, String> {
    let wrong = || format!("{text:?} is no set of processors; write 0-3,8");
    let mut set = Vec::new();
    for part in text.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let [from, to] = [from, to].map(|end| end.trim().parse::<usize>().map_err(|_| wrong()));
        let (from, to) = (from?, to?);
        if from > to || to >= 4096 {
            return Err(wrong());
        }
        set.extend(from..=to);
    }
    Ok(set)
}

/// NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// Every one.
    All,
    /// Some of the values.
    Some(Vec<usize>),
}

/// Reads a set of NUMA nodes: `0,2-3`, or `all`.
///
/// # Errors
/// What is wrong with it.
pub fn nodes(text: &str) -> Result<Nodes, String> {
    if text.trim() == "all" {
        return Ok(Nodes::All);
    }
    let set =
        processors(text).map_err(|_| format!("{text:?} is no set of nodes; write 0,2-3, or all"));
    set.map(Nodes::Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_fio_reads_them() {
        // Each was asked of fio 3.33 (`fio --rw=write --bs=512 --size=...`).
        for (text, expected) in [
            ("512", 512),
            ("64KB", 65536),
            ("64k", 65536),
            ("64K", 65536),
            ("64kb", 65536),
            ("64Ki", 65536),
            ("64KiB", 64000),
            ("1MiB", 1_000_000),
        ] {
            assert_eq!(bytes(text, KbBase::Compatible), Ok(expected), "{text}");
        }
        assert_eq!(bytes("64KiB", KbBase::International), Ok(65536));
        assert_eq!(bytes("64k", KbBase::International), Ok(64000));
    }

    #[test]
    fn what_is_no_number_of_bytes_is_refused() {
        for text in ["", "k", "4q", "-4k", "1.5m", "4kbb", "99999999999p"] {
            assert!(bytes(text, KbBase::Compatible).is_err(), "{text}");
        }
    }

    #[test]
    fn times_have_units_and_amounts_percentages() {
        assert_eq!(time("10"), Ok(Duration::from_secs(10)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        assert!(time("fast").is_err());
        assert_eq!(amount("50%", KbBase::Compatible).map(|half| half.of(1000)), Ok(500));
        assert!(amount("101%", KbBase::Compatible).is_err());
    }

    #[test]
    fn a_colon_may_be_part_of_a_name() {
        assert_eq!(colon_list(r"/dev/a:/dev/b"), ["/dev/a", "/dev/b"]);
        assert_eq!(colon_list(r"/dev/pci-0000\:01:/b"), ["/dev/pci-0000:01", "/b"]);
    }

    #[test]
    fn processors_come_in_ranges() {
        assert_eq!(processors("0-2,5"), Ok(vec![0, 1, 2, 5]));
        assert!(processors("3-1").is_err() && processors("x").is_err());
    }
}
