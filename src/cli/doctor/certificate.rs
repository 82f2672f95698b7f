//! Checks of the API's certificate: whether it can be used, and for how long.

use super::finding::Finding;
use super::installation::Installation;
use base::clock;
use base::times;
use daemon::access::{CertificateStore, EXPIRY_WARNING_S};

const CERTIFICATE: &str = "tls";

/// Checks the certificate of the settings, if there is one.
pub(super) fn inspect(installation: &Installation, findings: &mut Vec<Finding>) {
    let tls = &installation.settings.http.tls;
    if !tls.is_enabled() {
        return;
    }
    let renew = "put a new certificate into the file: a running manager shows it within a minute";
    let certificate = match CertificateStore::load(tls) {
        Ok(certificate) => certificate,
        Err(why) => {
            let to_do = "mend the files; a running manager shows the certificate of before on";
            return findings.push(Finding::error(CERTIFICATE, why, to_do));
        }
    };
    let Some(at) = certificate.current().not_after else {
        let text = format!("{}: when it ends cannot be read", tls.certificate);
        return findings.push(Finding::ok(CERTIFICATE, text));
    };
    let left_s = at.0.saturating_sub(clock::now().0) / 1_000_000_000;
    let (end, days) = (times::format_rfc3339(at), left_s / (24 * 3600));
    findings.push(match left_s {
        ..0 => {
            let text = format!("{} has ended at {end}: no client believes it", tls.certificate);
            Finding::error(CERTIFICATE, text, renew)
        }
        0..EXPIRY_WARNING_S => {
            let text = format!("{} ends in {days} days, at {end}", tls.certificate);
            Finding::warning(CERTIFICATE, text, renew)
        }
        _ => Finding::ok(CERTIFICATE, format!("{} is good until {end}", tls.certificate)),
    });
}
