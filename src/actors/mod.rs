//! The shell: actors that own the engine's jobs, the journal's writer and the buses; their mail,
//! and what all of them look at.
//!
//! A file imports only from files above it in this list (`tests/fast/floors.rs` refuses a
//! circle):
//!
//! | what | files |
//! |---|---|
//! | mail: all that actors are told, and how it reaches them | [`mailbox`], [`answer_on_drop`], |
//! | | [`answer`], [`bulk`], [`call`], [`steps_done`], [`rules`], [`memory`], [`at_rest`], |
//! | | [`mail`] |
//! | what all look at: settings, limits, metrics, definitions, health | `losses`, |
//! | | [`queue_looks`], [`health`], [`common`] |
//! | the ways to the actors: mailboxes, buses, a view of the routes | [`routes`], [`buses`], |
//! | | [`ways`] |
//! | what leaves after a commit | [`messages`], [`outbox`], `call_check` |
//! | parts of one actor each: of the bus, of the journal, of job and router | `loss_watch`, |
//! | | [`queue_watch`], `positions`, `reply_log` |
//! | the actors that hold jobs, what is known of them, and what they hear | [`announcer`], |
//! | | [`archive`], [`bus`], [`journal`], [`job`], [`router`] |
//! | how buses are made and started; the actor that does so at a reload | [`transport`], |
//! | | [`supervisor`] |
//! | the door: what the API, examples and benches call | [`door`] |
//! | the start and the stop; the statistics of before the start | `refill`, [`manager`] |

pub mod announcer;
pub mod answer;
pub mod answer_on_drop;
pub mod archive;
pub mod at_rest;
pub mod bulk;
pub mod bus;
pub mod buses;
pub mod call;
mod call_check;
pub mod common;
pub mod door;
pub mod health;
pub mod job;
pub mod journal;
mod loss_watch;
mod losses;
pub mod mail;
pub mod mailbox;
pub mod manager;
pub mod memory;
pub mod messages;
pub mod outbox;
mod positions;
pub mod queue_looks;
pub mod queue_watch;
mod refill;
mod reply_log;
pub mod router;
pub mod routes;
pub mod rules;
pub mod steps_done;
pub mod supervisor;
pub mod transport;
pub mod ways;
