//! The addresses of managers of which one is active, and the one in use.

use crate::worker::{Error, address_error};
use reqwest::Url;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The scheme of addresses over TLS.
const SECURE_SCHEME: &str = "https";

/// The addresses that were given, and the one in use, of all tasks.
pub(crate) struct Addresses {
    /// The addresses that were given, at least one, without their queries. All of them have the
    /// same scheme.
    listed: Vec<Url>,
    /// The virtual host of the queues, from the parameter `vhost` of the addresses. `None` for the
    /// default one.
    vhost: Option<String>,
    in_use: Mutex<InUse>,
}

/// The address in use.
struct InUse {
    /// The index of the listed address that was used last.
    index: usize,
    /// The listed address, or another one that a manager has named.
    url: Url,
}

impl Addresses {
    /// Parses an address, or several with commas in between. The first one is in use.
    pub(crate) fn parse(text: &str) -> Result<Addresses, Error> {
        let to_error = |reason: &str| address_error(text, reason);
        let mut listed = Vec::new();
        let mut vhosts = Vec::new();
        for part in text.split(',') {
            let mut url = Url::parse(part.trim()).map_err(|error| to_error(&error.to_string()))?;
            if !matches!(url.scheme(), "http" | SECURE_SCHEME) {
                return Err(to_error("each address begins with http:// or https://"));
            }
            if !url.username().is_empty() || url.password().is_some() {
                return Err(to_error("a token belongs into WORKFLOW_MANAGER_TOKEN"));
            }
            let vhost = url.query_pairs().find(|(name, _)| name == "vhost");
            vhosts.push(vhost.map(|(_, value)| value.into_owned()));
            url.set_query(None);
            listed.push(url);
        }
        if listed.iter().any(|url| url.scheme() != listed[0].scheme()) {
            let reason = "they mix http:// and https://: the token would go both in clear and \
                          encrypted";
            return Err(to_error(reason));
        }
        if vhosts.iter().any(|vhost| *vhost != vhosts[0]) {
            return Err(to_error("they need the same vhost"));
        }
        let (url, vhost) = (listed[0].clone(), vhosts.swap_remove(0));
        Ok(Addresses { listed, vhost, in_use: Mutex::new(InUse { index: 0, url }) })
    }

    /// Returns the address in use.
    pub(crate) fn current(&self) -> Url {
        self.lock().url.clone()
    }

    /// Returns the virtual host of the queues. `None` for the default one.
    pub(crate) fn vhost(&self) -> Option<&str> {
        self.vhost.as_deref()
    }

    /// Goes to the next listed address, unless another task has left `url` already.
    pub(crate) fn leave(&self, url: &Url) {
        let mut in_use = self.lock();
        if is_same_place(&in_use.url, url) {
            in_use.index = (in_use.index + 1) % self.listed.len();
            in_use.url = self.listed[in_use.index].clone();
        }
    }

    /// Goes from `url` to the address that its manager has named as that of the active one. It need
    /// not be listed. The token is sent to it.
    ///
    /// # Errors
    ///
    /// Returns why the address is not used, and leaves `url` all the same: it is not the address of
    /// a manager, or it is without TLS, unlike the listed ones.
    pub(crate) fn follow(&self, url: &Url, named: &str) -> Result<(), String> {
        match self.parse_named(named) {
            Ok(named) => {
                let mut in_use = self.lock();
                if is_same_place(&in_use.url, url) {
                    let index = self.listed.iter().position(|listed| is_same_place(listed, &named));
                    in_use.index = index.unwrap_or(in_use.index);
                    in_use.url = named;
                }
                Ok(())
            }
            Err(reason) => {
                self.leave(url);
                Err(format!("it names {named:?}, which is not asked: {reason}"))
            }
        }
    }

    /// Parses an address that a manager has named.
    fn parse_named(&self, named: &str) -> Result<Url, String> {
        let url = Url::parse(named).map_err(|error| error.to_string())?;
        let is_address = matches!(url.scheme(), "http" | SECURE_SCHEME)
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        if !is_address {
            return Err("it is not the address of a manager".to_owned());
        }
        if self.listed[0].scheme() == SECURE_SCHEME && url.scheme() != SECURE_SCHEME {
            return Err("the token would go there in clear".to_owned());
        }
        Ok(url)
    }

    fn lock(&self) -> MutexGuard<'_, InUse> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the URL of a path, which may have a query, at an address.
pub(crate) fn join(address: &Url, path: &str) -> Result<Url, String> {
    let prefix = address.path().trim_end_matches('/');
    address.join(&format!("{prefix}{path}")).map_err(|error| format!("{path}: {error}"))
}

/// Returns whether two addresses are the same, apart from a slash at the end.
pub(crate) fn is_same_place(a: &Url, b: &Url) -> bool {
    a.as_str().trim_end_matches('/') == b.as_str().trim_end_matches('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(addresses: &Addresses) -> String {
        addresses.current().to_string()
    }

    #[test]
    fn the_listed_addresses_are_used_in_turn_and_left_once() {
        let addresses = Addresses::parse("http://a:1/x?vhost=v, http://b:2?vhost=v").unwrap();
        let first = addresses.current();
        assert_eq!(join(&first, "/api?q=1").unwrap().as_str(), "http://a:1/x/api?q=1");
        addresses.leave(&first);
        addresses.leave(&first);
        assert_eq!(at(&addresses), "http://b:2/", "another task has left it already");
        addresses.leave(&addresses.current());
        assert_eq!(at(&addresses), "http://a:1/x");
        assert_eq!(addresses.vhost(), Some("v"));
    }

    #[test]
    fn a_named_address_is_used_until_it_fails() {
        let addresses = Addresses::parse("http://a,http://b").unwrap();
        let first = addresses.current();
        addresses.follow(&first, "https://c/y/").unwrap();
        assert_eq!(at(&addresses), "https://c/y/");
        addresses.follow(&first, "http://d").unwrap();
        assert_eq!(at(&addresses), "https://c/y/", "another task has left the first one");
        addresses.leave(&addresses.current());
        assert_eq!(at(&addresses), "http://b/", "the list goes on");
    }

    #[test]
    fn a_named_address_without_tls_or_of_something_else_is_not_used() {
        let addresses = Addresses::parse("https://a,https://b").unwrap();
        for named in ["http://b", "ftp://b", "b", "https://you@b", "https://b?x=y", "https://b#c"] {
            let before = addresses.current();
            let error = addresses.follow(&before, named).unwrap_err();
            assert!(error.contains("which is not asked"), "{error}");
            assert_ne!(addresses.current(), before);
        }
    }

    #[test]
    fn a_wrong_list_is_refused_without_showing_a_password() {
        for (text, words) in [
            ("http://a,https://b", "mix http:// and https://"),
            ("http://a,", "relative URL without a base"),
            ("http://a?vhost=v,http://b", "the same vhost"),
            ("http://me:pw@a,http://b", "WORKFLOW_MANAGER_TOKEN"),
        ] {
            let error = Addresses::parse(text).err().expect(text).to_string();
            assert!(error.contains(words) && !error.contains("pw"), "{error}");
        }
    }
}
