//! The text of a settings file, read within limits, so that another kind of file, or one whose
//! aliases expand without end, costs an error message and no memory.

use super::files;
use super::sources::collect_names;
use config::{ConfigError, Map, Source, Value, ValueKind};
use engine::text::find_nearest;
use std::collections::BTreeSet;
use std::path::Path;

/// The default settings, which name and explain every setting.
pub const DEFAULTS: &str = include_str!("../../../config/default.yaml");

/// The largest settings file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// How many keys and values aliases may expand to.
const ALIASED_VALUES_MAX: usize = 10_000;

/// Removes the value from an error about a setting: it may be a secret in the wrong place.
pub(super) fn redact_values(error: &str) -> String {
    /// How the deserializer begins to quote a text value, whatever the setting.
    const QUOTED: &str = "invalid type: string \"";
    let Some((before, rest)) = error.split_once(QUOTED) else { return error.to_owned() };
    let end = rest.find("\", expected").map_or(rest.len(), |at| at + 1);
    format!("{before}invalid type: a text{}", &rest[end..])
}

/// Adds a suggestion to an error about an unknown setting, if there is a similar one.
pub(super) fn add_suggestion(error: &str) -> String {
    const BEHIND: &str = "`, expected ";
    let guess = || {
        let (before, rest) = error.split_once("unknown field `")?;
        let (name, known) = rest.split_once(BEHIND)?;
        let known_names = known.split('`').skip(1).step_by(2);
        let suggestion = find_nearest(name, known_names)?;
        Some(format!(
            "{before}unknown field `{name}`; did you mean `{suggestion}`? Expected {known}"
        ))
    };
    guess().unwrap_or_else(|| error.to_owned())
}

/// The content of a settings file.
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
        let open = files::open_regular(file).and_then(|open| Ok((open.metadata()?.len(), open)));
        let (bytes, open) = open.map_err(|error| format!("it cannot be read: {error}"))?;
        if bytes > FILE_BYTES_MAX {
            return Err(format!(
                "it has more than {FILE_BYTES_MAX} bytes, which no settings need; is it another \
                 file?"
            ));
        }
        let text = files::read_text(open, FILE_BYTES_MAX)
            .map_err(|error| format!("it cannot be read: {error}"))?;
        SettingsFile::parse(&text, &file.display().to_string())
    }

    /// Returns the defaults of all settings.
    pub(super) fn defaults() -> SettingsFile {
        SettingsFile::parse(DEFAULTS, "config/default.yaml").expect("the program's own file")
    }

    pub(super) fn parse(text: &str, file: &str) -> Result<SettingsFile, String> {
        // YAML may begin with the UTF-8 byte-order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let options = serde_yaml::options! {
            alias_limits: serde_yaml::alias_limits! {
                max_total_replayed_events: ALIASED_VALUES_MAX
            },
        };
        let found: Option<serde_json::Value> = serde_yaml::from_str_with_options(text, options)
            .map_err(|error| error.without_snippet().to_string())?;
        match found {
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

    /// Removes a setting. Returns whether it was there.
    pub(super) fn remove(&mut self, section: &str, key: &str) -> bool {
        let section = self.values.get_mut(section).map(|value| &mut value.kind);
        let Some(ValueKind::Table(table)) = section else { return false };
        table.remove(key).is_some()
    }

    /// Returns all values as one.
    pub(super) fn into_value(self) -> Value {
        self.values.into()
    }

    /// Returns all values by section.
    pub(super) fn values(&self) -> &Map<String, Value> {
        &self.values
    }

    /// Returns whether the file lists workflows rather than names of workflow files.
    pub(super) fn has_workflows(&self) -> bool {
        let Some(ValueKind::Array(listed)) = self.values.get("workflows").map(|value| &value.kind)
        else {
            return false;
        };
        listed.iter().any(|workflow| matches!(workflow.kind, ValueKind::Table(_)))
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

fn to_table(keys: serde_json::Map<String, serde_json::Value>, file: &String) -> Map<String, Value> {
    keys.into_iter().map(|(key, found)| (key, to_value(found, file))).collect()
}

fn to_value(found: serde_json::Value, file: &String) -> Value {
    let kind = match found {
        serde_json::Value::Null => ValueKind::Nil,
        serde_json::Value::Bool(is_on) => ValueKind::Boolean(is_on),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => ValueKind::I64(whole),
            (None, Some(whole)) => ValueKind::U64(whole),
            (None, None) => ValueKind::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => ValueKind::String(text),
        serde_json::Value::Array(list) => {
            ValueKind::Array(list.into_iter().map(|found| to_value(found, file)).collect())
        }
        serde_json::Value::Object(keys) => ValueKind::Table(to_table(keys, file)),
    };
    Value::new(Some(file), kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_error(text: &str) -> String {
        SettingsFile::parse(text, "s.yaml").expect_err("refused")
    }

    #[test]
    fn aliases_that_expand_without_end_are_rejected() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let below = level - 1;
            let list = vec![format!("*a{below}"); 9].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{list}]\n"));
        }
        let error = parse_error(&text);
        assert!(error.contains("alias"), "{error}");
        // A few aliases are fine.
        let few = SettingsFile::parse("a: &a { b: 1 }\nc: *a\n", "s.yaml").expect("read");
        assert_eq!(few.values()["c"].clone().into_table().expect("a table").len(), 1);
    }

    #[test]
    fn an_unknown_setting_gets_a_suggestion_and_the_known_names() {
        let error = add_suggestion("unknown field `lissten`, expected one of `token`, `listen`");
        let suggestion = "did you mean `listen`? Expected one of `token`, `listen`";
        assert_eq!(error, format!("unknown field `lissten`; {suggestion}"));
        for same in ["unknown field `zzzzzz`, expected `listen`", "another error"] {
            assert_eq!(add_suggestion(same), same);
        }
    }

    #[test]
    fn a_utf8_byte_order_mark_is_skipped() {
        let read = SettingsFile::parse("\u{feff}http: { listen: '1' }\n", "s.yaml").expect("read");
        assert_eq!(read.setting_names(), BTreeSet::from(["http.listen".to_owned()]));
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"\xff\xfeh\0").expect("written");
        let error = SettingsFile::read(file.path()).expect_err("refused");
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
        let error = SettingsFile::read(Path::new("/dev/zero")).expect_err("refused");
        assert!(error.contains("no regular file"), "{error}");
        let large = tempfile::NamedTempFile::new().expect("a file");
        large.as_file().set_len(FILE_BYTES_MAX + 1).expect("room");
        let error = SettingsFile::read(large.path()).expect_err("refused");
        assert!(error.contains("more than 1048576 bytes"), "{error}");
    }
}
