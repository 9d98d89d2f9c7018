//! Options that hold for a part of the files: which part, and which attributes.

use syn::Attribute;
use syn::parse::Parser as _;

/// Pairs of a protobuf path and what is to be applied there, in the order they were given.
pub(crate) type ByPath = Vec<(String, String)>;

/// Whether a path option covers the item with this full name, which begins with a dot.
///
/// These are prost's rules: `.` covers everything, `.package` what is inside, and `Greeter` or `helloworld.Greeter`
/// whatever ends in it.
pub(crate) fn covers(path: &str, full_name: &str) -> bool {
    let at_boundary = |rest: &str| rest.is_empty() || rest.starts_with('.');
    if path == "." || path == full_name {
        true
    } else if path.starts_with('.') {
        full_name.strip_prefix(path).is_some_and(at_boundary)
    } else {
        !path.is_empty() && full_name.strip_suffix(path).is_some_and(|rest| rest.ends_with('.'))
    }
}

/// Outer attributes, as they are written before an item.
pub(crate) fn attributes(text: &str) -> syn::Result<Vec<Attribute>> {
    Attribute::parse_outer.parse_str(text)
}

/// The attributes for an item that goes by several names.
pub(crate) fn attributes_for(options: &ByPath, full_names: &[&str]) -> syn::Result<Vec<Attribute>> {
    let mut found = Vec::new();
    for (path, text) in options {
        if full_names.iter().any(|name| covers(path, name)) {
            found.extend(attributes(text)?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{attributes, covers};

    #[test]
    fn paths_cover_everything_or_a_prefix_or_a_suffix() {
        let name = ".acme.orders.Orders";
        for path in [
            ".",
            ".acme",
            ".acme.orders",
            ".acme.orders.Orders",
            "Orders",
            "orders.Orders",
            "acme.orders.Orders",
        ] {
            assert!(covers(path, name), "{path}");
        }
        for path in ["", ".acm", ".orders", "rders", "acme", ".acme.orders.Orders.More"] {
            assert!(!covers(path, name), "{path}");
        }
        assert!(covers("Root", ".Root") && covers(".Root", ".Root"));
    }

    #[test]
    fn attributes_are_outer_ones_and_nothing_else() {
        assert_eq!(attributes("#[a] #[b(c)]").unwrap().len(), 2);
        for text in ["derive(Debug)", "#![a]", "#[a] struct B;", "#[a"] {
            assert!(attributes(text).is_err(), "{text}");
        }
    }
}
