//! What the terminal, or whatever takes the output, can show.

use std::io::{IsTerminal, Write};

/// Longer lines of prose are hard to read.
const WIDEST_PROSE: usize = 100;

/// Where output goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) columns: usize,
    pub(crate) colour: bool,
}

impl Page {
    /// Of standard output: 80 columns without colour unless it is a terminal that says otherwise.
    pub(crate) fn of_output() -> Self {
        let output = std::io::stdout();
        let colour =
            output.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let columns = rustix::termios::tcgetwinsize(&output).map_or(0, |size| usize::from(size.ws_col));
        Self { columns: if columns == 0 { 80 } else { columns }, colour }
    }

    pub(crate) fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Breaks prose between words.
    pub(crate) fn wrap(self, prose: &str) -> String {
        self.hang("", prose)
    }

    /// Prose behind a head, broken between words, further lines indented by as much as the head is wide.
    pub(crate) fn hang(self, head: &str, prose: &str) -> String {
        let width = self.columns.min(WIDEST_PROSE);
        let indent = head.chars().count();
        let mut text = head.to_owned();
        let mut column = indent;
        for word in prose.split(' ') {
            let length = word.chars().count();
            if column > indent && column + 1 + length > width {
                text.push('\n');
                text.push_str(&" ".repeat(indent));
                column = indent;
            } else if column > indent {
                text.push(' ');
                column += 1;
            }
            text.push_str(word);
            column += length;
        }
        text
    }
}

/// Prints to standard output. Whoever stops reading (`| head`) has seen enough; that is no failure.
pub(crate) fn print(text: &str) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_breaks_between_words() {
        let page = Page { columns: 9, colour: false };
        assert_eq!(page.wrap("one two three fourteenths"), "one two\nthree\nfourteenths");
        assert_eq!(page.hang("a  ", "one two three"), "a  one\n   two\n   three");
    }
}
