//! Typed settings. Their sources are `config/default.yaml`, a file, the environment and flags;
//! later sources override earlier ones. Unknown keys are errors, and secrets are masked in all
//! output.

mod bus_lookup;
mod buses;
mod changed_settings;
mod cluster_defaults;
mod events;
mod exchange;
pub mod files;
mod grpc;
mod http;
mod kafka;
mod log;
mod overrides;
mod push;
mod retired;
mod root;
mod secrets;
mod sourced;
mod sources;
mod spelling;
mod text;
mod tokens;
mod traces;
mod unknown_variables;
mod warnings;

pub use amqp::{AmqpSection, ReplyQueueType, UnreadableMessages};
pub use base::values::{DurationSetting, Names, Secret, ServerAddress, ServerAddresses};
pub use bus::push::{EndpointSettings, NetworkSettings, PushBusSection, PushSection};
pub use bus::{BusKind, KafkaSection, Properties};
pub use buses::{BusSettings, is_bus_name};
pub use events::{EventSettings, WebhookSettings};
pub use grpc::GrpcSettings;
pub use http::{HttpSettings, TlsSettings, WorkerToken};
pub use log::{LogFormat, LogSettings, targets_of_module};
pub use overrides::Overrides;
pub use root::{
    EmbeddedSettings, FanOutSettings, JournalSettings, LimitSettings, MetricSettings, Settings,
    SettingsError, ShutdownSettings, TrustSettings,
};
pub use sources::{Source, Sourced, Sources};
pub use text::DEFAULTS;
pub use tokens::{HASH_PREFIX, MAIN_TOKEN, Scope, TOKEN_CHARS_MIN, TokenSettings, is_token_name};
pub use traces::TraceSettings;
pub use unknown_variables::check_client_variable;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_defaults_are_complete_and_valid() {
        let settings = Settings::defaults().and_then(Settings::into_validated).expect("defaults");
        assert!(settings.http.listen.ip().is_loopback());
        assert_eq!(settings.fanout.window, 10_000);
        assert_eq!(settings.limits.depth_max, 32);
    }

    #[test]
    fn secrets_in_addresses_are_masked() {
        for (address, expected) in [
            ("https://me:se@cret@host/a?key=cret#x", "https://me:***@host/a?***"),
            ("me:cret@host", "***"),
            ("", ""),
            ("SECRET", "***"),
            ("u:SECRET@host", "***"),
            ("amqp://host/v?heartbeat=10", "amqp://host/v?heartbeat=10"),
            ("amqp://u:SECRET", "amqp://u:***"),
            ("amqp://u:SECRET/v", "amqp://u:***/v"),
            ("amqp://SECRET@host", "amqp://***@host"),
            ("amqp://u:SEC/RET@host:1/v", "amqp://u:***@host:1/v"),
            ("amqp://u:SEC?RET#x@host", "amqp://u:***@host"),
            (
                "amqps://u@host/v?password=SECRET&heartbeat=1&SECRET",
                "amqps://***@host/v?password=***&heartbeat=1&***",
            ),
            ("http://[::1]:8088/a", "http://[::1]:8088/a"),
            ("http://[::1]", "http://[::1]"),
            ("https://host/hook?t=SECRET", "https://host/hook?***"),
            ("https://host/hook#SECRET", "https://host/hook#***"),
            (
                "https://hooks.example/services/T0AB/xoxb7SECRET9abcdefgh",
                "https://hooks.example/services/T0AB/***",
            ),
        ] {
            let masked = ServerAddress(address.into()).to_string();
            assert_eq!(masked, expected);
            assert_eq!(
                ServerAddress(masked).to_string(),
                expected,
                "a masked address stays the same"
            );
        }
    }

    #[test]
    fn secrets_in_settings_are_masked() {
        let mut settings = Settings::defaults().expect("defaults");
        settings.amqp.server = "amqp://me:se@cret@host:5672/v,amqp://me:se@cret@other/v".into();
        settings.http.token = Secret("hidden".into());
        settings.amqp.management = "http://me:se@cret@host:15672".into();
        let rendered =
            format!("{settings:?}{}", serde_json::to_string(&settings).expect("serialises"));
        assert!(!rendered.contains("cret@") && !rendered.contains("hidden"), "{rendered}");
        assert!(
            rendered.contains("amqp://me:***@host:5672/v")
                && rendered.contains("amqp://me:***@other/v")
                && rendered.contains("http://me:***@host:15672")
        );
        // Addresses within other texts are masked too.
        settings.http.public_url = "https://me:s3cret@manager".into();
        settings.kafka.servers = Names(vec!["SASL_SSL://me:s3cret@host:1".into()]);
        settings.kafka.properties.0.insert("https.proxy".into(), "http://a:s3cret@b".into());
        let masked_json = settings.masked().to_string();
        assert!(
            !masked_json.contains("s3cret") && masked_json.contains("https://me:***@manager"),
            "{masked_json}"
        );
    }

    #[test]
    fn durations_are_rendered_in_days_and_smaller_units() {
        let to_json = |duration: Duration| {
            serde_json::to_string(&DurationSetting(duration)).expect("serialises")
        };
        assert_eq!(to_json(Duration::from_secs(90 * 24 * 3600 + 5400)), "\"90d1h30m\"");
        assert_eq!(to_json(Duration::from_micros(1_500)), "\"1ms 500us\"");
    }

    #[test]
    fn an_address_that_others_can_reach_needs_a_token() {
        let mut settings = Settings::defaults().expect("defaults");
        settings.http.listen = "0.0.0.0:80".parse().expect("an address");
        assert!(settings.clone().into_validated().is_err());
        settings.http.token = Secret("a token that is long".into());
        assert!(settings.into_validated().is_ok());
        let mut settings = Settings::defaults().expect("defaults");
        settings.grpc.listen = Some("0.0.0.0:81".parse().expect("an address"));
        let error = settings.clone().into_validated().expect_err("open to all").to_string();
        assert!(error.contains("grpc.listen") && error.contains("http.token"), "{error}");
        settings.http.token = Secret("a token that is long".into());
        assert!(settings.into_validated().is_ok());
    }
}
