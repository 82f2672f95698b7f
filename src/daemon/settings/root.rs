//! The settings of a daemon: loads them from their sources, and validates them.

use super::buses::BusSettings;
use super::events::EventSettings;
use super::grpc::GrpcSettings;
use super::http::HttpSettings;
use super::log::LogSettings;
use super::overrides::{Builder, Overrides};
use super::sources::{AMQP_SERVER, LISTS, PREFIX, SEPARATOR, Sources};
use super::text::{self, SettingsFile};
use super::tokens::TokenSettings;
use super::traces::TraceSettings;
use super::{retired, secrets, spelling, unknown_variables};
use amqp::AmqpSection;
use base::trust::Authorities;
use base::values::{DurationSetting, ServerAddress, check_at_least_one};
use bus::KafkaSection;
use bus::push::PushSection;
use journal::{PostgresOptions, check_manager_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// All settings of a daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct Settings {
    pub workflows: Vec<PathBuf>,
    pub bus: String,
    pub buses: BTreeMap<String, BusSettings>,
    pub amqp: AmqpSection,
    pub embedded: EmbeddedSettings,
    pub push: PushSection,
    pub kafka: KafkaSection,
    pub journal: JournalSettings,
    pub cluster: ClusterSettings,
    pub http: HttpSettings,
    pub grpc: GrpcSettings,
    pub tls: TrustSettings,
    pub limits: LimitSettings,
    pub fanout: FanOutSettings,
    pub events: EventSettings,
    pub traces: TraceSettings,
    pub shutdown: ShutdownSettings,
    pub log: LogSettings,
    pub metrics: MetricSettings,
    /// The source of each value, and warnings about ignored settings.
    #[serde(skip)]
    pub sources: Sources,
}

/// The settings of section `tls`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct TrustSettings {
    pub authorities: String,
}

/// The settings of section `embedded`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct EmbeddedSettings {
    pub lease: DurationSetting,
    pub deliveries_max: u32,
    pub sending_bytes_max: usize,
}

/// The settings of section `journal`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct JournalSettings {
    pub file: PathBuf,
    pub url: ServerAddress,
    pub retention: DurationSetting,
    pub retention_interval: DurationSetting,
    pub lag: DurationSetting,
    pub confirm_lag: DurationSetting,
    pub linger: DurationSetting,
    pub full_retry: DurationSetting,
    pub cache_bytes: u64,
    pub verify_bytes_max: u64,
    pub pages_max: u32,
    pub require_synchronous: bool,
}

/// The settings of section `cluster`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct ClusterSettings {
    pub name: String,
}

/// The settings of section `limits`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct LimitSettings {
    pub jobs_running_max: usize,
    pub jobs_bytes_max: usize,
    pub creations_waiting_max: usize,
    pub step_message_bytes_max: usize,
    pub reply_bytes_max: usize,
    pub depth_max: u16,
    pub callers_max: usize,
    pub keys_max: usize,
}

/// The settings of section `fanout`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct FanOutSettings {
    pub window: u32,
    pub window_bytes: u64,
    pub children_max: u32,
}

/// The settings of section `metrics`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct MetricSettings {
    pub steps_max: usize,
}

/// The settings of section `shutdown`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct ShutdownSettings {
    pub grace: DurationSetting,
}

/// Why settings were rejected.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A file or the environment contains something invalid.
    #[error("settings, {name}: {reason}")]
    InvalidSource {
        /// The file or variable, or the kind of source.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Values that are invalid or contradict each other.
    #[error("settings: {0}")]
    Invalid(String),
}

impl JournalSettings {
    /// Returns the file, or the address of the database without secrets, for messages.
    pub fn location(&self) -> String {
        if self.url.0.is_empty() { self.file.display().to_string() } else { self.url.to_string() }
    }
}

impl Settings {
    /// Loads and validates the settings. Later sources override earlier ones: the defaults, `file`,
    /// the environment, `overrides`.
    ///
    /// # Errors
    ///
    /// Returns an error if a source cannot be read, has an unknown setting or an invalid value, or
    /// if values contradict each other.
    pub fn load(file: Option<&Path>, overrides: &Overrides) -> Result<Settings, SettingsError> {
        let mut builder = config::Config::builder().add_source(SettingsFile::defaults());
        let mut sources = Sources::default();
        if let Some(file) = file {
            builder = with_file(builder, file, &mut sources)?;
        }
        builder = with_environment(builder, &mut sources)?;
        let settings: Settings = map_config_error(
            "flags",
            overrides.apply(builder).and_then(|builder| builder.build()?.try_deserialize()),
        )?;
        sources.add_flags(overrides);
        Settings { sources, ..settings }.with_cluster_defaults().into_validated()
    }

    /// Loads the certificate authorities that connections to others trust.
    ///
    /// # Errors
    ///
    /// Returns an error if the file of the setting `tls.authorities` cannot be used.
    pub fn authorities(&self) -> Result<Authorities, String> {
        Authorities::load(&self.tls.authorities)
            .map_err(|reason| format!("tls.authorities: {reason}"))
    }

    /// Returns how the journal in PostgreSQL is reached; `None` if the journal is a file.
    ///
    /// # Errors
    ///
    /// Returns an error if the setting `journal.url` or `cluster.name` is invalid.
    pub fn postgres_options(&self) -> Result<Option<PostgresOptions>, String> {
        check_manager_name(&self.cluster.name).map_err(|what| format!("cluster.name: {what}"))?;
        if self.journal.url.0.is_empty() {
            return Ok(None);
        }
        let url = &self.journal.url.0;
        let server = url.parse().map_err(|what: String| format!("journal.url: {what}"))?;
        let api_address = Some(self.http.public_url.clone()).filter(|address| !address.is_empty());
        Ok(Some(PostgresOptions {
            server,
            authorities: self.authorities()?,
            name: self.cluster.name.clone(),
            api_address,
            require_synchronous: self.journal.require_synchronous,
        }))
    }

    /// Returns whether several processes can share the journal, because it is a database.
    pub fn shares_journal(&self) -> bool {
        !self.journal.url.0.is_empty()
    }

    /// Returns whether the journal is lost when the process ends, because its file is `:memory:`.
    pub fn is_in_memory(&self) -> bool {
        self.journal.url.0.is_empty() && self.journal.file.as_os_str() == ":memory:"
    }

    /// Loads the defaults alone.
    ///
    /// # Errors
    ///
    /// Returns an error if `config/default.yaml` is invalid, which tests exclude.
    pub fn defaults() -> Result<Settings, SettingsError> {
        map_config_error(
            "defaults",
            config::Config::builder()
                .add_source(SettingsFile::defaults())
                .build()
                .and_then(config::Config::try_deserialize),
        )
    }

    /// Validates all settings, and reads the tokens of the tokens file into `http.file_tokens`.
    pub(super) fn into_validated(self) -> Result<Settings, SettingsError> {
        let listeners =
            [("http.listen", Some(self.http.listen)), ("grpc.listen", self.grpc.listen)];
        for (name, listen) in listeners {
            let Some(listen) = listen.filter(|listen| !listen.ip().is_loopback()) else { continue };
            if !self.http.requires_token() && !self.http.insecure {
                return Err(SettingsError::Invalid(format!(
                    "{name} is {listen}, which others can reach, but calls need no token: set \
                     http.token, listen on 127.0.0.1, or pass --insecure if the network \
                     itself is guarded"
                )));
            }
        }
        self.grpc.check(&self.http).map_err(SettingsError::Invalid)?;
        self.http.check().map_err(SettingsError::Invalid)?;
        self.authorities().map_err(SettingsError::Invalid)?;
        let file_tokens = match self.http.tokens_file.as_str() {
            "" => BTreeMap::new(),
            file => TokenSettings::read_file(Path::new(file)).map_err(SettingsError::Invalid)?,
        };
        self.http.check_token_names(&file_tokens).map_err(SettingsError::Invalid)?;
        spelling::check_journal(&self.journal.file).map_err(SettingsError::Invalid)?;
        self.postgres_options().map_err(SettingsError::Invalid)?;
        self.check_cluster_name().map_err(SettingsError::Invalid)?;
        for (prefix, section) in self.amqp_sections() {
            section.check(&prefix).map_err(SettingsError::Invalid)?;
        }
        self.check_buses().map_err(SettingsError::Invalid)?;
        self.check_push().map_err(SettingsError::Invalid)?;
        self.check_kafka().map_err(SettingsError::Invalid)?;
        self.log.directives().map_err(SettingsError::Invalid)?;
        self.traces.check().map_err(SettingsError::Invalid)?;
        self.exchange_bus().map_err(SettingsError::Invalid)?;
        self.events.check().map_err(SettingsError::Invalid)?;
        let numbers = [
            ("embedded.deliveries_max", u64::from(self.embedded.deliveries_max)),
            ("embedded.sending_bytes_max", self.embedded.sending_bytes_max as u64),
            ("fanout.window", u64::from(self.fanout.window)),
            ("fanout.window_bytes", self.fanout.window_bytes),
            ("fanout.children_max", u64::from(self.fanout.children_max)),
            ("limits.callers_max", self.limits.callers_max as u64),
            ("limits.keys_max", self.limits.keys_max as u64),
            ("limits.depth_max", u64::from(self.limits.depth_max)),
            ("limits.jobs_running_max", self.limits.jobs_running_max as u64),
            ("limits.creations_waiting_max", self.limits.creations_waiting_max as u64),
        ];
        check_at_least_one("", &numbers).map_err(SettingsError::Invalid)?;
        Ok(Settings { http: HttpSettings { file_tokens, ..self.http }, ..self })
    }
}

/// Converts an error of the crate `config`. Adds the name of the source and a suggestion, and
/// removes values, which may be secrets.
fn map_config_error<T>(
    source_name: &str,
    result: Result<T, config::ConfigError>,
) -> Result<T, SettingsError> {
    result.map_err(|error| SettingsError::InvalidSource {
        name: source_name.to_owned(),
        reason: text::add_suggestion(&text::redact_values(&error.to_string())),
    })
}

/// Adds a settings file. Deserializes it together with the defaults only, so that an error names
/// the file.
fn with_file(
    builder: Builder,
    file: &Path,
    sources: &mut Sources,
) -> Result<Builder, SettingsError> {
    let name = file.display().to_string();
    let mut settings_file = SettingsFile::read(file)
        .map_err(|reason| SettingsError::InvalidSource { name: name.clone(), reason })?;
    sources.warnings.extend(retired::remove_from_file(&mut settings_file));
    let builder = builder.add_source(settings_file.clone());
    let result = map_config_error(
        &name,
        builder.clone().build().and_then(config::Config::try_deserialize::<Settings>),
    );
    if result.is_err() && settings_file.has_workflows() {
        let reason = format!(
            "this is a workflow file, and --config names a file of settings; did you mean \
             --workflows {name}?"
        );
        return Err(SettingsError::InvalidSource { name, reason });
    }
    result?;
    sources.add_file(settings_file.values(), &name);
    Ok(builder)
}

/// Adds the environment variables. Values remain text until the setting determines their type, so
/// that a token of digits is not read as a number.
fn with_environment(mut builder: Builder, sources: &mut Sources) -> Result<Builder, SettingsError> {
    let to_error = |reason| SettingsError::InvalidSource { name: "environment".to_owned(), reason };
    let warnings = unknown_variables::check_variables(std::env::vars_os()).map_err(to_error)?;
    sources.warnings.extend(warnings);
    let mut variables = secrets::read_variables().map_err(to_error)?;
    sources.warnings.extend(retired::remove_from_variables(&mut variables));
    let find_value = |variable: &str| {
        variables.iter().find(|(name, _)| name == variable).map(|(_, value)| value.clone())
    };
    if let Some(server) = find_value(AMQP_SERVER) {
        builder = map_config_error(AMQP_SERVER, builder.set_override("amqp.server", server))?;
    }
    for (variable, setting) in LISTS {
        if let Some(list) = find_value(variable) {
            let items: Vec<&str> =
                list.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
            builder = map_config_error(variable, builder.set_override(setting, items))?;
        }
    }
    sources.add_environment(variables.iter().map(|(name, _)| &**name));
    let variables = variables
        .into_iter()
        .filter(|(name, _)| LISTS.iter().all(|(list, _)| name != list))
        .collect();
    let builder = builder.add_source(
        config::Environment::with_prefix(PREFIX)
            .prefix_separator(SEPARATOR)
            .separator(SEPARATOR)
            .source(Some(variables)),
    );
    map_config_error(
        "environment (WORKFLOW_MANAGER__…)",
        builder.clone().build().and_then(config::Config::try_deserialize::<Settings>),
    )?;
    Ok(builder)
}
