//! Arguments of `serve`, which runs a manager.

use clap::Args;
use daemon::settings::Overrides;
use std::path::PathBuf;

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub struct ServeArguments {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened")]
    pub settings: SettingsArguments,
    /// Print the effective settings, with secrets masked, and exit
    #[arg(long)]
    pub print_settings: bool,
    #[arg(skip)]
    #[allow(missing_docs, reason = "no argument: the command `dev` sets it")]
    pub dev: Option<DevOptions>,
}

/// How `serve` behaves as `dev`.
#[derive(Clone, Copy, Debug)]
pub struct DevOptions {
    /// Whether to open the page in a browser.
    pub(crate) opens_page: bool,
    /// Whether jobs are kept in memory, because no file was named.
    pub(crate) is_in_memory: bool,
}

/// Arguments that say where the settings of a manager come from.
#[derive(Args, Debug)]
pub struct SettingsArguments {
    /// Workflow files [setting workflows]
    #[arg(long, num_args = 1..)]
    pub workflows: Vec<PathBuf>,
    /// The broker, amqp://user:password@host:port/vhost, or several of its nodes with commas
    /// between them; without one the embedded bus is used
    /// [setting amqp.server, AMQP_SERVER]
    #[arg(long, value_name = "URL")]
    pub amqp_server: Option<String>,
    /// The journal, a file; :memory: keeps nothing after the process ends [setting journal.file]
    #[arg(long, value_name = "FILE")]
    pub db: Option<PathBuf>,
    /// Where the API listens; PORT: on loopback, :PORT: on all interfaces [setting http.listen]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// A settings file, YAML (workflow files go with --workflows)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen beyond loopback without a token
    #[arg(long)]
    pub insecure: bool,
}

impl SettingsArguments {
    /// Returns the settings that the flags override.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            workflows: self.workflows.clone(),
            amqp_server: self.amqp_server.clone(),
            journal_file: self.db.clone(),
            listen: self.listen.clone(),
            insecure: self.insecure,
        }
    }
}
