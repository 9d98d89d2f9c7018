//! Addresses as users write them: `ringmail://host:port`, or just `host:port`.

use std::net::SocketAddr;

use crate::error::AddressError;

/// Host and port of an address, not yet resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    host_port: String,
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, AddressError> {
        let invalid = |rule| AddressError::Invalid { address: text.to_owned(), rule };
        let rest = match text.split_once("://") {
            Some(("ringmail", rest)) => rest,
            Some(_) => return Err(invalid("the scheme must be ringmail://")),
            None => text,
        };
        let host_port = rest.strip_suffix('/').unwrap_or(rest);
        if host_port.contains('/') {
            return Err(invalid("there must be no path"));
        }
        let (host, port) = host_port.rsplit_once(':').ok_or_else(|| invalid("the port is missing"))?;
        if host.is_empty() {
            return Err(invalid("the host is missing"));
        }
        if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
            return Err(invalid("an IPv6 address must be in brackets: [::1]:7400"));
        }
        if port.parse::<u16>().is_err() {
            return Err(invalid("the port must be a number from 0 to 65535"));
        }
        Ok(Self { host_port: host_port.to_owned() })
    }

    /// All socket addresses that the name resolves to.
    pub(crate) async fn resolve(&self) -> Result<Vec<SocketAddr>, AddressError> {
        let unresolved =
            |reason: String| AddressError::Unresolved { address: self.host_port.clone(), reason };
        let found: Vec<_> = tokio::net::lookup_host(self.host_port.as_str())
            .await
            .map_err(|error| unresolved(error.to_string()))?
            .collect();
        if found.is_empty() { Err(unresolved("the name has no address".to_owned())) } else { Ok(found) }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ringmail://{}", self.host_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_accepted() {
        for text in ["ringmail://localhost:7400", "localhost:7400", "[::1]:0", "ringmail://10.0.0.1:1/"] {
            assert!(Address::parse(text).is_ok(), "{text}");
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
            ("a:1/path", "no path"),
        ] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains(rule) && error.contains(text), "{error}");
        }
    }
}
