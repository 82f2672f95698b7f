//! The queue of log lines for standard error. Any thread pushes lines without blocking. A single
//! thread writes them, so that no other thread waits for the disk, the pipe or the terminal. Lines
//! that it cannot write, or that arrive while the queue is full, are dropped and counted.

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

/// The pause before a retry when a non-blocking file descriptor accepts no more bytes.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The queue of lines that wait to be written.
pub(super) struct LineQueue {
    backlog: Mutex<Backlog>,
    /// Notified when a line has arrived.
    line_arrived: Condvar,
    /// Notified when a line was written or dropped by the thread.
    line_finished: Condvar,
    /// Counts the lines that were dropped.
    dropped: IntCounter,
}

/// The lines that wait to be written.
#[derive(Default)]
struct Backlog {
    lines: VecDeque<Vec<u8>>,
    /// The total length of `lines`, in bytes.
    bytes: usize,
    /// Whether the thread is writing a line that it has taken out of `lines`.
    is_writing: bool,
}

impl LineQueue {
    /// Starts a thread that writes lines to `out`. After drops, once a line was written and no
    /// others wait, the thread calls `report_dropped` with the number of dropped lines.
    pub(super) fn start(
        out: impl Write + Send + 'static,
        dropped: IntCounter,
        report_dropped: fn(u64),
    ) -> io::Result<Arc<LineQueue>> {
        // Read here, so that lines that are dropped before the thread runs are reported too.
        let initial_count = dropped.get();
        let queue = Arc::new(LineQueue {
            backlog: Mutex::default(),
            line_arrived: Condvar::new(),
            line_finished: Condvar::new(),
            dropped,
        });
        let thread_queue = queue.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            thread_queue.run(Sink { out, is_torn: false }, report_dropped, initial_count)
        })?;
        Ok(queue)
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
        self.line_arrived.notify_one();
    }

    /// Waits until all lines are written or dropped, but no longer than `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let is_busy = |backlog: &mut Backlog| backlog.is_writing || !backlog.lines.is_empty();
        // After a timeout, the lines that still wait are lost if the process ends.
        let _ = self.line_finished.wait_timeout_while(self.lock(), timeout, is_busy);
    }

    /// Writes lines in an endless loop. Dropped lines that count towards `reported_count` were
    /// reported already, or need no report.
    fn run(&self, mut sink: Sink<impl Write>, report_dropped: fn(u64), mut reported_count: u64) {
        loop {
            let line = self.take_line();
            let is_written = sink.write_line(&line).is_ok();
            if !is_written {
                self.dropped.inc();
            }
            let is_last = self.finish_line();
            let dropped_count = self.dropped.get();
            if is_written && is_last && dropped_count > reported_count {
                report_dropped(dropped_count - reported_count);
                reported_count = dropped_count;
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
            backlog = self.line_arrived.wait(backlog).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records that the line that was taken out is written or dropped. Returns whether the queue is
    /// empty.
    fn finish_line(&self) -> bool {
        let mut backlog = self.lock();
        backlog.is_writing = false;
        self.line_finished.notify_all();
        backlog.lines.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The output to which the lines are written.
struct Sink<W> {
    out: W,
    /// Whether the last line was written only in part.
    is_torn: bool,
}

impl<W: Write> Sink<W> {
    /// Writes a line. If the previous line was written only in part, ends that line first.
    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.write(b"\n")?;
        }
        self.write(line)
    }

    /// Writes all bytes. While a non-blocking output is full, retries after [`RETRY_INTERVAL`].
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

    /// A writer that accepts at most three bytes per call, and fails in the calls that the test
    /// chooses.
    struct FlakyWriter {
        output: Arc<Mutex<Vec<u8>>>,
        /// The error of each of the next calls; `None` for success.
        failures: VecDeque<Option<ErrorKind>>,
    }

    impl Write for FlakyWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if let Some(Some(kind)) = self.failures.pop_front() {
                return Err(kind.into());
            }
            let count = bytes.len().min(3);
            self.output.lock().expect("no panic").extend_from_slice(&bytes[..count]);
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
        let (output, dropped) = (Arc::default(), counter());
        let failures = VecDeque::from([
            Some(Interrupted),
            None,
            Some(WouldBlock),
            None,
            Some(BrokenPipe),
            None,
            Some(StorageFull),
        ]);
        let queue = LineQueue::start(
            FlakyWriter { output: Arc::clone(&output), failures },
            dropped.clone(),
            |_| (),
        )
        .expect("a thread");
        // Writing "one two" fails after six bytes. The next line break ends that line; the error
        // after it drops the second line.
        for line in ["one two\n", "lost\n", "whole\n"] {
            queue.push(line.into());
            queue.flush(FOREVER);
        }
        assert_eq!(String::from_utf8_lossy(&output.lock().expect("no panic")), "one tw\nwhole\n");
        assert_eq!(dropped.get(), 2);
    }

    #[test]
    fn dropped_lines_are_reported_when_lines_get_through_again() {
        static REPORTS: Mutex<Option<mpsc::Sender<u64>>> = Mutex::new(None);
        let (sender, reports) = mpsc::channel();
        *REPORTS.lock().expect("no panic") = Some(sender);
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let dropped = counter();
        let queue = LineQueue::start(writer, dropped.clone(), |count| {
            let result =
                REPORTS.lock().expect("no panic").as_ref().map(|report| report.send(count));
            assert!(result.is_some_and(|result| result.is_ok()));
        });
        let queue = queue.expect("a thread");
        // Nobody reads. Far more lines are pushed than the pipe and the queue can hold, and no call
        // blocks.
        let count = 3 * LINES_WAITING_MAX;
        let line = format!("{}\n", "x".repeat(99));
        for _ in 0..count {
            queue.push(line.clone().into());
        }
        let dropped_count = dropped.get();
        assert!(
            dropped_count >= (count - LINES_WAITING_MAX) as u64 / 2,
            "{dropped_count} of {count} were dropped"
        );
        queue.push(vec![b'x'; BYTES_WAITING_MAX + 1]);
        assert_eq!(dropped.get(), dropped_count + 1);
        queue.flush(Duration::from_millis(1));
        let expected_count = count - usize::try_from(dropped_count).expect("few");
        let mut output = vec![0; expected_count * line.len()];
        reader.read_exact(&mut output).expect("the lines");
        assert_eq!(output, line.repeat(expected_count).into_bytes());
        // There are several reports if the queue was empty in between.
        let mut reported_count = 0;
        while reported_count <= dropped_count {
            reported_count += reports.recv_timeout(FOREVER).expect("dropped lines are reported");
        }
        assert_eq!(reported_count, dropped_count + 1);
        queue.flush(FOREVER);
        assert_eq!(dropped.get(), dropped_count + 1);
    }
}
