//! Values of environment variables that are in files, as secrets are passed to containers: a
//! setting's variable with the suffix `_FILE` names a file that contains the value.

use super::files;
use super::sources::{AMQP_SERVER, PREFIX, SEPARATOR};
use super::text::SettingsFile;
use engine::text::find_byte_order_mark;
use std::collections::BTreeSet;

/// The suffix of such a variable's name.
const SUFFIX: &str = "_FILE";

/// The longest value, in bytes.
const VALUE_BYTES_MAX: u64 = 65_536;

/// Returns the environment variables that can be settings.
///
/// # Errors
///
/// Returns an error if one of them is not UTF-8, or names a file that cannot be read.
pub(super) fn read_variables() -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        if name.starts_with(PREFIX) || name.starts_with(AMQP_SERVER) {
            let text = value.into_string().map_err(|_| format!("{name} is no text in UTF-8"))?;
            found.push((name, text));
        }
    }
    read_files(found)
}

/// Replaces the variables that name files by those with the values. A newline at the end of a file
/// is not part of the value.
///
/// # Errors
///
/// Returns an error if a file cannot be read, or if the same setting also has a value.
fn read_files(variables: Vec<(String, String)>) -> Result<Vec<(String, String)>, String> {
    let known = SettingsFile::defaults().setting_names();
    let names: BTreeSet<String> = variables.iter().map(|(name, _)| name.to_uppercase()).collect();
    let read = |(variable, value): (String, String)| {
        let Some(target) = strip_file_suffix(&variable, |name| known.contains(name)) else {
            return Ok((variable, value));
        };
        if names.contains(&target.to_uppercase()) {
            return Err(format!("{variable} and {target} are both set, expected one of them"));
        }
        let text = read_value(&value).map_err(|error| {
            format!("{variable} names the file {value:?}, which cannot be read: {error}")
        })?;
        Ok((target, text))
    };
    variables.into_iter().map(read).collect()
}

/// Returns the variables that name files with values, and the files.
pub(super) fn secret_files() -> Vec<(String, String)> {
    let known = SettingsFile::defaults().setting_names();
    let of_file = |(name, file): (std::ffi::OsString, std::ffi::OsString)| {
        let (name, file) = (name.into_string().ok()?, file.into_string().ok()?);
        strip_file_suffix(&name, |name| known.contains(name))?;
        Some((name, file))
    };
    std::env::vars_os().filter_map(of_file).collect()
}

/// Returns the variable whose value is in the file that this variable names; `None` if it names no
/// such file.
fn strip_file_suffix(variable: &str, is_setting: impl Fn(&str) -> bool) -> Option<String> {
    let name = variable.get(..variable.len().checked_sub(SUFFIX.len())?)?;
    if !variable.to_uppercase().ends_with(SUFFIX) {
        return None;
    }
    if name == AMQP_SERVER {
        return Some(name.to_owned());
    }
    let lower = variable.to_lowercase();
    let setting = lower.strip_prefix(&format!("{PREFIX}{SEPARATOR}").to_lowercase())?;
    // `http.tokens_file` and `journal.file` are settings themselves.
    let is_own = name.ends_with('_') || is_setting(&setting.replace(SEPARATOR, "."));
    (!is_own).then(|| name.to_owned())
}

fn read_value(file: &str) -> std::io::Result<String> {
    let text = files::read_text(files::open_regular(file.as_ref())?, VALUE_BYTES_MAX)?;
    if let Some(encoding) = find_byte_order_mark(text.as_bytes()) {
        return Err(std::io::Error::other(format!(
            "it begins with a byte-order mark of {encoding}, which would be part of the value: \
             save it without one"
        )));
    }
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    if value.is_empty() {
        // Without a token, for example, everybody may do everything: an empty file cannot mean
        // that.
        return Err(std::io::Error::other("it is empty"));
    }
    Ok(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Vec<(String, String)>, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        read_files(variables.iter().map(owned).collect())
    }

    #[test]
    fn the_text_of_a_file_is_the_value() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        std::fs::write(path("token"), " a token\r\n").expect("written");
        let found = read(&[
            ("WORKFLOW_MANAGER__HTTP__TOKEN_FILE", &path("token")),
            ("AMQP_SERVER_FILE", &path("token")),
            ("WORKFLOW_MANAGER__BUSES__RABBIT__SERVER_FILE", &path("token")),
            ("WORKFLOW_MANAGER__HTTP__TOKENS_FILE", "/x"),
            ("WORKFLOW_MANAGER__JOURNAL__FILE", "/y"),
            ("SOME_OTHER_FILE", "/z"),
        ]);
        let expected = [
            ("WORKFLOW_MANAGER__HTTP__TOKEN", " a token"),
            ("AMQP_SERVER", " a token"),
            ("WORKFLOW_MANAGER__BUSES__RABBIT__SERVER", " a token"),
            ("WORKFLOW_MANAGER__HTTP__TOKENS_FILE", "/x"),
            ("WORKFLOW_MANAGER__JOURNAL__FILE", "/y"),
            ("SOME_OTHER_FILE", "/z"),
        ];
        assert_eq!(found, Ok(expected.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec()));
    }

    #[test]
    fn the_error_of_an_unreadable_file_names_its_variable() {
        let error = read(&[("WORKFLOW_MANAGER__HTTP__TOKEN_FILE", "/nowhere")]).expect_err("told");
        assert!(error.contains("HTTP__TOKEN_FILE") && error.contains("/nowhere"), "{error}");
        let error = read(&[("WORKFLOW_MANAGER__HTTP__TOKEN_FILE", "/dev/zero")]).expect_err("told");
        assert!(error.contains("no regular file"), "{error}");
        let marked = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(marked.path(), "\u{feff}secret\n").expect("written");
        let path = marked.path().to_string_lossy().into_owned();
        let error = read(&[("AMQP_SERVER_FILE", &path)]).expect_err("told");
        assert!(error.contains("begins with a byte-order mark"), "{error}");
        let empty = tempfile::NamedTempFile::new().expect("a file");
        let path = empty.path().to_string_lossy().into_owned();
        let error = read(&[("WORKFLOW_MANAGER__HTTP__TOKEN_FILE", &path)]).expect_err("told");
        assert!(error.contains("it is empty"), "{error}");
        let both = [("AMQP_SERVER_FILE", "/nowhere"), ("AMQP_SERVER", "amqp://a")];
        assert!(read(&both).expect_err("told").contains("both set"));
    }
}
