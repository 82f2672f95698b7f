//! Prints lists in the requested format: as a table, JSON, CSV or names.

use super::arguments::{Format, FormatArguments, TimeArguments};
use super::error::ClientError;
use super::screen::{Screen, print_json};
use super::table::Table;
use serde_json::value::RawValue;
use std::io::Write;

/// A list, as the manager sent it and as a table.
pub(super) struct Listing<'a> {
    /// The whole response, for `-o json`.
    pub(super) body: &'a str,
    /// The unparsed entries of the response, for `-o jsonl`.
    pub(super) entries: Vec<Box<RawValue>>,
    /// The entries as rows, in the same order. The first column has the ids or names.
    pub(super) table: Table,
    /// The text that is printed if the list is empty.
    pub(super) empty_text: &'a str,
}

/// The format of a list, and the screen that it is printed for.
#[derive(Clone, Copy)]
pub(super) struct ListStyle {
    pub(super) format: Format,
    pub(super) screen: Screen,
    /// The requested style of times, for the formats without a limit of the width.
    times: TimeArguments,
}

impl ListStyle {
    /// Makes the style that the arguments ask for, for standard output.
    pub(super) fn from_arguments(format: FormatArguments, times: TimeArguments) -> ListStyle {
        ListStyle { format: format.format(), screen: Screen::for_stdout(times), times }
    }

    /// Returns whether the list is printed for people, with hints around it.
    pub(super) fn is_for_people(self) -> bool {
        matches!(self.format, Format::Table | Format::Wide)
    }
}

impl Listing<'_> {
    /// Prints the list in the format of the style.
    pub(super) fn print(&self, style: ListStyle, out: &mut dyn Write) -> Result<(), ClientError> {
        match style.format {
            Format::Json => print_json(self.body, out)?,
            Format::Jsonl => {
                for entry in &self.entries {
                    print_json(entry.get(), out)?;
                }
            }
            Format::Csv => self.print_csv(style, out)?,
            Format::Name => {
                for name in self.table.rows.iter().filter_map(|row| row.first()) {
                    writeln!(out, "{name}")?;
                }
            }
            Format::Table | Format::Wide if self.table.rows.is_empty() => {
                writeln!(out, "{}", self.empty_text)?;
            }
            Format::Table => print_table(&self.table, style.screen, false, out)?,
            Format::Wide => {
                print_table(&self.table, style.screen.without_width(style.times), true, out)?
            }
        }
        Ok(())
    }

    /// Prints all columns as CSV.
    fn print_csv(&self, style: ListStyle, out: &mut dyn Write) -> Result<(), ClientError> {
        let screen = style.screen.without_width(style.times);
        let mut writer = csv::Writer::from_writer(out);
        let to_error = |error: csv::Error| ClientError::Output(error.into());
        let header = self.table.columns.iter().map(|(title, _)| title.to_lowercase());
        writer.write_record(header).map_err(to_error)?;
        for row in &self.table.rows {
            let cells = row.iter().zip(&self.table.columns).map(|(cell, (_, role))| {
                if role.is_time() {
                    screen.format_time(cell).into_owned()
                } else {
                    escape_formula(cell)
                }
            });
            writer.write_record(cells).map_err(to_error)?;
        }
        writer.flush()?;
        Ok(())
    }
}

/// Prints a table for people, with a hint if columns are omitted. With `is_wide` (`-o wide`) all
/// columns are printed.
pub(super) fn print_table(
    table: &Table,
    screen: Screen,
    is_wide: bool,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let rendered = table.render(&screen, is_wide);
    writeln!(out, "{}", rendered.text)?;
    if !rendered.omitted.is_empty() {
        let names = rendered.omitted.join(", ");
        writeln!(out, "… there is no room for {names}: -o wide shows all columns")?;
    }
    Ok(())
}

/// Prefixes a cell with an apostrophe if a spreadsheet could take it for a formula (CSV injection).
/// The manager's own CSV does the same (docs/reference/http-api-jobs.md).
fn escape_formula(cell: &str) -> String {
    const FORMULA_STARTS: [char; 11] =
        ['=', '+', '-', '@', '＝', '＋', '－', '＠', '\t', '\r', '\n'];
    let apostrophe = if cell.starts_with(FORMULA_STARTS) { "'" } else { "" };
    format!("{apostrophe}{cell}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ColumnRole;

    #[test]
    fn each_format_has_all_rows() {
        let mut table = Table::new(&[("NAME", ColumnRole::Key), ("MORE", ColumnRole::Extra)]);
        table.add_row(["one", "=1+1"]);
        table.add_row(["two", "a,b"]);
        let body = r#"[{"name":"one"},{"name":"two"}]"#;
        let entries = serde_json::from_str(body).expect("entries");
        let listing = Listing { body, entries, table, empty_text: "none" };
        let print_as = |format| {
            let style = ListStyle {
                format,
                screen: Screen::with_width(None),
                times: TimeArguments::default(),
            };
            let mut out = Vec::new();
            listing.print(style, &mut out).expect("a vector takes everything");
            String::from_utf8(out).expect("a text")
        };
        assert_eq!(print_as(Format::Table), " NAME\n one\n two\n");
        assert_eq!(print_as(Format::Wide), " NAME  MORE\n one   =1+1\n two   a,b\n");
        assert_eq!(print_as(Format::Json), format!("{body}\n"));
        assert_eq!(print_as(Format::Jsonl), "{\"name\":\"one\"}\n{\"name\":\"two\"}\n");
        assert_eq!(print_as(Format::Csv), "name,more\none,'=1+1\ntwo,\"a,b\"\n");
        assert_eq!(print_as(Format::Name), "one\ntwo\n");
    }
}
