//! The definition of the command line, whose `--help` prints the commands in groups by purpose.

use super::arguments::Arguments;
use clap::builder::StyledStr;
use clap::{Command, CommandFactory};
use std::fmt::Write;

/// The groups, each with its commands in the order of the help text.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run", &["dev", "serve", "run", "work", "wait"]),
    (
        "Look",
        &[
            "jobs",
            "search",
            "inbox",
            "reasons",
            "job",
            "step",
            "items",
            "history",
            "why",
            "watch",
            "status",
            "workflows",
            "queues",
            "limits",
            "schedules",
            "health",
            "whoami",
        ],
    ),
    (
        "Operate",
        &[
            "cancel",
            "pause",
            "resume",
            "retry",
            "rerun",
            "complete",
            "redispatch",
            "limit",
            "delete",
            "schedule",
            "columns",
            "reload",
            "cluster",
        ],
    ),
    ("Author", &["init", "check", "schema", "test", "worker-test", "replay"]),
    (
        "Install",
        &[
            "doctor",
            "backup",
            "restore",
            "journal",
            "token",
            "context",
            "completions",
            "man",
            "help",
        ],
    ),
];

/// The width of the column with the names of the commands, in characters.
const NAME_COLUMNS: usize = 12;

/// Returns the definition of the command line, with its commands in groups.
pub fn command() -> Command {
    let mut built_command = Arguments::command();
    // Adds the command `help`.
    built_command.build();
    let mut groups_text = String::new();
    for (title, names) in GROUPS {
        // Writing to a string cannot fail.
        let _ = writeln!(groups_text, "{title}:");
        for name in names {
            let about = built_command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(StyledStr::to_string).unwrap_or_default();
            let _ = writeln!(groups_text, "  {name:NAME_COLUMNS$} {about}");
        }
        groups_text.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups_text}Options:\n\
         {{options}}{{after-help}}"
    );
    Arguments::command().help_template(template)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_command_is_in_one_group() {
        let mut built_command = Arguments::command();
        built_command.build();
        let command_names: BTreeSet<&str> = built_command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .collect();
        let listed_names: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        assert_eq!(listed_names.len(), command_names.len(), "each is listed once");
        assert_eq!(listed_names.into_iter().collect::<BTreeSet<_>>(), command_names);
        let help = command().render_help().to_string();
        for title in
            ["Run:\n  dev", "Look:\n", "Operate:\n", "Author:\n", "Install:\n", "Options:\n"]
        {
            assert!(help.contains(title), "no {title:?} in {help}");
        }
        assert!(help.contains("  why          Explain in one sentence"), "{help}");
        assert!(!help.contains("Commands:"), "{help}");
    }
}
