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
//! | shared state: settings, limits, metrics, definitions, health | `losses`, |
//! | | [`queue_report`], [`health`], [`child_budget`], [`common`] |
//! | handles: mailboxes, buses, a view of the route table | [`routes`], [`buses`], |
//! | | [`handles`] |
//! | what leaves after a commit | [`messages`], [`outbox`], `call_check` |
//! | parts of one actor each: of the bus, of the journal, of job and router | `loss_watch`, |
//! | | [`queue_watch`], `pending_offsets`, `reply_log` |
//! | the actors | [`notifier`], |
//! | | [`archive`], [`bus`], [`journal`], [`job`], [`router`] |
//! | how buses are made and started; the actor that does so at a reload | [`transport`], |
//! | | [`supervisor`] |
//! | the manager handle: what the API, examples and benches call | [`manager_handle`] |
//! | start and stop; the statistics of the time before the start | `rates_backfill`, [`manager`] |

pub mod archive;
pub mod bulk_requests;
pub mod bus;
pub mod buses;
pub mod call;
mod call_check;
pub mod child_budget;
pub mod client_response;
pub mod common;
pub mod completion_latch;
pub mod handles;
pub mod health;
pub mod inputs;
pub mod job;
pub mod journal;
mod loss_watch;
mod losses;
pub mod mailbox;
pub mod manager;
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
