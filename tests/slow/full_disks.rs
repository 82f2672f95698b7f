//! File systems that are really full: a small one in memory, and ext4 in a file. Another program,
//! here the test itself, takes all that is free, again and again.

use crate::harness::{Daemon, Setup, command, eventually, must_succeed, run, when};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use tempfile::TempDir;
use uuid::Uuid;

const WORKFLOWS: &str = "workflows: [ { name: long, steps: [ { name: never, external: true } ] } ]";

const MEBIBYTES: u64 = 40;

const JOBS: usize = 200;

const LARGE: usize = 40_000;

/// Operations between which nobody else writes.
const AT_ONCE: usize = 10;

/// A file system of its own, mounted until this is dropped.
struct Disk(TempDir);

impl Disk {
    /// None, and a word about it, where nothing may be mounted.
    fn mounted(kind: &str) -> Option<Disk> {
        // As disks from 512 MB on have them.
        Disk::with_blocks(kind, 4096)
    }

    fn with_blocks(kind: &str, block_bytes: u32) -> Option<Disk> {
        let disk = Disk(tempfile::tempdir().unwrap());
        let (path, image) = (disk.path(), disk.0.path().join("image"));
        fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        match kind {
            "tmpfs" => mount.args(["-t", kind, "-o", &format!("size={MEBIBYTES}m"), kind]),
            _ => {
                File::create(&image).and_then(|file| file.set_len(MEBIBYTES << 20)).unwrap();
                let mut make = Command::new(format!("mkfs.{kind}"));
                // No blocks for root alone: what is full is full for everybody.
                let size = block_bytes.to_string();
                must_succeed(make.args(["-q", "-m", "0", "-b", &size]).arg(&image));
                mount.args(["-o", "loop,errors=remount-ro"]).arg(&image)
            }
        };
        let mounted = mount.arg(&path).output().unwrap();
        if !mounted.status.success() {
            let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
            let may = must_succeed(Command::new("id").arg("-u")).stdout.starts_with(b"0\n")
                && !why.contains("permission denied");
            assert!(!may, "no {kind} can be mounted: {why}");
            eprintln!("SKIPPED: {kind} cannot be mounted here (root only): {why}");
            return None;
        }
        Some(disk)
    }

    /// Mounts what is in the file once more, as after a check of it.
    fn mount_again(&self) {
        must_succeed(Command::new("umount").arg(self.path()));
        let image = self.0.path().join("image");
        let checked = Command::new("fsck.ext4").arg("-fy").arg(&image).output().unwrap();
        assert!(checked.status.code().is_some_and(|code| code <= 1), "{checked:?}");
        must_succeed(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(self.path()));
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("mounted")
    }

    /// Takes all that is free; how much that was, in bytes.
    fn fill(&self) -> u64 {
        let mut taken = 0;
        let mut file =
            OpenOptions::new().create(true).append(true).open(self.path().join("theirs")).unwrap();
        for size in [1 << 20, 1 << 16, 1 << 12, 1 << 9] {
            let piece = vec![b'x'; size];
            while let Ok(written) = file.write(&piece) {
                taken += written as u64;
            }
        }
        taken
    }

    fn give_back(&self) {
        fs::remove_file(self.path().join("theirs")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: of a test that has failed a process may still have it open.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

/// A daemon whose journal is on this disk; its log is not.
fn on(disk: &Disk) -> Setup {
    let mut setup = Setup::new("", WORKFLOWS)
        .set("journal.full_retry", "100ms")
        // To take what is free may take longer than connections are kept else.
        .set("http.keep_alive", "5m");
    let dir = setup.dir.path();
    symlink(disk.path().join("journal.db"), dir.join("journal.db")).unwrap();
    setup.stderr = Some(File::create(dir.join("errors")).unwrap());
    setup
}

fn fresh(daemon: &Daemon, count: usize) -> Vec<Uuid> {
    (0..count).map(|_| daemon.api.create("long", r#"{"n":1}"#)).collect()
}

/// Cancels jobs, while the other program goes on to take what is free.
#[track_caller]
fn cancel(daemon: &Daemon, disk: &Disk, jobs: &[Uuid]) {
    for some in jobs.chunks(AT_ONCE) {
        for id in some {
            daemon.api.post(&format!("/api/job/{id}/cancel"), "").expect(200);
        }
        disk.fill();
    }
}

/// Deletes them in the same way.
#[track_caller]
fn erase(daemon: &Daemon, disk: &Disk, jobs: &[Uuid]) {
    for some in jobs.chunks(AT_ONCE) {
        for id in some {
            daemon.api.delete(&format!("/api/job/{id}?erase=true")).expect(200);
        }
        disk.fill();
    }
}

/// Creates jobs until there is no room; the ids of those that were accepted, and the thread in
/// which one more is waited for.
fn until_full(daemon: &Daemon) -> (Vec<Uuid>, thread::JoinHandle<()>) {
    let body = format!(r#"{{"n":"{}"}}"#, "x".repeat(LARGE));
    let ((sender, accepted), api) = (mpsc::channel(), daemon.api.clone());
    let is_red = Arc::new(AtomicBool::new(false));
    let seen = is_red.clone();
    let creates = thread::spawn(move || {
        while !seen.load(Ordering::SeqCst) {
            // One waits until there is room, which may be too long for it.
            let created = api.try_send("POST", "/api/workflow/long", &[], Some(body.as_bytes()));
            let Ok(answer) = created else { return };
            if answer.status != 201 {
                return drop(answer.expect_problem(503, &["no room on the disk"]));
            }
            // Nobody asks for the one that has waited.
            let _ = sender.send(answer.id());
        }
    });
    eventually("readiness is red", || {
        let answer = daemon.api.get("/readyz?verbose");
        when(answer.status == 503 && answer.text.contains("no room on the disk"), &answer)
    });
    is_red.store(true, Ordering::SeqCst);
    (accepted.try_iter().collect(), creates)
}

fn a_full_disk_is_emptied(disk: Option<Disk>) {
    let Some(disk) = disk else { return };
    let mut daemon = on(&disk).start();
    let mut small = fresh(&daemon, JOBS);
    let reserve = || {
        let file = disk.path().join("journal.db.reserve");
        fs::metadata(file).map_or(0, |file| file.len())
    };
    let whole = reserve();
    disk.fill();
    let (large, waits) = until_full(&daemon);

    // What runs can be cancelled, lists tell it, and what has ended can be deleted.
    let gone: Vec<Uuid> = small.drain(..JOBS / 2).collect();
    cancel(&daemon, &disk, &gone);
    cancel(&daemon, &disk, &large);
    let count = daemon.api.get("/api/jobs/search?state=cancelled&count=true&limit=1");
    let wanted = format!(r#""count":{}"#, gone.len() + large.len());
    assert!(count.status == 200 && count.text.contains(&wanted), "{count}");
    for id in &gone {
        assert_eq!(daemon.api.job(*id).state, "cancelled");
    }
    erase(&daemon, &disk, &gone);
    erase(&daemon, &disk, &large);

    // Whatever was given up of the reserve is there again, but for what the file has grown by.
    assert!(reserve() >= whole / 4, "{} of {whole}", reserve());

    // That makes room in the file: what waited goes on, on a disk that is as full as before.
    daemon.await_ready();
    waits.join().unwrap();
    let after = fresh(&daemon, 3);
    assert!(disk.fill() < 1 << 20, "the disk is full");
    for id in &after {
        assert_eq!(daemon.api.job(*id).state, "running");
    }

    // A stop leaves all in one file, and a start reads and empties it, after a kill too.
    assert!(daemon.stop().success());
    assert!(!disk.path().join("journal.db-wal").exists(), "all is in the main file");
    disk.fill();
    for is_killed in [false, true] {
        daemon.spawn_again();
        daemon.await_alive();
        let next: Vec<Uuid> = small.drain(..10).collect();
        assert_eq!(daemon.api.job(next[0]).state, "running");
        cancel(&daemon, &disk, &next);
        erase(&daemon, &disk, &next);
        let copy = daemon.dir().join(format!("copy-{is_killed}.db"));
        let ran = run(command().arg("backup").arg(&copy).arg("--db").arg(daemon.database()));
        assert_eq!(ran.code, Some(0), "a backup to another disk: {ran}");
        disk.fill();
        if is_killed {
            daemon.kill();
        } else {
            assert!(daemon.stop().success());
        }
        disk.fill();
    }

    // With room again the reserve is whole again.
    disk.give_back();
    daemon.start_again();
    let whole = (MEBIBYTES << 20) / 5;
    let reserve = disk.path().join("journal.db.reserve");
    eventually("the reserve is whole", || {
        let bytes = fs::metadata(&reserve).map_or(0, |file| file.len());
        when(bytes > whole && is_allocated(&reserve), bytes)
    });
    for id in &small {
        assert_eq!(daemon.api.job(*id).state, "running", "nothing is lost");
    }
    assert!(daemon.stop().success());
}

/// Whether a file has blocks for all its bytes.
fn is_allocated(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|file| file.blocks() * 512 >= file.len())
}

#[test]
fn a_full_tmpfs_is_emptied_by_cancelling_and_deleting_over_restarts() {
    a_full_disk_is_emptied(Disk::mounted("tmpfs"));
}

#[test]
fn a_full_ext4_is_emptied_by_cancelling_and_deleting_over_restarts() {
    a_full_disk_is_emptied(Disk::mounted("ext4"));
}

/// With blocks that are smaller than a page of memory, SQLite's own way leaves most of its `-shm`
/// without room, and the kernel kills who writes there.
#[test]
fn a_full_ext4_of_small_blocks_is_emptied_too() {
    a_full_disk_is_emptied(Disk::with_blocks("ext4", 1024));
}

/// What was committed in the reserve is answered as such, whatever goes wrong behind the commit.
#[test]
fn an_error_behind_a_commit_in_the_reserve_does_not_deny_the_commit() {
    let Some(disk) = Disk::mounted("tmpfs") else { return };
    let mut daemon = on(&disk).faults("journal::limit=return(io)").start();
    let jobs = fresh(&daemon, AT_ONCE);
    disk.fill();
    let (_, waits) = until_full(&daemon);
    cancel(&daemon, &disk, &jobs);
    for id in &jobs {
        assert_eq!(daemon.api.job(*id).state, "cancelled");
    }
    let errors = fs::read_to_string(daemon.dir().join("errors")).unwrap();
    assert!(errors.contains("the reserve of the journal is not kept"), "it was hit: {errors}");
    disk.give_back();
    waits.join().unwrap();
    assert!(daemon.stop().success());
}

/// A disk that is read-only from one moment to the next, as the kernel makes it after an error: the
/// process ends, and each start says why it cannot.
#[test]
fn a_disk_that_turns_read_only_ends_the_process_and_each_start_says_why() {
    let Some(disk) = Disk::mounted("ext4") else { return };
    let mut daemon = on(&disk).start();
    let kept = fresh(&daemon, 3);
    // As the kernel does it after an error of the disk.
    let source =
        must_succeed(Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(disk.path()));
    let source = String::from_utf8(source.stdout).unwrap();
    let device = source.trim().trim_start_matches("/dev/");
    fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "for a test").unwrap();
    eventually("it is read-only", || {
        when(File::create(disk.path().join("probe")).is_err(), "it can be written")
    });
    let _unanswered = daemon.api.try_send("POST", "/api/workflow/long", &[], Some(b"{}"));
    assert_eq!(daemon.await_end().code(), Some(74), "an I/O error ends the process");
    daemon.spawn_again();
    assert!(!daemon.await_end().success());
    let errors = fs::read_to_string(daemon.dir().join("errors")).unwrap();
    assert!(errors.contains("read-only") || errors.contains("Read-only"), "{errors}");
    disk.mount_again();
    daemon.start_again();
    for id in kept {
        assert_eq!(daemon.api.job(id).state, "running");
    }
    assert!(daemon.stop().success());
}
