//! Settings from the flags of the command line.

use std::path::PathBuf;

/// The values of flags, which override all other sources. A flag that is not given is `None`,
/// `false` or, for `workflows`, empty.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "`apply` names the setting of each flag")]
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
    /// Adds the flags that were given to the builder.
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
