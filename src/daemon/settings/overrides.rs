//! The settings that flags of the command line give.

use std::path::PathBuf;

/// The settings that flags give. They override all other sources; `None` is a flag that is missing.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "each is the setting of the same name")]
pub struct Overrides {
    pub workflows: Vec<PathBuf>,
    pub amqp_server: Option<String>,
    pub journal_file: Option<PathBuf>,
    pub listen: Option<String>,
    pub insecure: bool,
}

/// Collects the sources of the settings.
pub(super) type Builder = config::ConfigBuilder<config::builder::DefaultState>;

impl Overrides {
    /// Adds the flags that are given to a builder.
    pub(super) fn apply(&self, builder: Builder) -> Result<Builder, config::ConfigError> {
        let paths: Vec<String> =
            self.workflows.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        builder
            .set_override_option("workflows", (!paths.is_empty()).then_some(paths))?
            .set_override_option("amqp.server", self.amqp_server.clone())?
            .set_override_option(
                "journal.file",
                self.journal_file.as_ref().map(|path| path.to_string_lossy().into_owned()),
            )?
            .set_override_option("http.listen", self.listen.clone())?
            .set_override_option("http.insecure", self.insecure.then_some(true))
    }
}
