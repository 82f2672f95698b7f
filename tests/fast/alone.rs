//! Tests that need a process of their own: a failpoint affects all threads of a process.

use std::process::Command;

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
