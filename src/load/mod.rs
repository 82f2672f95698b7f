//! Loads workflow files: YAML to validated definitions, with all errors at once
//! (docs/workflow-file.md). Nothing else uses the YAML crate.
//!
//! ```text
//! yaml      text → a tree in which each key and value has its location (`location`;
//!           `syntax_errors`: the parser's errors, explained)
//! read      tree → `draft`s: each key and value on its own is valid (`schema`: the known keys;
//!           `fields`: one mapping; `values`, `duration`: single values; `options`: the optional
//!           keys of a step; `singular`: item keys)
//! graph     draft → graphs: names, dependencies, tasks, cycles (`cycles`), conditions
//!           (`conditions`), keys that conflict (`key_conflicts`)
//! buses     checks against the manager's settings: the buses, their reply queues
//! queue_keys  how queues are declared
//! calls     which workflow asks for jobs of which: cycles
//! mod       files → definitions, one for each virtual host; checks across workflows and files
//! ```
//!
//! `limits` has the limits of a file. `serde_errors` explains errors of other YAML files.
//! `json_schema` describes to editors what `schema` and `values` check here.
//!
//! A file is untrusted: its size, its nesting, its values and what its aliases expand to are
//! limited, so that any file is loaded or refused in bounded time and memory.

mod buses;
mod calls;
mod conditions;
mod cycles;
mod draft;
mod duration;
mod fields;
mod graph;
mod idle;
mod json_schema;
mod limits;
mod misfit;
mod options;
mod place;
mod queue_keys;
mod read;
mod report;
mod schema;
mod singular;
mod syntax;
mod topics;
mod values;
mod yaml;

pub use duration::DURATION_MAX;
pub use json_schema::json_schema;
pub use limits::{
    ATTEMPTS_MAX, CONDITION_BYTES_MAX, FACTOR_MAX, FILE_BYTES_MAX, NAME_BYTES_MAX, NESTING_MAX,
    PRIORITY_MAX, REPLY_USERS_MAX, STATUSES_MAX, STEPS_IN_ALL_MAX, STEPS_MAX, TASKS_MAX,
    TEXT_BYTES_MAX, VALUES_MAX, VHOSTS_MAX,
};
pub use report::Problem;
pub use singular::singular;

use crate::engine::words::{byte_order_mark, quoted};
use crate::engine::{Definition, Graph};
use crate::settings::{Settings, files};
use calls::CallingStep;
use conditions::CompiledConditions;
use draft::WorkflowDraft;
use queue_keys::Declared;
use report::Report;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use place::{Mistake, Position};

/// The content of valid files.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The definitions in the order of the files and of their workflows, one for each virtual host.
    pub definitions: Vec<Arc<Definition>>,
    /// Warnings of what is allowed, but probably a mistake.
    pub warnings: Vec<Problem>,
    /// Advice that makes workflows safer: useful to their authors, but not at each start.
    pub advice: Vec<Problem>,
}

/// All errors in the files, in their order.
#[derive(Debug, PartialEq, Eq)]
pub struct LoadErrors(pub Vec<Problem>);

impl std::error::Error for LoadErrors {}

impl fmt::Display for LoadErrors {
    /// Writes one error per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

/// Loads workflow files. Their workflows share one namespace per virtual host.
///
/// # Errors
///
/// Returns all errors of all files; if there is any, nothing is loaded.
pub fn load_files(paths: &[PathBuf]) -> Result<Loaded, LoadErrors> {
    load(paths, Loading::default())
}

/// The name that stands for standard input in [`load_files_or_stdin`].
pub const STANDARD_INPUT: &str = "-";

/// Loads workflow files like [`load_files`], for a manager with these settings if they are known.
/// The file `-` is standard input.
///
/// # Errors
///
/// Returns all errors of all files; if there is any, nothing is loaded.
pub fn load_files_or_input(
    paths: &[PathBuf],
    settings: Option<&Settings>,
) -> Result<Loaded, LoadErrors> {
    load(paths, Loading { takes_input: true, settings, ..Loading::default() })
}

fn load(paths: &[PathBuf], mut loading: Loading<'_>) -> Result<Loaded, LoadErrors> {
    for path in paths {
        let is_input = loading.takes_input && path.as_os_str() == STANDARD_INPUT;
        let mut report = if is_input {
            Report::new("standard input")
        } else {
            Report::new(&path.display().to_string())
        };
        match if is_input { read_text(io::stdin().lock()) } else { read_file(path) } {
            Ok(text) => loading.add(&text, report),
            Err(refusal) => {
                report.mistakes(vec![refusal]);
                loading.reports.push(report);
            }
        }
    }
    loading.finish()
}

/// Loads workflow files like [`load_files`], for a manager with these settings: all named buses
/// must exist, and no step may send messages to a reply queue.
///
/// # Errors
///
/// Returns all errors of all files; if there is any, nothing is loaded.
pub fn load_to_serve(paths: &[PathBuf], settings: &Settings) -> Result<Loaded, LoadErrors> {
    load(paths, Loading { settings: Some(settings), ..Loading::default() })
}

/// Loads the text of a workflow file; `file` is its name in diagnostics.
///
/// # Errors
///
/// Returns all errors of the text.
pub fn load_text(file: &str, text: &str) -> Result<Loaded, LoadErrors> {
    let mut loading = Loading::default();
    let mut report = Report::new(file);
    if text.len() > FILE_BYTES_MAX {
        report.mistakes(vec![too_large()]);
        loading.reports.push(report);
    } else {
        loading.add(text, report);
    }
    loading.finish()
}

/// Loads a YAML file that is not a workflow file.
///
/// # Errors
///
/// Returns an error if the file cannot be read or does not deserialize.
pub fn data_file<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, LoadErrors> {
    let file = path.display().to_string();
    let mut report = Report::new(&file);
    let data = read_file(path).and_then(|text| {
        serde_yaml::from_str(&text).map_err(|error| {
            let at = error.location().map_or(Position::NOWHERE, |at| Position {
                line: usize::try_from(at.line()).unwrap_or_default(),
                column: usize::try_from(at.column()).unwrap_or_default(),
            });
            Mistake::new(at, misfit::explained(&error))
        })
    });
    data.map_err(|mistake| {
        report.mistakes(vec![mistake]);
        LoadErrors(report.errors)
    })
}

/// The state of loading: what the files read so far contain.
#[derive(Default)]
struct Loading<'s> {
    reports: Vec<Report>,
    definitions: Vec<Arc<Definition>>,
    steps: usize,
    /// The file and location of the first workflow of each full name.
    declared: HashMap<String, (String, Position)>,
    /// The first spelling of each workflow's name and full name, by the name in lower case.
    spellings: HashMap<String, String>,
    /// The manager's settings, if they are known.
    settings: Option<&'s Settings>,
    /// Whether the file `-` is standard input.
    takes_input: bool,
    /// Steps that ask for jobs of other workflows.
    calls: Vec<CallingStep>,
    /// The declarations of queues.
    queues: Declared,
}

impl Loading<'_> {
    fn add(&mut self, text: &str, mut report: Report) {
        let (root, mistakes) = yaml::parse(text);
        if let Some(root) = root {
            let drafts = read::workflows(&root, &mut report);
            report.mistakes(mistakes);
            let owners = graph::task_owners(&drafts);
            let mut conditions = CompiledConditions::default();
            for draft in &drafts {
                let graphs = graph::graphs(draft, &owners, &mut conditions, &mut report);
                self.declare(draft, graphs, &mut report);
            }
        } else {
            report.mistakes(mistakes);
        }
        report.sort();
        self.reports.push(report);
    }

    /// Adds a workflow's definitions, unless the file has errors.
    fn declare(&mut self, draft: &WorkflowDraft, graphs: Vec<Graph>, report: &mut Report) {
        let Some(name) = &draft.name else { return };
        report.workflow = Some(name.text.clone());
        let spelling = self
            .spellings
            .entry(name.text.to_ascii_lowercase())
            .or_insert_with(|| name.text.clone());
        if *spelling != name.text {
            report.error(
                name.at,
                format!(
                    "differs from the workflow {} only in upper and lower case; their tables of \
                     statuses could not be told apart",
                    quoted(spelling)
                ),
            );
        }
        match self.settings {
            Some(settings) => buses::check(draft, settings, report),
            None => buses::advise(draft, report),
        }
        idle::warn_of_long_waits(draft, report);
        buses::check_services(draft, self.settings, report);
        topics::check(draft, self.settings, report);
        self.queues.check(draft, self.settings, report);
        let vhosts = if draft.vhosts.is_empty() {
            vec![String::new()]
        } else {
            draft.vhosts.iter().map(|vhost| vhost.text.clone()).collect()
        };
        self.steps = self.steps.saturating_add(
            graphs
                .iter()
                .map(|graph| graph.steps.len())
                .sum::<usize>()
                .saturating_mul(vhosts.len()),
        );
        if self.steps > STEPS_IN_ALL_MAX {
            report.error(
                draft.at,
                format!(
                    "all workflows together have more than {STEPS_IN_ALL_MAX} steps up to here, \
                     each counted once for each virtual host"
                ),
            );
        }
        for vhost in vhosts {
            let definition = Definition {
                vhost,
                bus: draft.bus.as_ref().map(|bus| bus.text.as_str().into()),
                deadline: draft.deadline,
                retention: draft.retention,
                queue: draft.queue_keys.said.clone(),
                ..Definition::new(&name.text, Vec::new())
            };
            if let Some((file, first)) = self.declared.get(&definition.full_name()) {
                let message = format!(
                    "a workflow {} is declared already, at {file}:{first}",
                    quoted(&definition.full_name())
                );
                report.error(name.at, message);
                continue;
            }
            let spelling = self
                .spellings
                .entry(definition.full_name().to_ascii_lowercase())
                .or_insert_with(|| definition.full_name());
            if *spelling != definition.full_name() && !definition.vhost.is_empty() {
                let message = format!(
                    "in the virtual host {}: differs from {} only in upper and lower case; their \
                     tables of statuses could not be told apart",
                    quoted(&definition.vhost),
                    quoted(spelling)
                );
                report.error(name.at, message);
            }
            self.declared.insert(definition.full_name(), (report.file.clone(), name.at));
            self.calls.extend(calls::of(draft, &definition, &report.file));
            if report.errors.is_empty() {
                self.definitions
                    .push(Arc::new(Definition { graphs: graphs.clone(), ..definition }));
            }
        }
        report.leave();
    }

    fn finish(mut self) -> Result<Loaded, LoadErrors> {
        calls::warn_of_circles(&self.calls, &mut self.reports);
        let (mut errors, mut warnings, mut advice) = (Vec::new(), Vec::new(), Vec::new());
        for report in self.reports {
            errors.extend(report.errors);
            warnings.extend(report.warnings);
            advice.extend(report.advice);
        }
        if errors.is_empty() {
            Ok(Loaded { definitions: self.definitions, warnings, advice })
        } else {
            Err(LoadErrors(errors))
        }
    }
}

/// Reads a file's text, or returns why it is refused.
fn read_file(path: &Path) -> Result<String, Mistake> {
    if path.is_dir() {
        return Err(Mistake::new(
            Position::NOWHERE,
            "this is a directory; name the workflow files in it",
        ));
    }
    // The reported size of the file is no limit: it may be a pipe, or grow.
    read_text(files::open(path).map_err(cannot_read)?)
}

fn read_text(file: impl Read) -> Result<String, Mistake> {
    let limit = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(cannot_read)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(too_large());
    }
    let mark = byte_order_mark(&bytes);
    String::from_utf8(bytes).map_err(|error| {
        if let Some(encoding) = mark {
            let told = format!(
                "the file begins with a byte-order mark of {encoding}; save it as UTF-8 text"
            );
            return Mistake::new(Position { line: 1, column: 1 }, told);
        }
        let before = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
        let line = before.rsplit('\n').next().unwrap_or_default();
        let at =
            Position { line: before.matches('\n').count() + 1, column: line.chars().count() + 1 };
        Mistake::new(at, "this byte is not UTF-8; save the file as UTF-8 text")
    })
}

fn cannot_read(error: io::Error) -> Mistake {
    Mistake::new(Position::NOWHERE, format!("cannot read the file: {error}"))
}

fn too_large() -> Mistake {
    let kib = FILE_BYTES_MAX / 1024;
    Mistake::new(
        Position::NOWHERE,
        format!(
            "the file is larger than {kib} KiB; a workflow file of that size is a mistake, or \
             should be split"
        ),
    )
}
