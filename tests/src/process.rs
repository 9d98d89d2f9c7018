//! Programs as children of a test.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::reply::Reply;

/// Bound on every answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running program that answers lines with lines. Dropping it kills it.
#[derive(Debug)]
pub struct Program {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Program {
    /// Starts a program.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(path: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(Path::new(path))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {path}: {error}"));
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, input, lines }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Says a line without waiting for an answer.
    ///
    /// # Panics
    /// When the program has ended.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").and_then(|()| self.input.flush()).expect("the program has ended");
    }

    /// The next line that it says.
    ///
    /// # Panics
    /// When it says nothing in time.
    pub fn hear(&mut self) -> Reply {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Reply::new(line),
            Err(error) => panic!("the program said nothing: {error} ({:?})", self.child.try_wait()),
        }
    }

    /// The next line that it says; `None` when it ends without.
    ///
    /// # Panics
    /// When it neither says anything nor ends in time.
    pub fn try_hear(&mut self) -> Option<Reply> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(Reply::new(line)),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the program said nothing and did not end"),
        }
    }

    /// Says a line and returns the answer.
    pub fn ask(&mut self, line: &str) -> Reply {
        self.tell(line);
        self.hear()
    }

    /// Says a line again and again until the answer has this number under the line's own word.
    ///
    /// # Panics
    /// When it does not come to that in time.
    pub fn ask_until(&mut self, line: &str, number: u64) {
        let patience = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask(line);
            if answer.number(line) == number {
                return;
            }
            assert!(Instant::now() < patience, "never {number}: {answer:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops all of its threads and waits until they are.
    ///
    /// # Panics
    /// When it has ended, or does not stop.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        for _ in 0..1000 {
            if crate::procfs::is_stopped(self.id()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("it does not stop");
    }

    /// Lets it go on.
    ///
    /// # Panics
    /// When it has ended.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    /// Kills it as `kill -9` does and waits until it is gone.
    ///
    /// # Panics
    /// When it had ended before.
    pub fn kill(mut self) {
        assert_eq!(self.child.try_wait().expect("wait"), None, "it should have been alive");
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// When it failed, or does not end.
    pub fn end(mut self) {
        let patience = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < patience, "it did not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
