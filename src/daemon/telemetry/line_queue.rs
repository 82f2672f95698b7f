//! The queue of lines on their way to standard error. Other threads push their lines and go on; one
//! thread writes them, and only this thread waits for the disk, the pipe or the terminal. Lines
//! that it cannot write, or that find the queue full, are dropped and counted.

use prometheus::IntCounter;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The most lines that wait to be written.
const LINES_WAITING_MAX: usize = 10_000;

/// The most bytes of lines that wait to be written.
const BYTES_WAITING_MAX: usize = 4 * 1024 * 1024;

/// The pause before the next try on a non-blocking file descriptor that is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The queue of lines that wait to be written.
pub(super) struct LineQueue {
    backlog: Mutex<Backlog>,
    arrived: Condvar,
    written: Condvar,
    dropped: IntCounter,
}

#[derive(Default)]
struct Backlog {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Whether a line was taken out and is being written.
    is_writing: bool,
}

impl LineQueue {
    /// Starts a thread that writes lines to `out`. When lines get through again, it calls
    /// `report_dropped` with the number of lines that were dropped.
    pub(super) fn start(
        out: impl Write + Send + 'static,
        dropped: IntCounter,
        report_dropped: fn(u64),
    ) -> io::Result<Arc<LineQueue>> {
        // Read before the thread starts, so that lines which are dropped until then are reported,
        // too.
        let reported = dropped.get();
        let lines = Arc::new(LineQueue {
            backlog: Mutex::default(),
            arrived: Condvar::new(),
            written: Condvar::new(),
            dropped,
        });
        let writer = lines.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            writer.write_all(Sink { out, is_torn: false }, report_dropped, reported)
        })?;
        Ok(lines)
    }

    /// Adds a line, which ends in a line break. Never waits.
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

    /// Waits until all lines are written or dropped, but no longer than `most`.
    pub(super) fn flush(&self, timeout: Duration) {
        let is_busy = |waiting: &mut Backlog| waiting.is_writing || !waiting.lines.is_empty();
        // Lines that are left when the time is over are lost.
        let _ = self.written.wait_timeout_while(self.lock(), timeout, is_busy);
    }

    fn write_all(&self, mut sink: Sink<impl Write>, report_dropped: fn(u64), mut reported: u64) {
        loop {
            let line = self.next_line();
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

    fn next_line(&self) -> Vec<u8> {
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
        self.written.notify_all();
        backlog.lines.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The output to which the lines are written.
struct Sink<W> {
    out: W,
    /// Whether the last line was begun and could not be finished.
    is_torn: bool,
}

impl<W: Write> Sink<W> {
    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.write(b"\n")?;
        }
        self.write(line)
    }

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

    /// A writer that takes few bytes at a time, and fails where the test wants it.
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
        let answers = VecDeque::from([
            Some(Interrupted),
            None,
            Some(WouldBlock),
            None,
            Some(BrokenPipe),
            None,
            Some(StorageFull),
        ]);
        let lines = LineQueue::start(
            FlakyWriter { written: Arc::clone(&written), failures: answers },
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
            let sent = REPORTS.lock().expect("no panic").as_ref().map(|report| report.send(count));
            assert!(sent.is_some_and(|result| result.is_ok()));
        });
        let lines = lines.expect("a thread");
        // Nobody reads: far more is pushed than the pipe and the queue hold, and no call waits.
        let count = 3 * LINES_WAITING_MAX;
        let line = format!("{}\n", "x".repeat(99));
        for _ in 0..count {
            lines.push(line.clone().into());
        }
        let lost = dropped.get();
        assert!(lost >= (count - LINES_WAITING_MAX) as u64 / 2, "{lost} of {count} were dropped");
        lines.push(vec![b'x'; BYTES_WAITING_MAX + 1]);
        assert_eq!(dropped.get(), lost + 1);
        lines.flush(Duration::from_millis(1));
        let expected = count - usize::try_from(lost).expect("few");
        let mut read = vec![0; expected * line.len()];
        reader.read_exact(&mut read).expect("the lines");
        assert_eq!(read, line.repeat(expected).into_bytes());
        // Reported in parts, if all that waited got through in between.
        let mut reported = 0;
        while reported <= lost {
            reported += reports.recv_timeout(FOREVER).expect("told");
        }
        assert_eq!(reported, lost + 1);
        lines.flush(FOREVER);
        assert_eq!(dropped.get(), lost + 1);
    }
}
