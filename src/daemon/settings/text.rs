//! Parses settings files within limits. A file that is too large, or whose aliases expand
//! exponentially ("billion laughs"), is rejected before it takes much memory.

use super::files;
use super::sources::collect_names;
use config::{ConfigError, Map, Source, Value, ValueKind};
use engine::text::find_nearest;
use std::collections::BTreeSet;
use std::path::Path;

/// The text of `config/default.yaml`, which names and explains every setting.
pub const DEFAULTS: &str = include_str!("../../../config/default.yaml");

/// The largest settings file, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// How many events of the parser aliases may repeat in one file.
const ALIASED_VALUES_MAX: usize = 10_000;

/// Removes a string from a deserializer's error, because it may be a secret in the wrong place.
pub(super) fn redact_values(error: &str) -> String {
    /// What the deserializer writes before a string.
    const QUOTE_START: &str = "invalid type: string \"";
    let Some((before, quoted)) = error.split_once(QUOTE_START) else { return error.to_owned() };
    let value_end = quoted.find("\", expected").map_or(quoted.len(), |quote_index| quote_index + 1);
    format!("{before}invalid type: a string{}", &quoted[value_end..])
}

/// Adds a suggestion to a deserializer's error about an unknown setting, if there is a similar one.
pub(super) fn add_suggestion(error: &str) -> String {
    let with_suggestion = || {
        let (before, after) = error.split_once("unknown field `")?;
        let (name, expected) = after.split_once("`, expected ")?;
        // Every second part is between backticks.
        let known_names = expected.split('`').skip(1).step_by(2);
        let suggestion = find_nearest(name, known_names)?;
        Some(format!(
            "{before}unknown field `{name}`; did you mean `{suggestion}`? Expected {expected}"
        ))
    };
    with_suggestion().unwrap_or_else(|| error.to_owned())
}

/// The parsed content of a settings file.
#[derive(Clone, Debug)]
pub(super) struct SettingsFile {
    values: Map<String, Value>,
}

impl SettingsFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is too large, or is not a YAML mapping.
    pub(super) fn read(file: &Path) -> Result<SettingsFile, String> {
        let (size_bytes, open_file) = files::open_regular(file)
            .and_then(|open_file| Ok((open_file.metadata()?.len(), open_file)))
            .map_err(|error| format!("it cannot be read: {error}"))?;
        if size_bytes > FILE_BYTES_MAX {
            return Err(format!(
                "it has more than {FILE_BYTES_MAX} bytes, which no settings need; is it another \
                 file?"
            ));
        }
        let text = files::read_text(open_file, FILE_BYTES_MAX)
            .map_err(|error| format!("it cannot be read: {error}"))?;
        SettingsFile::parse(&text, &file.display().to_string())
    }

    /// Returns the defaults of all settings.
    pub(super) fn defaults() -> SettingsFile {
        SettingsFile::parse(DEFAULTS, "config/default.yaml").expect("config/default.yaml is valid")
    }

    /// Parses the text of a file; `file` is its name in errors.
    pub(super) fn parse(text: &str, file: &str) -> Result<SettingsFile, String> {
        // YAML may begin with the byte-order mark of UTF-8.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let options = serde_yaml::options! {
            alias_limits: serde_yaml::alias_limits! {
                max_total_replayed_events: ALIASED_VALUES_MAX
            },
        };
        let value: Option<serde_json::Value> = serde_yaml::from_str_with_options(text, options)
            .map_err(|error| error.without_snippet().to_string())?;
        match value {
            None | Some(serde_json::Value::Null) => Ok(SettingsFile { values: Map::new() }),
            Some(serde_json::Value::Object(keys)) => {
                Ok(SettingsFile { values: to_table(keys, &file.to_owned()) })
            }
            Some(_) => Err("expected sections, such as `http: { listen: … }`".to_owned()),
        }
    }

    /// Returns the names of all settings that have a value, such as `http.listen`.
    pub(super) fn setting_names(&self) -> BTreeSet<String> {
        let mut names = Vec::new();
        self.values.iter().for_each(|(key, value)| collect_names(key.clone(), value, &mut names));
        names.into_iter().collect()
    }

    /// Removes a setting. Returns whether the file had it.
    pub(super) fn remove(&mut self, section: &str, key: &str) -> bool {
        let section_value = self.values.get_mut(section).map(|value| &mut value.kind);
        let Some(ValueKind::Table(table)) = section_value else { return false };
        table.remove(key).is_some()
    }

    /// Returns all settings as one value.
    pub(super) fn into_value(self) -> Value {
        self.values.into()
    }

    /// Returns the values of the sections, by name.
    pub(super) fn values(&self) -> &Map<String, Value> {
        &self.values
    }

    /// Returns whether this is a workflow file: its key `workflows` contains workflows instead of
    /// the names of workflow files.
    pub(super) fn has_workflows(&self) -> bool {
        let Some(ValueKind::Array(workflows)) =
            self.values.get("workflows").map(|value| &value.kind)
        else {
            return false;
        };
        workflows.iter().any(|workflow| matches!(workflow.kind, ValueKind::Table(_)))
    }
}

impl Source for SettingsFile {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        Ok(self.values.clone())
    }
}

/// Converts a JSON object to a table of settings that come from `file`, which is a `String` because
/// [`Value::new`] requires one.
fn to_table(keys: serde_json::Map<String, serde_json::Value>, file: &String) -> Map<String, Value> {
    keys.into_iter().map(|(key, value)| (key, to_value(value, file))).collect()
}

/// Converts a JSON value to a setting that comes from `file`.
fn to_value(value: serde_json::Value, file: &String) -> Value {
    let kind = match value {
        serde_json::Value::Null => ValueKind::Nil,
        serde_json::Value::Bool(flag) => ValueKind::Boolean(flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => ValueKind::I64(integer),
            (None, Some(integer)) => ValueKind::U64(integer),
            (None, None) => ValueKind::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => ValueKind::String(text),
        serde_json::Value::Array(list) => {
            ValueKind::Array(list.into_iter().map(|item| to_value(item, file)).collect())
        }
        serde_json::Value::Object(keys) => ValueKind::Table(to_table(keys, file)),
    };
    Value::new(Some(file), kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_error(text: &str) -> String {
        SettingsFile::parse(text, "s.yaml").expect_err("the file is refused")
    }

    #[test]
    fn aliases_that_expand_exponentially_are_rejected() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let lower_level = level - 1;
            let list = vec![format!("*a{lower_level}"); 9].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{list}]\n"));
        }
        let error = parse_error(&text);
        assert!(error.contains("alias"), "{error}");
        // A few aliases are fine.
        let file =
            SettingsFile::parse("a: &a { b: 1 }\nc: *a\n", "s.yaml").expect("the file is parsed");
        assert_eq!(file.values()["c"].clone().into_table().expect("a table").len(), 1);
    }

    #[test]
    fn an_unknown_setting_gets_a_suggestion_and_the_known_names() {
        let error = add_suggestion("unknown field `lissten`, expected one of `token`, `listen`");
        let suggestion = "did you mean `listen`? Expected one of `token`, `listen`";
        assert_eq!(error, format!("unknown field `lissten`; {suggestion}"));
        for error in ["unknown field `zzzzzz`, expected `listen`", "another error"] {
            assert_eq!(add_suggestion(error), error);
        }
    }

    #[test]
    fn a_utf8_byte_order_mark_is_skipped() {
        let file = SettingsFile::parse("\u{feff}http: { listen: '1' }\n", "s.yaml")
            .expect("the file is parsed");
        assert_eq!(file.setting_names(), BTreeSet::from(["http.listen".to_owned()]));
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"\xff\xfeh\0").expect("the file is written");
        let error = SettingsFile::read(file.path()).expect_err("the file is refused");
        assert!(error.contains("begins with a byte-order mark of UTF-16 LE"), "{error}");
    }

    #[test]
    fn files_that_are_not_settings_are_rejected() {
        assert!(parse_error("[ 1, 2 ]").contains("expected sections"));
        let error = parse_error("http: { listen: 1\n");
        assert!(error.contains("line"), "{error}");
        assert!(SettingsFile::parse("", "s.yaml").expect("empty").values().is_empty());
        assert!(SettingsFile::parse("# nothing\n", "s.yaml").expect("empty").values().is_empty());
    }

    #[test]
    fn a_large_file_is_rejected_without_reading_it() {
        let error = SettingsFile::read(Path::new("/dev/zero")).expect_err("the file is refused");
        assert!(error.contains("not a regular file"), "{error}");
        let large = tempfile::NamedTempFile::new().expect("a file");
        large.as_file().set_len(FILE_BYTES_MAX + 1).expect("the file is extended");
        let error = SettingsFile::read(large.path()).expect_err("the file is refused");
        assert!(error.contains("more than 1048576 bytes"), "{error}");
    }
}
