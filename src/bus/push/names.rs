//! Resolves the names of web services, and checks the addresses when a connection is made, so that
//! a name cannot change its address between check and use.

use crate::settings::Networks;
use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Requests to an address are denied.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Refused(pub(super) String);

/// Resolves a name.
pub(super) type LookUp =
    Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// Resolves names, and returns only the addresses that are allowed.
pub(super) struct Names {
    networks: Arc<Networks>,
    look_up: LookUp,
}

impl Names {
    /// Creates a resolver that uses the system's.
    pub(super) fn of_system(networks: Arc<Networks>) -> Names {
        let look_up: LookUp = Arc::new(|name| {
            Box::pin(async move {
                let found = tokio::net::lookup_host((name, 0)).await?;
                Ok(found.map(|address| address.ip()).collect())
            })
        });
        Names { networks, look_up }
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let (networks, found) = (self.networks.clone(), (self.look_up)(name.as_str().to_owned()));
        Box::pin(async move {
            let addresses = allowed(&networks, found.await?)?;
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
fn allowed(networks: &Networks, found: Vec<IpAddr>) -> Result<Vec<IpAddr>, Refused> {
    let (mut allowed, mut refused) = (Vec::new(), None);
    for address in found {
        match networks.objection(address) {
            None => allowed.push(address),
            Some(why) => refused = Some(why),
        }
    }
    match refused {
        Some(why) if allowed.is_empty() => Err(Refused(why)),
        Some(_) | None => Ok(allowed),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Creates a resolver that gives every name these addresses.
    pub(in crate::bus::push) fn all_at(addresses: &[&str], networks: Networks) -> Names {
        let found: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let look_up: LookUp = Arc::new(move |_| {
            let found = found.clone();
            Box::pin(async move { Ok(found) })
        });
        Names { networks: Arc::new(networks), look_up }
    }

    async fn resolved(names: &Names) -> Result<Vec<IpAddr>, String> {
        let found = names.resolve("price.example".parse().unwrap()).await;
        found.map(|found| found.map(|found| found.ip()).collect()).map_err(|why| why.to_string())
    }

    #[actix_rt::test]
    async fn a_name_of_a_metadata_service_has_no_address() {
        for address in ["169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254", "0.0.0.0"] {
            let told = resolved(&all_at(&[address], Networks::default())).await.unwrap_err();
            assert!(told.contains(&format!("the address {address} is refused")), "{told}");
        }
        let both = all_at(&["169.254.169.254", "10.0.0.1"], Networks::default());
        assert_eq!(resolved(&both).await, Ok(vec!["10.0.0.1".parse().unwrap()]));
    }

    #[actix_rt::test]
    async fn a_name_has_no_address_in_a_network_that_is_denied() {
        let denied = Networks { allow: Vec::new(), deny: vec!["10.0.0.0/8".parse().unwrap()] };
        let told = resolved(&all_at(&["10.0.0.1"], denied)).await.unwrap_err();
        assert!(told.contains("10.0.0.0/8 of push.networks.deny"), "{told}");
    }
}
