//! Figures in words, and text that cannot break out of its place in the page.

use crate::units::{Bandwidth, Bytes, Nanos};

/// `text` for HTML, between tags or in a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters are not allowed in HTML, and names come from programs.
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Three significant digits: `1.23 ms`, `45.6 s`.
pub fn time(time: Nanos) -> String {
    let (unit, name) = match time.0 {
        0 => return "0".to_owned(),
        1..1_000 => return format!("{} ns", time.0),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    format!("{} {name}", significant(time.0, unit))
}

/// `amount / unit` with three significant digits, rounded down.
fn significant(amount: u64, unit: u64) -> String {
    let whole = amount / unit;
    let thousandths = (u128::from(amount % unit) * 1000 / u128::from(unit)) as u64;
    match whole {
        0..10 => format!("{whole}.{:02}", thousandths / 10),
        10..100 => format!("{whole}.{}", thousandths / 100),
        _ => whole.to_string(),
    }
}

/// Decimal units, as drives are sold: `6.70 GB/s`.
pub fn rate(rate: Bandwidth) -> String {
    let (unit, name) = match rate.0 {
        0..1_000 => return format!("{} B/s", rate.0),
        1_000..1_000_000 => (1_000, "kB/s"),
        1_000_000..1_000_000_000 => (1_000_000, "MB/s"),
        _ => (1_000_000_000, "GB/s"),
    };
    format!("{} {name}", significant(rate.0, unit))
}

/// Binary units without a needless `.0`: `20 GiB`, `1.5 KiB`.
pub fn bytes(bytes: Bytes) -> String {
    bytes.to_string().replacen(".0 ", " ", 1)
}

/// `part` of `whole` in per cent, rounded.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    let tenths = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole);
    match tenths {
        0 if part > 0 => "< 0.1 %".to_owned(),
        0..100 => format!("{}.{} %", tenths / 10, tenths % 10),
        _ => format!("{} %", (tenths + 5) / 10),
    }
}

/// `part / whole` as a factor: `1.07×`.
pub fn factor(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    let thousandths = (u128::from(part) * 1000 + u128::from(whole) / 2) / u128::from(whole);
    format!("{}.{:03}×", thousandths / 1000, thousandths % 1000)
}

/// `1 stall`, `2 stalls`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_and_a_unit() {
        assert_eq!(time(Nanos(999)), "999 ns");
        assert_eq!(time(Nanos(1_234_567)), "1.23 ms");
        assert_eq!(time(Nanos(45_678_000_000)), "45.6 s");
        assert_eq!(rate(Bandwidth(6_700_000_000)), "6.70 GB/s");
        assert_eq!(bytes(Bytes(20 << 30)), "20 GiB");
        assert_eq!(bytes(Bytes(1536)), "1.5 KiB");
        assert_eq!((percent(1, 4), percent(1, 100_000)), ("25 %".into(), "< 0.1 %".into()));
        assert_eq!(factor(1_064, 1_000), "1.064×");
        assert_eq!((factor(1, 0), percent(1, 0)), ("–".into(), "–".into()));
        assert_eq!((count(1, "stall"), count(0, "stall")), ("1 stall".into(), "0 stalls".into()));
    }

    #[test]
    fn markup_in_names_stays_text() {
        assert_eq!(escape("<b a='\"'>&\u{7}"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;\u{fffd}");
    }
}
