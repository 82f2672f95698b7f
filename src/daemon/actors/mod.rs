//! The actors: they own the engine's jobs, the journal's writer and the buses. This module also
//! holds their inputs and the state that they share.
//!
//! A file imports only from files above it in this list (`tests/fast/floors.rs` refuses a
//! circle):
//!
//! | what | files |
//! |---|---|
//! | inputs: what actors receive, and how | [`mailbox`], [`completion_latch`], |
//! | | [`client_response`], [`bulk_requests`], [`call`], [`steps_done`], [`rules`], [`memory`], |
//! | | [`passivation`], [`inputs`] |
//! | shared state: definitions, health, losses, the route table, buses | [`log_limiter`], |
//! | | [`fatal`], [`loaded_definitions`], `losses`, [`queue_report`], [`health`], |
//! | | [`child_budget`], [`routes`], [`buses`] |
//! | what a manager consists of; of it each actor gets its `…Env` | [`mailboxes`], |
//! | | [`manager_core`] |
//! | what leaves after a commit | [`messages`], [`outbox`], `call_check` |
//! | parts of the journal, and of job and router | `pending_offsets`, `reply_log`, |
//! | | `due_timer` |
//! | what buses use, and how their queues are watched | [`bus_env`], [`queue_watch`], |
//! | | `loss_watch` |
//! | the actors | [`notifier`], |
//! | | [`archive`], [`bus`], [`journal`], [`job`], [`router`] |
//! | how buses are made and started; the actor that does so at a reload | [`transport`], |
//! | | [`supervisor`] |
//! | the manager handle: what the API, examples and benches call | [`manager_handle`] |
//! | start and stop; the statistics of the time before the start | `rates_backfill`, [`manager`] |

pub mod archive;
pub mod bulk_requests;
pub mod bus;
pub mod bus_env;
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
pub mod loaded_definitions;
pub mod log_limiter;
mod loss_watch;
mod losses;
pub mod mailbox;
pub mod mailboxes;
pub mod manager;
pub mod manager_core;
pub mod manager_handle;
pub mod memory;
pub mod messages;
pub mod notifier;
pub mod outbox;
pub mod passivation;
mod pending_offsets;
pub mod queue_report;
pub mod queue_watch;
mod rates_backfill;
mod reply_log;
pub mod router;
pub mod routes;
pub mod rules;
pub mod steps_done;
pub mod supervisor;
pub mod transport;
