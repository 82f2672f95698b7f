//! Parses addresses and file names in the spellings of other programs. Accepts unambiguous
//! spellings, and suggests the right one for the others.

use serde::{Deserialize, Deserializer};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

/// The expected form of an address to listen on.
pub(super) const LISTEN_EXPECTED: &str = "an IP address and port, such as 127.0.0.1:8088 or \
                                          [::1]:8088; localhost:8088 and 8088 mean 127.0.0.1, \
                                          and :8088 all interfaces";

/// The schemes with which other programs begin the address of a SQLite file.
const JOURNAL_SCHEMES: [&str; 3] = ["sqlite3:", "sqlite:", "file:"];

/// Parses an address to listen on. `:8088` and `*:8088` mean all interfaces, as in other servers;
/// `localhost:8088` and a bare port mean 127.0.0.1. Returns `None` if the text is not such an
/// address.
pub(super) fn parse_socket_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = match text.rsplit_once(':') {
        None => (Ipv4Addr::LOCALHOST, text),
        Some(("localhost", port)) => (Ipv4Addr::LOCALHOST, port),
        Some(("" | "*", port)) => (Ipv4Addr::UNSPECIFIED, port),
        Some(_) => return text.parse().ok(),
    };
    Some(SocketAddr::from((host, port.parse::<u16>().ok()?)))
}

/// Returns an error if the setting `journal.file` is not the name of a file. The error suggests the
/// file that was meant, if the setting begins with one of [`JOURNAL_SCHEMES`].
pub(super) fn check_journal(file: &Path) -> Result<(), String> {
    let journal = file.to_string_lossy();
    if let Some(path) = JOURNAL_SCHEMES.iter().find_map(|scheme| journal.strip_prefix(scheme)) {
        let path = path.strip_prefix("//").unwrap_or(path);
        return Err(format!(
            "journal.file (--db) is {journal:?}, expected the name of a file without a scheme; \
             did you mean --db {path}?"
        ));
    }
    if journal.is_empty() || journal.contains("://") {
        return Err(format!(
            "journal.file (--db) is {journal:?}, expected the name of a file: the journal is a \
             SQLite database in one file"
        ));
    }
    Ok(())
}

/// Deserializes an address to listen on.
pub(super) fn deserialize_listen_address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<SocketAddr, D::Error> {
    parse_listen_address(&String::deserialize(deserializer)?)
}

/// Parses an address to listen on, with an error that names the accepted spellings.
pub(super) fn parse_listen_address<E: serde::de::Error>(text: &str) -> Result<SocketAddr, E> {
    let error = || E::custom(format!("found {text:?}, expected {LISTEN_EXPECTED}"));
    parse_socket_address(text).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Overrides, Settings};

    #[test]
    fn the_host_of_an_address_may_be_omitted() {
        for (text, address) in [
            ("8088", "127.0.0.1:8088"),
            ("localhost:8088", "127.0.0.1:8088"),
            (":8088", "0.0.0.0:8088"),
            ("*:8088", "0.0.0.0:8088"),
            ("[::1]:8088", "[::1]:8088"),
            ("10.0.0.1:0", "10.0.0.1:0"),
        ] {
            assert_eq!(parse_socket_address(text), address.parse().ok(), "{text}");
        }
        for text in [
            "",
            ":",
            "localhost",
            "localhost:",
            "8088:",
            "99999",
            "::1:8088",
            "example.org:8088",
            "127.0.0.1",
        ] {
            assert_eq!(parse_socket_address(text), None, "{text}");
        }
    }

    #[test]
    fn spellings_of_other_programs_get_a_suggestion() {
        let load = |overrides: &Overrides| {
            Settings::load(None, overrides).map(drop).map_err(|error| error.to_string())
        };
        let load_with_journal = |name: &str| {
            load(&Overrides { journal_file: Some(name.into()), ..Overrides::default() })
        };
        for name in ["sqlite3:jobs.db", "sqlite:jobs.db", "file:jobs.db", "sqlite://jobs.db"] {
            let error = load_with_journal(name).expect_err(name);
            assert!(error.contains("did you mean --db jobs.db?"), "{error}");
        }
        let error = load_with_journal("postgres://host/jobs").expect_err("another database");
        assert!(error.contains("SQLite"), "{error}");
        assert!(load_with_journal("a:b.db").is_ok() && load_with_journal(":memory:").is_ok());
        let error = load(&Overrides { listen: Some(":8088".into()), ..Overrides::default() })
            .expect_err("a token is missing");
        assert!(error.contains("0.0.0.0:8088") && error.contains("token"), "{error}");

        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("workflow.yaml");
        std::fs::write(&file, "workflows: [{name: w, steps: [{name: a}]}]")
            .expect("the file is written");
        let error = Settings::load(Some(&file), &Overrides::default())
            .expect_err("a workflow file is refused")
            .to_string();
        assert!(
            error.contains(&format!("did you mean --workflows {}?", file.display())),
            "{error}"
        );
        std::fs::write(&file, "workflows: [a.yaml]\njornal: {}").expect("the file is written");
        let error = Settings::load(Some(&file), &Overrides::default())
            .expect_err("a misspelt key is refused")
            .to_string();
        assert!(error.contains("jornal") && !error.contains("did you mean --workflows"), "{error}");
    }
}
