//! Named tokens and their scopes, and the tokens file.

use super::text::{SettingsFile, redact_values};
use base::values::{Names, Secret};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use utoipa::ToSchema;

/// The minimum length of a token, in characters. Shorter tokens can be guessed.
pub const TOKEN_CHARS_MIN: usize = 16;

/// The prefix of a token's hash, which identifies the algorithm.
pub const HASH_PREFIX: &str = "sha256:";

/// The name of the token of the setting `http.token`, in logs and records.
pub const MAIN_TOKEN: &str = "http.token";

/// The longest name of a token, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// The number of hexadecimal digits of a SHA-256 hash.
const HASH_DIGITS: usize = 64;

/// What a token allows, besides the messages of its queues. Each scope includes the scopes before
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Reading everything.
    Read,
    /// Creating jobs, and changing them without deleting anything.
    Operate,
    /// Every call: also deleting jobs, reloading, and taking the messages of every queue.
    Admin,
}

impl Scope {
    /// Returns the name of the scope in settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Operate => "operate",
            Scope::Admin => "admin",
        }
    }
}

/// A named token.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct TokenSettings {
    #[serde(default)]
    pub token: Secret,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hash: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    #[serde(default, skip_serializing_if = "Names::is_empty")]
    pub queues: Names,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub vhost: String,
}

/// The content of a tokens file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    tokens: BTreeMap<String, TokenSettings>,
}

impl TokenSettings {
    /// Reads the tokens of a file, by name.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, or contains something that is not a token.
    pub fn read_file(file: &Path) -> Result<BTreeMap<String, TokenSettings>, String> {
        let to_error = |reason: String| format!("http.tokens_file, {}: {reason}", file.display());
        let content = SettingsFile::read(file).map_err(to_error)?;
        let TokenFile { tokens } = content.into_value().try_deserialize().map_err(|error| {
            to_error(format!(
                "{}; expected tokens: {{ NAME: {{ hash: \"{HASH_PREFIX}…\", scope: read }} }}",
                redact_values(&error.to_string())
            ))
        })?;
        check_tokens("tokens", &tokens).map_err(to_error)?;
        Ok(tokens)
    }
}

/// Checks named tokens. `section` is the setting that contains them, for errors.
pub(super) fn check_tokens(
    section: &str,
    tokens: &BTreeMap<String, TokenSettings>,
) -> Result<(), String> {
    for (name, token) in tokens {
        let setting = format!("{section}.{name}");
        if !is_token_name(name) {
            return Err(format!(
                "{setting}: a token's name has letters, digits, \"-\", \"_\" and \".\", at most \
                 {NAME_BYTES_MAX}"
            ));
        }
        match (token.token.0.as_str(), token.hash.as_str()) {
            ("", "") => {
                return Err(format!(
                    "{setting} has no token: expected hash, as `workflow-manager token new` \
                     prints it"
                ));
            }
            (token_text, "") => check_token_length(&format!("{setting}.token"), token_text)?,
            ("", hash) if !is_hash(hash) => {
                return Err(format!(
                    "{setting}.hash is not a hash of a token, expected \"{HASH_PREFIX}\" and \
                     {HASH_DIGITS} digits of base 16, as `workflow-manager token new` prints it"
                ));
            }
            ("", _) => {}
            (_, _) => return Err(format!("{setting} has token and hash, expected one of them")),
        }
        if !token.vhost.is_empty() && token.queues.is_empty() {
            return Err(format!(
                "{setting} has a vhost and no queues: it is the virtual host of a worker's queues"
            ));
        }
        if token.scope.is_none() && token.queues.is_empty() {
            return Err(format!(
                "{setting} allows nothing: expected scope (read, operate or admin), or the queues \
                 of a worker, or both"
            ));
        }
    }
    Ok(())
}

/// Returns whether a text can be the name of a token. Names are restricted because they appear in
/// logs and records.
pub fn is_token_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Returns whether a text is the hash of a token: [`HASH_PREFIX`] and lower-case hexadecimal
/// digits.
fn is_hash(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.strip_prefix(HASH_PREFIX)
        .is_some_and(|digits| digits.len() == HASH_DIGITS && digits.bytes().all(is_digit))
}

/// Checks that a token is long enough not to be guessed. An empty text means that there is no
/// token, which is allowed.
pub(super) fn check_token_length(setting: &str, token: &str) -> Result<(), String> {
    match token.chars().count() {
        0 | TOKEN_CHARS_MIN.. => Ok(()),
        chars => Err(format!(
            "{setting} has {chars} characters, which can be guessed; expected at least \
             {TOKEN_CHARS_MIN}: `workflow-manager token new` makes one"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn read(text: &str) -> Result<BTreeMap<String, TokenSettings>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tokens.yaml");
        std::fs::write(&file, text).expect("the file is written");
        TokenSettings::read_file(&file)
    }

    #[test]
    fn a_tokens_file_is_read_or_rejected_with_the_reason() {
        let hash = format!("{HASH_PREFIX}{}", "0".repeat(64));
        let valid_text = format!(
            "tokens:\n  grafana: {{ hash: '{hash}', scope: read }}\n  pricing: {{ hash: '{hash}', \
             queues: [ price ] }}\n"
        );
        let tokens = read(&valid_text).expect("the tokens are valid");
        assert_eq!(tokens["grafana"].scope, Some(Scope::Read));
        assert_eq!(tokens["pricing"].queues.0, ["price"]);
        for (invalid, expected) in [
            ("tokens: { a: { scope: read } }", "tokens.a has no token"),
            ("tokens: { a: { token: short, scope: read } }", "tokens.a.token has 5 characters"),
            ("tokens: { a: { hash: 'sha256:12', scope: read } }", "tokens.a.hash is not a hash"),
            ("tokens: { a: { token: 'abcdefghijklmnop' } }", "tokens.a allows nothing"),
            ("tokens: { 'a b': { token: 'abcdefghijklmnop', scope: read } }", "name has letters"),
            ("tokens: { a: { token: 'abcdefghijklmnop', scope: all } }", "all"),
            ("tokens: { a: { tokn: 'abcdefghijklmnop' } }", "tokn"),
            ("token: x", "expected tokens:"),
            ("tokens: [", "line"),
        ] {
            let error = read(invalid).expect_err(invalid);
            assert!(
                error.contains(expected) && error.contains("tokens.yaml"),
                "{invalid}: {error}"
            );
        }
        let both = format!("tokens: {{ a: {{ token: 'abcdefghijklmnop', hash: '{hash}' }} }}");
        assert!(read(&both).expect_err("two values are refused").contains("one of them"));
    }

    #[test]
    fn a_name_belongs_to_one_token() {
        let token = || TokenSettings { scope: Some(Scope::Read), ..TokenSettings::default() };
        let mut http = Settings::defaults().expect("defaults").http;
        http.tokens.insert("alice".to_owned(), token());
        let file_tokens = |name: &str| BTreeMap::from([(name.to_owned(), token())]);
        assert_eq!(http.check_token_names(&file_tokens("bob")), Ok(()));
        let error =
            http.check_token_names(&file_tokens("alice")).expect_err("a duplicate name is refused");
        assert!(error.contains("two tokens are called \"alice\""), "{error}");
        let error = http
            .check_token_names(&file_tokens(MAIN_TOKEN))
            .expect_err("a reserved name is refused");
        assert!(error.contains("a token is called \"http.token\""), "{error}");
    }

    #[test]
    fn a_token_in_a_wrong_place_is_not_in_the_error() {
        for text in ["tokens: { a: supersecrettokenvalue }", "tokens: supersecrettokenvalue"] {
            let error = read(text).expect_err(text);
            assert!(!error.contains("supersecret") && error.contains("a string"), "{error}");
        }
    }

    #[test]
    fn a_short_token_is_rejected() {
        let mut http = Settings::defaults().expect("defaults").http;
        assert_eq!(http.check_all_tokens(), Ok(()));
        http.token = Secret("fifteen letters".into());
        let error = http.check_all_tokens().expect_err("a short token is refused");
        assert!(error.contains("http.token has 15 characters") && error.contains("token new"));
        http.token = Secret("sixteen letters!".into());
        assert_eq!(http.check_all_tokens(), Ok(()));
    }
}
