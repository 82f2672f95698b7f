//! Determines the memory limit of the process: the lowest of the machine's memory, the limits of
//! the cgroups, and the resource limits (`RLIMIT_AS`, `RLIMIT_DATA`).

use std::fs;
use std::path::{Path, PathBuf};

/// The smallest cgroup limit, in bytes, that means "no limit": cgroup v1 reports a multiple of the
/// page size near 2^63.
const UNLIMITED_BYTES_MIN: u64 = 1 << 60;

/// Returns the memory limit of this process in bytes, and what imposes it; `None` if no limit is
/// known.
pub fn process_limit() -> Option<(u64, &'static str)> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let cgroups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let from_cgroups = cgroup_files(&cgroups)
        .into_iter()
        .filter_map(|file| Some((parse_cgroup_limit(&read(&file)?)?, "the cgroup")));
    let from_machine = read(Path::new("/proc/meminfo"))
        .and_then(|text| Some((parse_machine_memory(&text)?, "the machine")));
    let from_limits = read(Path::new("/proc/self/limits"))
        .and_then(|text| Some((parse_process_limits(&text)?, "the limits of the process")));
    from_cgroups.chain(from_machine).chain(from_limits).min_by_key(|(bytes, _)| *bytes)
}

/// Returns the files with the memory limits of the process's cgroup and of its ancestors. `cgroups`
/// is the content of `/proc/self/cgroup`: a line `0::/path` for v2, one per hierarchy for v1.
fn cgroup_files(cgroups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (mount_point, file) = if controllers.is_empty() {
            ("/sys/fs/cgroup", "memory.max")
        } else if controllers.split(',').any(|controller| controller == "memory") {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        } else {
            continue;
        };
        // Inside a container, the path may be the one on the host. Then the container's limit is
        // directly below the mount point.
        let cgroup = Path::new(path.trim_start_matches('/'));
        let ancestors = cgroup.ancestors();
        files.extend(ancestors.map(|ancestor| Path::new(mount_point).join(ancestor).join(file)));
    }
    files
}

/// Parses the limit in a cgroup's file, in bytes; `None`: it is unlimited, or cannot be parsed.
fn parse_cgroup_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < UNLIMITED_BYTES_MIN)
}

/// Parses the machine's memory from `/proc/meminfo`, in bytes.
fn parse_machine_memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses the lowest soft limit on memory from `/proc/self/limits`, in bytes; `None`: unlimited.
fn parse_process_limits(text: &str) -> Option<u64> {
    let parse_limit = |name: &str| {
        let values = text.lines().find_map(|line| line.strip_prefix(name))?;
        values.split_whitespace().next()?.parse::<u64>().ok()
    };
    ["Max address space", "Max data size"].into_iter().filter_map(parse_limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_both_cgroup_versions_and_of_parents_are_read() {
        let files = |cgroups: &str| -> Vec<String> {
            cgroup_files(cgroups).iter().map(|file| file.display().to_string()).collect()
        };
        assert_eq!(
            files("0::/system.slice/manager.service\n"),
            [
                "/sys/fs/cgroup/system.slice/manager.service/memory.max",
                "/sys/fs/cgroup/system.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        assert_eq!(
            files("5:cpu,cpuacct:/a\n4:memory:/a\n"),
            [
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
        assert!(files("").is_empty());
    }

    #[test]
    fn no_limit_is_parsed_as_none() {
        assert_eq!(parse_cgroup_limit("536870912\n"), Some(536_870_912));
        assert_eq!(parse_cgroup_limit("max\n"), None);
        assert_eq!(parse_cgroup_limit("9223372036854771712\n"), None, "no limit in cgroup v1");
        let meminfo = "MemTotal:       24683520 kB\nMemFree:  1 kB\n";
        assert_eq!(parse_machine_memory(meminfo), Some(24_683_520 * 1024));
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max data size             unlimited            unlimited            bytes\n\
                      Max address space         1073741824           unlimited            bytes\n";
        assert_eq!(parse_process_limits(limits), Some(1 << 30));
        assert_eq!(parse_process_limits(&limits.replace("1073741824", "unlimited ")), None);
    }

    #[test]
    fn this_process_has_a_limit() {
        let (bytes, _) = process_limit().expect("Linux reports a limit");
        assert!(bytes > 1 << 20, "{bytes}");
    }
}
