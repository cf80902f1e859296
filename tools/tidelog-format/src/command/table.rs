//! Tables for people: columns as wide as they need to be.

use std::fmt::Write;

/// Lines of cells under a heading. Columns whose heading starts with `>` are right-aligned.
pub(super) struct TextTable {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl TextTable {
    pub(super) fn new(heading: &[&str]) -> Self {
        let right = heading.iter().map(|cell| cell.starts_with('>')).collect();
        let cells = heading.iter().map(|cell| cell.trim_start_matches('>').to_owned());
        Self { rows: vec![cells.collect()], right }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: &[String; N]) {
        self.rows.push(cells.to_vec());
    }

    pub(super) fn render(&self, indent: usize) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (cell, (width, right)) in row.iter().zip(widths.iter().zip(&self.right)) {
                let _ = if *right {
                    write!(line, "{cell:>width$}  ")
                } else {
                    write!(line, "{cell:<width$}  ")
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}
