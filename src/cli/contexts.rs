//! Contexts: names for managers, with their addresses and tokens. They are stored in a file that
//! only the user may read. Tokens are never printed.

use super::arguments::{AddArguments, ContextCommand, FormatArguments, TimeArguments};
use super::error::ClientError;
use super::listing::{ListStyle, Listing};
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

/// The largest file of contexts, in bytes.
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

/// A text that the user has written into the file. It does not come from a manager.
type UserText = std::string::String;

/// A named manager.
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

/// A text that is not shown in errors and logs.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct SecretText(UserText);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl ManagerContext {
    /// Returns the token from the file or from its command. It is empty if there is none.
    pub(super) fn token(&self) -> Result<String, ClientError> {
        match (&self.token, &self.token_command) {
            (Some(SecretText(token)), _) => Ok(token.clone()),
            (None, Some(SecretText(command))) => self.run_token_command(command),
            (None, None) => Ok(String::new()),
        }
    }

    fn run_token_command(&self, command: &str) -> Result<String, ClientError> {
        let to_usage_error = |why: String| {
            let name = quote(&self.name);
            ClientError::Usage(format!(
                "the token command of the context {name} {why}; run it by itself, or name another \
                 one: workflow-manager context add {} --replace --server … --token-command …",
                self.name
            ))
        };
        // The error output of the command, such as a prompt for a passphrase, goes to the terminal.
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

    /// Returns whether the token comes from the file or a command, as one word.
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
    let absolute = |name: &str| {
        std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
    };
    let config = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
    Some(config.join("workflow-manager").join("contexts.json"))
}

impl Contexts {
    /// Reads the file of contexts. Without a file there are none.
    pub(super) fn read() -> Result<Contexts, ClientError> {
        file_path().map_or_else(|| Ok(Contexts::default()), |path| Contexts::read_from(&path))
    }

    fn read_from(path: &Path) -> Result<Contexts, ClientError> {
        let file = path.display();
        let to_error =
            |why: String| ClientError::Usage(format!("cannot read the contexts in {file}: {why}"));
        let opened = match files::open_regular(path) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contexts::default()),
            Err(error) => return Err(to_error(error.to_string())),
        };
        let mode = opened.metadata().map_err(|error| to_error(error.to_string()))?.mode();
        let text = files::read_text(opened, FILE_BYTES_MAX)
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

    /// Returns the context of this name.
    pub(super) fn find(&self, name: &str) -> Result<&ManagerContext, ClientError> {
        self.contexts.iter().find(|context| context.name == name).ok_or_else(|| {
            let hint = did_you_mean(name, self.contexts.iter().map(|context| &*context.name));
            let quoted = quote(name);
            let all = if self.contexts.is_empty() {
                "; there are none yet: workflow-manager context add NAME --server URL"
            } else {
                "; workflow-manager context list shows all"
            };
            let rest = if hint.is_empty() { all } else { &*hint };
            ClientError::Usage(format!("there is no context {quoted}{rest}"))
        })
    }

    /// Returns the context in use.
    pub(super) fn current(&self) -> Result<Option<&ManagerContext>, ClientError> {
        self.current.as_deref().map(|name| self.find(name)).transpose()
    }

    fn write(&self) -> Result<(), ClientError> {
        let path = file_path().ok_or_else(|| {
            let text = "there is no place for contexts: set HOME or XDG_CONFIG_HOME";
            ClientError::Usage(text.to_owned())
        })?;
        self.write_to(&path).map_err(|error| {
            ClientError::Usage(format!("cannot write the contexts to {}: {error}", path.display()))
        })
    }

    /// Replaces the file as a whole, so that a crash leaves either the old file or the new one.
    fn write_to(&self, path: &Path) -> io::Result<()> {
        // A symbolic link to a file elsewhere stays one.
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let new = path.with_extension(format!("json.{}", std::process::id()));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .and_then(|mut file| {
                serde_json::to_writer_pretty(&file, self)?;
                file.write_all(b"\n")?;
                file.sync_all()
            })
            .and_then(|()| std::fs::rename(&new, &path));
        if written.is_err() {
            // The partial file may contain a token.
            let _ = std::fs::remove_file(&new);
        }
        written
    }
}

/// Runs a command of `context`, which gives names to managers.
pub(super) fn run(command: &ContextCommand, out: &mut dyn Write) -> Result<(), ClientError> {
    let mut contexts = Contexts::read()?;
    match command {
        ContextCommand::Add(arguments) => add(&mut contexts, arguments, out)?,
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
            let was_used = contexts.current.take_if(|current| current == name).is_some();
            contexts.write()?;
            let hint = if was_used { "; no context is used now" } else { "" };
            writeln!(out, "the context {name} is removed{hint}")?;
        }
    }
    Ok(())
}

fn add(
    contexts: &mut Contexts,
    arguments: &AddArguments,
    out: &mut dyn Write,
) -> Result<(), ClientError> {
    let name = &arguments.name;
    let is_name = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if !is_name {
        return Err(ClientError::Usage(format!(
            "{} is no name of a context: expected letters, digits, ., _ and -",
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
    let at = contexts.contexts.iter().position(|context| context.name == *name);
    if at.is_some() && !arguments.replace {
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
    match at {
        Some(at) => contexts.contexts[at] = context,
        None => contexts.contexts.push(context),
    }
    if is_first || arguments.use_it {
        contexts.current = Some(name.clone());
    }
    contexts.write()?;
    let is_used = contexts.current.as_ref() == Some(name);
    let hint = if is_used {
        " and is used".to_owned()
    } else {
        format!(": use it with --context {name}, or always: workflow-manager context use {name}")
    };
    writeln!(out, "the context {name} is there{hint}")?;
    Ok(())
}

/// Returns the token of an argument: the argument itself, or for `-` the first line of standard
/// input.
fn read_token(argument: &str) -> Result<String, ClientError> {
    let mut text = argument.to_owned();
    if argument == "-" {
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
        let is_used = contexts.current.as_ref() == Some(name);
        table.add_row([
            name.as_str(),
            if is_used { "*" } else { "" },
            &*escape(server),
            context.token_source(),
        ]);
        let entry = json!({ "name": name, "used": is_used, "server": server,
            "token": context.token_source() });
        entries.push(to_raw_value(&entry).map_err(|error| ClientError::Output(error.into()))?);
    }
    let body =
        serde_json::to_string(&entries).map_err(|error| ClientError::Output(error.into()))?;
    let nothing = "there are no contexts yet: workflow-manager context add NAME --server URL";
    let listing = Listing { body: &body, entries, table, empty_text: nothing };
    listing.print(ListStyle::from_arguments(arguments, TimeArguments::default()), out)
}
