//! The numbers of new jobs.
//!
//! A journal in a file counts. In a journal in PostgreSQL several names create jobs side by side,
//! so a number there consists of 41 bits of milliseconds since 2020, 10 bits of the name's ordinal,
//! and 12 bits of a counter. It tells the day and the name of its job.

use super::record::JobNumber;
use engine::Timestamp;

/// 2020-01-01T00:00:00Z, in milliseconds since 1970. The 41 bits last until 2089.
const EPOCH_MS: i64 = 1_577_836_800_000;

/// The number of bits of the counter.
const COUNTER_BITS: u32 = 12;

/// The number of bits of the name's ordinal.
const ORDINAL_BITS: u32 = 10;

/// By how many bits the milliseconds are shifted.
const TIME_SHIFT: u32 = COUNTER_BITS + ORDINAL_BITS;

const COUNTER_MASK: i64 = (1 << COUNTER_BITS) - 1;

/// Nanoseconds in a millisecond.
const NS_PER_MS: i64 = 1_000_000;

/// Milliseconds in a day.
const MS_PER_DAY: i64 = 86_400_000;

/// The latest time of a clock that is followed. What remains is room to count on.
const CLOCK_MS_MAX: i64 = (1 << 41) - 1 - MS_PER_DAY;

/// So many numbers are reserved for a name at once: those of ten seconds. A takeover begins above
/// them; after the lease its clock is beyond them anyway.
pub(crate) const RESERVED_NUMBERS: JobNumber = 10_000 << TIME_SHIFT;

/// The most names in one database.
pub(crate) const NAMES_MAX: i16 = 1 << ORDINAL_BITS;

/// The ordinal of a name, which is part of the numbers of its jobs: 0 to 1,023.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameOrdinal(pub(crate) i16);

impl NameOrdinal {
    /// Returns the ordinal of the name whose job has this number.
    pub(crate) fn of_number(number: JobNumber) -> NameOrdinal {
        NameOrdinal(((number >> COUNTER_BITS) & (i64::from(NAMES_MAX) - 1)) as i16)
    }

    /// Returns the SQL condition that a column has the number of a job of this name.
    pub(crate) fn condition(self, column: &str) -> String {
        format!("(({column} >> {COUNTER_BITS}) & {}) = {}", NAMES_MAX - 1, self.0)
    }
}

/// Numbers new jobs in the order of their creation.
#[derive(Debug)]
pub struct JobNumbers {
    /// The newest number.
    last: JobNumber,
    /// The name whose jobs are numbered; `None` in a journal that only counts.
    name: Option<NameOrdinal>,
}

impl JobNumbers {
    /// Counts on after the number `last`.
    pub fn counted(last: JobNumber) -> JobNumbers {
        JobNumbers { last, name: None }
    }

    /// Numbers the jobs of a name by the clock, above the number `last`.
    pub fn timed(name: NameOrdinal, last: JobNumber) -> JobNumbers {
        JobNumbers { last, name: Some(name) }
    }

    /// Returns the number for a job that is created at `now`. It is higher than all before, also
    /// if the clock was set back.
    pub fn take(&mut self, now: Timestamp) -> JobNumber {
        self.last = match self.name {
            None => self.last + 1,
            Some(NameOrdinal(ordinal)) => {
                let counter = (self.last & COUNTER_MASK) + 1;
                // A counter that is full goes on in the next millisecond.
                let ms = (self.last >> TIME_SHIFT) + (counter >> COUNTER_BITS);
                let at = |ms: i64, counter: i64| {
                    ms << TIME_SHIFT | i64::from(ordinal) << COUNTER_BITS | counter
                };
                at(ms, counter & COUNTER_MASK).max(at(clock_ms(now), 0))
            }
        };
        self.last
    }
}

/// Returns the milliseconds of a number at this time.
fn clock_ms(time: Timestamp) -> i64 {
    (time.0 / NS_PER_MS - EPOCH_MS).clamp(0, CLOCK_MS_MAX)
}

/// Returns a key by which jobs are spread over threads: those of consecutive jobs differ.
pub fn spread_key(number: JobNumber) -> u64 {
    ((number >> TIME_SHIFT) + (number & COUNTER_MASK)).unsigned_abs()
}

/// A day, by UTC: the number of days since 2020-01-01. The numbers of the jobs that are created on
/// a day lie in one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Day(i64);

impl Day {
    /// Returns the day of a job's number.
    pub(crate) fn of_number(number: JobNumber) -> Day {
        Day((number >> TIME_SHIFT) / MS_PER_DAY)
    }

    /// Returns the day of a time.
    pub(crate) fn of_time(time: Timestamp) -> Day {
        Day(clock_ms(time) / MS_PER_DAY)
    }

    /// Returns the day so many days later.
    pub(crate) fn plus(self, days: i64) -> Day {
        Day(self.0 + days)
    }

    /// Returns the first number of the day.
    pub(crate) fn first(self) -> JobNumber {
        (self.0 * MS_PER_DAY) << TIME_SHIFT
    }

    /// Returns the first number after the day.
    pub(crate) fn end(self) -> JobNumber {
        self.plus(1).first()
    }

    /// Returns the date, as in `20261126`.
    pub(crate) fn date(self) -> String {
        let time = Timestamp((EPOCH_MS + self.0 * MS_PER_DAY) * NS_PER_MS);
        base::times::format_rfc3339(time)[..10].replace('-', "")
    }

    /// Parses a date, as in `20261126`; `None` if it is none, or before 2020.
    pub(crate) fn from_date(date: &str) -> Option<Day> {
        let (year, month, day) = (date.get(..4)?, date.get(4..6)?, date.get(6..)?);
        let time = base::times::parse_rfc3339(&format!("{year}-{month}-{day}T00:00:00Z"))?;
        let ms = time.0 / NS_PER_MS - EPOCH_MS;
        (ms >= 0).then_some(Day(ms / MS_PER_DAY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TODAY: Timestamp = Timestamp(1_795_659_678_123_456_789);

    #[test]
    fn a_number_tells_the_day_and_the_name_and_is_positive() {
        for ordinal in [0, 7, 1_023] {
            let name = NameOrdinal(ordinal);
            for time in [Timestamp(0), TODAY, Timestamp(i64::MAX)] {
                let number = JobNumbers::timed(name, 0).take(time);
                assert!(number > 0 && number < i64::MAX >> 1 << 1, "{number}");
                assert_eq!(NameOrdinal::of_number(number), name);
                assert_eq!(Day::of_number(number), Day::of_time(time));
            }
        }
    }

    #[test]
    fn numbers_of_a_name_increase_whatever_the_clock_does() {
        let name = NameOrdinal(5);
        let mut numbers = JobNumbers::timed(name, 0);
        let mut last = 0;
        let mut take = |now: Timestamp, numbers: &mut JobNumbers| {
            let number = numbers.take(now);
            assert!(number > last, "{number} after {last}");
            assert_eq!(NameOrdinal::of_number(number), name);
            last = number;
        };
        for later_ms in [0, 1, 1, 2, -3_600_000, 0, 5] {
            take(Timestamp(TODAY.0 + later_ms * NS_PER_MS), &mut numbers);
        }
        // More jobs than one millisecond has room for, while the clock stands.
        (0..3 << COUNTER_BITS).for_each(|_| take(TODAY, &mut numbers));
        // The next owner of the name goes on above, with a clock that is behind.
        let highest = numbers.last;
        let mut numbers = JobNumbers::timed(name, highest);
        take(Timestamp(TODAY.0 - 3_600_000 * NS_PER_MS), &mut numbers);
    }

    #[test]
    fn the_clock_is_followed_when_it_is_ahead() {
        let mut numbers = JobNumbers::timed(NameOrdinal(0), 1);
        let later = Timestamp(TODAY.0 + 40 * NS_PER_MS);
        assert_eq!((numbers.take(later) - numbers.take(TODAY)), -1, "the clock went back");
        let number = numbers.take(Timestamp(later.0 + 2 * NS_PER_MS));
        assert_eq!(number & COUNTER_MASK, 0);
    }

    #[test]
    fn a_file_counts() {
        let mut numbers = JobNumbers::counted(41);
        assert_eq!([numbers.take(TODAY), numbers.take(Timestamp(0))], [42, 43]);
    }

    #[test]
    fn jobs_are_spread_at_any_rate() {
        let mut numbers = JobNumbers::timed(NameOrdinal(3), 0);
        let counted = 1..1_001;
        let at_once: Vec<JobNumber> = (0..1_000).map(|_| numbers.take(TODAY)).collect();
        let slowly = (1..1_001).map(|ms| numbers.take(Timestamp(TODAY.0 + ms * NS_PER_MS)));
        for jobs in [counted.collect::<Vec<_>>(), at_once, slowly.collect()] {
            for threads in [2, 3, 4, 8] {
                let first =
                    jobs.iter().filter(|job| spread_key(**job).is_multiple_of(threads)).count();
                let share = jobs.len() / threads as usize;
                assert!(first.abs_diff(share) <= 1, "{first} of {threads} threads");
            }
        }
    }

    #[test]
    fn a_day_has_a_date_and_a_range() {
        let day = Day::of_time(TODAY);
        assert_eq!(day.date(), "20261126");
        assert_eq!(Day::from_date("20261126"), Some(day));
        assert_eq!([Day::from_date("20191231"), Day::from_date("2026112x")], [None, None]);
        assert_eq!(Day::of_number(day.first()), day);
        assert_eq!(Day::of_number(day.end() - 1), day);
        assert_eq!(Day::of_number(day.end()), day.plus(1));
    }
}
