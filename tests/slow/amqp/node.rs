//! A RabbitMQ node that belongs to one test, or a cluster of three.

use super::Broker;
use crate::harness::must_succeed;
use serde_json::Value;
use std::{
    path::Path,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tempfile::TempDir;

/// A node that belongs to one test, which may be stopped and started.
pub(crate) struct PrivateNode {
    dir: TempDir,
    pub(crate) broker: Broker,
}

impl PrivateNode {
    pub(crate) fn start() -> PrivateNode {
        let dir = tempfile::Builder::new().prefix("workflow-manager-broker-").tempdir().unwrap();
        script("start", dir.path());
        let broker = read_env(dir.path());
        PrivateNode { dir, broker }
    }

    pub(crate) fn url(&self) -> &str {
        &self.broker.server
    }

    pub(crate) fn stop(&self) {
        script("stop", self.dir.path());
    }

    /// Ends it at once, as a crash would.
    pub(crate) fn kill(&self) {
        script("kill", self.dir.path());
    }

    pub(crate) fn start_again(&self) {
        script("start", self.dir.path());
    }

    pub(crate) fn restart(&self) {
        script("restart", self.dir.path());
    }
}

impl Drop for PrivateNode {
    fn drop(&mut self) {
        let _stopped = script_command("stop", self.dir.path()).status();
    }
}

/// Held by the cluster that is there: three nodes are a load, and nodes that get no time are taken
/// to be dead.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Three nodes that belong to one test, and pause where they are in a minority.
pub(crate) struct PrivateCluster {
    dir: TempDir,
    nodes: Vec<Broker>,
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl PrivateCluster {
    pub(crate) fn start() -> PrivateCluster {
        let one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::Builder::new().prefix("workflow-manager-cluster-").tempdir().unwrap();
        script("start-cluster", dir.path());
        let nodes = NODES.map(|node| read_env(&dir.path().join(node))).into();
        PrivateCluster { dir, nodes, _one_at_a_time: one_at_a_time }
    }

    /// The addresses of all nodes, with commas between them.
    pub(crate) fn urls(&self) -> String {
        self.nodes.iter().map(|node| node.server.as_str()).collect::<Vec<_>>().join(",")
    }

    /// The addresses of the management API of all nodes, with credentials.
    pub(crate) fn management_urls(&self) -> String {
        self.nodes.iter().map(Broker::management_url).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn node(&self, position: usize) -> &Broker {
        &self.nodes[position]
    }

    /// The position of the node with this host and port.
    pub(crate) fn position_of(&self, authority: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.server.contains(&format!("@{authority}/")))
    }

    /// The position of the node that leads a quorum queue; `None` while there is an election.
    pub(crate) fn leader_of(&self, queue: &str, asked: usize) -> Option<usize> {
        let listed = self.nodes[asked].try_read_queue(queue)?;
        let leader = listed["leader"].as_str()?.split('@').next()?.to_owned();
        let is_online = |node: &serde_json::Value| {
            node.as_str().is_some_and(|node| node.starts_with(&format!("{leader}@")))
        };
        listed["online"].as_array()?.iter().any(is_online).then_some(())?;
        leader.rsplit('-').next()?.parse::<usize>().ok()?.checked_sub(1)
    }

    /// Ends a node at once, as a crash would.
    pub(crate) fn kill(&self, position: usize) {
        script("kill", &self.dir.path().join(NODES[position]));
    }

    pub(crate) fn start_again(&self, position: usize) {
        script("start", &self.dir.path().join(NODES[position]));
    }

    /// Stops a node cleanly, and starts it again.
    pub(crate) fn restart(&self, position: usize) {
        script("restart", &self.dir.path().join(NODES[position]));
    }

    /// What the first node that answers says of a queue.
    pub(crate) fn try_read_queue(&self, queue: &str) -> Option<Value> {
        self.nodes.iter().find_map(|node| node.try_read_queue(queue))
    }

    /// Cuts a node off from the others, while clients reach it as before; or joins it again.
    pub(crate) fn cut_off(&self, position: usize, is_cut: bool) {
        let cookie = if is_cut { "'another cookie'" } else { "erlang:get_cookie()" };
        let command = format!(
            "Base = hd(string:split(atom_to_list(node()), \"-\", trailing)), \
             Names = [list_to_atom(Base ++ \"-\" ++ N ++ \"@localhost\") || N <- [\"1\", \"2\", \
             \"3\"]], [begin erlang:set_cookie(Name, {cookie}), erlang:disconnect_node(Name) end \
             || Name <- Names, Name =/= node()]."
        );
        self.nodes[position].ctl(&["eval", &command]);
    }
}

impl Drop for PrivateCluster {
    fn drop(&mut self) {
        for (position, _) in self.nodes.iter().enumerate() {
            let pid_file = self.dir.path().join(NODES[position]).join("node.pid");
            if let Ok(pid) = std::fs::read_to_string(pid_file) {
                let _gone = Command::new("kill").arg("-CONT").arg(pid.trim()).status();
            }
        }
        if std::thread::panicking() {
            let _killed =
                NODES.map(|node| script_command("kill", &self.dir.path().join(node)).status());
        }
        let _stopped = script_command("stop-cluster", self.dir.path()).status();
    }
}

/// The directories of the nodes of a cluster.
const NODES: [&str; 3] = ["1", "2", "3"];

/// What the script has written about a node.
fn read_env(dir: &Path) -> Broker {
    let settings = std::fs::read_to_string(dir.join("env")).unwrap();
    let value = |name: &str| {
        let line = settings.lines().find_map(|line| line.strip_prefix(&format!("export {name}=")));
        line.unwrap_or_else(|| panic!("{name} is missing in {settings}"))
            .trim_matches('"')
            .to_owned()
    };
    Broker {
        server: value("AMQP_SERVER"),
        ctl: value("RABBITMQCTL"),
        management: value("RABBITMQ_MANAGEMENT"),
    }
}

#[track_caller]
fn script(command: &str, dir: &Path) {
    must_succeed(&mut script_command(command, dir));
}

fn script_command(command: &str, dir: &Path) -> Command {
    let mut script = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rabbitmq"));
    script.arg(command).arg(dir);
    script
}
