//! The journal's file on a volume that moves to another node: the node dies under load, the volume
//! is taken from it, checked, and attached elsewhere (docs/how-to/failover-with-a-file.md).

use crate::harness::{Api, Daemon, Setup, eventually, must_succeed, when};
use crate::postgres::{CHAIN, HttpWorker};
use rusqlite::Connection;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::thread::{self, JoinHandle};
use tempfile::TempDir;
use uuid::Uuid;

/// How many creations are answered before the node dies.
const JOBS_MIN: usize = 40;

/// Ends a mounted file system at once, as when its volume is detached: what was not synced is lost.
/// The argument is its mount point. This is the kernel's `FS_IOC_SHUTDOWN`, without a flush.
const DETACH: &str = "import fcntl, os, struct, sys
node = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(node, 0x8004587D, struct.pack('I', 2))";

/// A volume with ext4, attached to at most one node.
struct Volume(TempDir);

impl Volume {
    fn create() -> Volume {
        let volume = Volume(tempfile::tempdir().unwrap());
        let image = volume.image();
        File::create(&image).and_then(|file| file.set_len(64 << 20)).unwrap();
        must_succeed(Command::new("mkfs.ext4").arg("-q").arg(&image));
        volume
    }

    fn image(&self) -> PathBuf {
        self.0.path().join("image")
    }

    /// Where the volume is mounted on a node.
    fn mounted(&self, node: &str) -> PathBuf {
        self.0.path().join(node)
    }

    /// Attaches it to a node. False, with a word about it, where nothing may be mounted.
    fn attach(&self, node: &str) -> bool {
        fs::create_dir(self.mounted(node)).unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-o", "loop"]).arg(self.image()).arg(self.mounted(node)).output();
        let mounted = mounted.unwrap();
        if !mounted.status.success() {
            let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
            eprintln!("SKIPPED: ext4 cannot be mounted here (root only): {why}");
        }
        mounted.status.success()
    }

    /// Takes it from a node, whatever that one does.
    fn fence(&self, node: &str) {
        let mounted = self.mounted(node);
        must_succeed(Command::new("python3").args(["-c", DETACH]).arg(&mounted));
    }

    /// Checks it, once no node has it.
    fn check(&self, node: &str) {
        must_succeed(Command::new("umount").arg(self.mounted(node)));
        let checked = Command::new("fsck.ext4").arg("-fp").arg(self.image()).output().unwrap();
        assert!(checked.status.code().is_some_and(|code| code <= 1), "{checked:?}");
    }

    /// A daemon on a node.
    fn start(&self, node: &str) -> Daemon {
        let setup = Setup::new("", CHAIN).set("embedded.lease", "2s");
        symlink(self.mounted(node).join("journal.db"), setup.dir.path().join("journal.db"))
            .unwrap();
        setup.start()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        for node in ["one", "two"] {
            // Lazily: a daemon of a test that has failed may still have it open.
            let _ = Command::new("umount").arg("-l").arg(self.mounted(node)).output();
        }
    }
}

/// Creates jobs until the node is dead. Returns those that were answered.
fn create_until_dead(api: Api) -> JoinHandle<Vec<Uuid>> {
    thread::spawn(move || {
        let mut answered = Vec::new();
        loop {
            match api.try_send("POST", "/api/workflow/chain", &[], Some(b"{\"n\":1}")) {
                Ok(answer) if answer.status == 201 => answered.push(answer.id()),
                Ok(_) => {}
                Err(_) => return answered,
            }
        }
    })
}

#[test]
fn a_volume_that_moves_under_load_loses_nothing_that_was_answered() {
    let volume = Volume::create();
    if !volume.attach("one") {
        return;
    }
    let mut first = volume.start("one");
    let worker = HttpWorker::start(vec![first.api.anew()]);
    let creations = create_until_dead(first.api.anew());
    eventually("jobs are created and worked on", || {
        let counted = first.api.get("/api/jobs/search?state=completed&limit=40").expect(200).json();
        let completed = counted["jobs"].as_array().map_or(0, Vec::len);
        when(completed >= JOBS_MIN, completed)
    });
    // First the volume is taken away: what the node still does reaches nobody's journal.
    volume.fence("one");
    first.kill_if_alive();
    let answered = creations.join().unwrap();
    drop(worker);
    assert!(answered.len() >= JOBS_MIN, "{}", answered.len());
    volume.check("one");
    assert!(volume.attach("two"));
    let mut second = volume.start("two");
    let _worker = HttpWorker::start(vec![second.api.anew()]);
    for job in answered {
        second.api.await_state(job, "completed");
    }
    assert!(second.stop().success());
    let journal = Connection::open(volume.mounted("two").join("journal.db")).unwrap();
    let repeated = "SELECT count(*) FROM (
        SELECT e.job, json_extract(v.value, '$.step[0]') FROM entries e, json_each(e.body) v
        WHERE json_type(v.value, '$.step[1].completed') IS NOT NULL GROUP BY 1, 2
        HAVING count(*) <> 1)";
    let repeated: i64 = journal.query_row(repeated, [], |row| row.get(0)).unwrap();
    assert_eq!(repeated, 0, "each step has one result");
}
