//! Comments of the files, made fit to be Rust documentation.
//!
//! rustdoc takes indented lines and unnamed fences for Rust and runs them as tests, in the user's crate. In a `.proto`
//! file they are anything but Rust.

use prost_types::FileDescriptorSet;

/// Columns of indentation that no Markdown renderer takes for code, including the space after `//`.
const INDENT: usize = 3;

/// Takes away what would make code of the comments.
pub(crate) fn tame(descriptors: &mut FileDescriptorSet) {
    let infos = descriptors.file.iter_mut().filter_map(|file| file.source_code_info.as_mut());
    for location in infos.flat_map(|info| &mut info.location) {
        for comment in [&mut location.leading_comments, &mut location.trailing_comments].into_iter().flatten()
        {
            *comment = without_code(comment);
        }
    }
}

fn without_code(comment: &str) -> String {
    // The characters of the open fence: only as many of the same close it.
    let mut open: Option<&str> = None;
    let mut tamed = String::with_capacity(comment.len());
    for line in comment.split_inclusive('\n') {
        let (text, end) = line.strip_suffix('\n').map_or((line, ""), |text| (text, "\n"));
        let content = text.trim_start();
        let indent = &text[..text.len() - content.len()];
        let fence = &content[..content.len() - content.trim_start_matches(['`', '~']).len()];
        let language = content[fence.len()..].trim();
        match open {
            Some(opening) => {
                if fence.len() >= opening.len() && fence.starts_with(opening) && language.is_empty() {
                    open = None;
                }
                tamed.push_str(text);
            }
            None if is_fence(fence) && !language.contains('`') => {
                open = Some(fence);
                tamed.push_str(shortened(indent).as_str());
                tamed.push_str(fence);
                let rust = language.is_empty() || language.starts_with("rust");
                tamed.push_str(if rust { "text" } else { language });
            }
            None => {
                tamed.push_str(shortened(indent).as_str());
                tamed.push_str(content);
            }
        }
        tamed.push_str(end);
    }
    tamed
}

fn is_fence(text: &str) -> bool {
    text.len() >= 3 && text.bytes().all(|byte| Some(&byte) == text.as_bytes().first())
}

fn shortened(indent: &str) -> String {
    let columns: usize = indent.chars().map(|character| if character == '\t' { 4 } else { 1 }).sum();
    if columns > INDENT { " ".repeat(INDENT) } else { indent.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::without_code;

    #[test]
    fn indented_lines_are_text() {
        assert_eq!(without_code(" a\n\n      let x = 1;\n\tb\n"), " a\n\n   let x = 1;\n   b\n");
        assert_eq!(without_code(" - a\n   b"), " - a\n   b");
    }

    #[test]
    fn fences_without_a_language_are_text() {
        assert_eq!(
            without_code(" ```\n     kept as it is\n ```\n a"),
            " ```text\n     kept as it is\n ```\n a"
        );
        assert_eq!(without_code("~~~ rust,no_run\nx\n~~~"), "~~~text\nx\n~~~");
        assert_eq!(without_code(" ```json\n {}\n ```"), " ```json\n {}\n ```");
        // A longer fence is not closed by a shorter one, and a fence of the other kind is content.
        assert_eq!(without_code("````\n```\n~~~\n````\n```"), "````text\n```\n~~~\n````\n```text");
    }

    #[test]
    fn code_within_a_line_is_kept() {
        assert_eq!(without_code(" ```a``` and `b`\n"), " ```a``` and `b`\n");
        assert_eq!(without_code(""), "");
    }
}
