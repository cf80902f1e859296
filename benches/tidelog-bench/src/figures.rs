//! Numbers as fio prints them.

/// `12.5k`, `400k`, `7`: a count in at most four characters and a unit.
pub fn short_count(number: f64) -> String {
    let (mut number, mut unit) = (number, "");
    for next in ["k", "M", "G"] {
        if number < 9_999.5 || (unit.is_empty() && number < 10_000.0) {
            break;
        }
        number /= 1000.0;
        unit = next;
    }
    digits(number, unit, !unit.is_empty())
}

/// A rate in binary units: `2048MiB/s`.
pub fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", scaled(bytes_per_second / 1024.0, 1024.0, ["KiB", "MiB", "GiB", "TiB"]))
}

/// Formats a rate in decimal units: `2147MB/s`.
pub(crate) fn decimal_rate(bytes_per_second: f64) -> String {
    format!("{}/s", scaled(bytes_per_second / 1000.0, 1000.0, ["kB", "MB", "GB", "TB"]))
}

/// An amount in binary units: `1984KiB`.
pub(crate) fn amount(bytes: f64) -> String {
    scaled(bytes / 1024.0, 1024.0, ["KiB", "MiB", "GiB", "TiB"])
}

/// Formats an amount in decimal units: `2032kB`.
pub(crate) fn decimal_amount(bytes: f64) -> String {
    scaled(bytes / 1000.0, 1000.0, ["kB", "MB", "GB", "TB"])
}

fn scaled(number: f64, step: f64, units: [&str; 4]) -> String {
    let (mut number, mut unit) = (number, units[0]);
    for next in &units[1..] {
        if number < 9_999.5 {
            break;
        }
        number /= step;
        unit = next;
    }
    digits(number, unit, unit != units[0])
}

/// Three digits, if a fraction is called for.
fn digits(number: f64, unit: &str, fraction: bool) -> String {
    let places = match number {
        _ if !fraction => 0,
        number if number < 10.0 => 2,
        number if number < 100.0 => 1,
        _ => 0,
    };
    format!("{number:.places$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_rates_look_as_in_fio() {
        assert_eq!(short_count(9920.0), "9920");
        assert_eq!(short_count(10_560.0), "10.6k");
        assert_eq!(short_count(412_000.0), "412k");
        assert_eq!(rate(40_632_320.0), "38.8MiB/s");
        assert_eq!(rate(13.0 * 1024.0 * 1024.0 * 1024.0), "13.0GiB/s");
        assert_eq!(decimal_amount(2_031_616.0), "2032kB");
    }
}
