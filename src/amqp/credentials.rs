//! Masks the user name and password in the addresses of brokers, and detects ambiguous addresses.

/// The reason for rejecting an address whose parts are ambiguous.
pub(super) const STRAY_AT: &str = "it has more than one @, or an @ after a /, ? or #: in the user \
                                   name, the password and the virtual host write @ as %40, / as \
                                   %2F, ? as %3F and # as %23";

/// Returns whether the address has an @ other than the one between the credentials and the host.
/// With such an address, a part of the password could be parsed as host or virtual host, and be
/// displayed.
pub(super) fn has_stray_at(server: &str) -> bool {
    let address = server.split_once("://").map_or(server, |(_, address)| address);
    let authority_bytes = address.find(['/', '?', '#']).unwrap_or(address.len());
    let (authority, path_and_query) = address.split_at(authority_bytes);
    authority.matches('@').count() > 1 || path_and_query.contains('@')
}

/// The reason for rejecting an address that seems to contain another one.
pub(super) const JOINED_ADDRESS: &str = "each address of a list begins with amqp:// or amqps://, \
                                         and has its own virtual host; a comma that belongs to a \
                                         virtual host is written %2C";

/// Returns whether a part of a list that is not an address was taken for the end of this address:
/// `amqp://a:5672,b:5672`. A virtual host may have a comma.
pub(super) fn has_joined_address(server: &str) -> bool {
    let address = server.split_once("://").map_or(server, |(_, address)| address);
    let location = address.rsplit_once('@').map_or(address, |(_, location)| location);
    let host_bytes = location.find(['/', '?', '#']).unwrap_or(location.len());
    let (host, path_and_query) = location.split_at(host_bytes);
    let path = path_and_query.split(['?', '#']).next().unwrap_or_default();
    host.contains(',')
        || path.rsplit_once(',').is_some_and(|(_, end)| end.is_empty() || end.contains([':', '/']))
}

/// Returns the address with `***` in place of the credentials.
pub(super) fn mask_credentials(server: &str) -> String {
    let (scheme, address) = server.split_once("://").unwrap_or(("", server));
    let separator = if scheme.is_empty() { "" } else { "://" };
    match address.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}{separator}***@{host}"),
        // Without scheme and @, what looks like host:port may be user:password.
        None if scheme.is_empty() => "***".to_owned(),
        None => format!("{scheme}{separator}{address}"),
    }
}
