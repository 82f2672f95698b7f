//! Tests that need a process of their own: a failpoint affects all threads of a process.

use std::io::{self, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Whoever has this in the environment is the process of one such test.
const ALONE: &str = "TEST_ALONE";

/// Runs a scenario in a process of its own. `test` is the name of the test that asks for it.
pub(crate) fn alone(test: &str, scenario: impl Future<Output = ()>) {
    if std::env::var_os(ALONE).is_some() {
        let _failpoints = fail::FailScenario::setup();
        return actix_rt::System::new().block_on(scenario);
    }
    let own = std::env::current_exe().expect("this program");
    let output = Command::new(own)
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// What a process of one test logs.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Keeps all lines from now on.
    pub(crate) fn begin() -> Log {
        let log = Log::default();
        let writer = log.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
        log
    }

    /// Whether a line with these words was logged.
    pub(crate) fn has(&self, words: &str) -> bool {
        self.count(words) > 0
    }

    /// How many lines with these words were logged.
    pub(crate) fn count(&self, words: &str) -> usize {
        let bytes = self.0.lock().expect("no panic");
        String::from_utf8_lossy(&bytes).lines().filter(|line| line.contains(words)).count()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
