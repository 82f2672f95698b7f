//! workflow-manager: coordinates jobs over independent services through a message bus.
//!
//! # The map
//!
//! Each folder of `src/` is a crate. A crate uses those below it, which its `Cargo.toml` names; the
//! reasons for foreign crates stand in the `Cargo.toml` of the workspace. This crate is a front:
//! under one name it gives tests, benches and examples what the others have. Where a comment names
//! a file in `docs/`, that file states the rule for users. From top to bottom:
//!
//! - `main.rs`: arguments → settings → manager → exit code
//! - [`cli`]: the client commands; `doctor`, `work`, `worker-test`; tests of workflows by their
//!   users ([`cli::workflow_test`]: the engine in virtual time, with scripted workers)
//! - [`grpc`]: workers over gRPC
//! - `daemon`: all that runs in the daemon, on floors of its own, which `tests/fast/floors.rs`
//!   holds:
//!   - **5** [`api`]: HTTP: the one list of routes (`api/routes`), who may call and what bodies and
//!     reads may take, problems, jobs, workers, health and metrics; the document that follows from
//!     the list (`api/openapi`); the files of the page, which is a client of it (`page/`)
//!   - **4** [`reload`]: the workflow files, read again while the manager runs. [`service`]: what
//!     systemd is told: ready, status, the watchdog
//!   - **3** [`actors`]: the shell: router, job, journal, archive, bus, supervisor, notifier;
//!     inputs below them, the manager and its handle above; the outbox through which effects leave
//!   - **2** [`events`], [`traces`]: what others hear of jobs: the mapping from entries, the
//!     streams, the webhook; spans, from records at their ends
//!   - **1** [`access`], [`load`], [`settings`], [`view`], [`telemetry`], [`budgets`]: who may do
//!     what; YAML → definitions; typed settings; how a job is shown; metrics and logs; bounds on
//!     what clients make the process hold
//! - [`amqp`], [`kafka`]: a bus each, with all that speaks to its broker
//! - [`bus`]: transports as a trait; embedded queues and their leases; calls of web services
//! - [`journal`]: the record, as traits, and in SQLite
//! - `base`: [`clock`] (time and chance), [`times`] (as text), [`values`] of settings, [`budget`],
//!   [`signature`], [`trust`] (how others can tell that a call comes from us; whose certificates we
//!   believe), [`http_client`], [`networks`], [`web_address`], [`faults`] (where tests break the
//!   daemon; nothing without the feature `failpoints`)
//! - [`engine`]: the rules, as plain data and functions
//!
//! # The straight lines
//!
//! A **reply**: `amqp/consumer`, `queue_consumer` → `event_sink` in `actors/bus` (what a bus
//! reports becomes an input) → `actors/router` (correlation id → mailbox) → `actors/job` →
//! `actors/rules` → `handle_input` in [`engine::decision`] (`decide`, `evolve`; `advance`: what
//! starts next) →
//! `actors/journal` (entries of many jobs, one commit) → `actors/outbox`: ack, dispatch →
//! `actors/bus` → `amqp` → the broker's confirm → `actors/bus` → the job → a lagging entry.
//!
//! A **creation**: `api/jobs` → [`actors::manager_handle`] → `actors/router` (an id of the
//! client's: `actors/archive` looks it up; known: the same answer, or a conflict) → `actors/job` →
//! [`engine::Job::create_for_caller`] → `actors/journal` → 201 → the first dispatches. A child job
//! starts by an effect that enters at the router; its end is an input to its parent.
//!
//! A **cancel**: `DELETE` by `api/jobs`, `POST …/cancel` by `api/operations` →
//! [`actors::manager_handle`] → `actors/router` → `actors/job/requests`, where both meet. After the
//! commit messages that wait in a queue of the embedded bus are withdrawn, the client has its
//! answer, and each child job gets an order, which enters at the router, as the start of the child
//! job did. A child job that is cancelled by an order passes the order on to its own child jobs; it
//! does not report to its parent.
//!
//! A **start**: `journal` rebuilds the jobs that are open, each with the effects that may have been
//! lost ([`engine::Job::open_effects`]) → `actors/manager` → `actors/router` starts their actors,
//! parents first → their effects leave. Buses deliver once the router has these jobs in its
//! mailbox. Those that have no room in memory are passivated.
//!
//! A **passivated** job is under way, and in the journal alone: memory is short, and it only waits
//! (`actors/job/passivation`), or a start had no room for it. What comes for it →
//! `actors/router/passivation`, which stashes it → `actors/archive` rebuilds the job → the router
//! starts its actor, and hands on what was stashed.
//!
//! A **worker over HTTP** takes the message from `bus/lease_queue`, where the embedded bus has put
//! it, and its reply goes from `api/worker` by the same lease queue to the router; the disposition
//! after the commit is the answer to the worker.
//!
//! A **worker over gRPC** has a stream of its own: `grpc/admission` (who it is) →
//! `grpc/stream`, which asks the same lease queue for as many messages as the worker wants, and
//! tells it what becomes of them. What both faces mean by a receipt, a lease and a reply is in
//! `api/leases`.
//!
//! A **web service that is called**: `bus/push` keeps the message in a lease queue until the
//! service may be called, and makes a reply of its answer; a later one comes through `api/worker`.
//!
//! A **reply over Kafka** is a record of a topic: `kafka` keeps it until it is settled. How far
//! the topic is read goes to `actors/journal`, which writes it after the commits.
//!
//! A **call** is a message on a workflow's queue that asks for a job. It is a creation that enters
//! like a reply: `amqp/workflow_queues` → `actors/router` → `actors/job` → `actors/journal` →
//! ack. Its sender, the *caller*, gets the end of the job as a worker gets a step message: the bus
//! keeps it until the broker's confirm, which is journaled. Until then the job is not closed.
//!
//! # Invariants
//!
//! - Decisions may run ahead of the journal; effects never do. The only way out for the
//!   effects of a decision is [`actors::outbox`], which the journal actor calls after the commit.
//!   What follows from no decision leaves at once: a refusal, the answer to a look, the
//!   acknowledgement of a delivery that changes nothing (and a recovered job's effects, which
//!   follow from what is committed).
//! - [`engine::Job::evolve`] is the only place that changes a job; a job is the fold of its
//!   entries.
//! - Nothing in `engine` knows the time, chance, I/O, logs or async.
//! - A delivery is acknowledged after the commit of what followed from it, or of what made it void;
//!   a refused call, once the broker has the refusal. At once only what nothing can follow from: no
//!   job could take it, nobody waits for an answer, or it cannot be read and was put aside. Dropped
//!   unsettled it goes back to its queue.
//! - Each resource has one user: lapin in `amqp` (and where `cli` tries brokers and workers),
//!   rdkafka in `kafka`, rusqlite in `journal/sqlite`, the YAML crate in `load` and
//!   `settings/text`, the CEL crate in `engine/expression`, `config` in `settings`, tonic in
//!   `grpc`, prost there and in `traces`, `sd_notify` in `service`.
//! - Which jobs take input is one table: `actors/routes.rs`, the only `DashMap`. The router alone
//!   writes it. No disk is read where replies pass: the archive reads for the router.
//! - Actors send each other inputs. What threads share besides is counted or flagged with atomics,
//!   or is behind a lock in one of the files that `tests/fast/floors.rs` lists, each with what its
//!   lock guards. The engine knows no lock; the router and the jobs own none, and hold one only to
//!   look something up or to count.
//! - The wall clock and random ids are read in `clock.rs` alone, and every stretch of time that is
//!   measured begins with one of its instants.
//! - Release code does nothing else under test, but at the named points of [`faults`], which are
//!   nothing without the feature `failpoints`. Tests hand in parts of their own instead
//!   ([`actors::manager::Parts`]: buses, rules, wiring), and may run all actors on one thread.
//!
//! # The order in which to read
//!
//! [`engine::entry`] (what goes in and comes out), [`engine::decision`] (the loop: `decide`, then
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
