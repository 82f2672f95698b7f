//! The queue of log lines for standard error. Other threads push lines without blocking. One thread
//! writes them, and it alone waits for the disk, the pipe or the terminal. Lines that it cannot
//! write, or that arrive while the queue is full, are dropped and counted.

use prometheus::IntCounter;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How many lines may wait to be written.
const LINES_WAITING_MAX: usize = 10_000;

/// How many bytes of lines may wait to be written.
const BYTES_WAITING_MAX: usize = 4 * 1024 * 1024;

/// The pause before a retry on a non-blocking file descriptor that is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The queue of lines that wait to be written.
pub(super) struct LineQueue {
    backlog: Mutex<Backlog>,
    /// Notified when a line has arrived.
    arrived: Condvar,
    /// Notified when a line was written or dropped.
    finished: Condvar,
    dropped: IntCounter,
}

/// The lines that wait to be written.
#[derive(Default)]
struct Backlog {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Whether a line was taken out and is being written.
    is_writing: bool,
}

impl LineQueue {
    /// Starts a thread that writes lines to `out`. When writing succeeds again, the thread calls
    /// `report_dropped` with the number of lines that were dropped.
    pub(super) fn start(
        out: impl Write + Send + 'static,
        dropped: IntCounter,
        report_dropped: fn(u64),
    ) -> io::Result<Arc<LineQueue>> {
        // Read here, so that lines that are dropped before the thread runs are reported too.
        let reported = dropped.get();
        let lines = Arc::new(LineQueue {
            backlog: Mutex::default(),
            arrived: Condvar::new(),
            finished: Condvar::new(),
            dropped,
        });
        let writer = lines.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            writer.write_all(Sink { out, is_torn: false }, report_dropped, reported)
        })?;
        Ok(lines)
    }

    /// Adds a line, which ends in a line break. Does not block; a line beyond a limit is dropped.
    pub(super) fn push(&self, line: Vec<u8>) {
        let mut backlog = self.lock();
        if backlog.lines.len() >= LINES_WAITING_MAX
            || backlog.bytes + line.len() > BYTES_WAITING_MAX
        {
            drop(backlog);
            return self.dropped.inc();
        }
        backlog.bytes += line.len();
        backlog.lines.push_back(line);
        drop(backlog);
        self.arrived.notify_one();
    }

    /// Waits until all lines are written or dropped, but no longer than `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let is_busy = |backlog: &mut Backlog| backlog.is_writing || !backlog.lines.is_empty();
        // Lines that are still waiting at the timeout are lost.
        let _ = self.finished.wait_timeout_while(self.lock(), timeout, is_busy);
    }

    /// Writes lines without end. `reported` is the number of dropped lines that need no report.
    fn write_all(&self, mut sink: Sink<impl Write>, report_dropped: fn(u64), mut reported: u64) {
        loop {
            let line = self.take_line();
            let is_written = sink.write_line(&line).is_ok();
            if !is_written {
                self.dropped.inc();
            }
            let is_last = self.finish_line();
            let dropped = self.dropped.get();
            if is_written && is_last && dropped > reported {
                report_dropped(dropped - reported);
                reported = dropped;
            }
        }
    }

    /// Waits for the next line, and takes it out of the queue.
    fn take_line(&self) -> Vec<u8> {
        let mut backlog = self.lock();
        loop {
            if let Some(line) = backlog.lines.pop_front() {
                backlog.bytes -= line.len();
                backlog.is_writing = true;
                return line;
            }
            backlog = self.arrived.wait(backlog).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Marks the line that was taken out as written or dropped. Returns whether the queue is empty.
    fn finish_line(&self) -> bool {
        let mut backlog = self.lock();
        backlog.is_writing = false;
        self.finished.notify_all();
        backlog.lines.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The output to which the lines are written.
struct Sink<W> {
    out: W,
    /// Whether the last line was written in part only.
    is_torn: bool,
}

impl<W: Write> Sink<W> {
    /// Writes a line, after ending one that was written in part.
    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.write(b"\n")?;
        }
        self.write(line)
    }

    /// Writes all bytes, and waits while the output is full.
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.out.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    self.is_torn = !bytes.is_empty();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(RETRY_INTERVAL)
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::sync::mpsc;

    const FOREVER: Duration = Duration::from_secs(60);

    /// A writer that takes three bytes at a time, and fails where the test says so.
    struct FlakyWriter {
        written: Arc<Mutex<Vec<u8>>>,
        failures: VecDeque<Option<ErrorKind>>,
    }

    impl Write for FlakyWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(Some(kind)) = self.failures.pop_front() {
                return Err(kind.into());
            }
            let count = bytes.len().min(3);
            self.written.lock().expect("no panic").extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn counter() -> IntCounter {
        IntCounter::new("dropped", "lines").expect("a name")
    }

    #[test]
    fn a_line_that_cannot_be_written_is_dropped_and_a_torn_one_is_ended() {
        use ErrorKind::{BrokenPipe, Interrupted, StorageFull, WouldBlock};
        let (written, dropped) = (Arc::default(), counter());
        let failures = VecDeque::from([
            Some(Interrupted),
            None,
            Some(WouldBlock),
            None,
            Some(BrokenPipe),
            None,
            Some(StorageFull),
        ]);
        let lines = LineQueue::start(
            FlakyWriter { written: Arc::clone(&written), failures },
            dropped.clone(),
            |_| (),
        )
        .expect("a thread");
        // "one two" breaks after six bytes. Its line break is the next write; the error behind it
        // costs the second line.
        for line in ["one two\n", "lost\n", "whole\n"] {
            lines.push(line.into());
            lines.flush(FOREVER);
        }
        assert_eq!(String::from_utf8_lossy(&written.lock().expect("no panic")), "one tw\nwhole\n");
        assert_eq!(dropped.get(), 2);
    }

    #[test]
    fn dropped_lines_are_reported_when_lines_get_through_again() {
        static REPORTS: Mutex<Option<mpsc::Sender<u64>>> = Mutex::new(None);
        let (sender, reports) = mpsc::channel();
        *REPORTS.lock().expect("no panic") = Some(sender);
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let dropped = counter();
        let lines = LineQueue::start(writer, dropped.clone(), |count| {
            let result =
                REPORTS.lock().expect("no panic").as_ref().map(|report| report.send(count));
            assert!(result.is_some_and(|result| result.is_ok()));
        });
        let lines = lines.expect("a thread");
        // Nobody reads: far more is pushed than the pipe and the queue hold, and no call waits.
        let count = 3 * LINES_WAITING_MAX;
        let line = format!("{}\n", "x".repeat(99));
        for _ in 0..count {
            lines.push(line.clone().into());
        }
        let dropped_count = dropped.get();
        assert!(
            dropped_count >= (count - LINES_WAITING_MAX) as u64 / 2,
            "{dropped_count} of {count} were dropped"
        );
        lines.push(vec![b'x'; BYTES_WAITING_MAX + 1]);
        assert_eq!(dropped.get(), dropped_count + 1);
        lines.flush(Duration::from_millis(1));
        let expected = count - usize::try_from(dropped_count).expect("few");
        let mut read = vec![0; expected * line.len()];
        reader.read_exact(&mut read).expect("the lines");
        assert_eq!(read, line.repeat(expected).into_bytes());
        // There are several reports if the queue was empty in between.
        let mut reported = 0;
        while reported <= dropped_count {
            reported += reports.recv_timeout(FOREVER).expect("dropped lines are reported");
        }
        assert_eq!(reported, dropped_count + 1);
        lines.flush(FOREVER);
        assert_eq!(dropped.get(), dropped_count + 1);
    }
}
