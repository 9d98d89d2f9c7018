//! Lines that programs answer with: `key=value` pairs, of which the last may contain spaces.

/// A line of `key=value` pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply(String);

impl Reply {
    /// Takes a line as it was read.
    #[must_use]
    pub fn new(line: String) -> Self {
        Self(line)
    }

    /// The value of a key.
    ///
    /// # Panics
    /// When the line does not have it.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        let start = self.start(key).unwrap_or_else(|| panic!("no {key} in {:?}", self.0));
        self.0[start..].split(' ').next().unwrap_or_default()
    }

    /// The value of the last key, to the end of the line.
    ///
    /// # Panics
    /// When the line does not have it.
    #[must_use]
    pub fn rest(&self, key: &str) -> &str {
        let start = self.start(key).unwrap_or_else(|| panic!("no {key} in {:?}", self.0));
        &self.0[start..]
    }

    /// The value of a key, as a number.
    ///
    /// # Panics
    /// When the line does not have it, or it is not one.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        self.text(key).parse().unwrap_or_else(|_| panic!("{key} is not a number in {:?}", self.0))
    }

    fn start(&self, key: &str) -> Option<usize> {
        let pair = format!("{key}=");
        self.0
            .match_indices(&pair)
            .map(|(at, _)| at)
            .find(|at| *at == 0 || self.0.as_bytes()[at - 1] == b' ')
            .map(|at| at + pair.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_keys() {
        let reply = Reply::new("a=1 ba=2 message=it has = and spaces".to_owned());
        assert_eq!((reply.number("a"), reply.number("ba")), (1, 2));
        assert_eq!(reply.rest("message"), "it has = and spaces");
    }

    #[test]
    #[should_panic(expected = "no b in")]
    fn a_key_that_is_missing_is_a_failure() {
        let _ = Reply::new("a=1".to_owned()).text("b");
    }
}
