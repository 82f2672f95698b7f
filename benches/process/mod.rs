//! The resources that a process has used, read from `/proc`.

#![allow(dead_code, reason = "each bench uses a part")]

use std::fs::read_to_string;

/// Returns the seconds of CPU, user and system. `process` is an id or `self`.
pub(crate) fn cpu_seconds(process: &str) -> f64 {
    let stat = read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks =
        |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
    // The kernel's USER_HZ is 100 wherever Linux runs.
    (ticks(11) + ticks(12)) / 100.0
}

/// Returns the bytes that this process has written to the disk.
pub(crate) fn written_bytes() -> u64 {
    read_value("io", "write_bytes")
}

/// Returns the memory of this process, in KiB.
pub(crate) fn resident_kib() -> u64 {
    read_value("status", "VmRSS")
}

/// Returns the peak memory of this process, in KiB.
pub(crate) fn peak_kib() -> u64 {
    read_value("status", "VmHWM")
}

fn read_value(file: &str, name: &str) -> u64 {
    let text = read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or_default()
}
