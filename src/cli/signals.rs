//! The signals that the process handles. Without a handler, each of them would terminate the
//! process.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that request a graceful stop, with their numbers on Linux. They come from a terminal or
/// a service manager, or report a power failure or the limit of CPU time.
const STOP_SIGNALS: [(&str, i32); 5] =
    [("SIGTERM", 15), ("SIGINT", 2), ("SIGQUIT", 3), ("SIGXCPU", 24), ("SIGPWR", 30)];

/// Signals that are caught and have no effect, with their numbers on Linux. Since SIGXFSZ is
/// caught, a write beyond the limit of file sizes returns an error.
const IGNORED_SIGNALS: [(&str, i32); 8] = [
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGALRM", 14),
    ("SIGSTKFLT", 16),
    ("SIGXFSZ", 25),
    ("SIGVTALRM", 26),
    ("SIGPROF", 27),
    ("SIGIO", 29),
];

/// The numbers of the real-time signals. The C library reserves 32 and 33.
const REAL_TIME_SIGNALS: std::ops::RangeInclusive<i32> = 34..=64;

/// The signal that the kernel sends when the terminal is closed.
const HANG_UP: (&str, i32) = ("SIGHUP", 1);

/// A set of signals that the process listens for, with their names.
pub struct Signals(Vec<(String, Signal)>);

impl Signals {
    /// Listens for the signals that request a stop.
    ///
    /// # Errors
    ///
    /// Returns an error if a handler cannot be registered.
    pub fn for_stop() -> io::Result<Signals> {
        Signals::listen(STOP_SIGNALS.map(|(name, number)| (name.to_owned(), number)))
    }

    /// Listens for the signals that request a stop, and for SIGHUP unless the process was started
    /// with it ignored (`nohup`).
    ///
    /// # Errors
    ///
    /// Returns an error if a handler cannot be registered.
    pub(crate) fn for_stop_at_terminal() -> io::Result<Signals> {
        let hang_up = Some(HANG_UP).filter(|(_, number)| !is_ignored(*number));
        Signals::listen(
            STOP_SIGNALS.into_iter().chain(hang_up).map(|(name, number)| (name.to_owned(), number)),
        )
    }

    /// Listens for the signals that have no effect, including the real-time signals.
    ///
    /// # Errors
    ///
    /// Returns an error if a handler cannot be registered.
    pub fn for_ignored() -> io::Result<Signals> {
        let real_time = REAL_TIME_SIGNALS.map(|number| (format!("signal {number}"), number));
        Signals::listen(
            IGNORED_SIGNALS
                .map(|(name, number)| (name.to_owned(), number))
                .into_iter()
                .chain(real_time),
        )
    }

    /// Registers a handler for each signal.
    fn listen(signals: impl IntoIterator<Item = (String, i32)>) -> io::Result<Signals> {
        let register =
            |(name, number)| signal(SignalKind::from_raw(number)).map(|signal| (name, signal));
        signals.into_iter().map(register).collect::<Result<_, _>>().map(Signals)
    }

    /// Waits for the next signal, and returns its name.
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

/// Returns whether the process ignores this signal. Before a handler is registered, that means that
/// it was started so. The kernel lists the ignored signals as a bit mask, in hexadecimal.
fn is_ignored(number: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask_text = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask_text.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (number - 1)) != 0)
}
