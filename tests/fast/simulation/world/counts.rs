//! What runs of the simulation have seen, so that faults that do not come to pass are noticed.

/// What a run has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) jobs: u64,
    pub(crate) messages: u64,
    /// Messages of the embedded bus that workers took.
    pub(crate) leased: u64,
    pub(crate) repeated: u64,
    pub(crate) crashes: u64,
    pub(crate) disconnects: u64,
    pub(crate) panics: u64,
    pub(crate) commits: u64,
    /// Messages that limits let through.
    pub(crate) admitted: u64,
    /// Jobs that were at rest and came back into memory.
    pub(crate) activated: u64,
    /// How often a manager took over, and how often one found its fence dead.
    pub(crate) takeovers: u64,
    pub(crate) fenced: u64,
    /// Jobs that gave way to newer ones.
    pub(crate) displaced: u64,
    /// How often a job was refused because its limit had no place.
    pub(crate) turned_away: u64,
    /// Decisions that have taken a spare place of a limit.
    pub(crate) taken: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        let Counts { jobs, messages, leased, repeated, crashes, displaced, taken, .. } = other;
        let Counts { disconnects, panics, commits, activated, takeovers, fenced, admitted, .. } =
            other;
        self.turned_away += other.turned_away;
        self.jobs += jobs;
        self.messages += messages;
        self.leased += leased;
        self.repeated += repeated;
        self.crashes += crashes;
        self.disconnects += disconnects;
        self.panics += panics;
        self.commits += commits;
        self.activated += activated;
        self.takeovers += takeovers;
        self.fenced += fenced;
        self.admitted += admitted;
        self.displaced += displaced;
        self.taken += taken;
    }
}
