//! `init`: makes a folder with a workflow file, its worker, its tests and a README, from a template
//! of `examples/`.

use super::arguments::InitArguments;
use super::error::ClientError;
use super::templates::{TEMPLATES, Template};
use daemon::load::json_schema;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The file with the JSON Schema, which editors use.
const SCHEMA_FILE: &str = "workflow-file.schema.json";

/// The first line of a workflow file. It names the schema to editors.
const SCHEMA_LINE: &str = "# yaml-language-server: $schema=./workflow-file.schema.json\n";

/// The column in which the comments of the README's commands begin.
const COMMENT_COLUMN: usize = 70;

/// Runs `init TEMPLATE [DIR]` or `init --list`.
pub(super) fn init(arguments: &InitArguments, out: &mut dyn Write) -> Result<(), ClientError> {
    if arguments.list {
        return Ok(list_templates(out)?);
    }
    let template = TEMPLATES.iter().find(|template| Some(template.name) == arguments.name());
    let template = template.ok_or_else(|| {
        let names: Vec<&str> = TEMPLATES.iter().map(|template| template.name).collect();
        ClientError::Usage(format!(
            "name a template: {}; workflow-manager init --list tells what each has",
            names.join(", ")
        ))
    })?;
    let directory = arguments.directory.clone().unwrap_or_else(|| PathBuf::from(template.name));
    let files = template.render_files();
    write_files(&directory, &files)?;
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let directory = directory.display();
    writeln!(out, "made in {directory}: {}", names.join(", "))?;
    writeln!(out, "next: cd {directory} && workflow-manager test tests.yaml; README.md goes on")?;
    Ok(out.flush()?)
}

impl InitArguments {
    /// Returns the name of the template, if there is one.
    fn name(&self) -> Option<&str> {
        self.template.as_deref()
    }
}

fn list_templates(out: &mut dyn Write) -> io::Result<()> {
    let width = TEMPLATES.iter().map(|template| template.name.len()).max().unwrap_or(0);
    for Template { name, about, .. } in TEMPLATES {
        writeln!(out, "{name:width$}  {about}")?;
    }
    out.flush()
}

/// Writes the files into the directory. If one of them exists, nothing is written.
fn write_files(directory: &Path, files: &[(String, String)]) -> Result<(), ClientError> {
    let existing: Vec<&str> = files
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| fs::symlink_metadata(directory.join(name)).is_ok())
        .collect();
    if !existing.is_empty() {
        return Err(ClientError::Refused(format!(
            "{} has {} already, and nothing is overwritten: name another folder",
            directory.display(),
            existing.join(", ")
        )));
    }
    let write_error = |path: &Path, error: &io::Error| {
        ClientError::Refused(format!("cannot write {}: {error}", path.display()))
    };
    fs::create_dir_all(directory).map_err(|error| write_error(directory, &error))?;
    for (name, text) in files {
        let path = directory.join(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| write_error(&path, &error))?;
    }
    Ok(())
}

impl Template {
    /// Returns the name and the text of each file.
    fn render_files(&self) -> Vec<(String, String)> {
        let mut files: Vec<(String, String)> = self
            .files
            .iter()
            .map(|(name, text)| {
                let schema_line = if *name == "workflow.yaml" { SCHEMA_LINE } else { "" };
                ((*name).to_owned(), format!("{schema_line}{text}"))
            })
            .collect();
        files.push(("README.md".to_owned(), self.render_readme()));
        files.push((SCHEMA_FILE.to_owned(), format!("{:#}\n", json_schema())));
        files
    }

    /// Renders the README: the commands from the test to the first job.
    fn render_readme(&self) -> String {
        let mut lines = vec![
            ("workflow-manager test tests.yaml".to_owned(), "scripted workers, virtual time"),
            (
                "workflow-manager dev workflow.yaml".to_owned(),
                "the manager, in a terminal of its own",
            ),
        ];
        lines.extend(self.prepare.map(|prepare| (prepare.to_owned(), "makes what a worker needs")));
        let service = self.service.map(|service| (service.to_owned(), "the service, likewise"));
        lines.extend(service);
        lines.extend(self.workers.iter().map(|worker| {
            (
                format!("workflow-manager work --watch {worker}"),
                "a worker, in a terminal of its own",
            )
        }));
        let Template { name, about, job, .. } = self;
        lines.push((format!("workflow-manager run {job}"), "a job, and its result"));
        let commands: String = lines
            .iter()
            .map(|(command, comment)| format!("    {command:COMMENT_COLUMN$} # {comment}\n"))
            .collect();
        format!(
            "# {name}\n\n{about}.\n\n{commands}\n`workflow-manager check workflow.yaml` says what \
             is wrong with the workflow file; editors complete its keys from `{SCHEMA_FILE}`.\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow_test::run_tests;
    use std::collections::BTreeSet;

    fn arguments(template: &str, directory: &Path) -> InitArguments {
        InitArguments {
            template: Some(template.to_owned()),
            directory: Some(directory.to_owned()),
            list: false,
        }
    }

    #[test]
    fn each_template_is_valid_and_passes_its_tests() {
        for template in TEMPLATES {
            let folder = tempfile::tempdir().unwrap();
            let directory = folder.path().join("a/b");
            let mut out = Vec::new();
            init(&arguments(template.name, &directory), &mut out).unwrap();
            let told = String::from_utf8(out).unwrap();
            assert!(told.contains("README.md"), "{told}");
            let workflow = directory.join("workflow.yaml");
            let loaded = daemon::load::load_files(std::slice::from_ref(&workflow)).unwrap();
            assert!(loaded.warnings.is_empty(), "{}: {:?}", template.name, loaded.warnings);
            let text = fs::read_to_string(workflow).unwrap();
            assert!(text.starts_with("# yaml-language-server: $schema=./workflow-file"), "{text}");
            let schema = fs::read_to_string(directory.join(SCHEMA_FILE)).unwrap();
            assert_eq!(serde_json::from_str::<serde_json::Value>(&schema).unwrap(), json_schema());
            let outcomes = run_tests(&directory.join("tests.yaml")).unwrap();
            assert!(outcomes.len() >= 2, "{}", template.name);
            for outcome in outcomes {
                let difference = outcome.differences.join("\n");
                assert!(outcome.passed, "{}: {}: {difference}", template.name, outcome.name);
            }
        }
    }

    #[test]
    fn a_readme_has_the_commands_in_order() {
        let template = TEMPLATES.iter().find(|template| template.name == "go").unwrap();
        let readme = template.render_readme();
        assert!(readme.lines().count() <= 12, "{readme}");
        let commands: Vec<&str> = readme
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .map(|line| line.split(" #").next().unwrap_or_default().trim())
            .collect();
        assert_eq!(commands[0], "workflow-manager test tests.yaml");
        assert_eq!(commands[1], "workflow-manager dev workflow.yaml");
        assert_eq!(commands[2], "go build -o worker worker.go");
        assert_eq!(commands[3], "workflow-manager work --watch greet -- ./worker");
        assert_eq!(commands[4], "workflow-manager run greeting --message '{\"name\":\"Ada\"}'");
    }

    #[test]
    fn nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tests.yaml"), "mine").unwrap();
        let error = init(&arguments("shell", folder.path()), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("tests.yaml already"), "{error}");
        assert_eq!(fs::read_to_string(folder.path().join("tests.yaml")).unwrap(), "mine");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was written");
        // A link that leads nowhere is not written through.
        fs::remove_file(folder.path().join("tests.yaml")).unwrap();
        std::os::unix::fs::symlink("elsewhere", folder.path().join("worker.sh")).unwrap();
        init(&arguments("shell", folder.path()), &mut Vec::new()).unwrap_err();
        assert!(!folder.path().join("elsewhere").exists());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_refused_with_its_name() {
        let directory = Path::new("/proc/nowhere");
        let error = init(&arguments("shell", directory), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("/proc/nowhere"), "{error}");
    }

    #[test]
    fn without_a_template_the_error_names_them() {
        let nothing = InitArguments { template: None, directory: None, list: false };
        let error = init(&nothing, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, ClientError::Usage(_)), "{error}");
        assert!(error.to_string().contains("python, node, rust"), "{error}");
        assert!(error.to_string().contains("init --list"), "{error}");
    }

    #[test]
    fn the_list_has_each_template_once() {
        let mut out = Vec::new();
        list_templates(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let names: BTreeSet<&str> =
            text.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(names.len(), TEMPLATES.len());
        assert!(["python", "node", "rust", "shell", "go"].iter().all(|name| names.contains(name)));
    }
}
