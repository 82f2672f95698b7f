//! Replies that lie in a log, as over Kafka, in every third run: the manager reads them by their
//! offsets, and goes on after a crash where the journal says. So what it read last comes again, and
//! nothing may be passed over. Calls, and the dead letters of a broker, come by a queue all the
//! same.

use super::broker::{Link, Reply};
use super::world::World;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use workflow_manager::bus::{BusEvent, TopicOffset};
use workflow_manager::journal::OffsetRecords;

/// The topic of the replies; it has one partition.
const TOPIC: &str = "replies";

/// By then a position that was told is in the journal: three times the pause between two writes.
const SURELY_JOURNALED_AFTER: Duration = Duration::from_secs(3);

/// What the broker has.
#[derive(Default)]
pub(crate) struct Log {
    records: Vec<Reply>,
    /// Those that have had the verdict that they are done.
    done: BTreeSet<usize>,
    /// A position that was told long before a crash.
    surely_journaled: usize,
}

impl Log {
    pub(crate) fn write(&mut self, reply: Reply) {
        self.records.push(reply);
    }

    /// Whether a reply like this one has no verdict yet.
    pub(crate) fn has(&self, is_meant: impl Fn(&Reply) -> bool) -> bool {
        let records = self.records.iter().enumerate();
        records.into_iter().any(|(at, reply)| !self.done.contains(&at) && is_meant(reply))
    }

    fn first_undone(&self) -> usize {
        (0..self.records.len()).find(|at| !self.done.contains(at)).unwrap_or(self.records.len())
    }
}

/// How far the manager has read it, of one incarnation.
#[derive(Default)]
pub(crate) struct LogReader {
    next: usize,
    /// What was read and has no verdict.
    unsettled: BTreeSet<usize>,
    reported: usize,
    /// When a position was told, and which one.
    reports: Vec<(Instant, usize)>,
    /// What is delivered again, from memory: its tags.
    again: Vec<u64>,
}

impl LogReader {
    fn position(&self, bug: Option<&str>) -> usize {
        if bug == Some("a position ahead of the journal") {
            return self.next;
        }
        self.unsettled.first().copied().unwrap_or(self.next)
    }

    /// Whether all of the log was read and has its verdict.
    pub(crate) fn is_idle(&self, log: &Log) -> bool {
        self.next == log.records.len() && self.unsettled.is_empty()
    }

    pub(crate) fn has_more(&self, log: &Log) -> bool {
        self.next < log.records.len()
    }

    pub(crate) fn has_new_position(&self, bug: Option<&str>) -> bool {
        self.position(bug) != self.reported
    }

    pub(crate) fn has_redeliveries(&self) -> bool {
        !self.again.is_empty()
    }

    /// The next record.
    pub(crate) fn read(&mut self, log: &Log) -> Option<Reply> {
        let at = self.next;
        let reply = Reply { offset: Some(at), ..log.records.get(at)?.clone() };
        self.next = at + 1;
        self.unsettled.insert(at);
        Some(reply)
    }

    /// A record is done, or (false) is delivered again.
    pub(crate) fn settle(&mut self, log: &mut Log, (tag, offset): (u64, usize), is_done: bool) {
        if is_done {
            self.unsettled.remove(&offset);
            log.done.insert(offset);
        } else {
            self.again.push(tag);
        }
    }

    /// What the bus tells the manager.
    pub(crate) fn report_position(&mut self, bug: Option<&str>) -> BusEvent {
        self.reported = self.position(bug);
        self.reports.push((Instant::now(), self.reported));
        let offset = i64::try_from(self.reported).expect("small");
        BusEvent::OffsetReached(TopicOffset { topic: TOPIC.into(), partition: 0, offset })
    }
}

impl Link {
    /// Delivers once more what went back.
    pub(crate) fn deliver_again(&mut self) -> Option<BusEvent> {
        let tag = self.log_reader.again.pop()?;
        let reply = self.unacked.remove(&tag)?;
        Some(self.deliver(Reply { redelivered: true, ..reply }))
    }
}

impl World {
    /// The manager goes on with these positions.
    pub(super) fn resume_at(&mut self, positions: &[TopicOffset]) -> LogReader {
        let known = positions.iter().find(|position| &*position.topic == TOPIC);
        let next = known.map_or(0, |known| usize::try_from(known.offset).unwrap_or(usize::MAX));
        self.check_position(next);
        let Some(log) = &self.broker.log else { return LogReader::default() };
        let (surely, end) = (log.surely_journaled, log.records.len());
        if next < surely {
            self.violate(format!(
                "the position in the journal is {next}, although {surely} was told long ago"
            ));
        }
        if self.broker.log.is_some() {
            self.note(|| format!("the replies are read from {next} of {end} on"));
        }
        LogReader { next, reported: next, ..LogReader::default() }
    }

    /// A position that is in the journal counts nothing as done that is not.
    fn check_position(&mut self, position: usize) {
        let Some(log) = &self.broker.log else { return };
        let undone = log.first_undone();
        if undone < position {
            self.violate(format!(
                "the position in the journal is {position}, and the reply at {undone} has no \
                 verdict"
            ));
        }
    }

    /// Looks at the position that is in the journal now.
    pub(crate) fn compare_position(&mut self) {
        if self.broker.log.is_none() {
            return;
        }
        self.handle_dispositions();
        let Some(bus) = self.link.as_ref().map(|link| link.bus.clone()) else { return };
        match self.journal.reader.load_offsets(&bus) {
            Ok(found) => {
                let furthest = found.iter().map(|position| position.offset).max();
                let furthest = furthest.and_then(|offset| usize::try_from(offset).ok());
                self.check_position(furthest.unwrap_or_default());
            }
            Err(error) => self.violate(format!("the positions cannot be read: {error}")),
        }
    }

    /// The process is killed now.
    pub(super) fn keep_position(&mut self) {
        let is_flowing = !self.is_cluster && !self.disk_full && !self.was_full;
        let (Some(log), Some(link)) = (&mut self.broker.log, &self.link) else { return };
        let until = Instant::now();
        let is_old = |at: Instant| is_flowing && at + SURELY_JOURNALED_AFTER < until;
        // One that is told meanwhile may lie before it, for what is ahead of all verdicts is wrong.
        let reported = link.log_reader.reports.iter().filter(|(at, _)| is_old(*at));
        log.surely_journaled =
            reported.map(|(_, reported)| *reported).fold(log.surely_journaled, usize::max);
    }
}
