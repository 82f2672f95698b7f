//! Tables that fit the width of the terminal. A table that is too wide loses its empty columns
//! first. Then long texts are truncated. Finally columns are omitted, but never the key columns.

use super::screen::Screen;
use std::fmt::Write;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The number of blanks between two columns.
const GAP: usize = 2;

/// The minimum width to which a long text is truncated, in columns of the terminal.
const LONG_WIDTH_MIN: usize = 16;

/// How a column may be narrowed, and what its cells are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnRole {
    /// It is always shown in full, since the row is useless without it.
    Key,
    /// It is omitted if the table is too wide, the last one first.
    Plain,
    /// Like `Plain`; its cells are times.
    Time,
    /// It is shown in full, unless the table is too wide and all cells are empty. Its cells are
    /// states, which are coloured.
    State,
    /// It is truncated if the table is too wide, and omitted if all cells are empty then.
    Long,
    /// It is shown only by `-o wide` and in formats for programs.
    Extra,
}

impl ColumnRole {
    /// Returns whether the cells are times.
    pub(super) const fn is_time(self) -> bool {
        matches!(self, ColumnRole::Time)
    }

    /// Returns whether the column is omitted without `-o wide`.
    pub(super) const fn is_extra(self) -> bool {
        matches!(self, ColumnRole::Extra)
    }
}

/// A table with a header. All texts are safe to print.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    /// The title and the role of each column.
    pub(super) columns: Vec<(String, ColumnRole)>,
    /// The cells of each row, in the order of the columns.
    pub(super) rows: Vec<Vec<String>>,
}

/// A rendered table.
pub(super) struct RenderedTable {
    /// The lines, without a line break at the end.
    pub(super) text: String,
    /// The titles of the omitted columns.
    pub(super) omitted: Vec<String>,
}

impl Table {
    pub(super) fn new(columns: &[(&str, ColumnRole)]) -> Table {
        let columns = columns.iter().map(|(title, role)| ((*title).to_owned(), *role)).collect();
        Table { columns, rows: Vec::new() }
    }

    pub(super) fn add_row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Renders the table for people, as wide as the screen. With `is_wide` (`-o wide`) the width is
    /// not limited.
    pub(super) fn render(&self, screen: &Screen, is_wide: bool) -> RenderedTable {
        let rows: Vec<Vec<String>> =
            self.rows.iter().map(|row| self.format_cells(row, screen)).collect();
        let mut columns: Vec<Column> = self
            .columns
            .iter()
            .enumerate()
            .filter(|(_, (_, role))| is_wide || !role.is_extra())
            .map(|(index, (title, role))| {
                let cells = rows.iter().filter_map(|row| row.get(index)).map(|cell| cell.width());
                let cell_width = cells.max().unwrap_or(0);
                let natural_width = cell_width.max(title.width());
                Column {
                    index,
                    role: *role,
                    is_empty: cell_width == 0,
                    natural_width,
                    width: natural_width,
                }
            })
            .collect();
        let mut omitted = Vec::new();
        if let Some(width_max) = screen.width.filter(|_| !is_wide) {
            omitted = fit_columns(&mut columns, width_max)
                .into_iter()
                .map(|index| self.columns[index].0.clone())
                .collect();
        }
        let mut text = String::new();
        let titles: Vec<String> = self.columns.iter().map(|(title, _)| title.clone()).collect();
        render_row(&columns, &titles, screen, false, &mut text);
        for row in &rows {
            text.push('\n');
            render_row(&columns, row, screen, true, &mut text);
        }
        RenderedTable { text, omitted }
    }

    /// Formats the times among the cells of a row for the screen.
    fn format_cells(&self, row: &[String], screen: &Screen) -> Vec<String> {
        let cells = row.iter().zip(&self.columns);
        cells
            .map(
                |(cell, (_, role))| {
                    if role.is_time() {
                        screen.format_time(cell).into_owned()
                    } else {
                        cell.clone()
                    }
                },
            )
            .collect()
    }
}

/// A column of a rendered table.
struct Column {
    /// The index of the column in the table.
    index: usize,
    role: ColumnRole,
    /// Whether no row has a text in this column.
    is_empty: bool,
    /// The width of its widest cell or title.
    natural_width: usize,
    /// The width that it is rendered with.
    width: usize,
}

/// Narrows and omits columns until the table is at most `width_max` wide, or no other column may be
/// omitted. Returns the indices of the omitted columns, in order.
fn fit_columns(columns: &mut Vec<Column>, width_max: usize) -> Vec<usize> {
    let mut omitted = Vec::new();
    if total_width(columns) > width_max {
        // Empty columns are not reported as omitted.
        columns.retain(|column| !column.is_empty || column.role == ColumnRole::Key);
    }
    loop {
        // After a column is omitted, there is more width for long texts.
        columns.iter_mut().for_each(|column| column.width = column.natural_width);
        while total_width(columns) > width_max {
            // The widest column is truncated first.
            let widest = columns
                .iter_mut()
                .filter(|column| column.role == ColumnRole::Long && column.width > LONG_WIDTH_MIN)
                .max_by_key(|column| column.width);
            let Some(widest) = widest else { break };
            widest.width -= 1;
        }
        if total_width(columns) <= width_max {
            break;
        }
        let omitted_index = columns
            .iter()
            .rposition(|column| matches!(column.role, ColumnRole::Plain | ColumnRole::Time));
        let Some(omitted_index) = omitted_index else { break };
        omitted.insert(0, columns.remove(omitted_index).index);
    }
    omitted
}

/// Returns the width of a row, including the blank before its first cell.
fn total_width(columns: &[Column]) -> usize {
    columns.iter().map(|column| column.width + GAP).sum::<usize>().saturating_sub(GAP) + 1
}

/// Appends a row to `text`, without blanks at its end. Only states in the body are coloured, not
/// the header.
fn render_row(
    columns: &[Column],
    cells: &[String],
    screen: &Screen,
    is_body: bool,
    text: &mut String,
) {
    let row_start = text.len();
    for column in columns {
        let cell = cells.get(column.index).map_or("", String::as_str);
        let truncated = truncate(cell, column.width);
        let blanks = column.width.saturating_sub(truncated.width());
        let coloured = if is_body && column.role == ColumnRole::State {
            screen.colour(&truncated, cell)
        } else {
            truncated.as_str().into()
        };
        let gap = if text.len() == row_start { 1 } else { GAP };
        // Writing to a string cannot fail.
        let _ = write!(text, "{:gap$}{coloured}{:blanks$}", "", "");
    }
    text.truncate(text.trim_end_matches(' ').len().max(row_start));
}

/// Truncates a text to `columns_max` columns, with an ellipsis at the end.
pub(super) fn truncate(text: &str, columns_max: usize) -> String {
    if text.width() <= columns_max {
        return text.to_owned();
    }
    // The ellipsis takes one column.
    let mut width = 1;
    let fits = |c: &char| {
        width += c.width().unwrap_or(0);
        width <= columns_max
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs_table() -> Table {
        let mut table = Table::new(&[
            ("JOB", ColumnRole::Key),
            ("STATE", ColumnRole::State),
            ("CREATED", ColumnRole::Time),
            ("REASON", ColumnRole::Long),
            ("ROOT", ColumnRole::Extra),
        ]);
        table.add_row([
            "c92f64c2",
            "failed",
            "yesterday",
            "the worker reported an error: no pen",
            "r",
        ]);
        table.add_row(["2bc586fd", "running", "today", "日本語", "r"]);
        table
    }

    fn render_lines(width: Option<usize>, is_wide: bool) -> (Vec<String>, Vec<String>) {
        let rendered = jobs_table().render(&Screen::with_width(width), is_wide);
        (rendered.text.lines().map(str::to_owned).collect(), rendered.omitted)
    }

    #[test]
    fn without_a_terminal_a_table_is_as_wide_as_its_cells() {
        let (lines, omitted) = render_lines(None, false);
        assert_eq!(
            lines,
            [
                " JOB       STATE    CREATED    REASON",
                " c92f64c2  failed   yesterday  the worker reported an error: no pen",
                " 2bc586fd  running  today      日本語",
            ]
        );
        assert!(omitted.is_empty());
    }

    #[test]
    fn on_a_terminal_texts_are_truncated_then_columns_are_omitted_but_never_ids() {
        let (truncated, omitted) = render_lines(Some(50), false);
        assert_eq!(truncated[1], " c92f64c2  failed   yesterday  the worker reporte…");
        assert!(truncated.iter().all(|line| line.width() <= 50) && omitted.is_empty());
        let (narrow, omitted) = render_lines(Some(40), false);
        assert_eq!(narrow[1], " c92f64c2  failed   the worker reported…");
        assert_eq!(omitted, ["CREATED"]);
        let mut table = jobs_table();
        table.rows.iter_mut().for_each(|row| row[3].clear());
        let rendered = table.render(&Screen::with_width(Some(30)), false);
        assert_eq!(rendered.text.lines().next(), Some(" JOB       STATE    CREATED"));
        assert!(rendered.omitted.is_empty(), "empty columns are not reported");
        let (narrowest, _) = render_lines(Some(10), false);
        assert!(narrowest[1].starts_with(" c92f64c2  failed   the worker repo…"));
        let (wide, _) = render_lines(Some(10), true);
        assert!(wide[1].ends_with("no pen  r"), "{wide:?}");
    }
}
