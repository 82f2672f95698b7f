//! Section `traces`: the export of traces to an OpenTelemetry receiver.

use base::values::{DurationSetting, Secret, ServerAddress, check_at_least_one};
use base::web_address::parse_web_address;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

/// The standard path to which OTLP over HTTP posts traces.
const OTLP_PATH: &str = "/v1/traces";

/// Headers that users cannot set: the exporter sets them, or they belong to the connection.
const RESERVED_EXPORT_HEADERS: [&str; 6] =
    ["connection", "content-length", "content-type", "host", "te", "transfer-encoding"];

/// The settings of section `traces`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "config/default.yaml explains each setting, with its unit")]
pub struct TraceSettings {
    pub endpoint: ServerAddress,
    pub headers: Secret,
    pub sampled: f64,
    pub service_name: String,
    pub resource: String,
    pub delay: DurationSetting,
    pub jobs_waiting_max: usize,
    pub job_spans_max: usize,
    pub batch_spans_max: usize,
    pub interval: DurationSetting,
    pub timeout: DurationSetting,
    pub backoff_min: DurationSetting,
    pub backoff_max: DurationSetting,
    pub age_max: DurationSetting,
}

impl TraceSettings {
    /// Returns whether traces are exported.
    pub fn is_enabled(&self) -> bool {
        !self.endpoint.0.is_empty()
    }

    /// Returns the share of root jobs whose traces are exported, from 0 to 1; `None` if traces are
    /// not exported at all.
    pub(crate) fn sampling_ratio(&self) -> Option<f64> {
        self.is_enabled().then_some(self.sampled)
    }

    /// Returns the URL to which spans are posted: the endpoint, with the standard path if it has
    /// none.
    ///
    /// # Errors
    ///
    /// Returns an error if the endpoint is not the address of a web service.
    pub fn url(&self) -> Result<String, String> {
        let mut url = parse_web_address(&self.endpoint.0)
            .map_err(|reason| format!("traces.endpoint: {reason}"))?;
        if matches!(url.path(), "" | "/") {
            url.set_path(OTLP_PATH);
        }
        Ok(url.into())
    }

    /// Parses the headers that are sent with each export. Returns pairs of name and value.
    ///
    /// # Errors
    ///
    /// Returns an error if a header is malformed or reserved. The error does not contain its value.
    pub fn headers(&self) -> Result<Vec<(String, String)>, String> {
        let headers = parse_pairs("traces.headers", "Authorization=Bearer%20…", &self.headers.0)?;
        for (index, (name, value)) in headers.iter().enumerate() {
            let is_token_char =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if !name.bytes().all(is_token_char) {
                return Err(format!("traces.headers: pair {} has no name of a header", index + 1));
            }
            if RESERVED_EXPORT_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
                return Err(format!(
                    "traces.headers: the manager itself sets {name}, leave it out"
                ));
            }
            if !value.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
                return Err(format!(
                    "traces.headers: {name} has a character that cannot stand in a header"
                ));
            }
        }
        Ok(headers)
    }

    /// Parses the additional resource attributes of the spans: those other than the service's name,
    /// version and instance. Returns pairs of name and value.
    ///
    /// # Errors
    ///
    /// Returns an error if the setting is malformed.
    pub fn resource(&self) -> Result<Vec<(String, String)>, String> {
        parse_pairs("traces.resource", "deployment.environment.name=production", &self.resource)
    }

    /// Checks the settings. All but the endpoint must be valid even if traces are not exported.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.sampled) {
            return Err(format!("traces.sampled is {}, expected 0 to 1", self.sampled));
        }
        if self.is_enabled() {
            self.url()?;
        }
        self.headers()?;
        self.resource()?;
        if self.service_name.is_empty() {
            return Err(
                "traces.service_name is empty, expected a name such as workflow-manager".to_owned()
            );
        }
        let numbers = [
            ("jobs_waiting_max", self.jobs_waiting_max),
            ("job_spans_max", self.job_spans_max),
            ("batch_spans_max", self.batch_spans_max),
        ];
        check_at_least_one("traces.", &numbers)?;
        let durations = [
            ("interval", self.interval),
            ("timeout", self.timeout),
            ("backoff_min", self.backoff_min),
        ];
        if let Some((name, _)) = durations.iter().find(|(_, duration)| duration.0.is_zero()) {
            return Err(format!("traces.{name} is 0s, expected more"));
        }
        if self.backoff_max.0 < self.backoff_min.0 {
            return Err(format!(
                "traces.backoff_max is {}, expected at least traces.backoff_min, which is {}",
                self.backoff_max, self.backoff_min
            ));
        }
        Ok(())
    }
}

/// Parses `name=value,name=value` with percent-encoded values, the format of OpenTelemetry's
/// environment variables. Errors do not contain the text, which may be a secret.
fn parse_pairs(setting: &str, example: &str, text: &str) -> Result<Vec<(String, String)>, String> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let parse_pair = |(index, part): (usize, &str)| {
        let error =
            |reason: &str| format!("{setting}: pair {} {reason}, expected {example}", index + 1);
        let (name, value) = part.split_once('=').ok_or_else(|| error("has no ="))?;
        let name = name.trim_end();
        if name.is_empty() {
            return Err(error("has no name"));
        }
        let value = percent_decode_str(value.trim_start()).decode_utf8();
        let value = value.map_err(|_| error("is not valid UTF-8"))?;
        Ok((name.to_owned(), value.into_owned()))
    };
    parts.enumerate().map(parse_pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn settings(change: impl FnOnce(&mut TraceSettings)) -> TraceSettings {
        let mut traces = Settings::defaults().expect("defaults").traces;
        change(&mut traces);
        traces
    }

    #[test]
    fn an_endpoint_without_a_path_gets_the_standard_path() {
        for (endpoint, url) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("https://collector/", "https://collector/v1/traces"),
            ("https://host/otlp/v1/traces", "https://host/otlp/v1/traces"),
            ("https://host/ingest?key=a", "https://host/ingest?key=a"),
        ] {
            let traces = settings(|traces| traces.endpoint = ServerAddress(endpoint.into()));
            assert_eq!(traces.url().as_deref(), Ok(url));
        }
    }

    #[test]
    fn headers_are_parsed_as_in_opentelemetry_and_masked() {
        let text = "Authorization=Basic%20c2VzYW1l%3D, x-key = a=b ";
        let traces = settings(|traces| traces.headers = Secret(text.into()));
        let headers = traces.headers().expect("the headers are valid");
        let expected = [("Authorization", "Basic c2VzYW1l="), ("x-key", "a=b")];
        assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        for invalid in
            ["sesame", "=sesame", "a b=sesame", "Host=sesame", "a=sesame%0a", "a=sesame%ff"]
        {
            let traces = settings(|traces| traces.headers = Secret(invalid.into()));
            let error = traces.check().expect_err("the headers are refused");
            assert!(error.starts_with("traces.headers") && !error.contains("sesame"), "{error}");
        }
    }

    #[test]
    fn impossible_values_are_rejected() {
        let assert_rejected = |change: fn(&mut TraceSettings), name: &str| {
            let error = settings(change).check().expect_err(name);
            assert!(error.starts_with(&format!("traces.{name}")), "{error}");
        };
        assert_rejected(|traces| traces.sampled = 1.5, "sampled");
        assert_rejected(|traces| traces.sampled = f64::NAN, "sampled");
        assert_rejected(
            |traces| traces.endpoint = ServerAddress("collector:4318".into()),
            "endpoint",
        );
        assert_rejected(|traces| traces.resource = "production".into(), "resource");
        assert_rejected(|traces| traces.service_name = String::new(), "service_name");
        assert_rejected(|traces| traces.batch_spans_max = 0, "batch_spans_max");
        assert_rejected(|traces| traces.interval.0 = std::time::Duration::ZERO, "interval");
        assert_rejected(|traces| traces.backoff_max.0 = std::time::Duration::ZERO, "backoff_max");
    }
}
