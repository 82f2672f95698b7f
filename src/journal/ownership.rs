//! What the owner of a name, its beat, and those that watch both tell each other. Each member is a
//! value that one of them publishes and the others read.

use crate::last_instant::LastInstant;
use base::clock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long the beat of the active process may stand still before another process takes over.
pub const LEASE: Duration = Duration::from_secs(10);

/// How long no sign of life may come before the beat stands still.
const LIFE_MAX: Duration = Duration::from_secs(10);

/// How long the first sign of life may take once the start has ended: it comes behind all jobs that
/// were recovered.
const FIRST_LIFE_MAX: Duration = Duration::from_secs(30);

/// What is known of the ownership of this process, which is the active one of its name.
pub struct Ownership {
    /// When the start of the manager ended.
    started: LastInstant,
    /// When the newest sign of life was asked for, of those that have come.
    alive: LastInstant,
    /// When the newest beat was sent of those that the server has committed. The claim of the name
    /// is the first one.
    beaten: LastInstant,
    is_fenced: AtomicBool,
    is_leaving: AtomicBool,
    is_broker_lost: AtomicBool,
    standbys: AtomicU32,
    standbys_at_broker: AtomicU32,
    has_synchronous_standby: AtomicBool,
    /// How far the clock of this machine is ahead of the server's, in milliseconds; [`i64::MIN`]:
    /// it is not known.
    clock_ahead_ms: AtomicI64,
    /// Wakes the beat when something is announced.
    announced: Notify,
    /// Wakes those that wait for the answer of a beat.
    answered: Notify,
}

/// What is known of the life of a process.
enum Life {
    /// It starts. Recovery may take long, and gives no sign.
    Starting,
    /// Its start has ended so long ago, and no sign of life has come yet.
    Awaited(Duration),
    /// Its newest sign of life was asked for so long ago.
    Confirmed(Duration),
}

/// What a committed beat has read.
#[derive(Default)]
pub(crate) struct BeatAnswer {
    /// Whether this process still owns its name.
    pub(crate) is_owner: bool,
    /// The number of standbys of the name that look.
    pub(crate) standbys: u32,
    /// How many of them reach the broker.
    pub(crate) standbys_at_broker: u32,
    /// Whether the server waits for a synchronous standby at each commit.
    pub(crate) has_synchronous_standby: bool,
    /// How far the clock of this machine is ahead of the server's, in milliseconds; `None`: the
    /// answer came too late to tell.
    pub(crate) clock_ahead_ms: Option<i64>,
}

impl Ownership {
    /// Creates the ownership of a process that has just become active.
    pub(crate) fn new() -> Ownership {
        let beaten = LastInstant::never();
        beaten.touch();
        Ownership {
            started: LastInstant::never(),
            alive: LastInstant::never(),
            beaten,
            is_fenced: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            is_broker_lost: AtomicBool::new(false),
            standbys: AtomicU32::new(0),
            standbys_at_broker: AtomicU32::new(0),
            has_synchronous_standby: AtomicBool::new(false),
            clock_ahead_ms: AtomicI64::new(i64::MIN),
            announced: Notify::new(),
            answered: Notify::new(),
        }
    }

    /// Publishes that the start of the manager has ended. From now on signs of life are expected.
    pub fn end_start(&self) {
        self.started.touch();
    }

    /// Publishes a sign of life: what was asked at this time has been answered by the router and
    /// the journal.
    pub fn confirm_life(&self, asked: Instant) {
        self.alive.set(asked);
    }

    fn life(&self) -> Life {
        match (self.alive.age(), self.started.age()) {
            (Some(age), _) => Life::Confirmed(age),
            (None, Some(age)) => Life::Awaited(age),
            (None, None) => Life::Starting,
        }
    }

    /// Returns whether the process may beat: it starts, or has given a sign of life lately.
    pub(crate) fn is_alive(&self) -> bool {
        match self.life() {
            Life::Starting => true,
            Life::Awaited(age) => age < FIRST_LIFE_MAX,
            Life::Confirmed(age) => age < LIFE_MAX,
        }
    }

    /// Publishes what a beat has read that was sent at this time. `is_counted`: it has changed the
    /// counter.
    pub(crate) fn publish_beat(&self, sent: Instant, is_counted: bool, answer: &BeatAnswer) {
        if is_counted && answer.is_owner {
            self.beaten.set(sent);
        }
        self.is_fenced.store(!answer.is_owner, Ordering::Relaxed);
        self.standbys.store(answer.standbys, Ordering::Relaxed);
        self.standbys_at_broker.store(answer.standbys_at_broker, Ordering::Relaxed);
        self.has_synchronous_standby.store(answer.has_synchronous_standby, Ordering::Relaxed);
        if let Some(ahead_ms) = answer.clock_ahead_ms {
            self.clock_ahead_ms.store(ahead_ms, Ordering::Relaxed);
        }
        self.answered.notify_waiters();
    }

    /// Asks for a beat, and waits for the answer of one that was sent after that. A process that
    /// does not beat waits for ever.
    pub async fn await_new_beat(&self) {
        let asked = clock::instant();
        loop {
            let answered = self.answered.notified();
            if self.beat_age() <= asked.elapsed() {
                return;
            }
            self.announced.notify_one();
            answered.await;
        }
    }

    /// Returns how long ago the newest committed beat was sent. No standby has seen it earlier, so
    /// none takes over before this reaches [`LEASE`].
    pub fn beat_age(&self) -> Duration {
        self.beaten.age().unwrap_or_default()
    }

    /// Returns whether another process has taken the name.
    pub fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Relaxed)
    }

    /// Announces to the standbys that this process gives its name back soon.
    pub fn announce_leaving(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
        self.announced.notify_one();
    }

    /// Returns whether this process gives its name back soon.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// Announces to the standbys whether this process has lost its broker.
    pub fn announce_broker(&self, is_lost: bool) {
        if self.is_broker_lost.swap(is_lost, Ordering::Relaxed) != is_lost {
            self.announced.notify_one();
        }
    }

    /// Returns whether this process has lost its broker.
    pub(crate) fn is_broker_lost(&self) -> bool {
        self.is_broker_lost.load(Ordering::Relaxed)
    }

    /// Returns the number of standbys of the name, as of the newest beat.
    pub fn standbys(&self) -> u32 {
        self.standbys.load(Ordering::Relaxed)
    }

    /// Returns how many standbys of the name reach the broker, as of the newest beat. They try it
    /// only after this process has announced that it has lost the broker.
    pub fn standbys_at_broker(&self) -> u32 {
        self.standbys_at_broker.load(Ordering::Relaxed)
    }

    /// Returns whether the server waits for a synchronous standby at each commit, as of the newest
    /// beat.
    pub fn has_synchronous_standby(&self) -> bool {
        self.has_synchronous_standby.load(Ordering::Relaxed)
    }

    /// Returns how far the clock of this machine was ahead of the server's at the newest beat that
    /// was answered promptly, in milliseconds; `None` if it is not known.
    pub fn clock_ahead_ms(&self) -> Option<i64> {
        Some(self.clock_ahead_ms.load(Ordering::Relaxed)).filter(|ms| *ms > i64::MIN)
    }

    /// Waits until something is announced that the standbys should see at once.
    pub(crate) async fn wait_for_announcement(&self) {
        self.announced.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ago(seconds: u64) -> Instant {
        clock::instant().checked_sub(Duration::from_secs(seconds)).unwrap()
    }

    fn happened(seconds: u64) -> LastInstant {
        LastInstant::ago(Duration::from_secs(seconds))
    }

    fn answer(is_owner: bool) -> BeatAnswer {
        BeatAnswer { is_owner, ..BeatAnswer::default() }
    }

    #[test]
    fn only_a_start_beats_without_signs_of_life() {
        let mut ownership = Ownership { beaten: happened(60), ..Ownership::new() };
        assert!(ownership.is_alive(), "a start may take long");
        ownership.end_start();
        assert!(ownership.is_alive(), "the first sign is asked for");
        ownership.started = happened(20);
        assert!(ownership.is_alive(), "it comes behind all jobs that were recovered");
        ownership.started = happened(31);
        assert!(!ownership.is_alive(), "it hangs since its start");
        ownership.alive = happened(20);
        assert!(!ownership.is_alive());
        ownership.confirm_life(ago(0));
        assert!(ownership.is_alive());
    }

    #[test]
    fn a_beat_counts_from_its_sending_and_only_if_it_has_changed_the_counter() {
        let ownership = Ownership { beaten: happened(60), ..Ownership::new() };
        assert!(ownership.beat_age() >= LEASE);
        ownership.publish_beat(ago(3), true, &answer(true));
        let age = ownership.beat_age();
        assert!(age >= Duration::from_secs(3) && age < LEASE, "{age:?}");
        ownership.publish_beat(ago(0), false, &answer(true));
        assert!(ownership.beat_age() >= Duration::from_secs(3), "it stood still");
        ownership.publish_beat(ago(0), true, &answer(false));
        assert!(ownership.is_fenced() && ownership.beat_age() >= Duration::from_secs(3));
    }

    #[tokio::test]
    async fn a_new_beat_is_one_that_was_sent_after_it_was_asked_for() {
        let ownership = Ownership { beaten: happened(1), ..Ownership::new() };
        let mut waits = std::pin::pin!(ownership.await_new_beat());
        let is_over = |poll: std::task::Poll<()>| poll.is_ready();
        assert!(!is_over(futures_util::poll!(waits.as_mut())));
        ownership.wait_for_announcement().await;
        ownership.publish_beat(ago(1), true, &answer(true));
        assert!(!is_over(futures_util::poll!(waits.as_mut())), "that one was under way");
        ownership.wait_for_announcement().await;
        ownership.publish_beat(clock::instant() + Duration::from_secs(1), true, &answer(true));
        assert!(is_over(futures_util::poll!(waits.as_mut())));
    }
}
