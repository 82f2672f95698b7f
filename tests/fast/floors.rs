//! A file imports only from floors below (the map is in `src/lib.rs`).

use std::fs;
use std::path::{Path, PathBuf};

/// The floor of each module of the crate.
fn floor(module: &str) -> u32 {
    match module {
        "engine" | "faults" => 0,
        "load" | "settings" | "times" | "view" | "telemetry" | "journal" | "bus" => 1,
        "actors" | "rehearsal" => 2,
        "api" => 3,
        "cli" => 4,
        other => panic!("src/{other} has no floor: give it one here and in the map of src/lib.rs"),
    }
}

/// What a module may use of its own floor: settings and times are plain data that the others read.
fn may_use(from: &str, to: &str) -> bool {
    from == to
        || floor(to) < floor(from)
        || (floor(from) == 1 && matches!(to, "settings" | "times"))
        || to == "faults"
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn sources() -> Vec<(String, PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    files(&src, &mut paths);
    let sources = paths.into_iter().filter_map(|path| {
        let relative = path.strip_prefix(&src).expect("below src");
        let module = relative
            .components()
            .next()?
            .as_os_str()
            .to_string_lossy()
            .trim_end_matches(".rs")
            .to_owned();
        let text = fs::read_to_string(&path).expect("readable");
        Some((module, path.clone(), text))
    });
    sources.filter(|(module, _, _)| module != "lib" && module != "main").collect()
}

#[test]
fn no_file_imports_upwards() {
    let sources = sources();
    assert!(sources.len() > 15, "only {} files were found", sources.len());
    for (module, path, text) in sources {
        for part in text.split("crate::").skip(1) {
            let used: String =
                part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if used.chars().next().is_some_and(char::is_lowercase) {
                assert!(
                    may_use(&module, &used),
                    "{}: {module} (floor {}) uses crate::{used} (floor {})",
                    path.display(),
                    floor(&module),
                    floor(&used)
                );
            }
        }
    }
}

#[test]
fn the_engine_is_pure() {
    for (_, path, text) in sources().into_iter().filter(|(module, _, _)| module == "engine") {
        for barred in [
            "actix",
            "lapin",
            "rusqlite",
            "tokio",
            "tracing",
            "std::time",
            "std::fs",
            "std::net",
            "std::thread",
            "async ",
            "rand::",
        ] {
            assert!(!text.contains(barred), "{} uses {barred}", path.display());
        }
    }
}

/// What comes from a manager may come from anybody: it is printed as `Text`, which escapes it.
#[test]
fn what_the_command_line_reads_of_an_answer_is_fit_to_be_printed() {
    // Its names are asked for by, and escaped where they are printed.
    const NOT_PRINTED: &str = "struct WorkflowAnswer ";
    let mut seen = 0;
    for (_, path, text) in sources().into_iter().filter(|(module, _, _)| module == "cli") {
        for part in text.split("#[derive(").skip(1).filter(|part| {
            part.split(')').next().is_some_and(|traits| traits.contains("Deserialize"))
        }) {
            let body = part
                .split_once('{')
                .and_then(|(_, rest)| rest.split_once('}'))
                .map_or(part, |(body, _)| body);
            seen += body.matches("Text").count();
            let raw: Vec<&str> = body
                .lines()
                .filter(|line| line.contains("String") && !part.contains(NOT_PRINTED))
                .collect();
            assert!(
                raw.is_empty(),
                "{}: {raw:?} would be printed as it came: read it as `Text`",
                path.display()
            );
        }
    }
    assert!(seen > 20, "only {seen} texts were found");
}

#[test]
fn each_resource_has_one_user() {
    for (word, owner) in [
        ("lapin::", "bus"),
        ("rusqlite::", "journal"),
        ("serde_yaml::", "load"),
        ("config::Config", "settings"),
        ("DashMap<", "actors"),
    ] {
        for (module, path, text) in sources() {
            assert!(
                module == owner || !text.contains(word),
                "{} uses {word}, which belongs to {owner}",
                path.display()
            );
        }
    }
}
