//! Masks the user name and password in addresses.

/// Why an address with ambiguous parts is rejected.
pub(super) const STRAY_AT: &str = "it has an @ too many, or behind a /, ? or #: in the user name, \
                                   the password and the virtual host write @ as %40, / as %2F, ? \
                                   as %3F and # as %23";

/// Returns whether there is an @ other than the one between the credentials and the host. A part of
/// the password would then be taken for the host or the virtual host, and be displayed.
pub(super) fn has_stray_at(server: &str) -> bool {
    let rest = server.split_once("://").map_or(server, |(_, rest)| rest);
    let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    authority.matches('@').count() > 1 || behind.contains('@')
}

/// Returns the address for display: the scheme, and what follows the credentials.
pub(super) fn mask_credentials(server: &str) -> String {
    let (scheme, rest) =
        server.split_once("://").map_or(("", server), |(scheme, rest)| (scheme, rest));
    let separator = if scheme.is_empty() { "" } else { "://" };
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}{separator}***@{host}"),
        // Without an @, what looks like host:port may be user:password.
        None if scheme.is_empty() => "***".to_owned(),
        None => format!("{scheme}{separator}{rest}"),
    }
}
