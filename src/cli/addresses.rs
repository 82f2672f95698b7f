//! The addresses of managers of which one is active, and the one that is in use.

use engine::text::quote;
use ureq::http::Uri;
use url::Url;

/// The scheme of addresses over TLS.
const SECURE_SCHEME: &str = "https";

/// The addresses that were given, and the one in use. Each is without a slash at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Addresses {
    /// The addresses that were given, at least one. All of them have the same scheme.
    listed: Vec<String>,
    /// The index of the listed address that was used last.
    index: usize,
    /// The address in use: the one at `index`, or another one that a manager has named.
    current: String,
}

impl Addresses {
    /// Parses an address, or several with commas in between. The first one is in use.
    ///
    /// # Errors
    ///
    /// Returns an error for people if an address is not valid, or if only some are over TLS.
    pub(super) fn parse(text: &str) -> Result<Addresses, String> {
        let listed: Vec<String> = text
            .split(',')
            .map(|part| parse_address(part.trim()))
            .map(|part| part.map(|address| address.trim_end_matches('/').to_owned()))
            .collect::<Result<_, String>>()?;
        let first_scheme = scheme_of(&listed[0]);
        if listed.iter().any(|address| scheme_of(address) != first_scheme) {
            return Err(format!(
                "{} mixes http:// and https://: the token would go both in clear and encrypted; \
                 give all addresses with the same scheme",
                quote(text)
            ));
        }
        let current = listed[0].clone();
        Ok(Addresses { listed, index: 0, current })
    }

    /// Returns the address in use.
    pub(super) fn current(&self) -> &str {
        &self.current
    }

    /// Returns whether all these addresses are listed in `other`, too.
    pub(super) fn is_subset_of(&self, other: &Addresses) -> bool {
        self.listed.iter().all(|address| other.listed.contains(address))
    }

    /// Returns each listed address by itself.
    pub(super) fn each(&self) -> impl Iterator<Item = Addresses> + '_ {
        self.listed.iter().map(|address| Addresses {
            listed: vec![address.clone()],
            index: 0,
            current: address.clone(),
        })
    }

    /// Goes to the next listed address. After the last one comes the first one.
    pub(super) fn advance(&mut self) {
        self.index = (self.index + 1) % self.listed.len();
        self.current.clone_from(&self.listed[self.index]);
    }

    /// Goes to the address that a manager has named as that of the active one. It need not be
    /// listed. The token is sent to it.
    ///
    /// # Errors
    ///
    /// Returns why the address is not used, and goes to the next listed one: it is not the address
    /// of a manager, or it is without TLS, unlike the listed ones.
    pub(super) fn follow(&mut self, named: &str) -> Result<(), String> {
        let result = parse_named(named).and_then(|url| {
            if scheme_of(&self.listed[0]) == SECURE_SCHEME && url.scheme() != SECURE_SCHEME {
                return Err("the token would go there in clear".to_owned());
            }
            Ok(url)
        });
        match result {
            Ok(url) => {
                let is_named = |address: &String| is_same_place(address, &url);
                if let Some(index) = self.listed.iter().position(is_named) {
                    self.index = index;
                    self.current.clone_from(&self.listed[index]);
                } else {
                    url.as_str().trim_end_matches('/').clone_into(&mut self.current);
                }
                Ok(())
            }
            Err(reason) => {
                self.advance();
                Err(format!("it names {}, which is not asked: {reason}", quote(named)))
            }
        }
    }

    /// Returns the listed addresses for people, without users and passwords.
    pub(super) fn display(&self) -> String {
        self.listed.iter().map(|address| display_address(address)).collect::<Vec<_>>().join(", ")
    }

    /// Returns the address in use for people, without its user and password.
    pub(super) fn display_current(&self) -> String {
        display_address(&self.current)
    }

    /// Returns whether the addresses are over TLS.
    pub(super) fn is_secure(&self) -> bool {
        scheme_of(&self.current) == SECURE_SCHEME
    }
}

/// Returns an address without its user and password, for people.
pub(super) fn display_address(address: &str) -> String {
    match address.split_once("://") {
        Some((scheme, authority)) if authority.contains('@') => {
            let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
            format!("{scheme}://***@{host}")
        }
        Some(_) | None => address.to_owned(),
    }
}

/// Checks that a text is the address of one manager. Returns the text.
fn parse_address(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_address = host.is_some_and(|host| !host.is_empty() && !host.starts_with('/'))
        && text.parse::<Uri>().is_ok();
    if is_address {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not an address: expected http://host:port"))
    }
}

fn scheme_of(address: &str) -> &str {
    address.split_once("://").map_or("", |(scheme, _)| scheme)
}

/// Parses an address that a manager has named.
fn parse_named(named: &str) -> Result<Url, String> {
    let url = Url::parse(named).map_err(|error| error.to_string())?;
    let is_address = matches!(url.scheme(), "http" | SECURE_SCHEME)
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if is_address { Ok(url) } else { Err("it is not the address of a manager".to_owned()) }
}

/// Returns whether a listed address, which may have a user and a password, leads to this URL.
fn is_same_place(address: &str, url: &Url) -> bool {
    let path = |url: &Url| url.path().trim_end_matches('/').to_owned();
    Url::parse(address).is_ok_and(|listed| {
        listed.scheme() == url.scheme()
            && listed.host() == url.host()
            && listed.port_or_known_default() == url.port_or_known_default()
            && path(&listed) == path(url)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listed_addresses_are_used_in_turn() {
        let mut addresses = Addresses::parse("http://a:1/, http://b:2").expect("two");
        assert_eq!(addresses.current(), "http://a:1");
        addresses.advance();
        assert_eq!(addresses.current(), "http://b:2");
        addresses.advance();
        assert_eq!(addresses.current(), "http://a:1");
        assert_eq!(addresses.display(), "http://a:1, http://b:2");
        let secret = Addresses::parse("http://me:pw@a,http://b").expect("two");
        assert_eq!(secret.display(), "http://***@a, http://b");
    }

    #[test]
    fn a_list_with_a_wrong_address_or_two_schemes_is_refused() {
        for (text, words) in [
            ("http://a,", "\"\" is not an address"),
            ("http://a,b:1", "\"b:1\" is not an address"),
            ("http://a,https://b", "mixes http:// and https://"),
        ] {
            let error = Addresses::parse(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_named_address_is_used_until_it_fails() {
        let mut addresses = Addresses::parse("http://a,http://me:pw@b/x").expect("two");
        addresses.follow("http://c:9/").expect("followed");
        assert_eq!(addresses.current(), "http://c:9");
        addresses.follow("https://c").expect("safer");
        addresses.advance();
        assert_eq!(addresses.current(), "http://me:pw@b/x", "the list goes on");
        addresses.advance();
        addresses.follow("http://b:80/x/").expect("followed");
        assert_eq!(addresses.current(), "http://me:pw@b/x", "it is a listed one");
    }

    #[test]
    fn a_named_address_without_tls_or_of_something_else_is_not_used() {
        let mut addresses = Addresses::parse("https://a,https://b").expect("two");
        for named in ["http://b", "ftp://b", "b", "https://you@b", "https://b?x=y", "https://b#c"] {
            let error = addresses.follow(named).expect_err(named);
            assert!(error.contains("which is not asked"), "{error}");
        }
        assert_eq!(addresses.current(), "https://a", "each time the next one");
    }
}
