//! TLS to the server: it is used when the server offers it, and certificates are checked.

use super::on;
use super::server::Server;
use crate::tls::{Authority, Identity};
use std::fs;

/// The connections of the manager: whether all are encrypted.
const ENCRYPTED: &str = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// Lets the server show a certificate to whoever asks for TLS. It writes the files itself, for they
/// have to be its own.
fn offer(server: &Server, identity: &Identity) {
    let (certificate, key) = identity.files();
    for (name, file) in [("server.crt", certificate), ("server.key", key)] {
        let text = fs::read_to_string(file).unwrap();
        let pem = text.lines().collect::<Vec<_>>().join("\n");
        server.query(&format!(
            "COPY (SELECT unnest(string_to_array('{pem}', E'\\n')))
             TO PROGRAM 'umask 077; cat >{name}'"
        ));
    }
    server.query("ALTER SYSTEM SET ssl = on");
    server.restart();
}

#[test]
fn tls_is_used_when_the_server_offers_it_and_its_certificate_is_checked() {
    let server = Server::start();
    let (known, stranger) = (Authority::new(), Authority::new());
    let authorities = known.file();
    let with = |mode: &str| {
        let url = format!("{}{mode}", server.url);
        on(&url).set("tls.authorities", authorities.to_str().unwrap())
    };
    let encrypted = |mode: &str| {
        let mut daemon = with(mode).start();
        let told = server.query(ENCRYPTED);
        assert_eq!(daemon.stop().code(), Some(0));
        told
    };
    let refused = |mode: &str, word: &str| {
        let mut daemon = with(mode).spawn();
        assert_eq!(daemon.await_end().code(), Some(1));
        daemon.await_log(&["TLS", word]);
    };
    assert_eq!(encrypted(""), "f", "it offers none");
    refused("?sslmode=require", "does not support TLS");

    offer(&server, &known.vouch("good", "127.0.0.1", 2099));
    assert_eq!(encrypted(""), "t");
    assert_eq!(encrypted("?sslmode=disable"), "f");
    for (identity, word) in [
        (known.vouch("old", "127.0.0.1", 2020), "xpired"),
        (known.vouch("other", "example.org", 2099), "name"),
        (stranger.vouch("strange", "127.0.0.1", 2099), "nknown"),
    ] {
        offer(&server, &identity);
        refused("", word);
    }
}
