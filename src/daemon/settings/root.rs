//! All settings of a daemon, and how they are loaded.

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
use base::values::{DurationSetting, check_at_least_one};
use bus::KafkaSection;
use bus::push::PushSection;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The settings of section `tls`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct TrustSettings {
    pub authorities: String,
}

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
    /// The source of each value.
    #[serde(skip)]
    pub sources: Sources,
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
    pub retention: DurationSetting,
    pub retention_interval: DurationSetting,
    pub lag: DurationSetting,
    pub confirm_lag: DurationSetting,
    pub linger: DurationSetting,
    pub full_retry: DurationSetting,
    pub cache_bytes: u64,
    pub verify_bytes_max: u64,
    pub pages_max: u32,
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
    #[error("settings, {place}: {reason}")]
    InvalidSource {
        /// The file or variable.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Values that are invalid or contradict each other.
    #[error("settings: {0}")]
    Invalid(String),
}

fn map_config_error<T>(
    place: &str,
    result: Result<T, config::ConfigError>,
) -> Result<T, SettingsError> {
    result.map_err(|error| SettingsError::InvalidSource {
        place: place.to_owned(),
        reason: text::add_suggestion(&text::redact_values(&error.to_string())),
    })
}

/// Adds a file. The file is also read on its own, so that an error names it.
fn with_file(
    builder: Builder,
    file: &Path,
    sources: &mut Sources,
) -> Result<Builder, SettingsError> {
    let place = file.display().to_string();
    let mut text = SettingsFile::read(file)
        .map_err(|reason| SettingsError::InvalidSource { place: place.clone(), reason })?;
    sources.warnings.extend(retired::remove_from_file(&mut text));
    let builder = builder.add_source(text.clone());
    let read = map_config_error(
        &place,
        builder.clone().build().and_then(config::Config::try_deserialize::<Settings>),
    );
    if read.is_err() && text.has_workflows() {
        let reason = format!(
            "this is a workflow file, and --config names a file of settings; did you mean \
             --workflows {place}?"
        );
        return Err(SettingsError::InvalidSource { place, reason });
    }
    read?;
    sources.add_file(text.values(), &place);
    Ok(builder)
}

/// Adds the environment. Values remain text until their setting determines the type: a token of
/// digits is no number.
fn with_environment(mut builder: Builder, sources: &mut Sources) -> Result<Builder, SettingsError> {
    let wrong = |reason| SettingsError::InvalidSource { place: "environment".to_owned(), reason };
    let ignored = unknown_variables::check_variables(std::env::vars_os()).map_err(wrong)?;
    sources.warnings.extend(ignored);
    let mut variables = secrets::read_variables().map_err(wrong)?;
    sources.warnings.extend(retired::remove_from_variables(&mut variables));
    let value_of = |wanted: &str| {
        variables.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone())
    };
    if let Some(server) = value_of(AMQP_SERVER) {
        builder = map_config_error(AMQP_SERVER, builder.set_override("amqp.server", server))?;
    }
    for (variable, setting) in LISTS {
        if let Some(list) = value_of(variable) {
            let list: Vec<&str> =
                list.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
            builder = map_config_error(variable, builder.set_override(setting, list))?;
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

impl Settings {
    /// Loads the defaults, `file`, the environment and `overrides`, in this order.
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
        Settings { sources, ..settings }.validated()
    }

    /// Returns the certificate authorities that are trusted.
    ///
    /// # Errors
    ///
    /// Returns an error if the file of the setting `tls.authorities` cannot be used.
    pub fn authorities(&self) -> Result<Authorities, String> {
        Authorities::load(&self.tls.authorities).map_err(|why| format!("tls.authorities: {why}"))
    }

    /// Returns whether the journal is removed when the process ends: its file is `:memory:`.
    pub fn is_in_memory(&self) -> bool {
        self.journal.file.as_os_str() == ":memory:"
    }

    /// Returns the defaults, without any other source.
    pub fn defaults() -> Result<Settings, SettingsError> {
        map_config_error(
            "defaults",
            config::Config::builder()
                .add_source(SettingsFile::defaults())
                .build()
                .and_then(config::Config::try_deserialize),
        )
    }

    pub(super) fn validated(self) -> Result<Settings, SettingsError> {
        let refuse = |text: String| Err(SettingsError::Invalid(text));
        let listens = [("http.listen", Some(self.http.listen)), ("grpc.listen", self.grpc.listen)];
        for (name, listen) in listens {
            let Some(listen) = listen.filter(|listen| !listen.ip().is_loopback()) else { continue };
            if !self.http.requires_token() && !self.http.insecure {
                return refuse(format!(
                    "{name} is {listen}, which others can reach, but calls need no token: set \
                     http.token, listen on 127.0.0.1, or pass --insecure if the network \
                     itself is guarded"
                ));
            }
        }
        self.grpc.validate(&self.http).map_err(SettingsError::Invalid)?;
        self.http.validate().map_err(SettingsError::Invalid)?;
        self.authorities().map_err(SettingsError::Invalid)?;
        let tokens_of_file = match self.http.tokens_file.as_str() {
            "" => BTreeMap::new(),
            file => TokenSettings::read_file(Path::new(file)).map_err(SettingsError::Invalid)?,
        };
        self.http.check_token_names(&tokens_of_file).map_err(SettingsError::Invalid)?;
        spelling::check_journal(&self.journal.file).map_err(SettingsError::Invalid)?;
        for (place, section) in self.amqp_sections() {
            section.validate(&place).map_err(SettingsError::Invalid)?;
        }
        self.validate_buses().map_err(SettingsError::Invalid)?;
        self.validate_push().map_err(SettingsError::Invalid)?;
        self.validate_kafka().map_err(SettingsError::Invalid)?;
        self.log.directives().map_err(SettingsError::Invalid)?;
        self.traces.validate().map_err(SettingsError::Invalid)?;
        self.exchange_bus().map_err(SettingsError::Invalid)?;
        self.events.validate().map_err(SettingsError::Invalid)?;
        let numbers = [
            ("embedded.deliveries_max", u64::from(self.embedded.deliveries_max)),
            ("embedded.sending_bytes_max", self.embedded.sending_bytes_max as u64),
            ("fanout.window", u64::from(self.fanout.window)),
            ("fanout.window_bytes", self.fanout.window_bytes),
            ("fanout.children_max", u64::from(self.fanout.children_max)),
            ("limits.callers_max", self.limits.callers_max as u64),
            ("limits.depth_max", u64::from(self.limits.depth_max)),
            ("limits.jobs_running_max", self.limits.jobs_running_max as u64),
            ("limits.creations_waiting_max", self.limits.creations_waiting_max as u64),
        ];
        check_at_least_one("", &numbers).map_err(SettingsError::Invalid)?;
        Ok(Settings { http: HttpSettings { file_tokens: tokens_of_file, ..self.http }, ..self })
    }
}
