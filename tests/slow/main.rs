//! The black-box suite: the real daemon as a process of its own, a real RabbitMQ, and clients that
//! know only the HTTP API, the command line and AMQP. The tests ask for documented behaviour, never
//! for the program's insides.
//!
//! The broker is named by `AMQP_SERVER`, `RABBITMQCTL` and `RABBITMQ_MANAGEMENT`; `tests/rabbitmq
//! start DIR` writes all three into `DIR/env`, and `tests/run` does the whole of it; `tests/soak`
//! is the long form of `soak`. Each test has a virtual host of its own, so that tests can run side
//! by side.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    clippy::disallowed_methods,
    reason = "the suite is an outside observer: it has its own clock and makes its own ids"
)]

mod amqp;
mod any_journal;
mod api;
mod attacks;
mod attempts;
mod backups;
mod broker_cluster;
mod bus_amqp;
mod calls;
mod chaos;
mod cli;
mod clocks;
mod cluster;
mod command_line;
mod conformance;
mod dead_letters;
mod durability;
mod events;
mod every_bus;
mod failed_items;
#[cfg(feature = "failpoints")]
mod faults;
mod follow;
mod full_disks;
mod goodbye;
mod grpc;
mod harness;
mod held_connections;
mod hostile;
mod http_limits;
mod job_limits;
mod journal_copies;
mod journal_days;
mod journal_files;
#[cfg(feature = "kafka")]
mod kafka;
mod kills;
mod limits;
mod load;
mod logs;
mod memory;
mod moving_volume;
mod names;
mod old_journals;
mod outages;
mod overload;
mod policies;
mod postgres;
mod power_loss;
mod proxies;
mod push;
mod queues;
mod redispatch;
mod refusals;
mod renewed;
mod reply_users;
mod retries;
mod schedules;
mod service_manager;
mod several_addresses;
mod shown;
mod soak;
mod statuses;
mod surroundings;
mod tls;
mod tokens;
mod traces;
mod unreadable;
mod usage;
mod webhook;
mod workers;
