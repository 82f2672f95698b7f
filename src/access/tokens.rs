//! The valid tokens, as their hashes, and what each allows.

use crate::settings::{HASH_PREFIX, HttpSettings, MAIN_TOKEN, Scope, TokenSettings};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// Who sends a request, by the token that came with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name of the token. `None`: requests need no token.
    pub name: Option<Arc<str>>,
    /// The scope of the token, besides its queues.
    pub scope: Option<Scope>,
    /// The queues whose messages the principal may take and settle.
    pub queues: Arc<[String]>,
    /// The virtual host of these queues. Empty: that of workflows without one.
    pub vhost: Arc<str>,
    /// The hash of the token.
    hash: Option<Hash>,
}

/// What a request requires of its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needed {
    /// Any token, whatever it allows.
    Token,
    /// A token with this scope.
    Scope(Scope),
    /// A token for the messages of a queue.
    Queue {
        /// The name of the queue.
        queue: String,
        /// The virtual host of the queue. `None`: any; it is checked later.
        vhost: Option<String>,
    },
}

/// The valid tokens.
pub struct Tokens {
    /// The principals of the tokens. `None`: requests need no token.
    known: Option<Vec<Holder>>,
}

type Hash = [u8; 32];

impl Holder {
    /// Returns the principal of all requests where no token is required.
    fn anybody() -> Holder {
        let (queues, vhost) = (Arc::default(), "".into());
        Holder { name: None, scope: Some(Scope::Admin), queues, vhost, hash: None }
    }

    /// Returns whether the token allows that.
    pub fn may(&self, needed: &Needed) -> bool {
        match needed {
            Needed::Token => true,
            Needed::Scope(scope) => self.scope >= Some(*scope),
            Needed::Queue { queue, vhost } => {
                let is_there = vhost.as_deref().is_none_or(|vhost| vhost == &*self.vhost);
                self.scope == Some(Scope::Admin) || self.queues.contains(queue) && is_there
            }
        }
    }
}

impl Tokens {
    /// Makes the tokens of the settings, and of the file that the settings name.
    pub fn of(http: &HttpSettings, of_file: &BTreeMap<String, TokenSettings>) -> Tokens {
        if !http.asks_for_token() {
            return Tokens { known: None };
        }
        let mut known = Vec::new();
        if !http.token.0.is_empty() {
            let name = Some(MAIN_TOKEN.into());
            let hash = Some(digest(&http.token.0));
            let scope = Some(Scope::Admin);
            let (queues, vhost) = (Arc::default(), "".into());
            known.push(Holder { name, scope, queues, vhost, hash });
        }
        for (name, worker) in &http.workers {
            let queues = worker.queues.0.clone().into();
            let (name, hash) = (Some(name.as_str().into()), Some(digest(&worker.token.0)));
            let vhost = worker.vhost.as_str().into();
            known.push(Holder { name, scope: None, queues, vhost, hash });
        }
        for (name, token) in http.tokens.iter().chain(of_file) {
            let hash = match token.hash.strip_prefix(HASH_PREFIX) {
                Some(digits) => read(digits),
                None => Some(digest(&token.token.0)),
            };
            // Every hash can be parsed: the settings were validated.
            let Some(hash) = hash else { continue };
            let name = Some(name.as_str().into());
            let queues = token.queues.0.clone().into();
            let (scope, vhost) = (token.scope, token.vhost.as_str().into());
            known.push(Holder { name, scope, queues, vhost, hash: Some(hash) });
        }
        Tokens { known: Some(known) }
    }

    /// Returns whether requests need a token.
    pub fn are_asked_for(&self) -> bool {
        self.known.is_some()
    }

    /// Returns whether the principal's token is still valid, and allows the same as before.
    pub(super) fn has(&self, holder: &Holder) -> bool {
        match &self.known {
            Some(known) => known.contains(holder),
            None => *holder == Holder::anybody(),
        }
    }

    /// Finds the principal of a token. Returns `None` if the token is missing or not valid.
    pub fn holder(&self, given: Option<&str>) -> Option<Holder> {
        let Some(known) = &self.known else { return Some(Holder::anybody()) };
        let given = digest(given?);
        // Hashes are compared, each with every other and to its end, so that the time that it takes
        // reveals nothing about them.
        let mut found = None;
        for holder in known {
            let hash = holder.hash.iter().flatten();
            let difference = hash.zip(given).fold(0, |all, (a, b)| all | (a ^ b));
            if std::hint::black_box(difference) == 0 && found.is_none() {
                found = Some(holder);
            }
        }
        found.cloned()
    }
}

/// Formats the hash of a token as settings have it.
pub fn hash_of(token: &str) -> String {
    let mut text = HASH_PREFIX.to_owned();
    for byte in digest(token) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn digest(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}

fn read(digits: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Names, Secret, Settings, WorkerToken};

    fn http() -> HttpSettings {
        Settings::defaults().expect("defaults").http
    }

    #[test]
    fn without_tokens_everybody_may_do_everything() {
        let tokens = Tokens::of(&http(), &BTreeMap::new());
        let holder = tokens.holder(None).expect("anybody");
        assert!(!tokens.are_asked_for() && holder.may(&Needed::Scope(Scope::Admin)));
        assert!(holder.may(&Needed::Queue { queue: "price".to_owned(), vhost: None }));
    }

    #[test]
    fn each_token_allows_what_it_says() {
        let mut http = http();
        http.token = Secret("the first of all".into());
        let queues = Names(vec!["price".to_owned()]);
        let vhost = "far".to_owned();
        let worker = WorkerToken { token: Secret("the worker's one".into()), queues, vhost };
        http.workers.insert("pricing".to_owned(), worker.clone());
        let (token, hash) = super::super::new_token();
        let scoped =
            |scope| TokenSettings { hash: hash.clone(), scope, ..TokenSettings::default() };
        let of_file = BTreeMap::from([("grafana".to_owned(), scoped(Some(Scope::Read)))]);
        let tokens = Tokens::of(&http, &of_file);

        for wrong in [None, Some(""), Some("the first of al"), Some(hash.as_str())] {
            assert_eq!(tokens.holder(wrong), None, "{wrong:?}");
        }
        let may =
            |token: &str, needed: Needed| tokens.holder(Some(token)).expect("known").may(&needed);
        let queue = |name: &str| Needed::Queue { queue: name.to_owned(), vhost: None };
        let queue_in = |queue: &str, vhost: &str| Needed::Queue {
            queue: queue.to_owned(),
            vhost: Some(vhost.to_owned()),
        };
        let worker_may = |needed: Needed| may("the worker's one", needed);
        assert!(worker_may(queue_in("price", "far")) && !worker_may(queue_in("price", "")));
        assert!(!worker_may(queue_in("price", "other")) && !worker_may(queue_in("ship", "far")));
        assert!(may("the first of all", queue_in("any", "other")));
        assert!(may("the first of all", Needed::Scope(Scope::Admin)));
        assert!(may("the first of all", queue("any")));
        assert!(may("the worker's one", queue("price")) && !may("the worker's one", queue("ship")));
        assert!(!may("the worker's one", Needed::Scope(Scope::Read)));
        assert!(may(&token, Needed::Scope(Scope::Read)) && may(&token, Needed::Token));
        assert!(!may(&token, Needed::Scope(Scope::Operate)) && !may(&token, queue("price")));
        let name = tokens.holder(Some(&token)).and_then(|holder| holder.name);
        assert_eq!(name.as_deref(), Some("grafana"));
    }

    #[test]
    fn hashes_are_read_as_they_are_written() {
        let text = hash_of("abc");
        // FIPS 180-4, the example for SHA-256.
        assert!(text.starts_with("sha256:ba7816bf") && text.ends_with("f20015ad"), "{text}");
        assert_eq!(read(text.trim_start_matches(HASH_PREFIX)), Some(digest("abc")));
        assert_eq!((read("ba"), read("zz")), (None, None));
    }
}
