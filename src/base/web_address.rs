//! Parses and classifies the addresses (URLs) of web services.

use std::net::IpAddr;
use url::Url;

/// Returns whether a queue's name is the address of a web service: whether it starts with `http://`
/// or `https://`, in any case.
pub fn is_url(queue: &str) -> bool {
    let has_prefix = |prefix: &str| {
        queue.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    has_prefix("http://") || has_prefix("https://")
}

/// Parses the address of a web service.
///
/// # Errors
///
/// Returns an error if it is not an HTTP or HTTPS URL, or has a placeholder, credentials or a
/// fragment. The error says what is wrong.
pub fn parse_web_address(text: &str) -> Result<Url, String> {
    if text.contains(['{', '}']) {
        // The text is not repeated: the part around a placeholder may be a secret.
        return Err("an address is fixed, and has no placeholders: data never chooses where a \
                    message goes; leave out { and }"
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

/// Returns the IP address that is the host of a URL; `None` if the host is a name, or missing.
pub fn ip_address(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        url::Host::Domain(_) => None,
        url::Host::Ipv4(address) => Some(address.into()),
        url::Host::Ipv6(address) => Some(address.into()),
    }
}

/// Returns whether data sent to this address leaves the machine unencrypted: the scheme is `http`,
/// and the host is neither `localhost` nor a loopback address.
pub fn is_cleartext(url: &Url) -> bool {
    let is_loopback = match ip_address(url) {
        Some(address) => address.is_loopback(),
        None => url.host_str() == Some("localhost"),
    };
    url.scheme() == "http" && !is_loopback
}
