//! Resolves the names of web services to allowed addresses. The check belongs to the resolution for
//! the connection itself. This prevents DNS rebinding: a name cannot change its address between
//! check and use.

use base::networks::Networks;
use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The error of a request to an address that is denied.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct AddressDenied(pub(super) String);

/// A function that resolves a name to addresses.
pub(super) type LookupFn =
    Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// A resolver that returns only allowed addresses.
pub(super) struct CheckedResolver {
    networks: Arc<Networks>,
    lookup: LookupFn,
}

impl CheckedResolver {
    /// Creates a resolver that uses the system's resolver.
    pub(super) fn system(networks: Arc<Networks>) -> CheckedResolver {
        let lookup: LookupFn = Arc::new(|name| {
            Box::pin(async move {
                let addresses = tokio::net::lookup_host((name, 0)).await?;
                Ok(addresses.map(|address| address.ip()).collect())
            })
        });
        CheckedResolver { networks, lookup }
    }
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let networks = self.networks.clone();
        let lookup = (self.lookup)(name.as_str().to_owned());
        Box::pin(async move {
            let addresses = filter_allowed(&networks, lookup.await?)?;
            let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, 0));
            Ok(Box::new(addresses) as Addrs)
        })
    }
}

/// Returns the allowed addresses.
///
/// # Errors
///
/// Returns an error if all addresses are denied.
fn filter_allowed(
    networks: &Networks,
    addresses: Vec<IpAddr>,
) -> Result<Vec<IpAddr>, AddressDenied> {
    let (mut allowed, mut refusal) = (Vec::new(), None);
    for address in addresses {
        match networks.refusal(address) {
            None => allowed.push(address),
            Some(reason) => refusal = Some(reason),
        }
    }
    match refusal {
        Some(reason) if allowed.is_empty() => Err(AddressDenied(reason)),
        Some(_) | None => Ok(allowed),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Creates a resolver that resolves every name to these addresses.
    pub(in crate::push) fn resolve_all_to(
        addresses: &[&str],
        networks: Networks,
    ) -> CheckedResolver {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let lookup: LookupFn = Arc::new(move |_| {
            let addresses = addresses.clone();
            Box::pin(async move { Ok(addresses) })
        });
        CheckedResolver { networks: Arc::new(networks), lookup }
    }

    async fn resolve(resolver: &CheckedResolver) -> Result<Vec<IpAddr>, String> {
        let result = resolver.resolve("price.example".parse().unwrap()).await;
        result
            .map(|addresses| addresses.map(|address| address.ip()).collect())
            .map_err(|error| error.to_string())
    }

    #[actix_rt::test]
    async fn a_metadata_service_is_not_resolved() {
        for address in ["169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254", "0.0.0.0"] {
            let error =
                resolve(&resolve_all_to(&[address], Networks::default())).await.unwrap_err();
            assert!(error.contains(&format!("the address {address} is refused")), "{error}");
        }
        let both = resolve_all_to(&["169.254.169.254", "10.0.0.1"], Networks::default());
        assert_eq!(resolve(&both).await, Ok(vec!["10.0.0.1".parse().unwrap()]));
    }

    #[actix_rt::test]
    async fn a_name_is_not_resolved_into_a_denied_network() {
        let denied = Networks { allow: Vec::new(), deny: vec!["10.0.0.0/8".parse().unwrap()] };
        let error = resolve(&resolve_all_to(&["10.0.0.1"], denied)).await.unwrap_err();
        assert!(error.contains("10.0.0.0/8 of push.networks.deny"), "{error}");
    }
}
