//! Counts the system calls of running processes, for tests: `syscall-counter PID...`.
//!
//! Says `threads=…` when it traces all of them, and answers every line on its standard input with a line
//! `calls=PID:NUMBER=COUNT …` of what was called since the last. When its standard input ends it ends, and the processes run
//! on untraced.
#![allow(clippy::print_stdout)]

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Calls by process and number.
type Counts = Arc<Mutex<BTreeMap<(i32, u64), u64>>>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let processes = std::env::args().skip(1).map(|pid| pid.parse()).collect::<Result<Vec<i32>, _>>()?;
    let counts = Counts::default();
    let answering = Arc::clone(&counts);
    let mut owners = HashMap::new();
    for process in processes {
        for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
            let thread: i32 = thread?.file_name().to_string_lossy().parse()?;
            let pid = Pid::from_raw(thread);
            ptrace::seize(pid, Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE)?;
            // Stops it once, from where it goes on to its next system call.
            ptrace::interrupt(pid)?;
            owners.insert(thread, process);
        }
    }
    println!("threads={}", owners.len());
    std::thread::spawn(move || {
        for _ in std::io::stdin().lines().map_while(Result::ok) {
            let mut line = String::new();
            for ((process, number), count) in std::mem::take(&mut *answering.lock().expect("not poisoned")) {
                // Writing to a string cannot fail.
                let _ = write!(line, " {process}:{number}={count}");
            }
            println!("calls={}", line.trim_start());
        }
        // The kernel lets go of what a tracer traced when it ends.
        std::process::exit(0);
    });
    trace(owners, &counts)
}

/// Lets every traced thread run from system call to system call. Ends when there are none left.
fn trace(mut owners: HashMap<i32, i32>, counts: &Counts) -> Result<(), Box<dyn std::error::Error>> {
    let everybody = Pid::from_raw(-1);
    loop {
        let (thread, signal) = match waitpid(everybody, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::PtraceSyscall(thread)) => {
                if let Some(number) = entered(thread) {
                    let process = owners.get(&thread.as_raw()).copied().unwrap_or(0);
                    *counts.lock().expect("not poisoned").entry((process, number)).or_default() += 1;
                }
                (thread, None)
            }
            Ok(WaitStatus::PtraceEvent(thread, _, event)) => {
                if event == nix::libc::PTRACE_EVENT_CLONE
                    && let (Ok(new), Some(process)) =
                        (ptrace::getevent(thread), owners.get(&thread.as_raw()).copied())
                {
                    owners.insert(new as i32, process);
                }
                (thread, None)
            }
            Ok(WaitStatus::Stopped(thread, signal)) => {
                (thread, (signal != Signal::SIGTRAP && signal != Signal::SIGSTOP).then_some(signal))
            }
            Ok(_) => continue,
            Err(nix::errno::Errno::ECHILD) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // A thread that was killed meanwhile cannot go on; the next wait says so.
        let _ = ptrace::syscall(thread, signal);
    }
}

/// The number of the system call that a thread has stopped at the entry of; `None` at an exit.
fn entered(thread: Pid) -> Option<u64> {
    let info = ptrace::syscall_info(thread).ok()?;
    if info.op != nix::libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: the kernel filled in this part of the union, as the operation above says.
    Some(unsafe { info.u.entry.nr })
}
