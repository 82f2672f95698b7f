//! Words that several commands print.

use crate::engine::{Dependency, Graph, Tolerate};

/// What a step waits for, by its name.
pub(super) fn dependency_name(graph: &Graph, dependency: Dependency) -> &str {
    match dependency {
        Dependency::Start => "__start__",
        Dependency::Step(at) => &graph.step(at).name,
    }
}

/// As a workflow file writes it: `5` or `2.5%`.
pub(super) fn tolerate_text(tolerate: Tolerate) -> String {
    match tolerate {
        Tolerate::Count(count) => count.to_string(),
        Tolerate::Share(share) => {
            let (percent, hundredths) = (share / 100, format!("{:02}", share % 100));
            let fraction = hundredths.trim_end_matches('0');
            if fraction.is_empty() {
                format!("{percent}%")
            } else {
                format!("{percent}.{fraction}%")
            }
        }
    }
}

/// A number of things, in words.
pub(super) fn counted(count: usize, noun: &str) -> String {
    match count {
        0 => format!("no {noun}s"),
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
