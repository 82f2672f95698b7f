//! `token`: creates tokens for the HTTP API. A token is printed once. The settings hold only its
//! hash.

use super::arguments::{NewTokenArguments, TokenCommand};
use super::error::ClientError;
use base::faults;
use daemon::access::{GeneratedToken, generate_token, hash_token};
use daemon::settings::{Scope, TOKEN_CHARS_MIN, TokenSettings, is_token_name};
use engine::text::quote;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;

/// The maximum length of a token that is hashed, in bytes.
const TOKEN_BYTES_MAX: u64 = 4096;

/// The permission bits of a new tokens file: only its owner may read and write it.
const OWNER_ONLY_MODE: u32 = 0o600;

/// The permission bits of a file's mode, without its type.
const PERMISSION_BITS: u32 = 0o777;

/// Runs a command of `token`.
pub(super) fn run(command: &TokenCommand, out: &mut dyn Write) -> Result<(), ClientError> {
    match command {
        TokenCommand::New(arguments) => create_token(arguments, out)?,
        TokenCommand::Hash => print_hash(out)?,
    }
    Ok(())
}

/// Runs `token new`: creates a token, prints it, and adds or prints its entry for the settings.
fn create_token(arguments: &NewTokenArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    let NewTokenArguments { name, scope, queues, file } = arguments;
    if !is_token_name(name) {
        return Err(ClientError::Usage(format!(
            "the name {} cannot stand in settings, expected letters, digits, \"-\", \"_\" and \
             \".\", at most 64",
            quote(name)
        )));
    }
    let GeneratedToken { token, hash } = generate_token();
    let entry = format_entry(name, &hash, scope.map(Scope::from), queues);
    match file {
        Some(file) => {
            add_entry(file, name, &entry)?;
            eprintln!(
                "{} has the token's hash. A manager whose setting http.tokens_file names the file \
                 takes the token after a reload (workflow-manager reload, or SIGHUP).",
                file.display()
            );
        }
        None => eprintln!(
            "This entry belongs below http.tokens in the settings, or below tokens in the file \
             that http.tokens_file names:\n  {entry}"
        ),
    }
    eprintln!("The token is shown this once:");
    writeln!(out, "{token}")?;
    Ok(())
}

/// Formats the line of a token below the key `tokens`. Its values are JSON, which is valid YAML.
fn format_entry(name: &str, hash: &str, scope: Option<Scope>, queues: &[String]) -> String {
    let mut parts = vec![format!("hash: {}", json!(hash))];
    parts.extend(scope.map(|scope| format!("scope: {}", scope.as_str())));
    parts.extend((!queues.is_empty()).then(|| format!("queues: {}", json!(queues))));
    format!("{name}: {{ {} }}", parts.join(", "))
}

/// The content and the metadata of a tokens file.
struct TokenFile {
    text: String,
    /// The tokens in `text`, by name.
    tokens: BTreeMap<String, TokenSettings>,
    /// The permission bits.
    mode: u32,
    /// The ids of the user and of the group. `None` if the file does not exist yet.
    owner: Option<(u32, u32)>,
}

impl TokenFile {
    /// Reads a tokens file. If the file is missing, returns a new one without tokens.
    fn read(file: &Path) -> Result<TokenFile, ClientError> {
        if !file.exists() {
            let text = "# Tokens of workflow-manager: what each allows, and its hash.\ntokens:\n";
            return Ok(TokenFile {
                text: text.to_owned(),
                tokens: BTreeMap::new(),
                mode: OWNER_ONLY_MODE,
                owner: None,
            });
        }
        let to_file_error = |error| file_error(file, &error);
        let tokens = TokenSettings::read_file(file).map_err(ClientError::Usage)?;
        let metadata = fs::metadata(file).map_err(to_file_error)?;
        Ok(TokenFile {
            text: fs::read_to_string(file).map_err(to_file_error)?,
            tokens,
            mode: metadata.permissions().mode() & PERMISSION_BITS,
            owner: Some((metadata.uid(), metadata.gid())),
        })
    }
}

/// Makes the error of a file that cannot be used.
fn file_error(file: &Path, error: &io::Error) -> ClientError {
    ClientError::Usage(format!("{}: {error}", file.display()))
}

/// Adds an entry to a tokens file. The file is replaced atomically.
fn add_entry(file: &Path, name: &str, entry: &str) -> Result<(), ClientError> {
    // If the path is a symbolic link to an existing file, that file is replaced.
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let file = target.as_path();
    let to_file_error = |error| file_error(file, &error);
    // A lock keeps processes from overwriting each other's entries. The file itself is replaced, so
    // its folder is locked.
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::File::open(folder.unwrap_or(Path::new("."))).map_err(to_file_error)?;
    folder.lock().map_err(to_file_error)?;
    let TokenFile { mut text, tokens: existing_tokens, mode, owner } = TokenFile::read(file)?;
    if existing_tokens.contains_key(name) {
        return Err(ClientError::Usage(format!(
            "{} has a token {} already: remove it first, or choose another name",
            file.display(),
            quote(name)
        )));
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(&format!("  {entry}\n"));
    let mut partial_path = file.as_os_str().to_owned();
    partial_path.push(".partial");
    let partial_path = Path::new(&partial_path);
    // Removes the partial file of a process that was killed. No other process uses it, since the
    // folder is locked.
    let _ = fs::remove_file(partial_path);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let write_result = options.open(partial_path).and_then(|mut partial_file| {
        let metadata = partial_file.metadata()?;
        if let Some((user, group)) =
            owner.filter(|owner| *owner != (metadata.uid(), metadata.gid()))
        {
            // The manager must still be able to read the file.
            fchown(&partial_file, Some(user), Some(group))?;
        }
        partial_file.write_all(text.as_bytes())?;
        partial_file.sync_all()
    });
    // A failpoint can end the process here.
    let _ = faults::hit("token::written");
    // The new file is read back before it replaces the old one: YAML of another layout may not have
    // taken the line as a new token.
    let result = write_result.map_err(to_file_error).and_then(|()| match TokenSettings::read_file(
        partial_path,
    ) {
        Ok(tokens) if tokens.len() == existing_tokens.len() + 1 && tokens.contains_key(name) => {
            fs::rename(partial_path, file).and_then(|()| folder.sync_all()).map_err(to_file_error)
        }
        Ok(_) | Err(_) => Err(ClientError::Usage(format!(
            "{} is laid out so that no line can be added at its end: add this below tokens by \
             hand:\n  {entry}",
            file.display()
        ))),
    });
    if result.is_err() {
        // There may be nothing to remove: the file was not created, or was already renamed.
        let _ = fs::remove_file(partial_path);
    }
    result
}

/// Runs `token hash`: prints the hash of the token on standard input.
fn print_hash(out: &mut dyn Write) -> Result<(), ClientError> {
    let mut text = String::new();
    let result = io::stdin().take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text);
    result.map_err(|error| ClientError::Usage(format!("standard input: {error}")))?;
    let token = text.trim_end_matches(['\n', '\r']);
    if token.len() as u64 > TOKEN_BYTES_MAX || token.chars().count() < TOKEN_CHARS_MIN {
        return Err(ClientError::Usage(format!(
            "standard input has a token of {} characters, expected {TOKEN_CHARS_MIN} \
             to {TOKEN_BYTES_MAX}",
            token.chars().count()
        )));
    }
    writeln!(out, "{}", hash_token(token))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::ScopeArgument;

    fn arguments(name: &str, file: &Path) -> NewTokenArguments {
        NewTokenArguments {
            name: name.to_owned(),
            scope: Some(ScopeArgument::Read),
            queues: vec!["price, and \"more\"".to_owned()],
            file: Some(file.to_owned()),
        }
    }

    #[test]
    fn tokens_are_added_to_a_file_that_only_its_owner_can_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tokens.yaml");
        let mut out = Vec::new();
        create_token(&arguments("one", &file), &mut out).expect("the token is created");
        let token = String::from_utf8(out).expect("a text");
        create_token(&arguments("two", &file), &mut Vec::new()).expect("the token is added");
        let tokens = TokenSettings::read_file(&file).expect("tokens");
        assert_eq!(tokens["one"].hash, hash_token(token.trim_end()));
        assert_eq!(tokens["two"].queues.0, ["price, and \"more\""]);
        assert_eq!(
            fs::metadata(&file).expect("the file exists").permissions().mode() & PERMISSION_BITS,
            OWNER_ONLY_MODE
        );
        assert!(!fs::read_to_string(&file).expect("a text").contains(token.trim_end()));

        let error =
            create_token(&arguments("one", &file), &mut Vec::new()).expect_err("the name is taken");
        assert!(error.to_string().contains("already"), "{error}");
        let error = create_token(&arguments("a b", &file), &mut Vec::new())
            .expect_err("the name is not valid");
        assert!(error.to_string().contains("\"a b\""), "{error}");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn concurrent_additions_lose_no_token_and_keep_a_symbolic_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("tokens.yaml"), folder.path().join("link.yaml"));
        create_token(&arguments("first", &file), &mut Vec::new()).expect("the token is created");
        std::os::unix::fs::symlink(&file, &link).expect("the link is created");
        std::thread::scope(|scope| {
            for number in 0..12 {
                let arguments = arguments(&format!("token-{number}"), &link);
                scope.spawn(move || {
                    create_token(&arguments, &mut Vec::new()).expect("the token is added")
                });
            }
        });
        assert_eq!(TokenSettings::read_file(&file).expect("tokens").len(), 13);
        assert!(fs::symlink_metadata(&link).expect("the file exists").is_symlink());
    }

    #[test]
    fn a_file_of_another_layout_is_not_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tokens.yaml");
        let text = "tokens: { a: { token: 'abcdefghijklmnop', scope: read } }\n";
        fs::write(&file, text).expect("the file is written");
        let error = create_token(&arguments("b", &file), &mut Vec::new())
            .expect_err("the layout is not supported");
        assert!(error.to_string().contains("by hand"), "{error}");
        assert_eq!(fs::read_to_string(&file).expect("a text"), text);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}
