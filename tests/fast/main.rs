//! The fast suite: no broker, no network. Rules of the engine, the journal on real files, the
//! embedded bus.

mod about;
mod against;
#[cfg(feature = "failpoints")]
mod alone;
mod any_journal;
mod archive;
mod attempts;
mod buses;
mod by_hand;
mod calls;
#[cfg(feature = "failpoints")]
mod certificate;
mod children;
#[cfg(feature = "failpoints")]
mod clock_set;
mod conformance;
mod controls;
mod derived;
mod embedded;
mod events;
mod failed_items;
mod failures;
mod floors;
#[cfg(feature = "failpoints")]
mod full_disk;
mod fuzzed;
mod gate;
mod gate_spare;
mod glossary;
#[cfg(feature = "grpc")]
mod grpc;
mod history;
mod http;
mod inbox;
mod job_limits;
mod journal;
mod journal_files;
#[cfg(feature = "failpoints")]
mod kafka;
mod labels;
#[cfg(feature = "failpoints")]
mod late_counts;
mod leaving;
mod limit_vectors;
mod limit_views;
mod limited;
mod limits;
mod load;
#[cfg(feature = "failpoints")]
mod locked;
mod memory;
mod missing_queues;
mod openapi;
mod orders;
mod page;
mod positions;
mod properties;
mod push;
mod races;
mod reasons;
mod rebuilt_jobs;
mod receipts;
mod redispatch;
mod references;
mod rehearsal;
mod schedules;
mod searches;
#[cfg(feature = "failpoints")]
mod simulation;
mod start_later;
mod statuses;
mod steps;
#[cfg(feature = "failpoints")]
mod sweep;
mod traces;
#[cfg(feature = "failpoints")]
mod trends;
mod views;
#[cfg(feature = "failpoints")]
mod wal;
mod window;
mod worker;
