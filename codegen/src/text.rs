//! What is looked for in the text of a file before it is parsed.

use std::path::Path;

use crate::error::BuildError;

/// How deep a file may nest. The parser and the generators below are recursive: without a bound, a file could overflow
/// the stack, which ends a process without a word.
pub(crate) const MAX_NESTING: usize = 32;

/// Why a file is refused without parsing it. A file that cannot be read is left to the parser to report.
pub(crate) fn refusal(path: &Path) -> Option<BuildError> {
    let text = std::fs::read_to_string(path).ok()?;
    let file = path.display();
    if let Some(edition) = declared_edition(&text) {
        return Some(BuildError::Editions { file: file.to_string(), edition });
    }
    let before = &text[..too_deep(&text)?];
    let (line, column) =
        (before.split('\n').count(), before.chars().rev().take_while(|&end| end != '\n').count() + 1);
    Some(BuildError::Proto {
        place: format!("{file}:{line}:{column}"),
        message: format!(
            "this is nested more than {MAX_NESTING} levels deep; declare the inner items outside"
        ),
    })
}

/// Finds `edition = "…";` where a file's syntax is declared: the parsers' own errors say less.
fn declared_edition(text: &str) -> Option<String> {
    let mut rest = text.trim_start_matches('\u{feff}').trim_start();
    loop {
        if let Some(comment) = rest.strip_prefix("//") {
            rest = comment.split_once('\n')?.1.trim_start();
        } else if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/")?.1.trim_start();
        } else {
            break;
        }
    }
    let value = rest.strip_prefix("edition")?.trim_start().strip_prefix('=')?.trim_start();
    let quote = value.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
    value[1..].split(quote).next().map(str::to_owned)
}

/// Where brackets outside of comments and strings are first nested too deep.
fn too_deep(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    // The length of what begins at `at` and ends behind `end`, or at the end of the file.
    let until =
        |at: usize, end: &str| text[at..].find(end).map_or(text.len(), |found| at + found + end.len());
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => at = until(at, "\n"),
            b'/' if bytes.get(at + 1) == Some(&b'*') => at = until(at + 2, "*/"),
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote && bytes[at] != b'\n' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'{' | b'[' | b'<' => {
                depth += 1;
                if depth > MAX_NESTING {
                    return Some(at);
                }
                at += 1;
            }
            b'}' | b']' | b'>' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{MAX_NESTING, declared_edition, too_deep};

    #[test]
    fn editions_are_found_behind_comments_only_where_they_are_declared() {
        assert_eq!(declared_edition("edition = \"2023\";").as_deref(), Some("2023"));
        assert_eq!(declared_edition("// a\n/* b */ edition='2024';").as_deref(), Some("2024"));
        assert_eq!(declared_edition("syntax = \"proto3\"; message edition {}"), None);
        assert_eq!(declared_edition("/* edition = \"2023\""), None);
        assert_eq!(declared_edition(""), None);
    }

    #[test]
    fn brackets_nest_unless_they_are_closed_or_in_comments_or_strings() {
        let open = "{".repeat(MAX_NESTING);
        assert_eq!(too_deep(&open), None);
        assert_eq!(too_deep(&format!("{open}[")), Some(MAX_NESTING));
        assert_eq!(too_deep(&format!("{open}}}[")), None);
        for hidden in ["// {\n", "/* é{ */", "\"{\"", "'\\'{'", "\"é\\\"{\"", "/*{", "//{", "\"{", "'\\"] {
            assert_eq!(too_deep(&format!("{open}{hidden}")), None, "{hidden}");
        }
        assert!(too_deep(&format!("{open}/* */ '' <")).is_some());
        assert_eq!(too_deep("é}{"), None);
    }
}
