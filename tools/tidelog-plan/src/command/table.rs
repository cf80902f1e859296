//! Columns for people.

/// Columns as wide as their widest entry; all but the first stand to the right.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (column, (entry, width)) in row.iter().zip(&widths).enumerate() {
            let padding = " ".repeat(width - entry.chars().count());
            let (before, after) =
                if column == 0 { ("", padding.as_str()) } else { (padding.as_str(), "") };
            let gap = if column == 0 { " " } else { "  " };
            line.extend([gap, before, entry, after]);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_stand_under_each_other() {
        let rows = [vec!["a", "10 µs"], vec!["long", "1 s"]];
        let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(super::table(&rows), "  a     10 µs\n  long    1 s\n");
    }
}
