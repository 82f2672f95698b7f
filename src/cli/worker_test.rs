//! `worker-test`: checks whether a worker keeps the worker protocol. It acts as a stub of the
//! manager, so it needs no daemon.
//!
//! A [`stub_transport`] delivers messages to the worker over HTTP, gRPC or AMQP. What the worker
//! does is recorded in an [`event_log`]. The [`harness`] sends the messages of each of the
//! [`cases`], and applies the [`checks`] to the log. The [`passive_cases`] send nothing, and only
//! read the log.

mod amqp;
mod calls;
mod cases;
mod checks;
mod cut;
mod event_log;
mod face;
#[cfg(feature = "grpc")]
mod grpc;
mod harness;
mod http;
mod lease_queue;
mod messages;
mod passive_cases;
mod process;
mod report;
mod stub_transport;

use super::arguments::{TestedBus, WorkerTestArguments};
use super::error::ClientError;
use super::run::MESSAGE_BYTES_MAX;
use amqp::AmqpStub;
use base::values::ServerAddresses;
use cases::Case;
use daemon::settings::files;
use daemon::telemetry::log::print;
use event_log::EventLog;
use face::Face;
use harness::WorkerHarness;
use lease_queue::LeaseStub;
use messages::{MessageFactory, parse_object};
use process::WorkerProcess;
use report::Reporter;
use std::io::Write;
use std::process::ExitCode;
use stub_transport::StubTransport;
use tokio::signal::unix::{SignalKind, signal};

/// The exit code when SIGINT or SIGTERM ends the test: 128 plus the number of SIGINT, as in shells.
const EXIT_INTERRUPTED: u8 = 130;

/// Runs `worker-test`. The exit code is 1 if the worker fails a case that it must pass, and
/// [`EXIT_INTERRUPTED`] after a signal.
pub(super) fn run_worker_test(
    arguments: &WorkerTestArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let messages =
        MessageFactory::new(&arguments.queue, &read_argument("--message", &arguments.message)?)?;
    let parse_expected = |argument| {
        let text = read_argument("--expect", argument)?;
        parse_object("--expect", &text)
    };
    let expected = arguments.expect.as_deref().map(parse_expected).transpose()?;
    let server = arguments.amqp_server.as_deref().filter(|server| !server.is_empty());
    let bus =
        arguments.bus.unwrap_or(if server.is_some() { TestedBus::Amqp } else { TestedBus::Http });
    actix_rt::System::new().block_on(async {
        let log = EventLog::default();
        let (stub, variable, address) = match (bus, server) {
            (TestedBus::Http, _) => open_leases(Face::Http, &arguments.queue, &log)?,
            #[cfg(feature = "grpc")]
            (TestedBus::Grpc, _) => open_leases(Face::Grpc, &arguments.queue, &log)?,
            (TestedBus::Amqp, None) => {
                let text = "name the broker with --amqp-server or AMQP_SERVER";
                return Err(ClientError::Usage(text.to_owned()));
            }
            (TestedBus::Amqp, Some(server)) => {
                let (amqp, address) = open_broker(server, &arguments.queue, &log).await?;
                (StubTransport::Amqp(Box::new(amqp)), "AMQP_SERVER", address)
            }
        };
        // The other variables are removed, so that the worker cannot find a real manager or broker.
        let variables = ["WORKFLOW_MANAGER_URL", "WORKFLOW_MANAGER_TOKEN", "AMQP_SERVER"]
            .map(|name| (name, (name == variable).then(|| address.clone())));
        let process = match arguments.command.as_slice() {
            [] => {
                let redacted = redact_password(&address);
                print(&format!(
                    "start the worker: {variable}={redacted}, queue {}",
                    arguments.queue
                ));
                None
            }
            command => match WorkerProcess::start(command, variables.to_vec()) {
                Ok(process) => Some(process),
                Err(error) => {
                    stub.close().await;
                    return Err(error);
                }
            },
        };
        let mut harness = WorkerHarness {
            bus,
            stub,
            log,
            process,
            messages,
            expected,
            timeout: arguments.within.0,
            valid_messages: Vec::new(),
        };
        let mut report = Reporter::start(out, arguments.json, Case::for_bus(bus).len())?;
        let result = tokio::select! {
            result = harness.run(&mut report) => Some(result),
            () = wait_for_signal() => None,
        };
        harness.close().await;
        match result {
            None => Ok(ExitCode::from(EXIT_INTERRUPTED)),
            Some(result) => {
                result?;
                Ok(if report.finish()? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
        }
    })
}

/// Starts the stub manager that lends messages, with the variable in which the worker finds its
/// address.
fn open_leases(
    face: Face,
    queue: &str,
    log: &EventLog,
) -> Result<(StubTransport, &'static str, String), ClientError> {
    let stub = LeaseStub::open(face, queue, log.clone())?;
    let url = stub.url();
    Ok((StubTransport::Leases(stub), "WORKFLOW_MANAGER_URL", url))
}

/// Replaces the password of an address by a word, so that it can be printed. A user without a
/// password is replaced too, because it may be a token.
fn redact_password(address: &str) -> String {
    let (scheme, after_scheme) = address.split_once("://").unwrap_or(("", address));
    let authority_end = after_scheme.find(['/', '?', '#']).unwrap_or(after_scheme.len());
    let (authority, path) = after_scheme.split_at(authority_end);
    match authority.rsplit_once('@') {
        Some((credentials, host)) => {
            let user = credentials
                .split_once(':')
                .map_or("USER".to_owned(), |(user, _)| format!("{user}:PASSWORD"));
            format!("{scheme}://{user}@{host}{path}")
        }
        None => address.to_owned(),
    }
}

/// Connects to the broker at the first of these addresses that can be used, and returns the address
/// for the worker too.
///
/// # Errors
///
/// Returns the error of the last address if the worker can be tested at none.
async fn open_broker(
    servers: &str,
    queue: &str,
    log: &EventLog,
) -> Result<(AmqpStub, String), ClientError> {
    let servers = ServerAddresses::from(servers).to_texts();
    let mut last_error = None;
    for server in &servers {
        match AmqpStub::open(server, queue, log.clone()).await {
            Ok(amqp) => {
                let address = amqp.address_for_worker(server);
                return Ok((amqp, address));
            }
            Err(error) => last_error = Some(error),
        }
    }
    let error = || ClientError::Usage("the broker has no address".to_owned());
    Err(last_error.unwrap_or_else(error))
}

/// Waits for SIGINT or SIGTERM. If their handlers cannot be registered, waits without end.
async fn wait_for_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Reads the argument of an option: the text itself, or the content of the file if it is `@FILE`.
fn read_argument(option: &str, argument: &str) -> Result<String, ClientError> {
    match argument.strip_prefix('@') {
        Some(file) => files::read_file(file.as_ref(), MESSAGE_BYTES_MAX)
            .map_err(|error| ClientError::Usage(format!("{option}: cannot read {file}: {error}"))),
        None => Ok(argument.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_printed_without_its_password() {
        for (address, printed) in [
            ("amqp://guest:sesame@127.0.0.1:7/v", "amqp://guest:PASSWORD@127.0.0.1:7/v"),
            ("amqp://guest:a@b:c@127.0.0.1:7", "amqp://guest:PASSWORD@127.0.0.1:7"),
            ("amqp://sesame@127.0.0.1:7/v", "amqp://USER@127.0.0.1:7/v"),
            ("amqp://127.0.0.1:7/a:b@c?d=e@f", "amqp://127.0.0.1:7/a:b@c?d=e@f"),
            ("http://127.0.0.1:7", "http://127.0.0.1:7"),
        ] {
            assert_eq!(redact_password(address), printed);
        }
    }
}
