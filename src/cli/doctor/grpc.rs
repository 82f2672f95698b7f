//! Checks of the port of workers over gRPC: whether it listens, has a trusted certificate, and
//! accepts the token.

use super::finding::Finding;
use super::installation::{Installation, to_loopback};
use crate::target::ManagerTarget;
use grpc::probe::{ProbeTarget, probe_port};
use std::time::Duration;
use url::Url;

const GRPC: &str = "grpc";

/// How long the probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the gRPC port of the settings, if there is one. The HTTP API of `manager` has the same
/// certificate, and takes the same token.
pub(super) fn inspect(
    installation: &Installation,
    manager: Option<&ManagerTarget>,
    findings: &mut Vec<Finding>,
) {
    let settings = &installation.settings;
    let Some(listen) = settings.grpc.listen else { return };
    let address = to_loopback(listen);
    let is_over_tls = !settings.http.tls.certificate.is_empty();
    let url = manager.and_then(|manager| Url::parse(&manager.server).ok());
    let host = url.and_then(|url| url.host_str().map(str::to_owned));
    let port = ProbeTarget {
        address,
        tls: is_over_tls.then(|| installation.authorities.client_config()),
        host: host.unwrap_or_else(|| address.ip().to_string()),
        token: manager.map_or_else(String::new, |manager| manager.token.clone()),
    };
    let probed = actix_rt::System::new().block_on(async {
        let probed = tokio::time::timeout(PROBE_TIMEOUT, probe_port(port)).await;
        probed.unwrap_or_else(|_| {
            Err(format!("no answer within {}", humantime::format_duration(PROBE_TIMEOUT)))
        })
    });
    let with = if is_over_tls { " over TLS" } else { "" };
    match probed {
        Err(why) => {
            let to_do = "start the manager, and see grpc.listen; over TLS, give the name of its \
                         certificate with --server https://NAME:PORT, and its authority in \
                         tls.authorities";
            findings.push(Finding::error(
                GRPC,
                format!("workers cannot come to {address}: {why}"),
                to_do,
            ));
        }
        Ok(probed) => {
            findings.push(match probed.is_serving {
                true => Finding::ok(GRPC, format!("workers can come to {address}{with}")),
                false => Finding::warning(
                    GRPC,
                    format!("{address} answers{with}, and says that the manager does not work"),
                    "see its readiness: workflow-manager status",
                ),
            });
            if let Err(why) = probed.admission {
                let to_do =
                    "give the right token (--token), or ask under a name that http.hosts has";
                findings.push(Finding::error(GRPC, format!("a worker is refused: {why}"), to_do));
            }
        }
    }
}
