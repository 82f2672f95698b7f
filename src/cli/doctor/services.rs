//! Checks of web services that steps call: whether their names can be resolved, whether the
//! settings allow calls of them, whether their certificates are trusted, and whether they answer.

use super::broker::{format_location, queues_on_bus};
use super::finding::Finding;
use super::installation::Installation;
use base::web_address::{is_url, parse_web_address};
use bus::BusKey;
use bus::push::ProbeError;
use daemon::actors::bus_starter::service_client;
use engine::text::quote;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The name of the check.
const SERVICES: &str = "services";

/// How long the response to a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks each web service of the settings and of the workflows. It is probed by an `OPTIONS`
/// request, and nothing is posted.
pub(super) fn inspect(installation: &Installation, findings: &mut Vec<Finding>) {
    let settings = &installation.settings;
    for bus in settings.bus_kinds().into_keys() {
        let Some(endpoints) = settings.push_bus(bus) else { continue };
        // The URLs, by the name of the endpoint in the settings, or else by the host.
        let mut urls: BTreeMap<String, String> = endpoints
            .iter()
            .map(|(name, endpoint)| (name.clone(), endpoint.url.0.clone()))
            .collect();
        for queue in
            queues_on_bus(installation, bus).into_values().flatten().filter(|queue| is_url(queue))
        {
            urls.insert(display_host(&queue), queue.to_string());
        }
        if urls.is_empty() {
            continue;
        }
        let bus_key = BusKey { name: Arc::from(bus), vhost: Arc::from("") };
        let client = match service_client(settings, bus_key) {
            Ok(client) => client,
            Err(error) => {
                findings.push(Finding::error(SERVICES, error, "mend the settings push and tls"));
                continue;
            }
        };
        let location = format_location(settings, bus, "");
        let probe_findings =
            actix_rt::System::new().block_on(join_all(urls.iter().map(async |(name, url)| {
                to_finding(name, url, client.probe(url, PROBE_TIMEOUT).await, &location)
            })));
        findings.extend(probe_findings);
    }
}

/// Returns the host of a URL. Other parts may contain a secret, and are not printed.
fn display_host(url: &str) -> String {
    let parsed_url = parse_web_address(url).ok();
    let host = parsed_url.as_ref().and_then(|url| url.host_str());
    host.unwrap_or("an address that cannot be read").to_owned()
}

/// Converts the result of a probe to a finding. The result is the status of the response.
fn to_finding(name: &str, url: &str, result: Result<u16, ProbeError>, location: &str) -> Finding {
    let (host, name) = (display_host(url), quote(name));
    let subject = format!("{name} at {host}{location}");
    match result {
        Ok(status) => Finding::ok(SERVICES, format!("{subject} answers ({status} to OPTIONS)")),
        Err(ProbeError::Denied(reason)) => Finding::error(
            SERVICES,
            format!("{subject} may not be called: {reason}"),
            "give it another address, or change push.networks",
        ),
        Err(ProbeError::Untrusted(reason)) => Finding::error(
            SERVICES,
            format!("{subject} has a certificate that is not believed: {reason}"),
            "name its authority in tls.authorities, or give it a certificate for its name",
        ),
        Err(ProbeError::Unreachable(reason)) => Finding::error(
            SERVICES,
            format!("{subject} cannot be reached: {reason}"),
            "see that the name is right and that it runs; messages wait until then",
        ),
        Err(ProbeError::TimedOut) => Finding::warning(
            SERVICES,
            format!(
                "{subject} takes a connection, and gave no answer to OPTIONS within {}",
                humantime::format_duration(PROBE_TIMEOUT)
            ),
            "see its log; it may answer to POST alone",
        ),
    }
}
