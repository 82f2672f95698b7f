//! The tables of docs/reference are what the program says of itself: its commands, the calls of its
//! API, its metrics. Two pages are made here; where they differ, `just references` writes them.

use daemon::load::json_schema;
use daemon::telemetry::Metrics;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use support::manager::TestManager;

/// An option with the same words in so many commands stands once at the top of the page.
const COMMON: usize = 5;

/// The variable with which the pages are written instead of compared.
const RENEW: &str = "RENEW_REFERENCES";

/// Compares a page with what it should be, or writes it.
fn compare(page: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    if std::env::var_os(RENEW).is_some() {
        std::fs::write(&path, wanted).expect("the page is written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let pairs = found.lines().zip(wanted.lines());
    let first = pairs.enumerate().find(|(_, (found, wanted))| found != wanted);
    if let Some((line, (found, wanted))) = first {
        panic!("{page}:{}: it says\n{found}\nand the program\n{wanted}\n{}", line + 1, how());
    }
    assert!(found == wanted, "{page} ends too early or too late\n{}", how());
}

fn how() -> String {
    format!("to renew it: just references ({RENEW}=1, with this test)")
}

/// A text as it stands in a cell of a table.
fn cell(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}

/// An option or an argument: how it is written, and what it means.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    written: String,
    meaning: String,
}

impl Row {
    fn of(argument: &clap::Arg) -> Row {
        let values: Vec<String> = match argument.get_value_names() {
            Some(names) if argument.get_action().takes_values() => {
                names.iter().map(|name| format!("<{name}>")).collect()
            }
            _ => Vec::new(),
        };
        let short = argument.get_short().map(|short| format!("-{short}"));
        let long = argument.get_long().map(|long| format!("--{long}"));
        let names: Vec<String> = short.into_iter().chain(long).collect();
        let words = [names.join(", "), values.join(" ")];
        let written: Vec<&str> =
            words.iter().filter(|word| !word.is_empty()).map(String::as_str).collect();
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let mut meaning = cell(&help);
        let possible: Vec<String> = argument
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        if argument.get_action().takes_values() && !possible.is_empty() {
            meaning.push_str(&format!(": {}", possible.join(", ")));
        }
        let defaults = argument.get_default_values().iter().map(|value| value.to_string_lossy());
        let defaults: Vec<String> = defaults.map(|value| format!("`{value}`")).collect();
        if argument.get_action().takes_values() && !defaults.is_empty() {
            meaning.push_str(&format!(" (default {})", defaults.join(", ")));
        }
        if let Some(variable) = argument.get_env() {
            meaning.push_str(&format!(" (variable `{}`)", variable.to_string_lossy()));
        }
        Row { written: written.join(" ").replace('|', "\\|"), meaning }
    }
}

/// A command with its words, such as `token new`, and what it takes.
struct Entry {
    name: String,
    about: String,
    rows: Vec<Row>,
}

/// Adds a command and those below it. What is only a name for others has no row.
fn add(command: &clap::Command, above: &str, entries: &mut Vec<Entry>) {
    let name = format!("{above}{}", command.get_name());
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let rows: Vec<Row> =
        arguments.filter(|argument| argument.get_id() != "help").map(Row::of).collect();
    if !command.is_subcommand_required_set() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        entries.push(Entry { name: name.clone(), about: cell(&about), rows });
    }
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        add(below, &format!("{name} "), entries);
    }
}

#[test]
fn the_page_of_commands_is_what_the_program_says() {
    let mut command = cli::command();
    command.build();
    let mut entries = Vec::new();
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        add(below, "", &mut entries);
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let mut count: BTreeMap<&Row, usize> = BTreeMap::new();
    for row in entries.iter().flat_map(|entry| &entry.rows) {
        *count.entry(row).or_default() += 1;
    }
    // Of an option that means more than one thing, the one that most commands mean.
    let mut most: BTreeMap<&str, (usize, &Row)> = BTreeMap::new();
    for (row, count) in count {
        let is_option = row.written.contains("--");
        let known = most.get(&*row.written).map_or(0, |(known, _)| *known);
        if is_option && count >= COMMON && count > known {
            most.insert(&row.written, (count, row));
        }
    }
    let common: Vec<&Row> = most.into_values().map(|(_, row)| row).collect();
    let mut page = String::from(
        "# Commands and options\n\n*For those who look for an option.* Made from the program, by \
         a test: what it says is what `--help` says. [The command line](command-line.md) tells \
         what is not obvious.\n\n## Options of many commands\n\nA command has those that its line \
         names.\n\n| option | |\n|---|---|\n",
    );
    let write_row = |page: &mut String, row: &Row| {
        writeln!(page, "| `{}` | {} |", row.written, row.meaning).expect("a string");
    };
    common.iter().for_each(|row| write_row(&mut page, row));
    page.push_str("\n## Each command\n\n| command, and what it takes | |\n|---|---|\n");
    for Entry { name, about, rows } in &entries {
        let (shared, own): (Vec<&Row>, Vec<&Row>) =
            rows.iter().partition(|row| common.contains(row));
        let shared: Vec<String> = shared
            .iter()
            .filter_map(|row| row.written.split(' ').find(|word| word.starts_with("--")))
            .map(|word| format!("`{word}`"))
            .collect();
        let shared =
            if shared.is_empty() { String::new() } else { format!(". Also {}", shared.join(", ")) };
        writeln!(page, "| **`{name}`** | {about}{shared} |").expect("a string");
        own.iter().for_each(|row| write_row(&mut page, row));
    }
    compare("docs/reference/commands.md", &page);
}

#[test]
fn the_page_of_calls_is_what_the_program_says() {
    const WORKFLOW: &str = "workflows: [{name: single, steps: [{name: work}]}]";
    TestManager::with(WORKFLOW).serve(|api| async move {
        let document = api.get("/openapi.json", &[]).await.json();
        let mut page = String::from(
            "# The calls of the HTTP API\n\n*For those who look for a call or a parameter.* Made \
             from `/openapi.json`, by a test; that has the schemas of bodies and answers too. [The \
             HTTP API](http-api.md) tells what each call is for.\n\n| call | | parameters |\n\
             |---|---|---|\n",
        );
        for (path, methods) in document["paths"].as_object().expect("paths") {
            for (method, call) in methods.as_object().expect("methods") {
                let given = call["parameters"].as_array().into_iter().flatten();
                let given = given.filter(|given| given["in"] != "path");
                let names: Vec<String> = given.map(parameter).collect();
                let summary = cell(call["summary"].as_str().expect("a summary"));
                let (method, names) = (method.to_uppercase(), names.join(", "));
                writeln!(page, "| `{method} {path}` | {summary} | {names} |").expect("a string");
            }
        }
        compare("docs/reference/http-api-calls.md", &page);
    });
}

/// The name of a parameter; that of a header says so.
fn parameter(given: &Value) -> String {
    let name = given["name"].as_str().expect("a name");
    let place = if given["in"] == "header" { " (header)" } else { "" };
    let required = if given["required"] == true { " (required)" } else { "" };
    format!("`{name}`{place}{required}")
}

/// A text without the marks of Markdown.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    // A link: its text stays.
    while let Some((before, link)) = rest.split_once('[') {
        let Some((words, after)) = link.split_once("](") else { break };
        let Some((_, after)) = after.split_once(')') else { break };
        plain.push_str(before);
        plain.push_str(words);
        rest = after;
    }
    plain.push_str(rest);
    plain.replace('`', "")
}

#[test]
fn each_metric_has_its_row_with_its_labels_its_kind_and_its_help() {
    let page = include_str!("../../docs/reference/metrics.md");
    let rows: BTreeMap<&str, (&str, String)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `workflow_"))
        .filter_map(|row| {
            let (name, row) = row.split_once("` | ")?;
            let (kind, meaning) = row.trim_end_matches(" |").split_once(" | ")?;
            Some((name, (kind, plain(meaning))))
        })
        .collect();
    let mut wrong = Vec::new();
    let mut told = BTreeSet::new();
    for metric in Metrics::describe() {
        let labels = metric.labels.join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let name = format!("{}{labels}", metric.name.trim_start_matches("workflow_"));
        let (kind, help) = (metric.kind, &metric.help);
        let is_right = rows.get(&*name).is_some_and(|(found, meaning)| {
            let rest = meaning.strip_prefix(&**help);
            *found == kind
                && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ';', ':']))
        });
        if !is_right {
            wrong.push(format!("| `workflow_{name}` | {kind} | {help} |"));
        }
        told.insert(name);
    }
    wrong.sort();
    let extra: Vec<&str> = rows.keys().copied().filter(|name| !told.contains(*name)).collect();
    assert!(wrong.is_empty(), "docs/reference/metrics.md needs rows such as\n{}", wrong.join("\n"));
    assert!(extra.is_empty(), "docs/reference/metrics.md has what is no metric: {extra:?}");
}

#[test]
fn each_key_of_the_workflow_file_has_its_row() {
    let page = include_str!("../../docs/reference/workflow-file.md");
    let mut told: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in page.lines().filter_map(|line| line.strip_prefix("| ")) {
        let Some((place, keys)) = row.split_once(" | ") else { continue };
        let keys = keys.split(" | ").next().unwrap_or_default();
        // The pattern `x-…` is no key of the schema.
        let keys = keys.split('`').skip(1).step_by(2).filter(|key| *key != "x-…");
        told.entry(place).or_default().extend(keys);
    }
    let schema = json_schema();
    let definition = |name: &str| &schema["definitions"][name];
    for (place, described) in [
        ("file", &schema),
        ("workflow", definition("workflow")),
        ("task", definition("task")),
        ("step", definition("step")),
        ("limit", definition("limit")),
        ("limit of a workflow", definition("jobLimit")),
        ("retry", definition("retry")),
        ("schedule", definition("schedule")),
    ] {
        let keys = described["properties"].as_object().expect("properties");
        let keys: BTreeSet<&str> = keys.keys().map(String::as_str).collect();
        assert_eq!(told.get(place), Some(&keys), "docs/reference/workflow-file.md, {place}");
    }
}
