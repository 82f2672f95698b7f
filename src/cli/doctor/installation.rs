//! Checks of this machine: settings, workflow files, the journal and its disk.

use super::finding::Finding;
use crate::arguments::SettingsArguments;
use crate::plural::format_count;
use base::trust::Authorities;
use daemon::load;
use daemon::settings::Settings;
use engine::{Definition, Step};
use journal::{PostgresJournal, PostgresOptions, Reader};
use rustix::fs::{Access, Mode, OFlags, access, fstat, open, statvfs};
use rustix::io::Errno;
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Less free disk space than this, in bytes, is a warning.
const FREE_BYTES_WARNING: u64 = 1 << 30;

/// Less free disk space than this, in bytes, is an error: about 100 MiB.
const FREE_BYTES_ERROR: u64 = FREE_BYTES_WARNING / 10;

/// The permission bits of a file's mode, without its type.
const PERMISSION_BITS: u32 = 0o777;

/// The permission bits of users other than the owner and the group. The bits of the group are not
/// checked, because an operator may set them on purpose.
const OTHERS_MASK: u32 = 0o007;

/// An installation with valid settings.
pub(super) struct Installation {
    pub(super) settings: Settings,
    /// The certificate authorities that the settings trust.
    pub(super) authorities: Authorities,
    /// The definitions in the workflow files. Empty if the files are not valid.
    pub(super) definitions: Vec<Arc<Definition>>,
    /// Whether a process has the journal open; `None`: it is in memory, or this cannot be found
    /// out.
    pub(super) is_journal_open: Option<bool>,
}

impl Installation {
    /// Returns the steps that send over a bus, each with its definition.
    pub(super) fn steps_on_bus(&self, bus: &str) -> impl Iterator<Item = (&Definition, &Step)> {
        let default_bus = self.settings.default_bus();
        let sending_steps = self.definitions.iter().flat_map(|definition| {
            definition.sending_steps().map(move |step| (&**definition, step))
        });
        sending_steps.filter(move |(_, step)| step.bus.as_deref().unwrap_or(default_bus) == bus)
    }
}

/// Returns whether any setting is given by the arguments or the environment.
pub(super) fn has_settings(arguments: &SettingsArguments) -> bool {
    let SettingsArguments { workflows, amqp_server, db, listen, config, insecure } = arguments;
    let has_flags = !workflows.is_empty()
        || *insecure
        || [amqp_server.is_some(), db.is_some(), listen.is_some(), config.is_some()]
            .contains(&true);
    has_flags
        || std::env::vars_os().any(|(name, _)| {
            let name = name.to_string_lossy();
            name == "AMQP_SERVER" || name.starts_with("WORKFLOW_MANAGER__")
        })
}

/// Checks the settings, then the workflow files and the journal that they name. Returns `None` if
/// the settings are not valid.
pub(super) fn inspect(
    arguments: &SettingsArguments,
    findings: &mut Vec<Finding>,
) -> Option<Installation> {
    let result = Settings::load(arguments.config.as_deref(), &arguments.overrides());
    let result = result.map_err(|error| error.to_string()).and_then(|settings| {
        let authorities = settings.authorities()?;
        Ok((settings, authorities))
    });
    let (settings, authorities) = match result {
        Ok((settings, authorities)) => (settings, authorities),
        Err(error) => {
            let remedy = "mend it; workflow-manager serve --print-settings shows what is in force";
            findings.push(Finding::error("settings", error, remedy));
            return None;
        }
    };
    let text = arguments.config.as_ref().map_or_else(
        || "defaults, flags and environment are valid".to_owned(),
        |file| format!("{} is valid", file.display()),
    );
    findings.push(Finding::ok("settings", text));
    let definitions = check_workflows(&settings, findings);
    let is_journal_open = check_journal(&settings, findings);
    Some(Installation { settings, authorities, definitions, is_journal_open })
}

/// Returns the address by which a listener can be reached from this machine.
pub(super) fn to_loopback(mut listen: SocketAddr) -> SocketAddr {
    if listen.ip().is_unspecified() {
        listen.set_ip(match listen {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    listen
}

/// Checks the workflow files. Returns their definitions, or none if a file is not valid.
fn check_workflows(settings: &Settings, findings: &mut Vec<Finding>) -> Vec<Arc<Definition>> {
    if settings.workflows.is_empty() {
        let remedy = "name files with --workflows or the setting workflows";
        findings.push(Finding::warning("workflows", "no workflow file is named", remedy));
        return Vec::new();
    }
    match load::load_for_manager(&settings.workflows, settings) {
        Ok(loaded) => {
            let files = format_count(settings.workflows.len(), "file");
            let workflows = format_count(loaded.definitions.len(), "workflow");
            let summary = format!("{workflows} in {files}, valid");
            findings.push(Finding::ok("workflows", summary));
            for warning in &loaded.warnings {
                let remedy = "see workflow-manager check";
                findings.push(Finding::warning("workflows", warning.to_string(), remedy));
            }
            loaded.definitions
        }
        Err(errors) => {
            for error in &errors.0 {
                let remedy = "mend the file; until then a start or reload fails";
                findings.push(Finding::error("workflows", error.to_string(), remedy));
            }
            Vec::new()
        }
    }
}

/// Checks the journal and its disk. Returns [`Installation::is_journal_open`].
fn check_journal(settings: &Settings, findings: &mut Vec<Finding>) -> Option<bool> {
    match settings.postgres_options() {
        Ok(None) => check_journal_file(settings, findings),
        Ok(Some(options)) => check_database(options, findings),
        Err(error) => {
            findings.push(Finding::error("journal", error, "mend the setting"));
            None
        }
    }
}

/// Checks the database of the journal. Returns [`Installation::is_journal_open`].
fn check_database(options: PostgresOptions, findings: &mut Vec<Finding>) -> Option<bool> {
    let server = options.server.to_string();
    match PostgresJournal::inspect(options) {
        Ok(database) => {
            let text = if database.has_tables {
                format!("{server} has a journal")
            } else {
                format!("{server} is empty: the first start creates the tables")
            };
            findings.push(Finding::ok("journal", text));
            Some(database.is_active)
        }
        Err(error) => {
            let remedy = "see docs/how-to/use-postgresql.md; until then a start fails or waits";
            findings.push(Finding::error("journal", error.to_string(), remedy));
            None
        }
    }
}

/// Checks the journal's file and its disk. Returns [`Installation::is_journal_open`].
fn check_journal_file(settings: &Settings, findings: &mut Vec<Finding>) -> Option<bool> {
    if settings.is_in_memory() {
        let remedy = "name a file with --db for jobs that outlive the manager";
        findings.push(Finding::warning("journal", ":memory: keeps nothing", remedy));
        return None;
    }
    let file = &settings.journal.file;
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        Some(_) | None => PathBuf::from("."),
    };
    if let Err(error) = fs::read_dir(&folder) {
        let text = format!("the folder {} cannot be used: {error}", folder.display());
        let remedy = "make it, and give it to the user that the manager runs as";
        findings.push(Finding::error("journal", text, remedy));
        return None;
    }
    if access(&folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let text = format!("this user may not write to the folder {}", folder.display());
        let remedy = "run doctor as the user of the manager, or give the folder to this one: \
                      SQLite makes files beside the journal";
        findings.push(Finding::error("journal", text, remedy));
    }
    check_disk(&folder, findings);
    let metadata = match fs::metadata(file) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let text = format!("{} is not there yet: the first start makes it", file.display());
            findings.push(Finding::ok("journal", text));
            return Some(false);
        }
        Err(error) => {
            let text = format!("{} cannot be looked at: {error}", file.display());
            let remedy = "run doctor as the user of the manager";
            findings.push(Finding::error("journal", text, remedy));
            return None;
        }
    };
    if access(file, Access::READ_OK | Access::WRITE_OK).is_err() {
        let text = format!("this user may not read and write {}", file.display());
        let remedy = "run doctor as the user of the manager, or give the file to this one (chown)";
        findings.push(Finding::error("journal", text, remedy));
        return None;
    }
    let mode = metadata.mode() & PERMISSION_BITS;
    if mode & OTHERS_MASK != 0 {
        let text = format!("every user may read or write {} (mode {mode:o})", file.display());
        let remedy = format!("chmod 600 {}: it has all messages of all jobs", file.display());
        findings.push(Finding::warning("journal", text, remedy));
    }
    match Reader::open(file) {
        Ok(_) => {
            let text = format!("{} is a journal, {}", file.display(), format_size(metadata.len()));
            findings.push(Finding::ok("journal", text));
        }
        Err(error) => {
            let remedy = "name the right file with --db, or bring back a copy; \
                         docs/how-to/back-up.md tells how";
            findings.push(Finding::error("journal", error.to_string(), remedy));
        }
    }
    let lock_owner = find_lock_owner(file)?;
    let text = match &lock_owner {
        LockOwner::Process(process) => format!("it is in use by process {process}"),
        LockOwner::Nobody => "no process has it open".to_owned(),
    };
    findings.push(Finding::ok("journal", text));
    Some(matches!(lock_owner, LockOwner::Process(_)))
}

/// Adds a finding about the free space on the disk of a folder, if it can be determined.
fn check_disk(folder: &Path, findings: &mut Vec<Finding>) {
    let Ok(disk) = statvfs(folder) else { return };
    let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    let text = format!("{} are free in {}", format_size(free_bytes), folder.display());
    let remedy = "make room: with a full disk the manager takes no jobs and no replies";
    findings.push(if free_bytes < FREE_BYTES_ERROR {
        Finding::error("disk", text, remedy)
    } else if free_bytes < FREE_BYTES_WARNING {
        Finding::warning("disk", text, remedy)
    } else {
        Finding::ok("disk", text)
    });
}

/// Formats a size in the largest unit that fits, rounded down.
fn format_size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = UNITS.into_iter().find(|(unit, _)| bytes >= *unit);
    unit.map_or_else(|| format!("{bytes} bytes"), |(unit, name)| format!("{} {name}", bytes / unit))
}

/// Who holds the lock of a journal.
#[derive(Debug, PartialEq, Eq)]
enum LockOwner {
    Nobody,
    /// The process with this id.
    Process(String),
}

/// A file as the kernel's list of locks names it: its device, as the two hexadecimal numbers
/// `major:minor`, and its inode.
#[derive(Debug, PartialEq, Eq)]
struct LockedFile {
    device: String,
    inode: u64,
}

/// Finds out who holds the lock of a journal; `None`: this cannot be found out. The owner is found
/// in the kernel's list of locks, because a manager could fail to start if the lock were acquired
/// here, even briefly.
fn find_lock_owner(file: &Path) -> Option<LockOwner> {
    let mut lock_path = fs::canonicalize(file).ok()?.into_os_string();
    lock_path.push(".lock");
    let locked_file = match open(&lock_path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(descriptor) => LockedFile::from_descriptor(&descriptor)?,
        Err(Errno::NOENT) => return Some(LockOwner::Nobody),
        Err(_) => return None,
    };
    let locks = fs::read_to_string("/proc/locks").ok()?;
    Some(parse_lock_owner(&locks, &locked_file).map_or(LockOwner::Nobody, LockOwner::Process))
}

impl LockedFile {
    /// Looks a file up under `/proc`; `None`: what is needed is not there. `stat` does not do: some
    /// file systems, such as btrfs, name another device in it than in the list of locks.
    fn from_descriptor(descriptor: &OwnedFd) -> Option<LockedFile> {
        let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
        let info = fs::read_to_string(path).ok()?;
        let find_number = |name: &str| -> Option<u64> {
            info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        // Kernels before 5.14 do not tell the inode.
        let inode = find_number("ino:").or_else(|| Some(fstat(descriptor).ok()?.st_ino))?;
        Some(LockedFile { device: parse_device(&mounts, find_number("mnt_id:")?)?, inode })
    }
}

/// Finds the device of a mount, in lines of `/proc/self/mountinfo` such as
/// `29 1 8:17 / /data rw - ext4 /dev/sdb1 rw`.
fn parse_device(mounts: &str, mount_id: u64) -> Option<String> {
    let line = mounts
        .lines()
        .find(|line| line.split_once(' ').is_some_and(|(id, _)| id.parse() == Ok(mount_id)))?;
    let (major, minor) = line.split_whitespace().nth(2)?.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    Some(format!("{major:02x}:{minor:02x}"))
}

/// Finds the process that holds the lock of a file, in lines of `/proc/locks` such as
/// `1: FLOCK  ADVISORY  WRITE 4711 08:01:123456 0 EOF`.
fn parse_lock_owner(locks: &str, LockedFile { device, inode }: &LockedFile) -> Option<String> {
    let locked_file = format!("{device}:{inode}");
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let is_flock = fields.nth(1)? == "FLOCK";
        let process = fields.nth(2)?;
        (is_flock && fields.next()? == locked_file).then(|| process.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found_in_the_kernels_list() {
        let locks = "1: POSIX  ADVISORY  WRITE 12 08:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 4711 08:01:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 08:01:78 0 EOF\n";
        let owner = |locks: &str, device: &str, inode| {
            parse_lock_owner(locks, &LockedFile { device: device.to_owned(), inode })
        };
        assert_eq!(owner(locks, "08:01", 77).as_deref(), Some("4711"));
        assert_eq!(owner(locks, "08:01", 7), None);
        assert_eq!(owner(locks, "08:11", 77), None, "another file with that inode");
        assert_eq!(
            owner(locks, "08:01", 78),
            None,
            "a process that waits for the lock does not hold it"
        );
        assert_eq!(owner("nonsense", "08:01", 1), None);
    }

    #[test]
    fn the_device_of_a_mount_is_written_as_in_the_list_of_locks() {
        let mounts = "2 1 0:21 / /proc rw - proc proc rw\n29 1 8:17 / /data rw - ext4 /dev/sdb1 rw";
        assert_eq!(parse_device(mounts, 29).as_deref(), Some("08:11"));
        assert_eq!(parse_device(mounts, 9), None);
    }

    #[test]
    fn a_journal_is_in_use_by_the_process_that_holds_its_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("journal.db");
        fs::write(&file, "").expect("written");
        assert_eq!(find_lock_owner(&file), Some(LockOwner::Nobody));
        let lock = fs::File::create(folder.path().join("journal.db.lock")).expect("created");
        assert_eq!(find_lock_owner(&file), Some(LockOwner::Nobody));
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("locked");
        let process = std::process::id().to_string();
        assert_eq!(find_lock_owner(&file), Some(LockOwner::Process(process)));
    }

    #[test]
    fn whether_a_journal_that_cannot_be_reached_is_open_is_unknown() {
        let mut settings = Settings::defaults().expect("defaults");
        settings.journal.file = "/dev/null/journal.db".into();
        let mut findings = Vec::new();
        assert_eq!(check_journal_file(&settings, &mut findings), None);
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn sizes_use_the_largest_unit() {
        assert_eq!(format_size(3 << 30), "3 GiB");
        assert_eq!(format_size(900), "900 bytes");
    }
}
