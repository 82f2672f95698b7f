//! Section `grpc`: the server and the limits for workers that connect over gRPC.

use super::http::HttpSettings;
use base::values::{DurationSetting, check_at_least_one};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::net::SocketAddr;

/// The settings of section `grpc`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct GrpcSettings {
    #[serde(
        deserialize_with = "deserialize_optional_address",
        serialize_with = "serialize_optional_address"
    )]
    pub listen: Option<SocketAddr>,
    pub connections_max: usize,
    pub connection_calls_max: u32,
    pub streams_max: usize,
    pub stream_queues_max: usize,
    pub credit_max: u32,
    pub window_bytes: u32,
    pub handshake_timeout: DurationSetting,
    pub keep_alive: DurationSetting,
    pub drain: DurationSetting,
}

/// The sizes that the setting `window_bytes` may have. The largest is the maximum of an HTTP/2
/// flow-control window, the smallest its initial size (RFC 9113, sections 6.9.1 and 6.9.2). A
/// smaller window would slow down every call.
const WINDOW_BYTES: std::ops::RangeInclusive<u32> = 65_535..=0x7fff_ffff;

/// Deserializes an address to listen on. An empty text means `None`.
fn deserialize_optional_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    super::spelling::parse_listen_address(&text).map(Some)
}

/// Serializes an address to listen on. `None` becomes an empty text.
fn serialize_optional_address<S: Serializer>(
    listen: &Option<SocketAddr>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match listen {
        Some(address) => serializer.collect_str(address),
        None => serializer.serialize_str(""),
    }
}

impl GrpcSettings {
    /// Checks the settings, on their own and against section `http`.
    pub(super) fn check(&self, http: &HttpSettings) -> Result<(), String> {
        let Some(listen) = self.listen else { return self.check_limits() };
        if !cfg!(feature = "grpc") {
            return Err(
                "grpc.listen is set, but this program was built without gRPC (feature grpc): \
                 leave it empty"
                    .to_owned(),
            );
        }
        if listen == http.listen && listen.port() != 0 {
            return Err(format!(
                "grpc.listen is {listen}, as http.listen is: gRPC needs a port of its own, such as \
                 {}",
                listen.port().wrapping_add(1).max(1)
            ));
        }
        self.check_limits()
    }

    /// Checks the limits and durations, which must be valid even without a server.
    fn check_limits(&self) -> Result<(), String> {
        let numbers = [
            ("connections_max", self.connections_max),
            ("connection_calls_max", self.connection_calls_max as usize),
            ("streams_max", self.streams_max),
            ("stream_queues_max", self.stream_queues_max),
            ("credit_max", self.credit_max as usize),
        ];
        let durations =
            [("handshake_timeout", self.handshake_timeout), ("keep_alive", self.keep_alive)];
        check_at_least_one("grpc.", &numbers)?;
        if !WINDOW_BYTES.contains(&self.window_bytes) {
            return Err(format!(
                "grpc.window_bytes is {}, expected {} to {} (HTTP/2)",
                self.window_bytes,
                WINDOW_BYTES.start(),
                WINDOW_BYTES.end()
            ));
        }
        match durations.iter().find(|(_, duration)| duration.0.is_zero()) {
            Some((name, _)) => Err(format!("grpc.{name} is 0s, expected some time, such as 30s")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    #[test]
    fn grpc_needs_its_own_port_and_limits_above_zero() {
        let settings = Settings::defaults().expect("defaults");
        let validation_error = |change: fn(&mut GrpcSettings)| {
            let mut grpc = settings.grpc.clone();
            change(&mut grpc);
            grpc.check(&settings.http).expect_err("the settings are invalid")
        };
        assert_eq!(settings.grpc.check(&settings.http), Ok(()));
        assert!(validation_error(|grpc| grpc.credit_max = 0).contains("grpc.credit_max is 0"));
        assert!(
            validation_error(|grpc| grpc.window_bytes = 1000).contains("grpc.window_bytes is 1000")
        );
        assert!(
            validation_error(|grpc| grpc.keep_alive = DurationSetting(std::time::Duration::ZERO))
                .contains("grpc.keep_alive is 0s")
        );
        let mut grpc = settings.grpc.clone();
        grpc.listen = Some(settings.http.listen);
        let error = grpc.check(&settings.http).expect_err("the same port");
        if cfg!(feature = "grpc") {
            assert!(error.contains("grpc.listen is 127.0.0.1:8088, as http.listen"), "{error}");
        }
    }
}
