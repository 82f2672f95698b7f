//! The fast suite: no broker, no network. Rules of the engine, the journal on real files, the embedded bus.

mod conformance;
mod embedded;
mod floors;
mod journal;
mod load;
mod properties;
#[cfg(feature = "failpoints")]
mod simulation;
mod world;
