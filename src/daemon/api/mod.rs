//! The HTTP API (docs/reference/http-api.md): routes, authorisation, and the server. The handlers
//! are in modules such as [`jobs`], each beside its route; `routes` lists all of them.
//!
//! Doc comments on types with `ToSchema` are texts of the OpenAPI document, for clients of the API.

mod active_jobs;
mod app;
pub mod attempts;
mod check;
mod children;
mod cluster;
mod compression;
mod confirmed_step;
mod connection;
pub mod connection_limits;
pub mod connection_slots;
mod controls;
mod definitions;
mod events;
mod first_head;
pub mod guard;
mod history;
mod inbox;
mod items;
pub mod jobs;
pub mod leases;
mod limits;
mod manager;
mod misdirected;
mod observe;
mod openapi;
mod operations;
mod page;
mod principal;
pub mod problem;
pub mod query;
mod queues;
mod reads;
mod reasons;
pub mod rebuilt_jobs;
mod redispatch;
mod replies;
mod request_body;
mod resolve;
mod route;
mod routes;
mod schedules;
mod search;
mod server;
pub mod socket;
pub mod state;
mod status;
mod step;
mod step_down;
mod step_items;
pub mod token;
mod topic;
mod trends;
mod wait_cause;
mod why;
mod why_text;
mod worker;
mod workflows;

pub use actix_web::dev::{Server, ServerHandle};
pub use app::app;
pub use check::CheckView;
pub use problem::Problem;
pub use server::{bind, listen, serve, serve_on};
