//! TLS, on both sides: whose certificates are believed, and what the API shows. Certificates that
//! are out of date, of another host, or of an authority that nobody knows, are refused everywhere.

use crate::amqp::Vhost;
use crate::harness::{Daemon, Setup, command, eventually, must_succeed, run, when};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, ServerConfig, ServerConnection, StreamOwned,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;

const WORKFLOW: &str = "workflows: [ { name: single, steps: [ { name: work } ] } ]";

/// Somebody who vouches for certificates.
pub(crate) struct Authority {
    folder: TempDir,
    certificate: CertificateDer<'static>,
    pub(crate) issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in files.
pub(crate) struct Identity {
    certificate: PathBuf,
    key: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Otherwise one is taken for the other, whose signature is bad.
        let name = uuid::Uuid::new_v4().to_string();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("authority.pem"), made.pem()).unwrap();
        let certificate = made.der().clone();
        Authority { folder, certificate, issuer: Issuer::new(params, key) }
    }

    /// Its own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// A certificate for a host, until the end of a year.
    pub(crate) fn vouch(&self, name: &str, host: &str, until: i32) -> Identity {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(until, 12, 31);
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.issuer).unwrap();
        let place = |kind: &str| self.folder.path().join(format!("{name}.{kind}.pem"));
        fs::write(place("certificate"), made.pem()).unwrap();
        fs::write(place("key"), key.serialize_pem()).unwrap();
        Identity { certificate: place("certificate"), key: place("key") }
    }

    /// The certificate of an identity once more, by this authority, for the same key.
    fn renew(&self, of: &Identity, host: &str) {
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let key = KeyPair::from_pem(&fs::read_to_string(&of.key).unwrap()).unwrap();
        let made = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(&of.certificate, made.pem()).unwrap();
    }

    /// An answer of the daemon's API, which this authority vouches for; `headers` end with a line's
    /// end each.
    pub(crate) fn ask(
        &self,
        daemon: &Daemon,
        request: &str,
        headers: &str,
    ) -> Result<String, String> {
        ask_with(daemon, self, None, (request, headers))
    }

    /// One that is good, and those that are not, each with a word of what is wrong with it.
    fn identities(&self, stranger: &Authority) -> (Identity, Vec<(Identity, &'static str)>) {
        let bad = vec![
            (self.vouch("old", "localhost", 2020), "xpired"),
            (self.vouch("other", "example.org", 2099), "name"),
            (stranger.vouch("strange", "localhost", 2099), "nknown"),
        ];
        (self.vouch("good", "localhost", 2099), bad)
    }
}

impl Identity {
    /// The files of the certificate and of its key.
    pub(crate) fn files(&self) -> (&Path, &Path) {
        (&self.certificate, &self.key)
    }

    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(&self.certificate).unwrap().map(Result::unwrap).collect()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(&self.key).unwrap()
    }
}

/// Passes on what comes with TLS to an address, and the other way; returns its own port.
pub(crate) fn serve_with_tls(identity: &Identity, to: String) -> u16 {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(identity.chain(), identity.key())
        .unwrap();
    let (tls, listener) = (Arc::new(tls), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let (tls, to) = (tls.clone(), to.clone());
            std::thread::spawn(move || {
                let mut plain = TcpStream::connect(to)?;
                for socket in [&socket, &plain] {
                    socket.set_read_timeout(Some(Duration::from_millis(10)))?;
                }
                let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
                let mut secret = StreamOwned::new(connection, socket);
                while pass(&mut secret, &mut plain)? && pass(&mut plain, &mut secret)? {}
                io::Result::Ok(())
            });
        }
    });
    port
}

/// Passes on what there is; whether more may come.
fn pass(from: &mut impl Read, to: &mut impl Write) -> io::Result<bool> {
    let mut part = [0; 4096];
    match from.read(&mut part) {
        Ok(0) => Ok(false),
        Ok(bytes) => to.write_all(&part[..bytes]).and_then(|()| to.flush()).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

#[test]
fn a_broker_is_believed_if_an_authority_of_the_settings_vouches_for_it() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (good, bad) = authority.identities(&stranger);
    let vhost = Vhost::new();
    let (credentials, place) = vhost.url.trim_start_matches("amqp://").split_once('@').unwrap();
    let (broker, name) = place.split_once('/').unwrap();
    let start = |identity: &Identity| {
        let port = serve_with_tls(identity, broker.to_owned());
        Setup::new(&format!("amqps://{credentials}@localhost:{port}/{name}"), WORKFLOW)
            .set("tls.authorities", authority.file().to_str().unwrap())
    };
    for (identity, word) in bad {
        let daemon = start(&identity).launch();
        daemon.await_log(&["not connected", "ertificate", word]);
        daemon.api.get("/readyz").expect(503);
    }
    let daemon = start(&good).start();
    let worker = crate::amqp::Worker::echo(&vhost.url, &["work"]);
    let id = daemon.api.create("single", r#"{"a":1}"#);
    assert_eq!(daemon.api.await_result(id), r#"{"a":1}"#);
    drop(worker);
}

/// A worker of the Rust library in a thread of its own.
struct RustWorker {
    log: Log,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What it logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl RustWorker {
    /// Gives back what comes to the queue `work`; believes this authority besides the machine's.
    fn start(server: String, authorities: Option<PathBuf>) -> RustWorker {
        let (log, (stop, stopped)) = (Log::default(), oneshot::channel::<()>());
        let writes = log.clone();
        let thread = std::thread::spawn(move || {
            let logs = tracing_subscriber::fmt().with_writer(move || writes.clone()).finish();
            tracing::subscriber::with_default(logs, || {
                let mut worker = workflow_worker::Worker::new().server(&server);
                worker = worker.queue("work", async |message: Value, _| Ok(message));
                if let Some(file) = authorities {
                    worker = worker.authorities(file);
                }
                actix_rt::System::new()
                    .block_on(worker.run_until(async { drop(stopped.await) }))
                    .unwrap();
            });
        });
        RustWorker { log, stop: Some(stop), thread: Some(thread) }
    }

    /// Waits until its log has these words.
    fn await_log(&self, words: &str) {
        eventually("the worker logs", || {
            let text = String::from_utf8_lossy(&self.log.0.lock().unwrap()).into_owned();
            when(text.contains(words), text)
        });
    }
}

impl Drop for RustWorker {
    fn drop(&mut self) {
        drop(self.stop.take());
        let joined = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(joined, Some(Ok(()))));
    }
}

#[test]
fn the_rust_library_believes_a_broker_whose_authority_it_was_given() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (good, bad) = authority.identities(&stranger);
    let vhost = Vhost::new();
    let (credentials, place) = vhost.url.trim_start_matches("amqp://").split_once('@').unwrap();
    let (broker, name) = place.split_once('/').unwrap();
    let daemon = Setup::new(&vhost.url, WORKFLOW).start();
    let id = daemon.api.create("single", r#"{"a":1.50}"#);
    let server = |identity: &Identity| {
        let port = serve_with_tls(identity, broker.to_owned());
        format!("amqps://{credentials}@localhost:{port}/{name}")
    };
    for (identity, word) in &bad {
        let worker = RustWorker::start(server(identity), Some(authority.file()));
        worker.await_log(word);
    }
    // Without the file nobody vouches for the broker.
    RustWorker::start(server(&good), None).await_log("UnknownIssuer");
    let none = fs::canonicalize("Cargo.toml").unwrap();
    let refused = workflow_worker::Worker::new()
        .server(&server(&good))
        .queue("work", async |message: Value, _| Ok(message))
        .authorities(none);
    let told = actix_rt::System::new().block_on(refused.run_until(std::future::pending()));
    let told = told.unwrap_err().to_string();
    assert!(told.contains("expected certificates in PEM"), "{told}");
    assert!(!told.contains(credentials), "{told}");
    let worker = RustWorker::start(server(&good), Some(authority.file()));
    assert_eq!(daemon.api.await_result(id), r#"{"a":1.5}"#);
    drop(worker);
}

#[test]
fn the_rust_library_believes_a_manager_whose_authority_it_was_given() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (good, bad) = authority.identities(&stranger);
    let daemon = Setup::new("", WORKFLOW).start();
    let id = daemon.api.create("single", r#"{"a":1}"#);
    let place = daemon.url().replace("http://", "");
    let server = |identity: &Identity| {
        format!("https://localhost:{}", serve_with_tls(identity, place.clone()))
    };
    for (identity, _) in &bad {
        let worker = RustWorker::start(server(identity), Some(authority.file()));
        worker.await_log("ertificate");
    }
    let worker = RustWorker::start(server(&good), Some(authority.file()));
    assert_eq!(daemon.api.await_result(id), r#"{"a":1}"#);
    drop(worker);
}

#[test]
fn the_webhook_and_the_management_api_check_certificates_too() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (_, bad) = authority.identities(&stranger);
    let vhost = Vhost::new();
    // Who is not believed hears nothing: no password, no notice.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = nobody.local_addr().unwrap().to_string();
    for (identity, word) in bad {
        let port = serve_with_tls(&identity, to.clone());
        let daemon = Setup::new(&vhost.url, WORKFLOW)
            .set("tls.authorities", authority.file().to_str().unwrap())
            .set("amqp.management", &format!("https://guest:guest@localhost:{port}"))
            .set("events.webhook.url", &format!("https://localhost:{port}/hook"))
            .start();
        let id = daemon.api.create("single", "{}");
        daemon.api.post(&format!("/api/job/{id}/cancel"), "").expect(200);
        daemon.await_log(&["webhook", word]);
        daemon.await_log(&["/api/policies", word]);
    }
    let heard = nobody.incoming().take(6).flatten().any(|mut heard| {
        heard.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        heard.read(&mut [0; 1]).is_ok_and(|bytes| bytes > 0)
    });
    assert!(!heard, "something was sent to a server that is not believed");
}

/// A daemon whose API speaks TLS, started as far as that it listens.
pub(crate) fn over_tls(identity: &Identity, more: &[(&str, &str)]) -> Daemon {
    let mut setup = Setup::new("", WORKFLOW)
        .set("http.tls.certificate", identity.certificate.to_str().unwrap())
        .set("http.tls.key", identity.key.to_str().unwrap());
    for (name, value) in more {
        setup = setup.set(name, value);
    }
    let daemon = setup.spawn();
    daemon.await_log(&["\"listening\""]);
    daemon
}

/// A client that believes this authority.
pub(crate) fn client(authority: &Authority) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
}

/// An answer over TLS, from a server that this authority vouches for.
pub(crate) fn ask(
    daemon: &Daemon,
    authority: &Authority,
    identity: Option<&Identity>,
    request: &str,
) -> Result<String, String> {
    ask_with(daemon, authority, identity, (request, ""))
}

fn ask_with(
    daemon: &Daemon,
    authority: &Authority,
    identity: Option<&Identity>,
    (request, headers): (&str, &str),
) -> Result<String, String> {
    let config = client(authority);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(own) => config.with_client_auth_cert(own.chain(), own.key()).unwrap(),
    };
    let address = daemon.url().replace("http://", "");
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address).unwrap());
    let asked = format!(
        "{request} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\
         Content-Length: 0\r\n\r\n"
    );
    stream.write_all(asked.as_bytes()).map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        // The server may close the connection without saying so within TLS.
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error.to_string()),
        Ok(_) | Err(_) => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

#[test]
fn the_api_speaks_tls_and_shows_another_certificate_after_a_reload() {
    let (first, second) = (Authority::new(), Authority::new());
    let shown = first.vouch("api", "localhost", 2099);
    let daemon = over_tls(&shown, &[]);
    let get = |authority: &Authority| ask(&daemon, authority, None, "GET /api/jobs");
    eventually("it answers", || get(&first).map(|answer| assert!(answer.contains(" 200 "))));
    assert!(get(&second).is_err());

    // Neither half of a pair, nor what is none, is shown.
    let next = second.vouch("api", "localhost", 2099);
    let reload = || ask(&daemon, &first, None, "POST /api/reload").unwrap();
    fs::copy(&next.key, &shown.key).unwrap();
    let refused = reload();
    assert!(refused.contains(" 422 ") && refused.contains("is not the key"), "{refused}");
    fs::write(&shown.certificate, "nothing").unwrap();
    let refused = reload();
    assert!(refused.contains(" 422 ") && refused.contains("no certificate"), "{refused}");
    assert!(get(&first).is_ok() && get(&second).is_err(), "the one of before is shown on");

    fs::copy(&next.certificate, &shown.certificate).unwrap();
    let reloaded = reload();
    assert!(reloaded.contains(" 200 "), "{reloaded}");
    assert!(get(&second).is_ok_and(|answer| answer.contains(" 200 ")));
    assert!(get(&first).is_err());

    // Who speaks without TLS is answered nothing.
    let mut plain = TcpStream::connect(daemon.url().replace("http://", "")).unwrap();
    plain.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut heard = Vec::new();
    let _closed = plain.read_to_end(&mut heard);
    assert!(!String::from_utf8_lossy(&heard).contains("HTTP"), "{heard:?}");
}

#[test]
fn a_reload_shows_a_renewed_certificate_where_nothing_else_has_changed() {
    let (first, second) = (Authority::new(), Authority::new());
    let shown = first.vouch("api", "localhost", 2099);
    let key = fs::read(&shown.key).unwrap();
    let daemon = over_tls(&shown, &[]);
    let get = |authority: &Authority| ask(&daemon, authority, None, "GET /api/jobs");
    eventually("it answers", || get(&first).map(drop));
    second.renew(&shown, "localhost");
    assert_eq!(fs::read(&shown.key).unwrap(), key, "the key stays");
    assert!(get(&first).is_ok() && get(&second).is_err(), "not before a reload");
    let reloaded = ask(&daemon, &first, None, "POST /api/reload").unwrap();
    assert!(reloaded.contains(" 200 ") && reloaded.contains("\"changed\":[]"), "{reloaded}");
    assert!(get(&second).is_ok() && get(&first).is_err(), "by the call");

    first.renew(&shown, "localhost");
    let pid = daemon.pid().to_string();
    must_succeed(std::process::Command::new("kill").args(["-HUP", &pid]));
    eventually("by a signal", || get(&first).map(drop));
    assert!(get(&second).is_err());
}

#[test]
fn clients_need_a_certificate_where_the_settings_say_so() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let shown = authority.vouch("api", "localhost", 2099);
    let file = authority.file();
    let daemon = over_tls(&shown, &[("http.tls.client_authorities", file.to_str().unwrap())]);
    let own = authority.vouch("client", "client", 2099);
    let old = authority.vouch("old", "client", 2020);
    let strange = stranger.vouch("client", "client", 2099);
    let get = |identity| ask(&daemon, &authority, identity, "GET /livez");
    eventually("it answers", || get(Some(&own)).map(|answer| assert!(answer.contains(" 200 "))));
    for refused in [None, Some(&old), Some(&strange)] {
        let told = get(refused);
        assert!(told.as_ref().is_err() || told.as_ref().is_ok_and(String::is_empty), "{told:?}");
    }
}

#[test]
fn the_command_line_believes_the_authorities_of_the_machine_alone() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (good, bad) = authority.identities(&stranger);
    let jobs = |daemon: &Daemon| {
        let server = daemon.url().replace("http://127.0.0.1", "https://localhost");
        run(command()
            .env("SSL_CERT_FILE", authority.file())
            .args(["jobs", "--json", "--server", &server]))
    };
    let daemon = over_tls(&good, &[]);
    eventually("it lists jobs", || {
        let ran = jobs(&daemon);
        when(ran.code == Some(0), ran.to_string())
    });
    for (identity, word) in bad {
        let ran = jobs(&over_tls(&identity, &[]));
        assert!(ran.code == Some(3) && ran.stderr.contains(word), "{ran}");
    }
}

#[test]
fn settings_of_tls_that_cannot_be_used_are_told_at_the_start() {
    let authority = Authority::new();
    let (one, two) =
        (authority.vouch("one", "localhost", 2099), authority.vouch("two", "localhost", 2099));
    let text = |path: &PathBuf| path.to_str().unwrap().to_owned();
    let nowhere = "/nowhere/at.all".to_owned();
    let wrong: [(Vec<(&str, String)>, &str); 5] = [
        (vec![("http.tls.certificate", text(&one.certificate))], "expected both"),
        (
            vec![
                ("http.tls.certificate", text(&one.certificate)),
                ("http.tls.key", text(&two.key)),
            ],
            "is not the key",
        ),
        (
            vec![("http.tls.certificate", nowhere.clone()), ("http.tls.key", text(&two.key))],
            "http.tls.certificate: /nowhere/at.all",
        ),
        (vec![("http.tls.client_authorities", text(&one.certificate))], "needs TLS"),
        (vec![("tls.authorities", nowhere)], "tls.authorities: /nowhere/at.all"),
    ];
    for (settings, told) in wrong {
        let mut setup = Setup::new("", WORKFLOW);
        for (name, value) in &settings {
            setup = setup.set(name, value);
        }
        let mut daemon = setup.spawn();
        assert!(!daemon.await_end().success());
        daemon.await_log(&[told]);
    }
}

#[test]
fn a_web_service_is_called_if_an_authority_of_the_settings_vouches_for_it() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (good, bad) = authority.identities(&stranger);
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = service.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut socket in service.incoming().flatten() {
            let mut part = [0; 4096];
            // A message that is this small comes in one piece, or in two.
            while socket.read(&mut part).is_ok_and(|bytes| bytes > 0 && part[bytes - 1] != b'}') {}
            let _gone = socket.write_all(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\
                  Connection: close\r\n\r\n{\"b\": 2}",
            );
        }
    });
    let start = |identity: &Identity| {
        let queue = format!("https://localhost:{}/", serve_with_tls(identity, to.clone()));
        let step = format!("{{ name: a, queue: '{queue}', timeout: 5m }}");
        let workflow = format!("workflows: [ {{ name: w, steps: [ {step} ] }} ]");
        Setup::new("", &workflow).set("tls.authorities", authority.file().to_str().unwrap()).start()
    };
    for (identity, word) in bad {
        let daemon = start(&identity);
        let id = daemon.api.create("w", "{}");
        eventually("the certificate is refused", || {
            let why: Value = daemon.api.get(&format!("/api/job/{id}/why")).expect(200).json();
            let text = why["why"].as_str().unwrap_or_default().to_owned();
            when(text.contains("not delivered") && text.contains(word), text)
        });
    }
    let daemon = start(&good);
    let id = daemon.api.create("w", "{}");
    let result: Value = serde_json::from_str(&daemon.api.await_result(id)).unwrap();
    assert_eq!(result, json!({ "b": 2 }));
}

#[test]
fn handshakes_that_stand_still_hold_up_nobody() {
    const HALF: usize = 700;
    let authority = Authority::new();
    let daemon = over_tls(&authority.vouch("api", "localhost", 2099), &[]);
    let address = daemon.url().replace("http://", "");
    eventually("it answers", || ask(&daemon, &authority, None, "GET /livez").map(drop));
    let half: Vec<TcpStream> = (0..HALF).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let begun = std::time::Instant::now();
    for _ in 0..20 {
        let answer = ask(&daemon, &authority, None, "GET /livez").unwrap();
        assert!(answer.contains(" 200 "), "{answer}");
    }
    // A handshake that stands still ends after three seconds: nobody has waited for that.
    let is_open = |socket: &TcpStream| socket.peer_addr().is_ok();
    eprintln!(
        "20 answers in {:?} beside {}",
        begun.elapsed(),
        half.iter().filter(|socket| is_open(socket)).count()
    );
}

#[test]
fn grpc_shows_the_same_certificate() {
    /// The beginning of a connection of HTTP/2, and settings that say nothing.
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    const SETTINGS: u8 = 4;
    let (authority, stranger) = (Authority::new(), Authority::new());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("127.0.0.1:{port}");
    let daemon =
        over_tls(&authority.vouch("api", "localhost", 2099), &[("grpc.listen", listen.as_str())]);
    daemon.await_log(&["over gRPC"]);
    let open = |authority: &Authority| {
        let mut config = client(authority).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = StreamOwned::new(connection, TcpStream::connect(&listen).unwrap());
        let mut frame = [0; 9];
        stream.write_all(PREFACE).and_then(|()| stream.read_exact(&mut frame)).map(|()| {
            let protocol = stream.conn.alpn_protocol().map(<[u8]>::to_vec);
            (frame[3], protocol)
        })
    };
    assert_eq!(open(&authority).unwrap(), (SETTINGS, Some(b"h2".to_vec())));
    assert!(open(&stranger).is_err());
    // Who speaks without TLS is answered nothing of HTTP/2.
    let mut plain = TcpStream::connect(&listen).unwrap();
    plain.write_all(PREFACE).unwrap();
    let mut heard = Vec::new();
    let _closed = plain.read_to_end(&mut heard);
    assert_ne!(heard.get(3), Some(&SETTINGS), "{heard:?}");
}
