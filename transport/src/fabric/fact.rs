//! What the kernel says of something, or why it does not.

use std::fmt;

/// What a file of the kernel says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fact<T> {
    /// This.
    Known(T),
    /// Nothing: there is no such file, or no such thing.
    Unknown,
    /// The file is there but cannot be read or understood, for this reason.
    Unreadable(String),
}

impl<T> Fact<T> {
    /// The value, if it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown | Self::Unreadable(_) => None,
        }
    }

    /// What `read` makes of the value; what it cannot make anything of is unreadable.
    pub(super) fn parse<U>(self, read: impl FnOnce(&T) -> Option<U>) -> Fact<U>
    where
        T: fmt::Display,
    {
        match self {
            Self::Known(value) => read(&value).map_or_else(
                || Fact::Unreadable(format!("it says {value:.40}, which means nothing here")),
                Fact::Known,
            ),
            Self::Unknown => Fact::Unknown,
            Self::Unreadable(why) => Fact::Unreadable(why),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Fact<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(value) => value.fmt(f),
            Self::Unknown => f.pad("unknown"),
            Self::Unreadable(why) => f.pad(&format!("unreadable ({why})")),
        }
    }
}
