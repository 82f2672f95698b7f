//! A RabbitMQ node that belongs to one test.

use super::Broker;
use crate::harness::must_succeed;
use std::process::Command;
use tempfile::TempDir;

/// A node that belongs to one test, which may be stopped and started.
pub(crate) struct PrivateNode {
    dir: TempDir,
    pub(crate) broker: Broker,
}

impl PrivateNode {
    pub(crate) fn start() -> PrivateNode {
        let dir = tempfile::Builder::new().prefix("workflow-manager-broker-").tempdir().unwrap();
        script("start", &dir);
        let settings = std::fs::read_to_string(dir.path().join("env")).unwrap();
        let value = |name: &str| {
            let line =
                settings.lines().find_map(|line| line.strip_prefix(&format!("export {name}=")));
            line.unwrap_or_else(|| panic!("{name} is missing in {settings}"))
                .trim_matches('"')
                .to_owned()
        };
        let broker = Broker {
            server: value("AMQP_SERVER"),
            ctl: value("RABBITMQCTL"),
            management: value("RABBITMQ_MANAGEMENT"),
        };
        PrivateNode { dir, broker }
    }

    pub(crate) fn url(&self) -> &str {
        &self.broker.server
    }

    pub(crate) fn stop(&self) {
        script("stop", &self.dir);
    }

    /// Ends it at once, as a crash would.
    pub(crate) fn kill(&self) {
        script("kill", &self.dir);
    }

    pub(crate) fn start_again(&self) {
        script("start", &self.dir);
    }

    pub(crate) fn restart(&self) {
        script("restart", &self.dir);
    }
}

impl Drop for PrivateNode {
    fn drop(&mut self) {
        let _stopped = script_command("stop", &self.dir).status();
    }
}

#[track_caller]
fn script(command: &str, dir: &TempDir) {
    must_succeed(&mut script_command(command, dir));
}

fn script_command(command: &str, dir: &TempDir) -> Command {
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rabbitmq"));
    script.arg(command).arg(dir.path());
    script
}
