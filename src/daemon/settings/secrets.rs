//! Reads settings from environment variables, and from files that variables with the suffix `_FILE`
//! name. Container platforms provide secrets as such files.

use super::files;
use super::sources::{AMQP_SERVER, PREFIX, SEPARATOR};
use super::text::SettingsFile;
use engine::text::find_byte_order_mark;
use std::collections::BTreeSet;

/// The suffix of the name of a variable whose value is the name of a file.
const FILE_SUFFIX: &str = "_FILE";

/// The size limit of a file with the value of a setting, in bytes.
const VALUE_BYTES_MAX: u64 = 64 * 1024;

/// Returns the environment variables whose names begin as those of settings do, with their values.
/// If a variable names a file, reads the value from it.
///
/// # Errors
///
/// Returns an error if a value is not UTF-8, if a file cannot be read, or if a setting has both a
/// value and a file.
pub(super) fn read_variables() -> Result<Vec<(String, String)>, String> {
    let mut variables = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        if name.starts_with(PREFIX) || name.starts_with(AMQP_SERVER) {
            let text = value.into_string().map_err(|_| format!("{name} is not valid UTF-8"))?;
            variables.push((name, text));
        }
    }
    read_files(variables)
}

/// Replaces each variable that names a file by the variable of the setting, with the text of the
/// file as its value. Other variables stay the same. A line break at the end of the file is not
/// part of the value.
///
/// # Errors
///
/// Returns an error if a file cannot be read, or if the setting also has a value.
fn read_files(variables: Vec<(String, String)>) -> Result<Vec<(String, String)>, String> {
    let settings = SettingsFile::defaults().setting_names();
    let names: BTreeSet<String> = variables.iter().map(|(name, _)| name.to_uppercase()).collect();
    let resolve = |(variable, value): (String, String)| {
        let is_setting = |name: &str| settings.contains(name);
        let Some(setting_variable) = strip_file_suffix(&variable, is_setting) else {
            return Ok((variable, value));
        };
        if names.contains(&setting_variable.to_uppercase()) {
            return Err(format!(
                "{variable} and {setting_variable} are both set, expected one of them"
            ));
        }
        let text = read_value(&value).map_err(|error| {
            format!("{variable} names the file {value:?}, which cannot be read: {error}")
        })?;
        Ok((setting_variable, text))
    };
    variables.into_iter().map(resolve).collect()
}

/// Returns the environment variables that name a file with the value of a setting, each with the
/// name of the file.
pub(super) fn secret_files() -> Vec<(String, String)> {
    let settings = SettingsFile::defaults().setting_names();
    let with_file = |(name, file): (std::ffi::OsString, std::ffi::OsString)| {
        let (name, file) = (name.into_string().ok()?, file.into_string().ok()?);
        strip_file_suffix(&name, |name| settings.contains(name))?;
        Some((name, file))
    };
    std::env::vars_os().filter_map(with_file).collect()
}

/// Returns the variable of the setting whose value is in the file that `variable` names, which is
/// `variable` without the suffix `_FILE`. Returns `None` if `variable` does not name such a file.
/// `is_setting` tells whether there is a setting with a name such as `http.listen`.
fn strip_file_suffix(variable: &str, is_setting: impl Fn(&str) -> bool) -> Option<String> {
    let name = variable.get(..variable.len().checked_sub(FILE_SUFFIX.len())?)?;
    if !variable.to_uppercase().ends_with(FILE_SUFFIX) {
        return None;
    }
    if name == AMQP_SERVER {
        return Some(name.to_owned());
    }
    let lower = variable.to_lowercase();
    let setting = lower.strip_prefix(&format!("{PREFIX}{SEPARATOR}").to_lowercase())?;
    // Settings such as `http.tokens_file` and `journal.file` have the suffix in their own names.
    let is_setting_itself = name.ends_with('_') || is_setting(&setting.replace(SEPARATOR, "."));
    (!is_setting_itself).then(|| name.to_owned())
}

/// Reads the value in a file. Returns an error if it is empty or begins with a byte-order mark.
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
        // An empty token would mean that no call needs one.
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
        std::fs::write(path("token"), " a token\r\n").expect("the file is written");
        let variables = read(&[
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
        assert_eq!(variables, Ok(expected.map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec()));
    }

    #[test]
    fn the_error_of_an_unreadable_file_names_its_variable() {
        let error = read(&[("WORKFLOW_MANAGER__HTTP__TOKEN_FILE", "/nowhere")])
            .expect_err("the file is refused");
        assert!(error.contains("HTTP__TOKEN_FILE") && error.contains("/nowhere"), "{error}");
        let error = read(&[("WORKFLOW_MANAGER__HTTP__TOKEN_FILE", "/dev/zero")])
            .expect_err("the file is refused");
        assert!(error.contains("not a regular file"), "{error}");
        let marked = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(marked.path(), "\u{feff}secret\n").expect("the file is written");
        let path = marked.path().to_string_lossy().into_owned();
        let error = read(&[("AMQP_SERVER_FILE", &path)]).expect_err("the file is refused");
        assert!(error.contains("begins with a byte-order mark"), "{error}");
        let empty = tempfile::NamedTempFile::new().expect("a file");
        let path = empty.path().to_string_lossy().into_owned();
        let error = read(&[("WORKFLOW_MANAGER__HTTP__TOKEN_FILE", &path)])
            .expect_err("the file is refused");
        assert!(error.contains("it is empty"), "{error}");
        let both = [("AMQP_SERVER_FILE", "/nowhere"), ("AMQP_SERVER", "amqp://a")];
        assert!(read(&both).expect_err("two values are refused").contains("both set"));
    }
}
