//! Checks of the API's certificate: whether it can be loaded, and when it expires.

use super::finding::Finding;
use super::installation::Installation;
use base::clock;
use base::times;
use daemon::access::{CertificateStore, EXPIRY_WARNING_S};

/// The name of the check.
const CERTIFICATE: &str = "tls";

const NANOSECONDS_PER_SECOND: i64 = 1_000_000_000;
const SECONDS_PER_DAY: i64 = 24 * 60 * 60;

/// Checks the certificate of the settings, if there is one. A certificate that expires within
/// [`EXPIRY_WARNING_S`] seconds is a warning, as in the manager's own checks.
pub(super) fn inspect(installation: &Installation, findings: &mut Vec<Finding>) {
    let tls = &installation.settings.http.tls;
    if !tls.is_enabled() {
        return;
    }
    let remedy = "put a new certificate into the file: a running manager shows it within a minute";
    let certificate = match CertificateStore::load(tls) {
        Ok(certificate) => certificate,
        Err(error) => {
            let remedy = "mend the files; a running manager shows the certificate of before on";
            return findings.push(Finding::error(CERTIFICATE, error, remedy));
        }
    };
    let Some(not_after) = certificate.current().not_after else {
        let text = format!("{}: when it ends cannot be read", tls.certificate);
        return findings.push(Finding::ok(CERTIFICATE, text));
    };
    let remaining_s = not_after.0.saturating_sub(clock::now().0) / NANOSECONDS_PER_SECOND;
    let (expiry, days) = (times::format_rfc3339(not_after), remaining_s / SECONDS_PER_DAY);
    findings.push(match remaining_s {
        ..0 => {
            let text = format!("{} has ended at {expiry}: no client believes it", tls.certificate);
            Finding::error(CERTIFICATE, text, remedy)
        }
        0..EXPIRY_WARNING_S => {
            let text = format!("{} ends in {days} days, at {expiry}", tls.certificate);
            Finding::warning(CERTIFICATE, text, remedy)
        }
        _ => Finding::ok(CERTIFICATE, format!("{} is good until {expiry}", tls.certificate)),
    });
}
