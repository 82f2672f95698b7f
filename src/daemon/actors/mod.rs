//! The actors: they own the engine's jobs, the journal's writer and the buses. This module also
//! contains their inputs and the state that they share.
//!
//! A file imports only from files above it in this list (`tests/fast/floors.rs` refuses a cycle):
//!
//! | what | files |
//! |---|---|
//! | mailboxes and inputs | [`mailbox`], [`completion_latch`], |
//! | | [`client_response`], [`bulk_requests`], [`call`], [`listed_state`], [`rules`], [`memory`], |
//! | | [`passivation`], [`schedule_requests`], [`inputs`] |
//! | shared state: definitions, health, losses, the route table, buses | [`log_limiter`], |
//! | | [`fatal`], [`loaded_definitions`], `losses`, [`queue_report`], [`health`], |
//! | | [`child_budget`], [`routes`], [`buses`], [`pauses`], [`spare_places`] |
//! | the state from which the environment (`…Env`) of each actor is made | [`mailboxes`], |
//! | | [`manager_core`] |
//! | what is sent after a commit | [`messages`], [`outbox`], `call_check` |
//! | parts of the journal, the job and the router | `pending_offsets`, `reply_log`, |
//! | | `due_timer` |
//! | the environment of buses, and the watches of their queues | [`bus_env`], [`queue_watch`], |
//! | | `loss_watch` |
//! | the actors | [`notifier`], |
//! | | [`archive`], [`bus`], [`journal`], [`job`], [`router`], [`scheduler`] |
//! | the start of buses, the probe of their brokers, what a standby watches | [`bus_starter`], |
//! | | [`broker_probe`], [`standby_watch`] |
//! | the actor that also starts buses at a reload, and what it watches | `ownership_watch`, |
//! | | [`supervisor`] |
//! | the manager handle: the requests of the API, examples and benches | [`manager_handle`] |
//! | whether there is a manager, or the process stands by | [`role`] |
//! | start and stop; the backfill of the statistics; what records trends | `rates_backfill`, |
//! | | [`trends`], [`manager`] |

pub mod archive;
pub mod broker_probe;
pub mod bulk_requests;
pub mod bus;
pub mod bus_env;
pub mod bus_starter;
pub mod buses;
pub mod call;
mod call_check;
pub mod child_budget;
pub mod client_response;
pub mod completion_latch;
mod due_timer;
pub mod fatal;
pub mod health;
pub mod inputs;
pub mod job;
pub mod journal;
pub mod listed_state;
pub mod loaded_definitions;
pub mod log_limiter;
mod loss_watch;
pub mod losses;
pub mod mailbox;
pub mod mailboxes;
pub mod manager;
pub mod manager_core;
pub mod manager_handle;
pub mod memory;
pub mod messages;
pub mod notifier;
pub mod outbox;
mod ownership_watch;
pub mod passivation;
pub mod pauses;
mod pending_offsets;
pub mod queue_report;
pub mod queue_watch;
mod rates_backfill;
mod reply_log;
pub mod role;
pub mod router;
pub mod routes;
pub mod rules;
pub mod schedule_requests;
pub mod scheduler;
pub mod spare_places;
pub mod standby_watch;
pub mod supervisor;
pub mod trends;
