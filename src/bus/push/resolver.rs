//! Resolves the names of web services, and checks the addresses when a connection is made, so that
//! a name cannot change its address between check and use.

use base::networks::Networks;
use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Requests to an address are denied.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct AddressDenied(pub(super) String);

/// Resolves a name.
pub(super) type LookupFn =
    Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// Resolves names, and returns only the addresses that are allowed.
pub(super) struct CheckedResolver {
    networks: Arc<Networks>,
    lookup: LookupFn,
}

impl CheckedResolver {
    /// Creates a resolver that uses the system's.
    pub(super) fn system(networks: Arc<Networks>) -> CheckedResolver {
        let lookup: LookupFn = Arc::new(|name| {
            Box::pin(async move {
                let found = tokio::net::lookup_host((name, 0)).await?;
                Ok(found.map(|address| address.ip()).collect())
            })
        });
        CheckedResolver { networks, lookup }
    }
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (networks, found) = (self.networks.clone(), (self.lookup)(name.as_str().to_owned()));
        Box::pin(async move {
            let addresses = filter_allowed(&networks, found.await?)?;
            let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

/// Returns the allowed addresses.
///
/// # Errors
///
/// No address is left because all are denied.
fn filter_allowed(networks: &Networks, found: Vec<IpAddr>) -> Result<Vec<IpAddr>, AddressDenied> {
    let (mut allowed, mut denied) = (Vec::new(), None);
    for address in found {
        match networks.refusal(address) {
            None => allowed.push(address),
            Some(why) => denied = Some(why),
        }
    }
    match denied {
        Some(why) if allowed.is_empty() => Err(AddressDenied(why)),
        Some(_) | None => Ok(allowed),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Creates a resolver that gives every name these addresses.
    pub(in crate::push) fn resolve_all_to(
        addresses: &[&str],
        networks: Networks,
    ) -> CheckedResolver {
        let found: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let lookup: LookupFn = Arc::new(move |_| {
            let found = found.clone();
            Box::pin(async move { Ok(found) })
        });
        CheckedResolver { networks: Arc::new(networks), lookup }
    }

    async fn resolved(names: &CheckedResolver) -> Result<Vec<IpAddr>, String> {
        let found = names.resolve("price.example".parse().unwrap()).await;
        found.map(|found| found.map(|found| found.ip()).collect()).map_err(|why| why.to_string())
    }

    #[actix_rt::test]
    async fn a_metadata_service_is_not_resolved() {
        for address in ["169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254", "0.0.0.0"] {
            let error =
                resolved(&resolve_all_to(&[address], Networks::default())).await.unwrap_err();
            assert!(error.contains(&format!("the address {address} is refused")), "{error}");
        }
        let both = resolve_all_to(&["169.254.169.254", "10.0.0.1"], Networks::default());
        assert_eq!(resolved(&both).await, Ok(vec!["10.0.0.1".parse().unwrap()]));
    }

    #[actix_rt::test]
    async fn a_name_is_not_resolved_into_a_denied_network() {
        let denied = Networks { allow: Vec::new(), deny: vec!["10.0.0.0/8".parse().unwrap()] };
        let error = resolved(&resolve_all_to(&["10.0.0.1"], denied)).await.unwrap_err();
        assert!(error.contains("10.0.0.0/8 of push.networks.deny"), "{error}");
    }
}
