//! Loads workflow files (docs/reference/workflow-file.md): turns YAML into validated definitions,
//! and reports all errors at once.
//!
//! ```text
//! yaml          text → a tree in which each key and value has its location (`location`;
//!               `scalars`: their types; `syntax_errors`: the parser's errors, explained)
//! read          tree → `draft`s, in which each key and value is valid on its own (`schema`: the
//!               known keys; `known_keys`: what is wrong with others; `fields`: one mapping;
//!               `values`, `duration`: single values; `options`: the optional keys of a step;
//!               `singular`: item keys)
//! graph         draft → graphs: names, dependencies, tasks, cycles (`cycles`), conditions
//!               (`conditions`), keys that conflict (`key_conflicts`)
//! buses         checks against the manager's settings: buses, reply queues, web services
//! kafka_topics  checks of steps whose queues are topics
//! consumer_timeouts  advice on steps that may take longer than RabbitMQ waits
//! limit_drafts  limits: their definitions, and the steps that name them
//! columns       parses and checks the labels and columns of jobs
//! queue_keys    parses and checks how queues are declared
//! calls         checks whether workflows call each other in cycles
//! schedules     parses schedules, and attaches them to their workflows
//! mod           files → definitions, one for each virtual host; checks across all files
//! ```
//!
//! `limits` has the limits of a file. `serde_errors` explains errors of other YAML files.
//! `json_schema` describes the keys of `schema` to editors.
//!
//! A file is untrusted. Its size, its nesting, the number of its values and the expansion of its
//! aliases are limited, so that any file is loaded or refused in bounded time and memory.

mod buses;
mod calls;
mod columns;
mod conditions;
mod consumer_timeouts;
mod cycles;
mod diagnostics;
mod draft;
mod duration;
mod fields;
mod graph;
mod job_limits;
mod json_schema;
mod kafka_topics;
mod key_conflicts;
mod known_keys;
mod limit_drafts;
mod limits;
mod location;
mod options;
mod queue_keys;
mod read;
mod scalars;
mod schedules;
mod schema;
mod serde_errors;
mod singular;
mod syntax_errors;
mod values;
mod yaml;

pub use consumer_timeouts::CONSUMER_TIMEOUT_DEFAULT;
pub use diagnostics::Diagnostic;
pub(crate) use duration::{DURATION_MAX, parse as parse_duration};
pub use json_schema::json_schema;
pub(crate) use limit_drafts::parse_rate_text;
pub(crate) use limits::{BURST_MAX, CONCURRENCY_MAX};
pub use limits::{
    FILE_BYTES_MAX, NESTING_MAX, STATUSES_MAX, STEPS_IN_ALL_MAX, STEPS_MAX, TEXT_BYTES_MAX,
    VALUES_MAX,
};

use crate::settings::{Settings, files};
use calls::CallingStep;
use conditions::CompiledConditions;
use consumer_timeouts::advise_consumer_timeouts;
use diagnostics::Diagnostics;
use draft::WorkflowDraft;
use engine::text::{find_byte_order_mark, position_after, quote};
use engine::{Columns, Definition, Graph, LimitDefinition};
use job_limits::JobLimitDraft;
use limit_drafts::FileLimits;
use location::{LocatedError, SourceLocation};
use queue_keys::QueueDeclarations;
use schedules::ScheduleDraft;
use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file name that means standard input in [`load_files_or_stdin`].
pub(crate) const STANDARD_INPUT: &str = "-";

/// What valid workflow files define.
#[derive(Debug, Default)]
pub struct LoadedWorkflows {
    /// The definitions in the order of the files and of their workflows, one for each virtual host.
    pub definitions: Vec<Arc<Definition>>,
    /// Warnings about what is allowed, but probably a mistake.
    pub warnings: Vec<Diagnostic>,
    /// Advice on how to make workflows safer. It is meant for their authors, so the manager does
    /// not log it at each start.
    pub advice: Vec<Diagnostic>,
}

impl LoadedWorkflows {
    /// Moves the advice to the warnings, and sorts them by file, line and column. This is what the
    /// author of the files reads.
    #[must_use]
    pub fn with_advice_as_warnings(mut self) -> LoadedWorkflows {
        self.warnings.append(&mut self.advice);
        // Files keep the order in which they appear.
        let files: Vec<String> = self.warnings.iter().map(|warning| warning.file.clone()).collect();
        let file_index =
            |diagnostic: &Diagnostic| files.iter().position(|file| *file == diagnostic.file);
        self.warnings.sort_by_cached_key(|diagnostic| {
            (file_index(diagnostic), diagnostic.line, diagnostic.column)
        });
        self
    }
}

/// All errors in the files, in their order.
#[derive(Debug, PartialEq, Eq)]
pub struct LoadErrors(pub Vec<Diagnostic>);

impl std::error::Error for LoadErrors {}

impl fmt::Display for LoadErrors {
    /// Writes one error per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

/// Loads workflow files. Their workflows share one namespace per virtual host.
///
/// # Errors
///
/// Returns all errors of all files; if there is any, nothing is loaded.
pub fn load_files(paths: &[PathBuf]) -> Result<LoadedWorkflows, LoadErrors> {
    load(paths, Loader::default())
}

/// Loads workflow files like [`load_files`], and checks them against the settings of a manager if
/// there are any. The file `-` is standard input.
///
/// # Errors
///
/// Returns all errors of all files; if there is any, nothing is loaded.
pub fn load_files_or_stdin(
    paths: &[PathBuf],
    settings: Option<&Settings>,
) -> Result<LoadedWorkflows, LoadErrors> {
    load(paths, Loader { allows_stdin: true, settings, ..Loader::default() })
}

/// Loads workflow files like [`load_files`], for a manager with these settings: all named buses
/// must exist, and no step may send messages to a reply queue.
///
/// # Errors
///
/// Returns all errors of all files; if there is any, nothing is loaded.
pub fn load_for_manager(
    paths: &[PathBuf],
    settings: &Settings,
) -> Result<LoadedWorkflows, LoadErrors> {
    load(paths, Loader { settings: Some(settings), ..Loader::default() })
}

/// Loads the text of a workflow file; `file` is its name in diagnostics.
///
/// # Errors
///
/// Returns all errors of the text.
pub fn load_text(file: &str, text: &str) -> Result<LoadedWorkflows, LoadErrors> {
    let mut loader = Loader::default();
    let mut report = Diagnostics::new(file);
    if text.len() > FILE_BYTES_MAX {
        report.add_unscoped_errors(vec![size_error()]);
        loader.diagnostics.push(report);
    } else {
        loader.add_file(text, report);
    }
    loader.finish()
}

/// Loads the bytes of a workflow file that a client sent, like [`load_for_manager`]. Reads no file.
/// `file` is its name in diagnostics.
///
/// # Errors
///
/// Returns all errors of the file.
pub fn load_bytes_for_manager(
    file: &str,
    bytes: &[u8],
    settings: &Settings,
) -> Result<LoadedWorkflows, LoadErrors> {
    let mut loader = Loader { settings: Some(settings), ..Loader::default() };
    loader.add_result(read_text(bytes), Diagnostics::new(file));
    loader.finish()
}

/// Loads a YAML file that is not a workflow file.
///
/// # Errors
///
/// Returns an error if the file cannot be read or does not deserialize.
pub fn load_data_file<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, LoadErrors> {
    let file = path.display().to_string();
    let mut report = Diagnostics::new(&file);
    let data = read_file(path).and_then(|text| {
        serde_yaml::from_str(&text).map_err(|error| {
            let location =
                error.location().map_or(SourceLocation::WHOLE_FILE, |location| SourceLocation {
                    line: usize::try_from(location.line()).unwrap_or_default(),
                    column: usize::try_from(location.column()).unwrap_or_default(),
                });
            LocatedError::new(location, serde_errors::explain(&error))
        })
    });
    data.map_err(|error| {
        report.add_unscoped_errors(vec![error]);
        LoadErrors(report.errors)
    })
}

/// Loads the files with a loader whose options are set.
fn load(paths: &[PathBuf], mut loader: Loader<'_>) -> Result<LoadedWorkflows, LoadErrors> {
    for path in paths {
        let is_stdin = loader.allows_stdin && path.as_os_str() == STANDARD_INPUT;
        let report = if is_stdin {
            Diagnostics::new("standard input")
        } else {
            Diagnostics::new(&path.display().to_string())
        };
        let result = if is_stdin { read_text(io::stdin().lock()) } else { read_file(path) };
        loader.add_result(result, report);
    }
    loader.finish()
}

/// What the definitions of a workflow in its virtual hosts have in common.
struct DefinitionParts {
    graphs: Arc<[Graph]>,
    limits: Vec<LimitDefinition>,
    columns: Columns,
}

/// Collects the definitions and diagnostics of the files read so far. Also has the options of
/// loading.
#[derive(Default)]
struct Loader<'s> {
    /// The diagnostics of each file.
    diagnostics: Vec<Diagnostics>,
    /// The definitions of files without errors.
    definitions: Vec<Arc<Definition>>,
    /// The number of steps so far, each counted once for each virtual host.
    step_count: usize,
    /// The file and location where each workflow is declared first, by the workflow's full name.
    declarations: HashMap<String, (String, SourceLocation)>,
    /// The first spelling of each name and full name of a workflow, by the name in lower case.
    /// SQLite ignores the case of table names, so two spellings would share a status table.
    spellings: HashMap<String, String>,
    /// The settings of the manager to check against; `None` if they are unknown.
    settings: Option<&'s Settings>,
    /// Whether the file `-` is standard input.
    allows_stdin: bool,
    /// The steps without a condition that call a workflow, for the search for cycles.
    calls: Vec<CallingStep>,
    /// The limits that workflows use, by virtual host and name, each with its first file.
    limits: HashMap<(String, String), (String, LimitDefinition)>,
    /// How the steps so far declare their queues.
    queues: QueueDeclarations,
    /// The schedules of the files, whose workflows may be in other files.
    schedules: Vec<ScheduleDraft>,
}

impl Loader<'_> {
    /// Adds the text of one file, or the error for one that cannot be read.
    fn add_result(&mut self, text: Result<String, LocatedError>, mut report: Diagnostics) {
        match text {
            Ok(text) => self.add_file(&text, report),
            Err(error) => {
                report.add_unscoped_errors(vec![error]);
                self.diagnostics.push(report);
            }
        }
    }

    /// Reads the text of one file, and adds its definitions and diagnostics.
    fn add_file(&mut self, text: &str, mut report: Diagnostics) {
        let (root, errors) = yaml::parse(text);
        if let Some(root) = root {
            let (limits, drafts) = read::parse_workflows(&root, &mut report);
            let schedules = schedules::parse_schedules(&root, self.diagnostics.len(), &mut report);
            self.schedules.extend(schedules);
            report.add_unscoped_errors(errors);
            let owners = graph::task_owners(&drafts);
            let mut conditions = CompiledConditions::default();
            let mut limits = FileLimits::compile(limits, &mut conditions, &mut report);
            for draft in &drafts {
                let graphs = graph::build_graphs(draft, &owners, &mut conditions, &mut report);
                report.workflow = draft.name.as_ref().map(|name| name.text.clone());
                let limits = limits.resolve(draft, &mut report);
                let columns = draft.columns.compile(draft, &mut conditions, &mut report);
                report.workflow = None;
                let parts = DefinitionParts { graphs: graphs.into(), limits, columns };
                self.add_workflow(draft, &parts, &mut report);
            }
            limits.warn_of_unused(&mut report);
        } else {
            report.add_unscoped_errors(errors);
        }
        report.sort();
        self.diagnostics.push(report);
    }

    /// Checks a workflow against the settings and the other workflows. Adds its definitions, one
    /// for each virtual host, unless the file has errors.
    fn add_workflow(
        &mut self,
        draft: &WorkflowDraft,
        parts: &DefinitionParts,
        report: &mut Diagnostics,
    ) {
        let Some(name) = &draft.name else { return };
        report.workflow = Some(name.text.clone());
        let spelling = self
            .spellings
            .entry(name.text.to_ascii_lowercase())
            .or_insert_with(|| name.text.clone());
        if *spelling != name.text {
            report.add_error(
                name.location,
                format!(
                    "differs from the workflow {} only in upper and lower case; their tables of \
                     statuses could not be told apart",
                    quote(spelling)
                ),
            );
        }
        match self.settings {
            Some(settings) => buses::check_buses(draft, settings, report),
            None => buses::advise_config(draft, report),
        }
        buses::check_services(draft, self.settings, report);
        kafka_topics::check_topics(draft, self.settings, report);
        advise_consumer_timeouts(draft, self.settings, report);
        self.queues.check_workflow(draft, self.settings, report);
        let vhosts = if draft.vhosts.is_empty() {
            vec![String::new()]
        } else {
            draft.vhosts.iter().map(|vhost| vhost.text.clone()).collect()
        };
        self.step_count = self.step_count.saturating_add(
            parts
                .graphs
                .iter()
                .map(|graph| graph.steps.len())
                .sum::<usize>()
                .saturating_mul(vhosts.len()),
        );
        if self.step_count > STEPS_IN_ALL_MAX {
            report.add_error(
                draft.location,
                format!(
                    "all workflows together have more than {STEPS_IN_ALL_MAX} steps up to here, \
                     each counted once for each virtual host"
                ),
            );
        }
        for vhost in vhosts {
            self.check_limits(name, &vhost, &parts.limits, report);
            self.add_definition(draft, name, vhost, parts, report);
        }
        report.leave_scope();
    }

    /// Reports limits that another file declares otherwise in the same virtual host. They are one
    /// limit, and it cannot be both.
    fn check_limits(
        &mut self,
        name: &values::LocatedText,
        vhost: &str,
        limits: &[LimitDefinition],
        report: &mut Diagnostics,
    ) {
        for limit in limits {
            let key = (vhost.to_owned(), limit.name.to_string());
            let (file, first) =
                self.limits.entry(key).or_insert_with(|| (report.file.clone(), limit.clone()));
            if first != limit {
                let message = format!(
                    "its limit {} is declared otherwise in {file}: a limit that several files use \
                     is declared alike in each of them",
                    quote(&limit.name)
                );
                report.add_error(name.location, message);
            }
        }
    }

    /// Adds the definition of a workflow in one of its virtual hosts, unless the file has errors.
    /// Reports a full name that another workflow has already.
    fn add_definition(
        &mut self,
        draft: &WorkflowDraft,
        name: &values::LocatedText,
        vhost: String,
        parts: &DefinitionParts,
        report: &mut Diagnostics,
    ) {
        let definition = Definition {
            vhost,
            bus: draft.bus.as_ref().map(|bus| bus.text.as_str().into()),
            deadline: draft.deadline,
            retention: draft.retention,
            queue: draft.queue_keys.declaration.clone(),
            limits: parts.limits.clone(),
            limit: draft.limit.as_ref().map(JobLimitDraft::to_definition),
            columns: parts.columns.clone(),
            ..Definition::new(&name.text, Vec::new())
        };
        if let Some((file, location)) = self.declarations.get(&definition.full_name()) {
            let message = format!(
                "a workflow {} is declared already, at {file}:{location}",
                quote(&definition.full_name())
            );
            report.add_error(name.location, message);
            return;
        }
        let spelling = self
            .spellings
            .entry(definition.full_name().to_ascii_lowercase())
            .or_insert_with(|| definition.full_name());
        if *spelling != definition.full_name() && !definition.vhost.is_empty() {
            let message = format!(
                "in the virtual host {}: differs from {} only in upper and lower case; their \
                 tables of statuses could not be told apart",
                quote(&definition.vhost),
                quote(spelling)
            );
            report.add_error(name.location, message);
        }
        self.declarations.insert(definition.full_name(), (report.file.clone(), name.location));
        self.calls.extend(calls::find_calls(draft, &definition, &report.file));
        if report.errors.is_empty() {
            self.definitions
                .push(Arc::new(Definition { graphs: parts.graphs.clone(), ..definition }));
        }
    }

    /// Checks the calls across all files. Returns the loaded workflows, or all errors.
    fn finish(mut self) -> Result<LoadedWorkflows, LoadErrors> {
        calls::warn_of_call_cycles(&self.calls, &mut self.diagnostics);
        // A workflow with errors is not known here, so that its schedules would be reported too.
        if self.diagnostics.iter().all(|report| report.errors.is_empty()) {
            let schedules = std::mem::take(&mut self.schedules);
            let definitions = &mut self.definitions;
            schedules::attach_schedules(schedules, definitions, &mut self.diagnostics);
        }
        let (mut errors, mut warnings, mut advice) = (Vec::new(), Vec::new(), Vec::new());
        for report in self.diagnostics {
            errors.extend(report.errors);
            warnings.extend(report.warnings);
            advice.extend(report.advice);
        }
        if errors.is_empty() {
            Ok(LoadedWorkflows { definitions: self.definitions, warnings, advice })
        } else {
            Err(LoadErrors(errors))
        }
    }
}

/// Reads the text of a workflow file. Returns an error if it is unreadable, too large or not UTF-8.
fn read_file(path: &Path) -> Result<String, LocatedError> {
    if path.is_dir() {
        return Err(LocatedError::new(
            SourceLocation::WHOLE_FILE,
            "this is a directory; name the workflow files in it",
        ));
    }
    // The size in the file's metadata cannot be relied on: the file may be a pipe, or grow. So
    // `read_text` limits what it reads.
    read_text(files::open(path).map_err(read_error)?)
}

/// Reads text of at most [`FILE_BYTES_MAX`] bytes in UTF-8.
fn read_text(file: impl Read) -> Result<String, LocatedError> {
    // One more byte is read, to notice that a text is too large.
    let read_limit = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    file.take(read_limit).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(size_error());
    }
    let marked_encoding = find_byte_order_mark(&bytes);
    String::from_utf8(bytes).map_err(|error| {
        if let Some(encoding) = marked_encoding {
            let message = format!(
                "the file begins with a byte-order mark of {encoding}; save it as UTF-8 text"
            );
            return LocatedError::new(SourceLocation::START, message);
        }
        let valid_bytes = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let (line, column) = position_after(&String::from_utf8_lossy(valid_bytes));
        LocatedError::new(
            SourceLocation { line, column },
            "this byte is not UTF-8; save the file as UTF-8 text",
        )
    })
}

/// Returns the error for a file that cannot be read.
fn read_error(error: io::Error) -> LocatedError {
    LocatedError::new(SourceLocation::WHOLE_FILE, format!("cannot read the file: {error}"))
}

/// Returns the error for a text of more than [`FILE_BYTES_MAX`] bytes.
fn size_error() -> LocatedError {
    let kib = FILE_BYTES_MAX / 1024;
    LocatedError::new(
        SourceLocation::WHOLE_FILE,
        format!(
            "the file is larger than {kib} KiB; a workflow file of that size is a mistake, or \
             should be split"
        ),
    )
}
