//! Tables that fit the width of the terminal. If there is not enough space, empty columns are
//! removed, then long texts are truncated, then columns are omitted, but never the key columns.

use super::screen::Screen;
use std::fmt::Write;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The number of blanks between two columns.
const GAP: usize = 2;

/// The least width to which a long text is truncated.
const LONG_WIDTH_MIN: usize = 16;

/// What may happen to a column on a narrow terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It is always shown in full, since the row is useless without it.
    Key,
    /// It is omitted if there is no space; the last one first.
    Plain,
    /// Like `Plain`; its cells are times.
    Time,
    /// Like `Key`; its cells are states, which are coloured.
    State,
    /// It is truncated if there is no space.
    Long,
    /// It is shown by `-o wide` and in formats for programs only.
    Extra,
}

impl Role {
    pub(super) const fn is_time(self) -> bool {
        matches!(self, Role::Time)
    }

    pub(super) const fn is_extra(self) -> bool {
        matches!(self, Role::Extra)
    }
}

/// Rows with a header. All texts are safe to print.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) columns: Vec<(String, Role)>,
    pub(super) rows: Vec<Vec<String>>,
}

/// A rendered table.
pub(super) struct Drawn {
    /// The lines, without a line break at the end.
    pub(super) text: String,
    /// The titles of the omitted columns.
    pub(super) left_out: Vec<String>,
}

impl Table {
    pub(super) fn new(columns: &[(&str, Role)]) -> Table {
        let columns = columns.iter().map(|(title, role)| ((*title).to_owned(), *role)).collect();
        Table { columns, rows: Vec::new() }
    }

    pub(super) fn add(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Renders the table for people, as wide as the screen. With `is_wide` (`-o wide`) the width is
    /// not limited.
    pub(super) fn draw(&self, screen: &Screen, is_whole: bool) -> Drawn {
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| self.shown(row, screen)).collect();
        let mut columns: Vec<Column> = self
            .columns
            .iter()
            .enumerate()
            .filter(|(_, (_, role))| is_whole || !role.is_extra())
            .map(|(at, (title, role))| {
                let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width());
                let widest = cells.max().unwrap_or_default();
                let need = widest.max(title.width());
                Column { at, role: *role, is_empty: widest == 0, need, width: need }
            })
            .collect();
        let mut left_out = Vec::new();
        if let Some(room) = screen.width.filter(|_| !is_whole) {
            left_out =
                fit(&mut columns, room).into_iter().map(|at| self.columns[at].0.clone()).collect();
        }
        let mut text = String::new();
        let titles: Vec<String> = self.columns.iter().map(|(title, _)| title.clone()).collect();
        line(&columns, &titles, screen, false, &mut text);
        for row in &rows {
            text.push('\n');
            line(&columns, row, screen, true, &mut text);
        }
        Drawn { text, left_out }
    }

    fn shown(&self, row: &[String], screen: &Screen) -> Vec<String> {
        let cells = row.iter().zip(&self.columns);
        cells
            .map(
                |(cell, (_, role))| {
                    if role.is_time() { screen.time(cell).into_owned() } else { cell.clone() }
                },
            )
            .collect()
    }
}

/// A column of a rendered table.
struct Column {
    /// The index of the column in the table.
    at: usize,
    role: Role,
    /// Whether no row has a text in this column.
    is_empty: bool,
    /// The width of its widest cell.
    need: usize,
    width: usize,
}

/// Narrows the columns to this width. Returns the indices of the omitted columns.
fn fit(columns: &mut Vec<Column>, room: usize) -> Vec<usize> {
    let mut left_out = Vec::new();
    if width(columns) > room {
        // Empty columns are not reported as omitted.
        columns.retain(|column| !column.is_empty || column.role == Role::Key);
    }
    loop {
        columns.iter_mut().for_each(|column| column.width = column.need);
        while width(columns) > room {
            // The widest column is truncated first.
            let longest = columns
                .iter_mut()
                .filter(|column| column.role == Role::Long && column.width > LONG_WIDTH_MIN)
                .max_by_key(|column| column.width);
            let Some(longest) = longest else { break };
            longest.width -= 1;
        }
        if width(columns) <= room {
            break;
        }
        let last =
            columns.iter().rposition(|column| matches!(column.role, Role::Plain | Role::Time));
        let Some(last) = last else { break };
        left_out.insert(0, columns.remove(last).at);
    }
    left_out
}

fn width(columns: &[Column]) -> usize {
    columns.iter().map(|column| column.width + GAP).sum::<usize>().saturating_sub(GAP) + 1
}

fn line(
    columns: &[Column],
    cells: &[String],
    screen: &Screen,
    has_states: bool,
    text: &mut String,
) {
    let begin = text.len();
    for column in columns {
        let whole = cells.get(column.at).map_or("", String::as_str);
        let shown = cut(whole, column.width);
        let blanks = column.width.saturating_sub(shown.width());
        let painted = if has_states && column.role == Role::State {
            screen.painted(&shown, whole)
        } else {
            shown.as_str().into()
        };
        let gap = if text.len() == begin { 1 } else { GAP };
        // Writing to a string cannot fail.
        let _ = write!(text, "{:gap$}{painted}{:blanks$}", "", "");
    }
    text.truncate(text.trim_end_matches(' ').len().max(begin));
}

/// Truncates a text to this many columns, with an ellipsis at the end.
pub(super) fn cut(text: &str, columns_max: usize) -> String {
    if text.width() <= columns_max {
        return text.to_owned();
    }
    let mut used = 1;
    let fits = |c: &char| {
        used += c.width().unwrap_or_default();
        used <= columns_max
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs() -> Table {
        let mut table = Table::new(&[
            ("JOB", Role::Key),
            ("STATE", Role::State),
            ("CREATED", Role::Time),
            ("REASON", Role::Long),
            ("ROOT", Role::Extra),
        ]);
        table.add(["c92f64c2", "failed", "yesterday", "the worker reported an error: no pen", "r"]);
        table.add(["2bc586fd", "running", "today", "日本語", "r"]);
        table
    }

    fn lines(width: Option<usize>, is_whole: bool) -> (Vec<String>, Vec<String>) {
        let drawn = jobs().draw(&Screen::wide(width), is_whole);
        (drawn.text.lines().map(str::to_owned).collect(), drawn.left_out)
    }

    #[test]
    fn without_a_terminal_a_table_is_as_wide_as_its_cells() {
        let (lines, left_out) = lines(None, false);
        assert_eq!(
            lines,
            [
                " JOB       STATE    CREATED    REASON",
                " c92f64c2  failed   yesterday  the worker reported an error: no pen",
                " 2bc586fd  running  today      日本語",
            ]
        );
        assert!(left_out.is_empty());
    }

    #[test]
    fn on_a_terminal_long_texts_are_cut_then_columns_are_left_out_and_ids_never() {
        let (cut, left_out) = lines(Some(50), false);
        assert_eq!(cut[1], " c92f64c2  failed   yesterday  the worker reporte…");
        assert!(cut.iter().all(|line| line.width() <= 50) && left_out.is_empty());
        let (narrow, left_out) = lines(Some(40), false);
        assert_eq!(narrow[1], " c92f64c2  failed   the worker reported…");
        assert_eq!(left_out, ["CREATED"]);
        let mut table = jobs();
        table.rows.iter_mut().for_each(|row| row[3].clear());
        let drawn = table.draw(&Screen::wide(Some(30)), false);
        assert_eq!(drawn.text.lines().next(), Some(" JOB       STATE    CREATED"));
        assert!(drawn.left_out.is_empty(), "what is empty is not missed");
        let (narrowest, _) = lines(Some(10), false);
        assert!(narrowest[1].starts_with(" c92f64c2  failed   the worker repo…"));
        let (whole, _) = lines(Some(10), true);
        assert!(whole[1].ends_with("no pen  r"), "{whole:?}");
    }
}
