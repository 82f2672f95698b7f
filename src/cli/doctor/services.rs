//! Checks of web services that steps call: whether their names can be resolved and may be called,
//! whether their certificates are trusted, and whether they answer at all.

use super::broker::{place, queues_of};
use super::finding::Finding;
use super::local::Local;
use crate::actors::transport::service_client;
use crate::bus::BusKey;
use crate::bus::push::Unanswered;
use crate::engine::words::quoted;
use crate::settings::{is_url, web_address};
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const SERVICES: &str = "services";

/// How long a response may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Checks each web service of the settings and of the workflows. Nothing is posted to them.
pub(super) fn look(local: &Local, found: &mut Vec<Finding>) {
    let settings = &local.settings;
    for bus in settings.bus_kinds().into_keys() {
        let Some(endpoints) = settings.push_bus(bus) else { continue };
        let mut urls: BTreeMap<String, String> =
            endpoints.iter().map(|(name, named)| (name.clone(), named.url.0.clone())).collect();
        for queue in queues_of(local, bus).into_values().flatten().filter(|queue| is_url(queue)) {
            urls.insert(host_of(&queue), queue.to_string());
        }
        if urls.is_empty() {
            continue;
        }
        let key = BusKey { bus: Arc::from(bus), vhost: Arc::from("") };
        let client = match service_client(settings, key) {
            Ok(client) => client,
            Err(why) => {
                found.push(Finding::error(SERVICES, why, "mend the settings push and tls"));
                continue;
            }
        };
        let place = place(settings, bus, "");
        let probed =
            actix_rt::System::new().block_on(join_all(urls.iter().map(async |(name, url)| {
                finding(name, url, client.probe(url, PATIENCE).await, &place)
            })));
        found.extend(probed);
    }
}

/// Returns the host of an address. The rest is not printed, since it may contain a secret.
fn host_of(url: &str) -> String {
    let host = web_address(url).ok();
    let host = host.as_ref().and_then(|url| url.host_str());
    host.unwrap_or("an address that cannot be read").to_owned()
}

fn finding(name: &str, url: &str, told: Result<u16, Unanswered>, place: &str) -> Finding {
    let (host, name) = (host_of(url), quoted(name));
    let of = format!("{name} at {host}{place}");
    match told {
        Ok(status) => Finding::ok(SERVICES, format!("{of} answers ({status} to OPTIONS)")),
        Err(Unanswered::Refused(why)) => Finding::error(
            SERVICES,
            format!("{of} may not be called: {why}"),
            "give it another address, or change push.networks",
        ),
        Err(Unanswered::Distrusted(why)) => Finding::error(
            SERVICES,
            format!("{of} has a certificate that is not believed: {why}"),
            "name its authority in tls.authorities, or give it a certificate for its name",
        ),
        Err(Unanswered::Unreachable(why)) => Finding::error(
            SERVICES,
            format!("{of} cannot be reached: {why}"),
            "see that the name is right and that it runs; messages wait until then",
        ),
        Err(Unanswered::Silent) => Finding::warning(
            SERVICES,
            format!(
                "{of} takes a connection, and gave no answer to OPTIONS within {}",
                humantime::format_duration(PATIENCE)
            ),
            "see its log; it may answer to POST alone",
        ),
    }
}
