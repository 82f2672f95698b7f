//! Checks of the gRPC port for workers: whether it can be reached, has a trusted certificate, and
//! accepts the token.

use super::finding::Finding;
use super::installation::{Installation, to_loopback};
use crate::target::ManagerTarget;
use grpc::probe::{ProbeTarget, probe_port};
use std::time::Duration;
use url::Url;

/// The name of the check.
const GRPC: &str = "grpc";

/// How long the probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the gRPC port of the settings, if there is one. The host name for the certificate and the
/// token are those with which the HTTP API of `manager` is called. `None` if they are unknown.
pub(super) fn inspect(
    installation: &Installation,
    manager: Option<&ManagerTarget>,
    findings: &mut Vec<Finding>,
) {
    let settings = &installation.settings;
    let Some(listen) = settings.grpc.listen else { return };
    let address = to_loopback(listen);
    let is_tls = !settings.http.tls.certificate.is_empty();
    let url = manager.and_then(|manager| Url::parse(manager.addresses.current()).ok());
    let host = url.and_then(|url| url.host_str().map(str::to_owned));
    let probe_target = ProbeTarget {
        address,
        tls: is_tls.then(|| installation.authorities.client_config()),
        host: host.unwrap_or_else(|| address.ip().to_string()),
        token: manager.map_or_else(String::new, |manager| manager.token.clone()),
    };
    let result = actix_rt::System::new().block_on(async {
        let result = tokio::time::timeout(PROBE_TIMEOUT, probe_port(probe_target)).await;
        result.unwrap_or_else(|_| {
            Err(format!("no answer within {}", humantime::format_duration(PROBE_TIMEOUT)))
        })
    });
    let security = if is_tls { " over TLS" } else { "" };
    match result {
        Err(reason) => {
            let remedy = "start the manager, and see grpc.listen; over TLS, give the name of its \
                         certificate with --server https://NAME:PORT, and its authority in \
                         tls.authorities";
            findings.push(Finding::error(
                GRPC,
                format!("workers cannot come to {address}: {reason}"),
                remedy,
            ));
        }
        Ok(probe) => {
            findings.push(if probe.is_serving {
                Finding::ok(GRPC, format!("workers can come to {address}{security}"))
            } else {
                Finding::warning(
                    GRPC,
                    format!("{address} answers{security}, and says that the manager does not work"),
                    "see its readiness: workflow-manager health",
                )
            });
            if let Err(reason) = probe.admission {
                let remedy =
                    "give the right token (--token), or ask under a name that http.hosts has";
                findings.push(Finding::error(
                    GRPC,
                    format!("a worker is refused: {reason}"),
                    remedy,
                ));
            }
        }
    }
}
