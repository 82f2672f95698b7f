//! The daemon: settings, workflow files, actors and the HTTP API.

pub mod access;
pub mod actors;
pub mod api;
pub mod budgets;
pub mod events;
pub mod load;
pub mod reload;
pub mod service;
pub mod settings;
pub mod telemetry;
pub mod traces;
pub mod view;
