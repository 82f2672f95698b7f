//! A certificate that is replaced while the daemon runs, and one that is about to end.

use crate::harness::{command, eventually, free_port, run, when, within};
use crate::tls::{Authority, Identity, ask, client, over_tls};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

/// How long it may take until changed files are found: they are looked at each minute.
const FOUND_WITHIN: Duration = Duration::from_secs(150);

#[test]
fn changed_files_are_shown_without_a_reload() {
    let (first, second, clients) = (Authority::new(), Authority::new(), Authority::new());
    let shown = first.vouch("api", "localhost", 2099);
    let trusted = shown.files().0.with_file_name("trusted.pem");
    fs::copy(first.file(), &trusted).unwrap();
    let grpc = format!("127.0.0.1:{}", free_port());
    let daemon = over_tls(
        &shown,
        &[("http.tls.client_authorities", trusted.to_str().unwrap()), ("grpc.listen", &grpc)],
    );
    let (before, after) =
        (first.vouch("client", "client", 2099), clients.vouch("client", "client", 2099));
    let get = |authority: &Authority, own: &Identity| {
        let answer = ask(&daemon, authority, Some(own), "GET /metrics")?;
        if answer.is_empty() { Err("refused".to_owned()) } else { Ok(answer) }
    };
    // Over gRPC as far as the handshake, with whatever follows it.
    let shakes = |authority: &Authority, own: &Identity| {
        let config = client(authority).with_client_auth_cert(own.chain(), own.key()).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut session = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut socket = TcpStream::connect(&grpc).map_err(|error| error.to_string())?;
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut stream = rustls::Stream::new(&mut session, &mut socket);
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            .and_then(|()| stream.read_exact(&mut [0]))
            .map_err(|error| error.to_string())
    };
    let answer = eventually("it answers", || get(&first, &before));
    shakes(&first, &before).unwrap();
    let series = "\nworkflow_certificate_not_after_seconds ";
    // The end of 2099-12-31, in UTC, begins there.
    assert!(answer.contains(&format!("{series}4102358400")), "{answer}");

    fs::write(shown.files().0, "nothing").unwrap();
    let words = ["cannot be used", "no certificate", "the previous one"];
    within(FOUND_WITHIN, "a broken file is told", || {
        let found = daemon.log().lines().any(|line| words.iter().all(|word| line.contains(word)));
        when(found, "not yet")
    });
    get(&first, &before).expect("the one of before is shown on");

    let next = second.vouch("next", "localhost", 2098);
    fs::copy(next.files().1, shown.files().1).unwrap();
    fs::copy(next.files().0, shown.files().0).unwrap();
    fs::copy(clients.file(), &trusted).unwrap();
    let answer = within(FOUND_WITHIN, "the new one is shown", || get(&second, &after));
    assert!(answer.contains(&format!("{series}40708")), "{answer}");
    shakes(&second, &after).unwrap();
    for (authority, own) in [(&first, &before), (&first, &after), (&second, &before)] {
        assert!(get(authority, own).is_err() && shakes(authority, own).is_err());
    }
}

#[test]
fn a_certificate_that_ends_soon_is_warned_of() {
    let authority = Authority::new();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    for (days, level, words) in [
        (-1, "error", &["has ended"][..]),
        (5, "warning", &["ends in 4 days"]),
        (13, "warning", &["ends in 12 days"]),
        (30, "ok", &["is good until"]),
    ] {
        let shown = authority.vouch("api", "localhost", 2099);
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(1970, 1, 1) + now;
        let span = Duration::from_secs(24 * 3600 * u64::from(i32::unsigned_abs(days)));
        match days {
            ..0 => params.not_after -= span,
            _ => params.not_after += span,
        }
        let key = KeyPair::from_pem(&fs::read_to_string(shown.files().1).unwrap()).unwrap();
        let made = params.signed_by(&key, &authority.issuer).unwrap();
        fs::write(shown.files().0, made.pem()).unwrap();

        let doctor = run(command()
            .args(["doctor", "--json", "--db"])
            .arg(shown.files().0.with_file_name("none.db"))
            .env("WORKFLOW_MANAGER__HTTP__TLS__CERTIFICATE", shown.files().0)
            .env("WORKFLOW_MANAGER__HTTP__TLS__KEY", shown.files().1));
        let found: Value = serde_json::from_str(&doctor.stdout).unwrap();
        let of_tls: Vec<&Value> =
            found.as_array().unwrap().iter().filter(|found| found["check"] == "tls").collect();
        let [told] = of_tls[..] else { panic!("{found}") };
        assert_eq!(told["level"], level, "{told}");
        assert!(words.iter().all(|word| told["text"].as_str().unwrap().contains(word)), "{told}");
        if level == "ok" {
            continue;
        }
        let daemon = over_tls(&shown, &[]);
        daemon.await_log(&["expires soon, or has expired", "hours_left"]);
    }
}
