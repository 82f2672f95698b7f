//! The certificate that the API presents: when it is warned of. Time stands still unless all wait.

use crate::alone::{Log, alone};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use std::fs;
use std::path::Path;
use std::time::Duration;
use support::api::Api;
use support::manager::TestManager;
use tokio::time::sleep;
use workflow_manager::clock;
use workflow_manager::reload::{reload, watch_certificate};

const WARNING: &str = "the certificate of the API expires soon";

/// Longer than the watch of the files waits between two looks.
const LOOK: Duration = Duration::from_secs(90);

const HOUR: Duration = Duration::from_secs(3600);

/// Writes a certificate that ends within days, and its key.
fn write_identity(certificate: &Path, key: &Path) {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let now = Duration::from_nanos(u64::try_from(clock::now().0).expect("after 1970"));
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(1970, 1, 1) + now + 100 * HOUR;
    let pair = KeyPair::generate().expect("a key");
    let made = params.self_signed(&pair).expect("signed");
    fs::write(certificate, made.pem()).expect("written");
    fs::write(key, pair.serialize_pem()).expect("written");
}

async fn a_reload() {
    let folder = tempfile::tempdir().expect("a folder");
    let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
    write_identity(&certificate, &key);
    let setup = TestManager::with("workflows: [{name: w, steps: [{name: a}]}]");
    let manager = setup
        .set(|settings| {
            let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
            settings.http.tls.certificate = text(&certificate);
            settings.http.tls.key = text(&key);
        })
        .await;
    let api = Api::new(&manager).await;
    let state = api.state();
    state.access.certificate(&state.settings.http.tls).expect("loads").expect("there is one");
    let log = Log::begin();
    tokio::time::pause();
    let watch = actix_rt::spawn(watch_certificate(state.reloader()));
    sleep(LOOK).await;
    assert_eq!(log.count(WARNING), 1, "it is warned of at once");
    sleep(2 * HOUR).await;
    assert_eq!(log.count(WARNING), 1, "and then once a day");

    write_identity(&certificate, &key);
    reload(&state.reloader()).await.expect("reloaded");
    sleep(LOOK).await;
    assert_eq!(log.count(WARNING), 2, "the one that a reload brought is another one");
    write_identity(&certificate, &key);
    sleep(LOOK + LOOK).await;
    assert_eq!(log.count(WARNING), 3, "and so is one that was found");
    sleep(23 * HOUR).await;
    assert_eq!(log.count(WARNING), 3);
    sleep(HOUR).await;
    assert_eq!(log.count(WARNING), 4, "a day has passed");
    watch.abort();
    tokio::time::resume();
    manager.stop().await;
}

#[test]
fn each_certificate_that_ends_soon_is_warned_of_also_after_a_reload() {
    let test = "certificate::each_certificate_that_ends_soon_is_warned_of_also_after_a_reload";
    alone(test, a_reload());
}
