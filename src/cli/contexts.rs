//! `context`: named managers, with their addresses and tokens. They are stored in a file that only
//! the user may read. Tokens are never printed.

use super::arguments::{AddArguments, ContextCommand, FormatArguments, TimeArguments};
use super::error::ClientError;
use super::list_printer::{ListStyle, Listing};
use super::table::{ColumnRole, Table};
use daemon::service;
use daemon::settings::files;
use engine::text::{did_you_mean, escape, find_byte_order_mark, quote};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::to_raw_value;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The permission bits of everyone but the owner.
const NOT_OWNER_MASK: u32 = 0o077;

/// The maximum size of the file of contexts, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The content of the file of contexts.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contexts {
    /// The name of the context in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<UserText>,
    #[serde(default)]
    contexts: Vec<ManagerContext>,
}

/// A text from the user's own file. It is trusted, unlike text from a manager.
type UserText = std::string::String;

/// A named manager. It has a token, a command that prints the token, or neither.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ManagerContext {
    pub(super) name: UserText,
    pub(super) server: UserText,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<SecretText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token_command: Option<SecretText>,
}

/// A text that is masked in `Debug` output.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct SecretText(UserText);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl ManagerContext {
    /// Returns the token from the file, or runs the command that prints it. The token is empty if
    /// there is neither.
    pub(super) fn resolve_token(&self) -> Result<String, ClientError> {
        match (&self.token, &self.token_command) {
            (Some(SecretText(token)), _) => Ok(token.clone()),
            (None, Some(SecretText(command))) => self.run_token_command(command),
            (None, None) => Ok(String::new()),
        }
    }

    /// Runs the token command with `sh`, and returns the token that it prints.
    fn run_token_command(&self, command: &str) -> Result<String, ClientError> {
        let to_usage_error = |problem: String| {
            let name = quote(&self.name);
            ClientError::Usage(format!(
                "the token command of the context {name} {problem}; run it by itself, or name \
                 another one: workflow-manager context add {} --replace --server … --token-command \
                 …",
                self.name
            ))
        };
        // Standard input and standard error are inherited, so that the command can ask for a
        // passphrase.
        let mut shell = Command::new("sh");
        service::clear_systemd_env(&mut shell);
        let output = shell
            .args(["-c", command])
            .stderr(Stdio::inherit())
            .stdin(Stdio::inherit())
            .output()
            .map_err(|error| to_usage_error(format!("cannot be run: {error}")))?;
        if !output.status.success() {
            return Err(to_usage_error(format!("failed ({})", output.status)));
        }
        let token = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let is_token = !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic());
        if is_token {
            Ok(token)
        } else {
            Err(to_usage_error("printed no token in one line".to_owned()))
        }
    }

    /// Returns the source of the token as one word: `file`, `command` or `none`.
    pub(super) const fn token_source(&self) -> &'static str {
        match (&self.token, &self.token_command) {
            (Some(_), _) => "file",
            (None, Some(_)) => "command",
            (None, None) => "none",
        }
    }
}

/// Returns the path of the file of contexts, or `None` without a home directory.
pub(super) fn file_path() -> Option<PathBuf> {
    let absolute_path = |variable: &str| {
        std::env::var_os(variable).map(PathBuf::from).filter(|folder| folder.is_absolute())
    };
    let config_folder = absolute_path("XDG_CONFIG_HOME")
        .or_else(|| Some(absolute_path("HOME")?.join(".config")))?;
    Some(config_folder.join("workflow-manager").join("contexts.json"))
}

impl Contexts {
    /// Reads the file of contexts. If the file is missing, there are no contexts.
    pub(super) fn read() -> Result<Contexts, ClientError> {
        file_path().map_or_else(|| Ok(Contexts::default()), |path| Contexts::read_from(&path))
    }

    fn read_from(path: &Path) -> Result<Contexts, ClientError> {
        let file = path.display();
        let to_error = |reason: String| {
            ClientError::Usage(format!("cannot read the contexts in {file}: {reason}"))
        };
        let regular_file = match files::open_regular(path) {
            Ok(regular_file) => regular_file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contexts::default()),
            Err(error) => return Err(to_error(error.to_string())),
        };
        let mode = regular_file.metadata().map_err(|error| to_error(error.to_string()))?.mode();
        let text = files::read_text(regular_file, FILE_BYTES_MAX)
            .map_err(|error| to_error(error.to_string()))?;
        if let Some(encoding) = find_byte_order_mark(text.as_bytes()) {
            return Err(to_error(format!(
                "it begins with a byte-order mark of {encoding}; save it without one"
            )));
        }
        let contexts: Contexts = serde_json::from_str(&text).map_err(|error| {
            to_error(format!(
                "line {}, column {}: it is not what `context add` writes; mend it or remove it",
                error.line(),
                error.column()
            ))
        })?;
        let has_secret = contexts.contexts.iter().any(|context| context.token_source() != "none");
        if has_secret && mode & NOT_OWNER_MASK != 0 {
            return Err(to_error(format!(
                "it has tokens, and others than you may read or write it (mode {:o}); run chmod \
                 600 {file}, and if anybody may have read it, have the tokens replaced",
                mode & 0o777
            )));
        }
        Ok(contexts)
    }

    /// Returns the context of this name, or an error with a suggestion.
    pub(super) fn find(&self, name: &str) -> Result<&ManagerContext, ClientError> {
        self.contexts.iter().find(|context| context.name == name).ok_or_else(|| {
            let suggestion = did_you_mean(name, self.contexts.iter().map(|context| &*context.name));
            let quoted = quote(name);
            let hint_to_list = if self.contexts.is_empty() {
                "; there are none yet: workflow-manager context add NAME --server URL"
            } else {
                "; workflow-manager context list shows all"
            };
            let hint = if suggestion.is_empty() { hint_to_list } else { &*suggestion };
            ClientError::Usage(format!("there is no context {quoted}{hint}"))
        })
    }

    /// Returns the context in use; `None` if there is none. If the file names a context that it
    /// does not contain, that is an error.
    pub(super) fn current(&self) -> Result<Option<&ManagerContext>, ClientError> {
        self.current.as_deref().map(|name| self.find(name)).transpose()
    }

    /// Writes the file of contexts. Creates its folder if that is missing.
    fn write(&self) -> Result<(), ClientError> {
        let path = file_path().ok_or_else(|| {
            let text = "there is no place for contexts: set HOME or XDG_CONFIG_HOME";
            ClientError::Usage(text.to_owned())
        })?;
        self.write_to(&path).map_err(|error| {
            ClientError::Usage(format!("cannot write the contexts to {}: {error}", path.display()))
        })
    }

    /// Replaces the file atomically: writes a temporary file, and renames it.
    fn write_to(&self, path: &Path) -> io::Result<()> {
        // If the path is a symbolic link, its target is replaced.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let temporary_path = path.with_extension(format!("json.{}", std::process::id()));
        let result = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary_path)
            .and_then(|mut file| {
                serde_json::to_writer_pretty(&file, self)?;
                file.write_all(b"\n")?;
                file.sync_all()
            })
            .and_then(|()| std::fs::rename(&temporary_path, &path));
        if result.is_err() {
            // The partial file may contain a token.
            let _ = std::fs::remove_file(&temporary_path);
        }
        result
    }
}

/// Runs a command of `context`.
pub(super) fn run(command: &ContextCommand, out: &mut dyn Write) -> Result<(), ClientError> {
    let mut contexts = Contexts::read()?;
    match command {
        ContextCommand::Add(arguments) => add_context(&mut contexts, arguments, out)?,
        ContextCommand::Use { name } => {
            if let Some(name) = name {
                contexts.find(name)?;
            }
            contexts.current.clone_from(name);
            contexts.write()?;
            match contexts.current()? {
                Some(context) => writeln!(out, "{} is used: {}", context.name, context.server)?,
                None => writeln!(out, "no context is used")?,
            }
        }
        ContextCommand::List { list } => print_contexts(&contexts, *list, out)?,
        ContextCommand::Remove { name } => {
            contexts.find(name)?;
            contexts.contexts.retain(|context| context.name != *name);
            let was_current = contexts.current.take_if(|current| current == name).is_some();
            contexts.write()?;
            let hint = if was_current { "; no context is used now" } else { "" };
            writeln!(out, "the context {name} is removed{hint}")?;
        }
    }
    Ok(())
}

fn add_context(
    contexts: &mut Contexts,
    arguments: &AddArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let name = &arguments.name;
    let is_valid_name = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if !is_valid_name {
        return Err(ClientError::Usage(format!(
            "{} is not a name of a context: expected letters, digits, ., _ and -",
            quote(name)
        )));
    }
    if arguments.server.contains('@') {
        return Err(ClientError::Usage(
            "--server: an address with a password is not kept; give a token with --token or \
             --token-command"
                .to_owned(),
        ));
    }
    let index = contexts.contexts.iter().position(|context| context.name == *name);
    if index.is_some() && !arguments.replace {
        return Err(ClientError::Usage(format!(
            "there is a context {} already: --replace replaces it",
            quote(name)
        )));
    }
    let token = arguments.token.as_deref().map(read_token).transpose()?;
    let context = ManagerContext {
        name: name.clone(),
        server: arguments.server.clone(),
        token: token.map(SecretText),
        token_command: arguments.token_command.clone().map(SecretText),
    };
    let is_first = contexts.contexts.is_empty();
    match index {
        Some(index) => contexts.contexts[index] = context,
        None => contexts.contexts.push(context),
    }
    if is_first || arguments.is_current {
        contexts.current = Some(name.clone());
    }
    contexts.write()?;
    let is_current = contexts.current.as_ref() == Some(name);
    let hint = if is_current {
        " and is used".to_owned()
    } else {
        format!(": use it with --context {name}, or always: workflow-manager context use {name}")
    };
    writeln!(out, "the context {name} is there{hint}")?;
    Ok(())
}

/// Reads a token: the argument itself, or the first line of standard input if the argument is `-`.
fn read_token(argument: &str) -> Result<String, ClientError> {
    let mut text = argument.to_owned();
    if argument == "-" {
        // `read_line` appends.
        text.clear();
        io::stdin()
            .read_line(&mut text)
            .map_err(|error| ClientError::Usage(format!("--token: {error}")))?;
    }
    let token = text.trim();
    if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
        return Err(ClientError::Usage(
            "--token: expected letters, digits and signs without blanks; it is not repeated here"
                .to_owned(),
        ));
    }
    Ok(token.to_owned())
}

fn print_contexts(
    contexts: &Contexts,
    arguments: FormatArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let mut table = Table::new(&[
        ("NAME", ColumnRole::Key),
        ("USED", ColumnRole::Plain),
        ("SERVER", ColumnRole::Plain),
        ("TOKEN", ColumnRole::Plain),
    ]);
    let mut entries = Vec::new();
    for context in &contexts.contexts {
        let ManagerContext { name, server, .. } = context;
        let is_current = contexts.current.as_ref() == Some(name);
        table.add_row([
            name.as_str(),
            if is_current { "*" } else { "" },
            &*escape(server),
            context.token_source(),
        ]);
        let entry = json!({ "name": name, "used": is_current, "server": server,
            "token": context.token_source() });
        entries.push(to_raw_value(&entry).map_err(|error| ClientError::Output(error.into()))?);
    }
    let body =
        serde_json::to_string(&entries).map_err(|error| ClientError::Output(error.into()))?;
    let empty_text = "there are no contexts yet: workflow-manager context add NAME --server URL";
    let listing = Listing { body: &body, entries, table, empty_text };
    listing.print(ListStyle::from_arguments(arguments, TimeArguments::default()), out)
}
