//! Counts with their nouns, in the singular or the plural.

/// Formats a count with its noun: `no jobs`, `1 job`, `2 jobs`.
pub(super) fn format_count(count: usize, noun: &str) -> String {
    match count {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
