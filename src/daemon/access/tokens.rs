//! The valid tokens and what each allows. Only their hashes are kept.

use crate::settings::{HASH_PREFIX, HttpSettings, MAIN_TOKEN, Scope, TokenSettings};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// Who sends a request, identified by the request's token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The name of the token. `None`: requests need no token.
    pub name: Option<Arc<str>>,
    /// The scope of the token. `None`: the token allows only its queues.
    pub scope: Option<Scope>,
    /// The queues whose messages the principal may lease and settle.
    pub queues: Arc<[String]>,
    /// The virtual host of these queues. Empty: the virtual host of workflows that name none.
    pub vhost: Arc<str>,
    /// The hash of the token. `None`: requests need no token.
    hash: Option<Hash>,
}

/// What a request requires of its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequiredScope {
    /// Any token, whatever it allows.
    Token,
    /// A token with this scope.
    Scope(Scope),
    /// A token for the messages of this queue, or one with the scope admin.
    Queue {
        /// The name of the queue.
        queue: String,
        /// The virtual host of the queue. `None`: any, because a later check decides.
        vhost: Option<String>,
    },
}

/// The valid tokens.
pub struct Tokens {
    /// The principals of the tokens. `None`: requests need no token.
    principals: Option<Vec<Principal>>,
}

/// A SHA-256 hash.
type Hash = [u8; 32];

impl Principal {
    /// Returns the principal of all requests where no token is required.
    fn anyone() -> Principal {
        let (queues, vhost) = (Arc::default(), "".into());
        Principal { name: None, scope: Some(Scope::Admin), queues, vhost, hash: None }
    }

    /// Returns whether the principal's token satisfies what a request requires.
    pub fn is_allowed(&self, required: &RequiredScope) -> bool {
        match required {
            RequiredScope::Token => true,
            // Scopes are ordered: each allows what the lesser ones allow.
            RequiredScope::Scope(scope) => self.scope >= Some(*scope),
            RequiredScope::Queue { queue, vhost } => {
                let is_same_vhost = vhost.as_deref().is_none_or(|vhost| vhost == &*self.vhost);
                self.scope == Some(Scope::Admin) || self.queues.contains(queue) && is_same_vhost
            }
        }
    }
}

impl Tokens {
    /// Collects the tokens of the settings, and those of the tokens file.
    pub fn from_settings(
        http: &HttpSettings,
        file_tokens: &BTreeMap<String, TokenSettings>,
    ) -> Tokens {
        if !http.requires_token() {
            return Tokens { principals: None };
        }
        let mut principals = Vec::new();
        if !http.token.0.is_empty() {
            let name = Some(MAIN_TOKEN.into());
            let hash = Some(digest(&http.token.0));
            let scope = Some(Scope::Admin);
            let (queues, vhost) = (Arc::default(), "".into());
            principals.push(Principal { name, scope, queues, vhost, hash });
        }
        for (name, worker) in &http.workers {
            let queues = worker.queues.0.clone().into();
            let (name, hash) = (Some(name.as_str().into()), Some(digest(&worker.token.0)));
            let vhost = worker.vhost.as_str().into();
            principals.push(Principal { name, scope: None, queues, vhost, hash });
        }
        for (name, token) in http.tokens.iter().chain(file_tokens) {
            let hash = match token.hash.strip_prefix(HASH_PREFIX) {
                Some(digits) => parse_hash(digits),
                None => Some(digest(&token.token.0)),
            };
            // The settings were validated, so every hash can be parsed.
            let Some(hash) = hash else { continue };
            let name = Some(name.as_str().into());
            let queues = token.queues.0.clone().into();
            let (scope, vhost) = (token.scope, token.vhost.as_str().into());
            principals.push(Principal { name, scope, queues, vhost, hash: Some(hash) });
        }
        Tokens { principals: Some(principals) }
    }

    /// Returns whether requests need a token.
    pub(crate) fn is_token_required(&self) -> bool {
        self.principals.is_some()
    }

    /// Returns whether the principal's token is still valid, and allows what it did before.
    pub(super) fn is_current(&self, principal: &Principal) -> bool {
        match &self.principals {
            Some(principals) => principals.contains(principal),
            None => *principal == Principal::anyone(),
        }
    }

    /// Finds the principal of a token. Returns `None` if the token is missing or not valid.
    pub(crate) fn find_principal(&self, token: Option<&str>) -> Option<Principal> {
        let Some(principals) = &self.principals else { return Some(Principal::anyone()) };
        let token_hash = digest(token?);
        // Compares in constant time: all hashes are compared, each to its end, so that the time
        // reveals nothing about them.
        let mut owner = None;
        for principal in principals {
            let hash = principal.hash.iter().flatten();
            let difference = hash.zip(token_hash).fold(0, |bits, (a, b)| bits | (a ^ b));
            if std::hint::black_box(difference) == 0 && owner.is_none() {
                owner = Some(principal);
            }
        }
        owner.cloned()
    }
}

/// Formats the hash of a token as the settings expect it: `sha256:` and hexadecimal digits.
pub fn hash_token(token: &str) -> String {
    let mut text = HASH_PREFIX.to_owned();
    for byte in digest(token) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the SHA-256 hash of a token.
fn digest(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}

/// Parses the hexadecimal digits of a hash. Returns `None` if there are too few, or one is invalid.
fn parse_hash(digits: &str) -> Option<Hash> {
    let mut hash = Hash::default();
    for (index, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Names, Secret, Settings, WorkerToken};

    fn http() -> HttpSettings {
        Settings::defaults().expect("the defaults are valid").http
    }

    #[test]
    fn without_tokens_every_request_is_allowed() {
        let tokens = Tokens::from_settings(&http(), &BTreeMap::new());
        let principal = tokens.find_principal(None).expect("no token is required");
        assert!(
            !tokens.is_token_required()
                && principal.is_allowed(&RequiredScope::Scope(Scope::Admin))
        );
        assert!(
            principal.is_allowed(&RequiredScope::Queue { queue: "price".to_owned(), vhost: None })
        );
    }

    #[test]
    fn each_token_allows_its_scope() {
        let mut http = http();
        http.token = Secret("the first of all".into());
        let queues = Names(vec!["price".to_owned()]);
        let vhost = "far".to_owned();
        let worker = WorkerToken { token: Secret("the worker's one".into()), queues, vhost };
        http.workers.insert("pricing".to_owned(), worker.clone());
        let generated = super::super::generate_token();
        let (token, hash) = (generated.token, generated.hash);
        let scoped =
            |scope| TokenSettings { hash: hash.clone(), scope, ..TokenSettings::default() };
        let file_tokens = BTreeMap::from([("grafana".to_owned(), scoped(Some(Scope::Read)))]);
        let tokens = Tokens::from_settings(&http, &file_tokens);

        for wrong in [None, Some(""), Some("the first of al"), Some(hash.as_str())] {
            assert_eq!(tokens.find_principal(wrong), None, "{wrong:?}");
        }
        let is_allowed = |token: &str, required: RequiredScope| {
            tokens.find_principal(Some(token)).expect("the token is valid").is_allowed(&required)
        };
        let queue = |name: &str| RequiredScope::Queue { queue: name.to_owned(), vhost: None };
        let queue_in = |queue: &str, vhost: &str| RequiredScope::Queue {
            queue: queue.to_owned(),
            vhost: Some(vhost.to_owned()),
        };
        let worker_is_allowed = |required: RequiredScope| is_allowed("the worker's one", required);
        assert!(
            worker_is_allowed(queue_in("price", "far"))
                && !worker_is_allowed(queue_in("price", ""))
        );
        assert!(
            !worker_is_allowed(queue_in("price", "other"))
                && !worker_is_allowed(queue_in("ship", "far"))
        );
        assert!(is_allowed("the first of all", queue_in("any", "other")));
        assert!(is_allowed("the first of all", RequiredScope::Scope(Scope::Admin)));
        assert!(is_allowed("the first of all", queue("any")));
        assert!(
            is_allowed("the worker's one", queue("price"))
                && !is_allowed("the worker's one", queue("ship"))
        );
        assert!(!is_allowed("the worker's one", RequiredScope::Scope(Scope::Read)));
        assert!(
            is_allowed(&token, RequiredScope::Scope(Scope::Read))
                && is_allowed(&token, RequiredScope::Token)
        );
        assert!(
            !is_allowed(&token, RequiredScope::Scope(Scope::Operate))
                && !is_allowed(&token, queue("price"))
        );
        let name = tokens.find_principal(Some(&token)).and_then(|principal| principal.name);
        assert_eq!(name.as_deref(), Some("grafana"));
    }

    #[test]
    fn a_formatted_hash_can_be_parsed() {
        let text = hash_token("abc");
        // FIPS 180-4, the example for SHA-256.
        assert!(text.starts_with("sha256:ba7816bf") && text.ends_with("f20015ad"), "{text}");
        assert_eq!(parse_hash(text.trim_start_matches(HASH_PREFIX)), Some(digest("abc")));
        assert_eq!((parse_hash("ba"), parse_hash("zz")), (None, None));
    }
}
