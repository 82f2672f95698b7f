//! The standard Prometheus metrics of the process, `process_…`, read from `/proc`.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntGauge};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use std::fs;

/// The names and help texts of the gauges, in the order of [`ProcessState::gauges`].
const GAUGES: [(&str, &str); 6] = [
    ("process_open_fds", "Number of open file descriptors."),
    ("process_max_fds", "Maximum number of open file descriptors."),
    ("process_virtual_memory_bytes", "Virtual memory size in bytes."),
    ("process_resident_memory_bytes", "Resident memory size in bytes."),
    ("process_start_time_seconds", "Start time of the process since unix epoch in seconds."),
    ("process_threads", "Number of OS threads in the process."),
];

/// Collects the metrics of the process at each scrape.
pub(super) struct ProcessCollector {
    cpu_seconds: IntCounter,
    gauges: Vec<IntGauge>,
}

impl ProcessCollector {
    pub(super) fn new() -> Result<ProcessCollector, prometheus::Error> {
        Ok(ProcessCollector {
            cpu_seconds: IntCounter::new(
                "process_cpu_seconds_total",
                "Total user and system CPU time spent in seconds.",
            )?,
            gauges: GAUGES
                .into_iter()
                .map(|(name, help)| IntGauge::new(name, help))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Returns the collectors of all metrics.
    fn collectors(&self) -> impl Iterator<Item = &dyn Collector> {
        let gauges = self.gauges.iter().map(|gauge| gauge as &dyn Collector);
        std::iter::once(&self.cpu_seconds as &dyn Collector).chain(gauges)
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Some(state) = ProcessState::read() else { return Vec::new() };
        self.cpu_seconds.inc_by(state.cpu_seconds.saturating_sub(self.cpu_seconds.get()));
        for (gauge, value) in self.gauges.iter().zip(state.gauges) {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        self.collectors().flat_map(Collector::collect).collect()
    }
}

/// The values of the metrics at one moment.
#[derive(Debug, PartialEq)]
struct ProcessState {
    cpu_seconds: u64,
    /// The values of [`GAUGES`], in the same order.
    gauges: [u64; 6],
}

/// How many files the process has open, and how many it may open.
#[derive(Clone, Copy)]
struct OpenFiles {
    count: u64,
    limit: u64,
}

impl ProcessState {
    /// Reads the values. Returns `None` if `/proc/self/stat` cannot be read; other values that
    /// cannot be read are 0.
    fn read() -> Option<ProcessState> {
        let count_entries = || fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        let count = match fs::metadata("/proc/self/fd").map_or(0, |folder| folder.len()) {
            // Since Linux 6.2, the size is the number of open files. Older versions return 0.
            0 => u64::try_from(count_entries()).unwrap_or(u64::MAX),
            size => size,
        };
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(0);
        // A service manager may hide /proc/stat (systemd, ProcSubset=pid).
        let system_stat = fs::read_to_string("/proc/stat").ok();
        let process_stat = fs::read_to_string("/proc/self/stat").ok()?;
        ProcessState::parse(system_stat.as_deref(), &process_stat, OpenFiles { count, limit })
    }

    /// Parses `/proc/stat` and `/proc/self/stat` (proc_stat(5), proc_pid_stat(5)). Without
    /// `/proc/stat`, the start time is 0.
    fn parse(
        system_stat: Option<&str>,
        process_stat: &str,
        open_files: OpenFiles,
    ) -> Option<ProcessState> {
        let boot_time_s = system_stat.and_then(|text| {
            let boot_time = text.lines().find_map(|line| line.strip_prefix("btime "))?;
            boot_time.trim().parse::<u64>().ok()
        });
        // The second field, the name of the program in brackets, may contain spaces and brackets.
        // So the third field begins after the last bracket. The manual counts fields from 1.
        let fields: Vec<&str> = process_stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        // The fields are 14 utime, 15 stime, 20 num_threads, 22 starttime, 23 vsize and 24 rss. The
        // times are in clock ticks, and rss is in pages.
        let ticks_per_second = clock_ticks_per_second();
        let resident_bytes = field(24)? * u64::try_from(page_size()).ok()?;
        Some(ProcessState {
            cpu_seconds: (field(14)? + field(15)?) / ticks_per_second,
            gauges: [
                open_files.count,
                open_files.limit,
                field(23)?,
                resident_bytes,
                boot_time_s.map_or(Some(0), |boot_time_s| {
                    Some(boot_time_s + field(22)? / ticks_per_second)
                })?,
                field(20)?,
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_process_is_parsed() {
        let system = "cpu  1 2 3\nbtime 1700000000\nprocesses 7\n";
        let process = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 0 0 0 250 150 0 0 20 0 9 0 500 \
                       1048576 3 18446744073709551615 1 1\n";
        let open_files = OpenFiles { count: 5, limit: 1024 };
        let state = ProcessState::parse(Some(system), process, open_files);
        let page = u64::try_from(page_size()).expect("a size");
        let ticks = clock_ticks_per_second();
        let expected = ProcessState {
            cpu_seconds: 400 / ticks,
            gauges: [5, 1024, 1_048_576, 3 * page, 1_700_000_000 + 500 / ticks, 9],
        };
        assert_eq!(state, Some(expected));
        let without_system =
            ProcessState::parse(None, process, open_files).expect("/proc/self/stat is enough");
        assert_eq!(without_system.gauges, [5, 1024, 1_048_576, 3 * page, 0, 9]);
        assert_eq!(ProcessState::parse(Some(system), "42 (a", open_files), None);
    }

    #[test]
    fn the_metrics_of_this_process_are_plausible() {
        let families = ProcessCollector::new().expect("names").collect();
        let value = |name: &str| {
            let family = families.iter().find(|family| family.name() == name).expect(name);
            let metric = &family.get_metric()[0];
            metric.get_gauge().get_value() + metric.get_counter().get_value()
        };
        assert_eq!(families.len(), 7);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_open_fds") <= value("process_max_fds"));
        let resident = value("process_resident_memory_bytes");
        assert!(resident > 0.0 && resident < value("process_virtual_memory_bytes"));
        let now = base::times::unix_seconds(base::clock::now());
        #[allow(clippy::cast_precision_loss, reason = "seconds since 1970")]
        let age = now as f64 - value("process_start_time_seconds");
        assert!((-2.0..86_400.0).contains(&age), "{age}");
        assert!(value("process_threads") >= 1.0);
        assert!(value("process_cpu_seconds_total") >= 0.0);
    }
}
