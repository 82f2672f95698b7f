//! Addresses of web services.

use std::net::IpAddr;
use url::Url;

/// Returns whether a queue is the address of a web service.
pub fn is_url(queue: &str) -> bool {
    let has = |scheme: &str| {
        queue.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    has("http://") || has("https://")
}

/// Parses the address of a web service.
///
/// # Errors
///
/// Returns what is wrong with it.
pub fn parse_web_address(text: &str) -> Result<Url, String> {
    if text.contains(['{', '}']) {
        // The text is not shown: a secret may be meant to replace the placeholder.
        return Err("an address is written out, nothing is put in its place: data never chooses \
                    where a message goes; leave out { and }"
            .to_owned());
    }
    let expected = "expected an address such as https://price.example/step";
    if !is_url(text) {
        return Err(format!("it does not start with https:// or http://, {expected}"));
    }
    let url = Url::parse(text).map_err(|error| format!("{error}, {expected}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("an address has no user and no password: set a header Authorization for the \
                    endpoint of a bus of kind push (setting buses)"
            .to_owned());
    }
    if url.fragment().is_some() {
        return Err(format!("a part behind # is never sent, leave it out; {expected}"));
    }
    Ok(url)
}

/// Returns the IP address in a URL, if its host is no name and needs no lookup.
pub fn ip_address(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        url::Host::Domain(_) => None,
        url::Host::Ipv4(address) => Some(address.into()),
        url::Host::Ipv6(address) => Some(address.into()),
    }
}

/// Returns whether data sent to this address can be read on the way: without TLS, to another
/// machine.
pub fn is_cleartext(url: &Url) -> bool {
    let is_here = match ip_address(url) {
        Some(address) => address.is_loopback(),
        None => url.host_str() == Some("localhost"),
    };
    url.scheme() == "http" && !is_here
}
