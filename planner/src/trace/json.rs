//! JSON as people read it: the document indented, each entry of a long list on one line.
//!
//! A trace has a hundred thousand ops and a plan as many rows. Fully indented they are unreadable,
//! on one line they are not diffable; so everything below the second level stays on its line.

use serde::Serialize;
use serde_json::ser::Formatter;
use std::io::{self, Write};

/// The depth down to which every value gets a line of its own.
const INDENTED_DEPTH: usize = 2;

#[derive(Default)]
struct EntryPerLine {
    depth: usize,
    /// True if the innermost open list or object already has an entry, so that `[]` stays `[]`.
    filled: bool,
}

impl EntryPerLine {
    fn open(&mut self) {
        self.depth += 1;
        self.filled = false;
    }

    fn separate<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        match (self.depth <= INDENTED_DEPTH, first) {
            (true, true) => self.line(out),
            (true, false) => {
                out.write_all(b",")?;
                self.line(out)
            }
            (false, true) => Ok(()),
            (false, false) => out.write_all(b", "),
        }
    }

    fn line<W: ?Sized + Write>(&self, out: &mut W) -> io::Result<()> {
        out.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| out.write_all(b"  "))
    }

    fn close<W: ?Sized + Write>(&mut self, out: &mut W, bracket: u8) -> io::Result<()> {
        let own_line = self.filled && self.depth <= INDENTED_DEPTH;
        self.depth -= 1;
        if own_line {
            self.line(out)?;
        }
        self.filled = true;
        out.write_all(&[bracket])
    }
}

impl Formatter for EntryPerLine {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open();
        out.write_all(b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b']')
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.separate(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open();
        out.write_all(b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b'}')
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.separate(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }
}

/// `value` as JSON with a final newline. The same value gives the same bytes everywhere.
pub(crate) fn to_text<T: Serialize>(value: &T) -> String {
    let mut bytes = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut bytes, EntryPerLine::default());
    value
        .serialize(&mut serializer)
        .expect("plain structs of numbers and strings always serialize");
    bytes.push(b'\n');
    String::from_utf8(bytes).expect("serde_json writes UTF-8")
}

/// Fingerprints as hexadecimal text: readers that keep numbers as doubles would round a u64.
pub(crate) mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    // serde calls this with a reference.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(crate) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:016x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(|_| {
            D::Error::custom(format_args!("fingerprint {text:?} is not 1 to 16 hexadecimal digits"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::to_text;

    #[test]
    fn entries_of_lists_stay_on_one_line() {
        let value = serde_json::json!({"a": [{"x": 1, "y": [1, 2]}, {}], "b": [], "c": 3});
        let text = to_text(&value);
        let wanted = "{\n  \"a\": [\n    {\"x\": 1, \"y\": [1, 2]},\n    {}\n  ],\n  \"b\": [],\n  \"c\": 3\n}\n";
        assert_eq!(text, wanted);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
