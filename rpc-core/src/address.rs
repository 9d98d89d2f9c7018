//! Addresses as users write them: `ringmail://host:port`, or just `host:port`.

use std::net::{Ipv6Addr, SocketAddr};

use crate::error::AddressError;

/// Host and port of an address, not yet resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// A name, an IPv4 address, or an IPv6 address without its brackets, with its scope if it has one.
    host: String,
    port: u16,
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, AddressError> {
        let invalid = |rule| AddressError::Invalid { address: text.to_owned(), rule };
        let rest = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("ringmail") => rest,
            Some(_) => return Err(invalid("the scheme must be ringmail://")),
            None => text,
        };
        let host_port = rest.strip_suffix('/').unwrap_or(rest);
        if host_port.contains('/') {
            return Err(invalid("there must be no path"));
        }
        if host_port.contains('@') {
            return Err(invalid("there must be no user (what stands before the @): Ringmail has no logins"));
        }
        let missing_port = || invalid("the port is missing");
        let (host, port) = if let Some(bracketed) = host_port.strip_prefix('[') {
            let (host, port) = bracketed.split_once(']').ok_or_else(|| invalid("a ] is missing"))?;
            let address = host.split_once('%').map_or(host, |(address, _)| address);
            if address.parse::<Ipv6Addr>().is_err() {
                return Err(invalid("what stands in brackets must be an IPv6 address"));
            }
            if host.ends_with('%') {
                return Err(invalid("the network interface after the % is missing"));
            }
            (host, port.strip_prefix(':').ok_or_else(missing_port)?)
        } else {
            let (host, port) = host_port.rsplit_once(':').ok_or_else(missing_port)?;
            if host.contains(':') {
                return Err(invalid("an IPv6 address must be in brackets: [::1]:7400"));
            }
            (host, port)
        };
        if host.is_empty() {
            return Err(invalid("the host is missing"));
        }
        let port = port.parse().map_err(|_| invalid("the port must be a number from 0 to 65535"))?;
        Ok(Self { host: host.to_owned(), port })
    }

    /// All socket addresses that the name resolves to.
    pub(crate) async fn resolve(&self) -> Result<Vec<SocketAddr>, AddressError> {
        let unresolved = |reason: String| AddressError::Unresolved { address: self.host_port(), reason };
        let found: Vec<_> = tokio::net::lookup_host((self.host.as_str(), self.port))
            .await
            .map_err(|error| {
                // The resolver speaks of an unknown name.
                let scope = self.host.split_once('%');
                let hint = scope.map_or_else(String::new, |(_, scope)| {
                    format!(" ({scope} must be a network interface of this host, the address link-local)")
                });
                unresolved(format!("{error}{hint}"))
            })?
            .collect();
        if found.is_empty() { Err(unresolved("the name has no address".to_owned())) } else { Ok(found) }
    }

    fn host_port(&self) -> String {
        let Self { host, port } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ringmail://{}", self.host_port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_accepted() {
        for (text, means) in [
            ("ringmail://localhost:7400", "ringmail://localhost:7400"),
            ("RINGMAIL://localhost:7400", "ringmail://localhost:7400"),
            ("Ringmail://Host:1", "ringmail://Host:1"),
            ("localhost:7400", "ringmail://localhost:7400"),
            ("[::1]:0", "ringmail://[::1]:0"),
            ("ringmail://[fe80::1%eth0]:7400", "ringmail://[fe80::1%eth0]:7400"),
            ("[fe80::1%2]:7400/", "ringmail://[fe80::1%2]:7400"),
            ("ringmail://10.0.0.1:1/", "ringmail://10.0.0.1:1"),
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), means);
        }
    }

    #[test]
    fn addresses_that_are_refused_say_what_is_wrong() {
        for (text, rule) in [
            ("http://a:1", "scheme"),
            ("localhost", "port is missing"),
            ("localhost:", "number"),
            ("localhost:70000", "number"),
            (":7400", "host is missing"),
            ("::1:7400", "brackets"),
            ("[::1]", "port is missing"),
            ("[::1]7400", "port is missing"),
            ("[::1:7400", "a ] is missing"),
            ("[localhost]:1", "must be an IPv6 address"),
            ("[]:1", "must be an IPv6 address"),
            ("[fe80::1%]:1", "interface after the % is missing"),
            ("user@host:1", "no user"),
            ("ringmail://user:secret@host:1", "no user"),
            ("a:1/path", "no path"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(rule) && error.contains(text), "{error}");
        }
    }

    #[tokio::test]
    async fn scopes_of_ipv6_addresses_are_interfaces_by_name_or_number() {
        let index: u32 =
            std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
        for text in ["[fe80::1%lo]:7400".to_owned(), format!("ringmail://[fe80::1%{index}]:7400")] {
            let found = Address::parse(&text).unwrap().resolve().await.unwrap();
            let expected = std::net::SocketAddrV6::new("fe80::1".parse().unwrap(), 7400, 0, index);
            assert!(!found.is_empty() && found.iter().all(|found| *found == expected.into()), "{found:?}");
        }
        let error = Address::parse("[fe80::1%nowhere]:1").unwrap().resolve().await.unwrap_err().to_string();
        assert!(error.contains("nowhere must be a network interface"), "{error}");
    }
}
