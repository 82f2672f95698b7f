//! workflow-manager: coordinates jobs across independent services through a message bus.
//!
//! # The map
//!
//! Each folder of `src/` is a crate. A crate depends on crates below it, which its `Cargo.toml`
//! names; the `Cargo.toml` of the workspace has the reasons for third-party crates. This crate is a
//! facade: it re-exports the others for tests, benches and examples. Where a comment names a file
//! in `docs/`, that file states the rule for users. From top to bottom:
//!
//! - `main.rs`: arguments → settings → manager → exit code
//! - [`cli`]: the client commands; `doctor`, `work`, `worker-test`; the tests that users write for
//!   their workflows ([`cli::workflow_test`]: the engine in virtual time, with scripted workers)
//! - [`grpc`]: workers over gRPC
//! - `daemon`: what runs in the daemon, in layers that `tests/fast/floors.rs` enforces as floors:
//!   - **5** [`api`], over HTTP: the table of routes (`api/routes`), authorization, limits of
//!     bodies and reads, problems, jobs, workers, health and metrics; the OpenAPI document, which
//!     is generated from the table (`api/openapi`); the files of the page, which is a client of the
//!     API (`page/`)
//!   - **4** [`reload`]: reloads files while the manager runs. [`service`]: notifies systemd of
//!     readiness, status and watchdog
//!   - **3** [`actors`]: router, job, journal, archive, bus, supervisor, scheduler, notifier; the
//!     inputs that they receive; the manager, which starts them, and its handle; the outbox
//!     through which effects leave
//!   - **2** [`events`], [`traces`]: events from entries, event streams, the webhook; spans, from
//!     the records of ended jobs
//!   - **1** [`access`], [`load`], [`settings`], [`view`], [`telemetry`], [`budgets`]:
//!     authentication and TLS; YAML → definitions; typed settings; views of jobs; metrics and logs;
//!     limits on the memory that clients can take
//! - [`amqp`], [`kafka`]: one bus each, with the protocol and client library of its broker
//! - [`bus`]: transports as a trait; embedded queues and their leases; calls of web services
//! - [`journal`]: records, as traits, and in SQLite
//! - `base`: [`clock`] (time and random ids), [`times`] (times as text), [`values`] of settings,
//!   [`budget`], [`signature`] (signs calls of web services), [`trust`] (certificate authorities),
//!   [`http_client`], [`networks`], [`web_address`], [`faults`] (points at which tests inject
//!   faults; nothing without the feature `failpoints`)
//! - [`engine`]: the rules, as plain data and functions
//!
//! # Control flow
//!
//! A **reply**: `amqp/consumer`, `queue_consumer` → `event_sink` in `actors/bus` (what a bus
//! reports becomes an input) → `actors/router` (correlation id → mailbox) → `actors/job` →
//! `actors/rules` → `handle_input` in [`engine::decision`] (`decide`, `evolve`, and `advance`,
//! which decides what starts next) → `actors/journal` (entries of many jobs, one commit) →
//! `actors/outbox`: ack, dispatch → `actors/bus` → `amqp` → the broker's confirm → `actors/bus` →
//! the job → an entry of a later commit.
//!
//! A **creation**: `api/jobs` → [`actors::manager_handle`] → `actors/router` (`actors/archive`
//! looks up an id that the client chose; if it exists, the answer is the same, or a conflict) →
//! `actors/job` → [`engine::Job::create_for_caller`] → `actors/journal` → 201 → the first
//! dispatches. The start of a child job is an effect that enters at the router. Its end is an input
//! of its parent.
//!
//! A **cancel**: `DELETE` by `api/jobs`, `POST …/cancel` by `api/operations` →
//! [`actors::manager_handle`] → `actors/router` → `actors/job/requests`, which serves both. After
//! the commit, messages that wait in a queue of the embedded bus are withdrawn, the client gets its
//! answer, and each child job gets an order, which enters at the router like the start of the child
//! job. A child job that is cancelled by an order gives the order to its own child jobs, and does
//! not report to its parent.
//!
//! A **start**: `journal` rebuilds the jobs that have not ended, each with the effects that may
//! have been lost ([`engine::Job::open_effects`]) → `actors/manager` → `actors/router` starts their
//! actors, parents first → their effects leave. Buses deliver once these jobs are in the router's
//! mailbox. Jobs beyond the memory limit are passivated.
//!
//! A **passivated** job has not ended, but is in the journal alone. Either memory is short and the
//! job only waits (`actors/job/passivation`), or there was no memory for it at the start. An input
//! for it → `actors/router/passivation`, which stashes the input → `actors/archive`, which rebuilds
//! the job → the router, which starts its actor and forwards the stashed inputs.
//!
//! A **worker over HTTP** receives the message from `bus/lease_queue`, into which the embedded bus
//! has put it. Its reply goes from `api/worker` through the same lease queue to the router. The
//! disposition after the commit is the answer to the worker.
//!
//! A **worker over gRPC** has a stream of its own: `grpc/admission` (authentication) →
//! `grpc/stream`, which requests messages from the same lease queue up to the credit of the worker,
//! and reports their dispositions. `api/leases` defines receipts, leases and replies for both
//! protocols.
//!
//! A **web service that is called**: `bus/push` holds the message in a lease queue until the
//! service may be called, and turns the response into a reply. A service that replies later does so
//! through `api/worker`.
//!
//! A **reply over Kafka** is a record of a topic: `kafka` holds it until it is settled. The offset
//! of the topic goes to `actors/journal`, which stores it after the commits.
//!
//! A **call** is a message on a workflow's queue that requests a job. It is a creation that enters
//! like a reply: `amqp/workflow_queues` → `actors/router` → `actors/job` → `actors/journal` → ack.
//! The end of the job is sent to the *caller* like a step message to a worker: the bus holds it
//! until the broker's confirm, which becomes an entry. Until then the job is not closed.
//!
//! # Invariants
//!
//! - Decisions may run ahead of the journal; effects never do. The effects of a decision leave only
//!   through [`actors::outbox`], which the journal actor calls after the commit. All else leaves at
//!   once: a refusal, the answer to a read, the acknowledgement of a delivery that changes nothing,
//!   and the effects of a recovered job, whose entries are committed already.
//! - A slot of a schedule is judged by its ledger, then its job starts, then the ledger is stored
//!   (`actors/scheduler`). The id of the job follows from the slot, so that no slot starts twice.
//! - [`engine::Job::evolve`] is the only place that changes a job; a job is the fold of its
//!   entries.
//! - Nothing in `engine` uses the time, randomness, I/O, logs or async.
//! - A delivery is acknowledged after the commit of its entries, or of the entries that made it
//!   void. A refused call is acknowledged once the broker has confirmed the refusal. A delivery is
//!   acknowledged at once only if nothing can follow from it: no job takes it, nobody waits for an
//!   answer, or it is unreadable, and is quarantined or discarded. A delivery that is dropped
//!   unsettled returns to its queue.
//! - Each third-party library has one user: lapin in `amqp` (and where `cli` tests brokers and
//!   workers), rdkafka in `kafka`, rusqlite in `journal/sqlite`, croner in `engine/schedule`,
//!   the YAML crate in `load` and
//!   `settings/text`, the CEL crate in `engine/expression`, `config` in `settings`, tonic in
//!   `grpc`, prost there and in `traces`, `sd_notify` in `service`.
//! - One table has the jobs that take input: `actors/routes.rs`, the only `DashMap`. Only the
//!   router writes it. The path of replies does not read from disk: the archive reads for the
//!   router.
//! - Actors send each other inputs. Other state that threads share is an atomic, or is behind a
//!   lock in one of the files that `tests/fast/floors.rs` lists, each with what its lock guards.
//!   The engine has no lock. The router and the jobs own none, and hold those of others only for a
//!   lookup or to count.
//! - Only `clock.rs` reads the wall clock and creates random ids. Every measured duration begins
//!   with one of its instants.
//! - Release code behaves the same under test, except at the named points of [`faults`], which do
//!   nothing without the feature `failpoints`. Tests replace parts instead
//!   ([`actors::manager::Parts`]: buses, rules, wiring), and may run all actors on one thread.
//!
//! # Reading order
//!
//! [`engine::entry`] (inputs and outputs), [`engine::decision`] (the loop: `decide`, then
//! `evolve`, each in a file of its name), [`engine::job`], [`engine::fanout`], [`engine::json`];
//! then [`actors::inputs`], [`actors::job`], [`actors::journal`], [`actors::router`],
//! [`actors::manager`]; then [`journal`], [`bus`], [`api`].

pub use base::{
    budget, clock, faults, http_client, networks, signature, times, trust, values, web_address,
};
pub use daemon::{
    access, actors, api, budgets, events, load, reload, service, settings, telemetry, traces, view,
};
pub use {amqp, bus, cli, engine, journal};

#[cfg(feature = "grpc")]
pub use grpc;
#[cfg(feature = "kafka")]
pub use kafka;
