//! Signals. Unless somebody listens, each of them ends a process without a word.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that ask for a stop in order: those of people and of service managers, that of a
/// container's machine that loses its power, and the end of the CPU time that the process may have.
const STOPS: [(&str, i32); 5] =
    [("SIGTERM", 15), ("SIGINT", 2), ("SIGQUIT", 3), ("SIGXCPU", 24), ("SIGPWR", 30)];

/// Signals that mean nothing here. With SIGXFSZ ignored a file that may grow no more is an error of
/// its write.
const VOID: [(&str, i32); 8] = [
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGALRM", 14),
    ("SIGSTKFLT", 16),
    ("SIGXFSZ", 25),
    ("SIGVTALRM", 26),
    ("SIGPROF", 27),
    ("SIGIO", 29),
];

/// The signals of programs' own; the two before them are the C library's.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

const HANG_UP: (&str, i32) = ("SIGHUP", 1);

/// Signals that are listened for.
pub struct Signals(Vec<(String, Signal)>);

impl Signals {
    /// Those that ask for a stop in order.
    ///
    /// # Errors
    ///
    /// The system does not let the process listen.
    pub fn stops() -> io::Result<Signals> {
        Signals::of(STOPS.map(|(name, number)| (name.to_owned(), number)))
    }

    /// The same, and the end of the terminal. A process for which that was turned off (`nohup`)
    /// goes on.
    ///
    /// # Errors
    ///
    /// The system does not let the process listen.
    pub fn stops_at_a_terminal() -> io::Result<Signals> {
        let hang_up = Some(HANG_UP).filter(|(_, number)| !is_ignored(*number));
        Signals::of(
            STOPS.into_iter().chain(hang_up).map(|(name, number)| (name.to_owned(), number)),
        )
    }

    /// Those that mean nothing here, real-time signals among them.
    ///
    /// # Errors
    ///
    /// The system does not let the process listen.
    pub fn void() -> io::Result<Signals> {
        let own = REAL_TIME.map(|number| (format!("signal {number}"), number));
        Signals::of(VOID.map(|(name, number)| (name.to_owned(), number)).into_iter().chain(own))
    }

    fn of(signals: impl IntoIterator<Item = (String, i32)>) -> io::Result<Signals> {
        let listen =
            |(name, number)| signal(SignalKind::from_raw(number)).map(|signal| (name, signal));
        signals.into_iter().map(listen).collect::<Result<_, _>>().map(Signals)
    }

    /// Waits for the next one; its name.
    pub async fn next(&mut self) -> String {
        poll_fn(|context| {
            for (name, signal) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(name.clone());
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Whether the process was started with this signal ignored.
fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & (1 << (number - 1)) != 0
}
