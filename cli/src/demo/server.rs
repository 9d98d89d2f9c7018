//! The server, in a process of its own: started, asked for its processor time, and ended.
//!
//! It says where it listens in one line on its standard output, answers each line on its standard input with the
//! processor time it has used, and ends when its standard input does: however the demo ends, the server ends with it.

use std::io::{BufRead, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use ringmail::{Server, Wait};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::DemoError;
use super::echo::{Echo, MAX_MESSAGE, pb::echo_server::EchoServer};
use super::patience::within;
use super::plan::wait_name;

/// Bound on every exchange with the server process, and on connecting to it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The first argument that makes this program a server process.
pub(crate) const SERVER: &str = "demo-server";

/// Options of the server process.
#[derive(Debug, clap::Parser)]
#[command(name = SERVER)]
pub(crate) struct ServerOptions {
    /// How it waits.
    #[arg(long, value_parser = wait)]
    wait: Wait,
    /// The address it listens on.
    #[arg(long, default_value = "127.0.0.1")]
    address: IpAddr,
}

fn wait(text: &str) -> Result<Wait, String> {
    [Wait::Busy, Wait::Adaptive, Wait::Event]
        .into_iter()
        .find(|wait| wait_name(*wait) == text)
        .ok_or_else(|| "must be busy, adaptive or event".to_owned())
}

/// Runs the server process.
pub(crate) fn serve(options: &ServerOptions) -> Result<(), DemoError> {
    let failed = |error: &dyn std::fmt::Display| DemoError::Server(error.to_string());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(DemoError::Runtime)?;
    let (ringmail, grpc) = runtime.block_on(async {
        let server = Server::builder().add_service(EchoServer::new(Echo)).wait(options.wait);
        let bound = server
            .listen(SocketAddr::new(options.address, 0).to_string())
            .bind()
            .await
            .map_err(|error| failed(&error))?;
        let ringmail = bound.local_addr();
        tokio::spawn(bound.serve());
        let listener =
            tokio::net::TcpListener::bind((options.address, 0)).await.map_err(|error| failed(&error))?;
        let grpc = listener.local_addr().map_err(|error| failed(&error))?;
        let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
        let echo = EchoServer::new(Echo)
            .max_decoding_message_size(MAX_MESSAGE)
            .max_encoding_message_size(MAX_MESSAGE);
        tokio::spawn(tonic::transport::Server::builder().add_service(echo).serve_with_incoming(incoming));
        Ok::<_, DemoError>((ringmail, grpc))
    })?;
    let mut output = std::io::stdout();
    let mut say = |line: String| writeln!(output, "{line}").and_then(|()| output.flush());
    say(format!("{ringmail} {grpc}")).map_err(|error| failed(&error))?;
    for line in std::io::stdin().lock().lines() {
        // An error is the end as well.
        if line.is_err() || say(processor_micros().to_string()).is_err() {
            break;
        }
    }
    runtime.shutdown_background();
    Ok(())
}

/// Processor time that this process has used, user and system, in µs.
pub(crate) fn processor_micros() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1000
}

/// A running server process.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    /// Where it serves Ringmail.
    pub(crate) ringmail: String,
    /// Where it serves gRPC.
    pub(crate) grpc: String,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl ServerProcess {
    /// Starts a server that waits in this way and listens on this address.
    pub(crate) async fn start(wait: Wait, address: IpAddr) -> Result<Self, DemoError> {
        let failed = |error: std::io::Error| DemoError::Server(error.to_string());
        let program = std::env::current_exe().map_err(failed)?;
        let mut child = tokio::process::Command::new(program)
            .args([SERVER, "--wait", wait_name(wait), "--address", &address.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(DemoError::Server("it has no pipes".to_owned()));
        };
        let mut output = BufReader::new(output).lines();
        let ready = line(&mut output).await?;
        let (ringmail, grpc) = ready
            .split_once(' ')
            .ok_or_else(|| DemoError::Server(format!("it said {ready:?} when it started")))?;
        Ok(Self { ringmail: ringmail.to_owned(), grpc: grpc.to_owned(), child, input, output })
    }

    /// Processor time that it has used, in µs.
    pub(crate) async fn processor_micros(&mut self) -> Result<u64, DemoError> {
        let written = self.input.write_all(b"usage\n").await;
        written.map_err(|error| DemoError::Server(error.to_string()))?;
        let answer = line(&mut self.output).await?;
        answer.parse().map_err(|_| DemoError::Server(format!("it said {answer:?} when asked for its usage")))
    }

    /// Ends it.
    pub(crate) async fn stop(self) -> Result<(), DemoError> {
        let Self { mut child, input, .. } = self;
        drop(input);
        match within(PATIENCE, child.wait()).await {
            Some(Ok(status)) if status.success() => Ok(()),
            Some(Ok(status)) => Err(DemoError::Server(format!("it ended with {status}"))),
            Some(Err(error)) => Err(DemoError::Server(error.to_string())),
            None => Err(DemoError::Server("it did not end when it was told to".to_owned())),
        }
    }
}

async fn line(output: &mut Lines<BufReader<ChildStdout>>) -> Result<String, DemoError> {
    match within(PATIENCE, output.next_line()).await {
        Some(Ok(Some(line))) => Ok(line),
        Some(Ok(None)) => Err(DemoError::Server("it ended unexpectedly".to_owned())),
        Some(Err(error)) => Err(DemoError::Server(error.to_string())),
        None => Err(DemoError::Server(format!("it did not answer within {PATIENCE:?}"))),
    }
}
