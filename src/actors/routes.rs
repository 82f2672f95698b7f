//! Which jobs take input, by id: the one table that actors share.

use super::Mailbox;
use super::job::{JobActor, JobInput};
use crate::engine::{Claims, JobId};
use crate::journal::JobNumber;
use actix::Addr;
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use dashmap::mapref::one::MappedRef;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Which jobs take input, and the ids that are promised to child jobs.
#[derive(Default)]
pub struct Routes {
    table: DashMap<JobId, Route>,
    roots: AtomicUsize,
}

enum Route {
    /// A child job under this id is about to start.
    Claimed,
    Live(Live),
}

/// A job that takes input.
pub struct Live {
    /// Its number.
    pub number: JobNumber,
    /// Its parent's number; none: it is a top-level job.
    pub parent: Option<JobNumber>,
    /// How often it was kept within reach when it was about to be closed.
    pub reopened: u32,
    /// The way to it.
    pub mailbox: Mailbox<JobActor>,
}

/// A job that takes input, while nobody can take it out of the table.
pub struct Found<'a>(MappedRef<'a, JobId, Route, Live>);

impl Found<'_> {
    /// Tells it.
    pub fn post(&self, input: JobInput) {
        self.0.mailbox.post(input);
    }

    /// Its number.
    pub fn number(&self) -> JobNumber {
        self.0.number
    }

    /// Its parent's number; none: it is a top-level job.
    pub fn parent(&self) -> Option<JobNumber> {
        self.0.parent
    }
}

impl Claims for Routes {
    fn claim(&self, id: JobId) -> bool {
        match self.table.entry(id) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(Route::Claimed);
                true
            }
        }
    }
}

impl Routes {
    /// The job that takes input under this id. It stays there while this is held, so that what is
    /// posted comes before the word that its actor is to end; look nothing else up meanwhile.
    pub fn find(&self, id: JobId) -> Option<Found<'_>> {
        let live = self.table.get(&id)?.try_map(|route| match route {
            Route::Claimed => None,
            Route::Live(live) => Some(live),
        });
        live.ok().map(Found)
    }

    /// Whether a job takes input under this id.
    pub fn is_live(&self, id: JobId) -> bool {
        self.find(id).is_some()
    }

    /// Starts a job, in the place of a claim, and makes it reachable: whoever looks it up meanwhile
    /// waits, so that what it decides first comes behind.
    pub fn insert(&self, id: JobId, start: impl FnOnce() -> Live) {
        let place = self.table.entry(id);
        let live = start();
        if live.parent.is_none() {
            self.roots.fetch_add(1, Ordering::Relaxed);
        }
        place.insert(Route::Live(live));
    }

    /// Frees the id of the job with this number, unless it was `reopened` more often than is said.
    pub fn remove(
        &self,
        id: JobId,
        number: JobNumber,
        reopened: Option<u32>,
    ) -> Option<Mailbox<JobActor>> {
        let is_meant = |live: &Live| {
            live.number == number && reopened.is_none_or(|reopened| reopened == live.reopened)
        };
        let (_, route) = self
            .table
            .remove_if(&id, |_, route| matches!(route, Route::Live(live) if is_meant(live)))?;
        match route {
            Route::Claimed => None,
            Route::Live(live) => {
                if live.parent.is_none() {
                    self.roots.fetch_sub(1, Ordering::Relaxed);
                }
                Some(live.mailbox)
            }
        }
    }

    /// Frees an id that was claimed for a child job which is not to start.
    pub fn unclaim(&self, id: JobId) {
        self.table.remove_if(&id, |_, route| matches!(route, Route::Claimed));
    }

    /// Whether no job takes input, and no id is promised.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Keeps the job of this actor from being removed by what was decided before, and tells how
    /// often that was done; none if it is removed already.
    pub fn reopen(&self, id: JobId, actor: &Addr<JobActor>) -> Option<u32> {
        match self.table.get_mut(&id).as_deref_mut() {
            Some(Route::Live(live)) if live.mailbox.leads_to(actor) => {
                live.reopened += 1;
                Some(live.reopened)
            }
            Some(Route::Live(_) | Route::Claimed) | None => None,
        }
    }

    /// Top-level jobs that take input.
    pub fn roots(&self) -> usize {
        self.roots.load(Ordering::Relaxed)
    }

    pub(super) fn has(&self, id: JobId) -> bool {
        self.table.contains_key(&id)
    }

    /// Does something with each job that takes input, in no order; looks nothing up meanwhile.
    pub(super) fn each(&self, mut act: impl FnMut(&Mailbox<JobActor>)) {
        for route in &self.table {
            if let Route::Live(live) = route.value() {
                act(&live.mailbox);
            }
        }
    }

    /// All jobs that take input, in the order of their creation.
    pub(super) fn all_live(&self) -> Vec<Mailbox<JobActor>> {
        let live = self.table.iter().filter_map(|route| match route.value() {
            Route::Claimed => None,
            Route::Live(live) => Some((live.number, live.mailbox.clone())),
        });
        let mut live: Vec<_> = live.collect();
        live.sort_unstable_by_key(|(number, _)| *number);
        live.into_iter().map(|(_, mailbox)| mailbox).collect()
    }
}
