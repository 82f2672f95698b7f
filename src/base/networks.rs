//! IP networks, and the rules for the addresses that web services may have. The rules guard against
//! server-side request forgery (SSRF).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Networks to which nothing is ever sent, whatever the settings allow, each with its description:
/// unspecified, link-local, multicast and broadcast addresses, and metadata services of clouds.
const FORBIDDEN_NETWORKS: [(Network, &str); 13] = [
    (v4([0, 0, 0, 0], 8), "this host without an address"),
    (v4([169, 254, 0, 0], 16), "link-local, as the metadata services of clouds are"),
    (v4([224, 0, 0, 0], 4), "multicast"),
    (v4([255, 255, 255, 255], 32), "broadcast"),
    // Alibaba Cloud.
    (v4([100, 100, 100, 200], 32), "the metadata service of a cloud"),
    // Azure.
    (v4([168, 63, 129, 16], 32), "the metadata service of a cloud"),
    // The IETF protocol assignments, with Oracle Cloud.
    (v4([192, 0, 0, 0], 24), "for protocols, and the metadata service of a cloud"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "this host without an address"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast"),
    // AWS, with the service for credentials.
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32), "the metadata services of a cloud"),
    // Google Cloud.
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0], 32), "the metadata service of a cloud"),
    // Scaleway.
    (v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128), "the metadata service of a cloud"),
];

/// An IP network in CIDR notation: `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// The length of the prefix in bits.
    prefix_bits: u8,
}

const fn v4([a, b, c, d]: [u8; 4], prefix_bits: u8) -> Network {
    Network { address: IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix_bits }
}

const fn v6([a, b, c, d, e, f, g, h]: [u16; 8], prefix_bits: u8) -> Network {
    Network { address: IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix_bits }
}

impl Network {
    /// Returns whether the network contains the address.
    fn contains(&self, address: IpAddr) -> bool {
        let prefix_bits = u32::from(self.prefix_bits);
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let difference = network.to_bits() ^ address.to_bits();
                // Both addresses have the prefix if their difference has only zeros there. An empty
                // prefix shifts by all bits, which overflows: then every address is contained.
                difference.checked_shr(32 - prefix_bits).is_none_or(|prefix| prefix == 0)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let difference = network.to_bits() ^ address.to_bits();
                difference.checked_shr(128 - prefix_bits).is_none_or(|prefix| prefix == 0)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let error = || format!("found {text:?}, expected a network such as 10.0.0.0/8 or fd00::/8");
        let (address, prefix_bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| error())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let address_bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = prefix_bits.unwrap_or(address_bits);
        if prefix_bits > address_bits {
            return Err(error());
        }
        Ok(Network { address, prefix_bits })
    }
}

/// Rules for the addresses that web services may have. A denied network takes precedence over an
/// allowed one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Networks {
    /// The allowed networks; empty: every address is allowed.
    pub allow: Vec<Network>,
    /// The denied networks.
    pub deny: Vec<Network>,
}

impl Networks {
    /// Returns why nothing may be sent to `address`; `None`: it is allowed. If an IPv6 address
    /// embeds an IPv4 address, that one is checked too.
    pub fn refusal(&self, address: IpAddr) -> Option<String> {
        let equivalents = || std::iter::once(address).chain(embedded_ipv4(address));
        if let Some(reason) = equivalents().find_map(|address| self.find_denial(address)) {
            return Some(format!("the address {address} is refused: {reason}"));
        }
        let is_allowed = |network: &Network| equivalents().any(|address| network.contains(address));
        (!self.allow.is_empty() && !self.allow.iter().any(is_allowed)).then(|| {
            format!("the address {address} is refused: it is in no network of push.networks.allow")
        })
    }

    /// Finds the forbidden or denied network that contains `address`, and describes it.
    fn find_denial(&self, address: IpAddr) -> Option<String> {
        if let Some((_, description)) =
            FORBIDDEN_NETWORKS.iter().find(|(network, _)| network.contains(address))
        {
            return Some(format!("{description}; nothing is ever sent there"));
        }
        let network = self.deny.iter().find(|network| network.contains(address))?;
        Some(format!("it is in {network} of push.networks.deny"))
    }
}

/// Returns the IPv4 addresses that an IPv6 address may embed: mapped (`::ffff:0:0/96`),
/// compatible (`::/96`), translated (NAT64, `64:ff9b::/96` and both forms in `64:ff9b:1::/48`), and
/// 6to4 (`2002::/16`).
fn embedded_ipv4(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let ipv4 = |high: u16, low: u16| {
        Some(IpAddr::V4(Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low))))
    };
    let segments = match address {
        IpAddr::V4(_) => [0; 8],
        IpAddr::V6(address) => address.segments(),
    };
    let embedded = match segments {
        // ::1 is this host, not 0.0.0.1.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None, None],
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, _, _, _, _, _] => [ipv4(high, low), None],
        [0x64, 0xff9b, 1, first, second, third, high, low] => {
            [ipv4(first, (second << 8) | (third >> 8)), ipv4(high, low)]
        }
        _ => [None, None],
    };
    embedded.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(allow: &[&str], deny: &[&str]) -> Networks {
        let parse_all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Networks { allow: parse_all(allow), deny: parse_all(deny) }
    }

    fn is_address_refused(networks: &Networks, address: &str) -> bool {
        networks.refusal(address.parse().unwrap()).is_some()
    }

    #[test]
    fn metadata_link_local_unspecified_and_multicast_addresses_are_always_refused() {
        let allow_all = networks(&["0.0.0.0/0", "::/0"], &[]);
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "100.100.100.200",
            "::",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:42::42",
            "168.63.129.16",
            "192.0.0.192",
            "::ffff:168.63.129.16",
            "64:ff9b::192.0.0.192",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::a9fe:a9fe",
            "64:ff9b:1:a9fe:a9:fe00::",
            "2002:a9fe:a9fe::1",
            "::ffff:0.0.0.0",
            "64:ff9b::224.0.0.1",
        ] {
            assert!(is_address_refused(&allow_all, address), "{address}");
            assert!(is_address_refused(&Networks::default(), address), "{address}");
        }
    }

    #[test]
    fn private_addresses_are_allowed_unless_the_settings_refuse_them() {
        for address in ["127.0.0.1", "10.1.2.3", "192.168.0.1", "::1", "fd00::1", "93.184.216.34"] {
            assert!(!is_address_refused(&Networks::default(), address), "{address}");
        }
        let configured = networks(&["10.0.0.0/8", "fd00::/8"], &["10.9.0.0/16", "10.1.1.1"]);
        for (address, is_refused) in [
            ("10.1.2.3", false),
            ("10.255.255.255", false),
            ("11.0.0.0", true),
            ("10.9.8.7", true),
            ("10.1.1.1", true),
            ("10.1.1.2", false),
            ("fd12::1", false),
            ("127.0.0.1", true),
            ("::ffff:10.9.0.1", true),
            ("::ffff:10.8.0.1", false),
        ] {
            assert_eq!(is_address_refused(&configured, address), is_refused, "{address}");
        }
        assert!(is_address_refused(&networks(&[], &["0.0.0.0/0"]), "8.8.8.8"));
    }

    #[test]
    fn invalid_networks_are_rejected_with_an_example() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "::/129", "host/8", "10.0.0.0/"] {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.contains("expected a network such as 10.0.0.0/8"), "{text}: {error}");
        }
    }
}
