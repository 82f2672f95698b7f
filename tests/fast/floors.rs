//! A file imports only from floors below (the map is in `src/lib.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The floor of each module of the crate `daemon`. Between crates the compiler holds the floors.
fn floor(module: &str) -> u32 {
    match module {
        "access" | "budgets" | "load" | "settings" | "view" | "telemetry" => 1,
        "events" | "traces" => 2,
        "actors" => 3,
        "reload" | "service" => 4,
        "api" => 5,
        other => panic!("src/daemon/{other} has no floor: give it one here and in src/lib.rs"),
    }
}

/// What a module may use of its own floor: settings are plain data that the others read.
fn may_use(from: &str, to: &str) -> bool {
    from == to || floor(to) < floor(from) || (floor(from) == 1 && to == "settings")
}

/// Adds the Rust files below a folder.
pub(crate) fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The files of all crates: the crate, the path below `src`, the text.
fn sources() -> Vec<(String, PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    files(&src, &mut paths);
    let sources = paths.into_iter().filter_map(|path| {
        let relative = path.strip_prefix(&src).expect("below src").to_owned();
        let name = relative.components().next()?.as_os_str().to_string_lossy().into_owned();
        (!name.ends_with(".rs")).then(|| {
            let text = fs::read_to_string(&path).expect("readable");
            (name, relative, text)
        })
    });
    sources.collect()
}

/// The module of the daemon that a file belongs to, such as `actors`.
fn module_of_daemon(relative: &Path) -> Option<String> {
    let inside = relative.strip_prefix("daemon").ok()?;
    let first = inside.components().next()?.as_os_str().to_string_lossy();
    let module = first.trim_end_matches(".rs");
    (module != "mod").then(|| module.to_owned())
}

#[test]
fn no_file_of_the_daemon_imports_upwards() {
    let mut seen = 0;
    for (_, path, text) in sources() {
        let Some(module) = module_of_daemon(&path) else { continue };
        seen += 1;
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
    assert!(seen > 100, "only {seen} files were found");
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

/// The Rust files below these folders of the project.
fn below(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    for folder in folders {
        files(&root.join(folder), &mut paths);
    }
    let text = |path: PathBuf| (path.clone(), fs::read_to_string(path).expect("readable"));
    paths.into_iter().map(text).collect()
}

/// How a file begins that a program has written.
const GENERATED: &str = "// This file is @generated";

/// No file is longer than a reader takes in at once.
const LINES_MAX: usize = 600;

#[test]
fn no_file_has_more_lines_than_a_reader_takes_in() {
    let files = below(&["src", "tests", "benches", "examples", "fuzz/fuzz_targets"]);
    assert!(files.len() > 200, "only {} files were found", files.len());
    for (path, text) in files {
        let lines = text.lines().count();
        assert!(
            lines <= LINES_MAX,
            "{} has {lines} lines, more than {LINES_MAX}: part it by concept",
            path.display()
        );
    }
}

/// As in `rustfmt.toml`; rustfmt leaves comments and texts as they are.
const COLUMNS_MAX: usize = 100;

#[test]
fn no_line_is_wider_than_the_formatter_makes_it() {
    let files = below(&[
        "src",
        "tests",
        "benches",
        "examples",
        "rustworker/src",
        "rustworker/examples",
        "fuzz/fuzz_targets",
    ]);
    for part in ["/src/", "/tests/", "/benches/", "/examples/", "/rustworker/", "/fuzz/"] {
        let is_seen = files.iter().any(|(path, _)| path.to_string_lossy().contains(part));
        assert!(is_seen, "nothing was found in {part}");
    }
    for (path, text) in files.iter().filter(|(_, text)| !text.starts_with(GENERATED)) {
        for (line, number) in text.lines().zip(1..) {
            let columns = line.chars().count();
            assert!(
                columns <= COLUMNS_MAX,
                "{}:{number} has {columns} columns, more than {COLUMNS_MAX}: wrap it",
                path.display()
            );
        }
    }
}

/// Text from a manager may come from anybody: it is printed as `Text`, which escapes it.
#[test]
fn what_the_command_line_reads_of_an_answer_is_fit_to_be_printed() {
    // Requests are made with its names; they are escaped where they are printed.
    const NOT_PRINTED: &str = "struct WorkflowResponse ";
    let mut seen = 0;
    let is_client = |path: &Path| path.starts_with("cli") && !path.starts_with("cli/workflow_test");
    for (_, path, text) in sources().into_iter().filter(|(_, path, _)| is_client(path)) {
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
    // What one crate alone uses stands in its `Cargo.toml`.
    for (word, owner) in [
        ("actix::", "daemon/actors/"),
        ("Client::builder()", "base/http_client.rs"),
        ("use lapin::", "amqp/|cli/worker_test/amqp|cli/doctor/broker_probe.rs"),
        ("ureq::", "cli/|daemon/settings/http.rs|base/trust.rs"),
        ("rusqlite::", "journal/sqlite/"),
        ("serde_yaml::", "daemon/load/|daemon/settings/text.rs"),
        (" cel::", "engine/expression"),
        ("config::Config", "daemon/settings"),
        ("sd_notify::", "daemon/service.rs"),
        ("prost::", "grpc/|daemon/traces/"),
    ] {
        for (_, path, text) in sources() {
            assert!(
                owner.split('|').any(|owner| path.to_string_lossy().starts_with(owner))
                    || !text.contains(word),
                "{} uses {word}, which belongs to {owner}",
                path.display()
            );
        }
    }
}

/// A file without its unit tests, which end it.
fn release(text: &str) -> &str {
    let end = ["mod tests {", "pub(super) mod tests {"]
        .iter()
        .find_map(|tests| text.find(&format!("#[cfg(test)]\n{tests}")));
    &text[..end.unwrap_or(text.len())]
}

/// What a service manager gives the process is not for programs that it starts.
#[test]
fn programs_that_are_started_get_nothing_of_the_service_manager() {
    let mut seen = 0;
    for (_, path, text) in sources() {
        let release = release(&text);
        let started = release.matches("Command::new(").count();
        let cleared = release.matches("service::clear_systemd_env(").count();
        seen += started;
        assert!(
            started == cleared,
            "{}: {started} programs, {cleared} with a cleared environment",
            path.display()
        );
    }
    assert!(seen >= 3, "only {seen} were found");
}

/// The crates, and the folders whose files import each other by their own names. In none of them a
/// file imports itself, not even through others.
const WITHOUT_CIRCLES: [&str; 12] = [
    "amqp",
    "base",
    "bus",
    "cli",
    "daemon",
    "daemon/actors",
    "daemon/api",
    "daemon/load",
    "engine",
    "grpc",
    "journal",
    "kafka",
];

/// The files of a folder below `src` by their module paths, such as `actors::router::calls`.
fn modules(folder: &str) -> BTreeMap<String, String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut paths = Vec::new();
    files(&src.join(folder), &mut paths);
    let modules = paths.into_iter().filter(|path| !path.ends_with(format!("{folder}/mod.rs")));
    let modules = modules.map(|path| {
        let relative = path.strip_prefix(&src).expect("below src").with_extension("");
        let name = relative.to_string_lossy().replace('/', "::");
        let name = name.strip_suffix("::mod").unwrap_or(&name).to_owned();
        (name, fs::read_to_string(&path).expect("readable"))
    });
    modules.filter(|(_, text)| !text.starts_with(GENERATED)).collect()
}

/// The paths that a file names, with the crate in front: in its `use` lines and in its code.
fn used(module: &str, text: &str) -> Vec<String> {
    let release = release(text);
    let code: Vec<&str> =
        release.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    // Who may see an item is no import.
    let code = code.join("\n").replace("(in crate::", "(");
    let mut named = Vec::new();
    let statements = code.split("use ").skip(1).filter_map(|rest| rest.split_once(';'));
    for (statement, _) in statements {
        named.extend(paths(&statement.split_whitespace().collect::<String>()));
    }
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    // A word that ends with `::` begins a group.
    let whole = words.filter(|word| word.contains("::") && !word.ends_with("::"));
    named.extend(whole.map(str::to_owned));
    named.iter().map(|path| from_root(module, path)).collect()
}

/// The paths of a `use` statement: `a::{b, c::{d, e}}` names three.
fn paths(statement: &str) -> Vec<String> {
    let Some((above, group)) = statement.split_once('{') else { return vec![statement.to_owned()] };
    let group = group.strip_suffix('}').unwrap_or(group);
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match parts.last_mut() {
            Some(part) if c != ',' || depth > 0 => part.push(c),
            _ => parts.push(String::new()),
        }
    }
    // A comma may end the list.
    let parts = parts.iter().filter(|part| !part.is_empty());
    parts.flat_map(|part| paths(part)).map(|part| format!("{above}{part}")).collect()
}

/// A path that `module` names, from the crate's root. A path without `crate`, `self` or `super` is
/// taken for a submodule's, which it is if a submodule has that name.
fn from_root(module: &str, path: &str) -> String {
    if let Some(path) = path.strip_prefix("crate::") {
        let own = module.split("::").next().unwrap_or_default();
        return format!("{own}::{path}");
    }
    let (mut above, mut rest) = (module, path.strip_prefix("self::").unwrap_or(path));
    while let Some(path) = rest.strip_prefix("super::") {
        above = above.rsplit_once("::").map_or("", |(above, _)| above);
        rest = path;
    }
    if above.is_empty() { rest.to_owned() } else { format!("{above}::{rest}") }
}

#[test]
fn the_paths_of_a_file_are_read_from_its_imports_and_from_its_code() {
    let text = "use super::{a::A, b::{self, B}};\npub(super) use crate::x::C;\n\
                // crate::comment::D\nfn f() { super::super::y::g(sub::h) }\n\
                #[cfg(test)]\nmod tests { use super::t::T; }";
    let used: BTreeSet<String> = used("x::m::n", text).into_iter().collect();
    for path in
        ["x::m::a::A", "x::m::b::self", "x::m::b::B", "x::x::C", "x::y::g", "x::m::n::sub::h"]
    {
        assert!(used.contains(path), "{path} is not among {used:?}");
    }
    assert!(!used.iter().any(|path| path.contains("comment") || path.contains("t::T")), "{used:?}");
}

#[test]
fn no_file_imports_itself_through_others() {
    let (mut circles, mut seen) = (Vec::new(), 0);
    for folder in WITHOUT_CIRCLES {
        let modules = modules(folder);
        assert!(modules.len() > 5, "only {} files were found", modules.len());
        let imports: BTreeMap<&str, BTreeSet<&str>> = modules
            .iter()
            .map(|(module, text)| {
                let used = used(module, text);
                // An import from the folder's front hides the file that it comes from.
                let front = format!("{}::", folder.replace('/', "::"));
                let is_by_front = |path: &&String| {
                    let name = path.strip_prefix(&front);
                    name.is_some_and(|name| name.starts_with(char::is_uppercase))
                };
                let by_front = used.iter().find(is_by_front);
                assert_eq!(by_front, None, "{module} imports by src/{folder}/mod.rs");
                let of = |used: &String| {
                    let fits =
                        |name: &&String| used == *name || used.starts_with(&format!("{name}::"));
                    modules.keys().filter(fits).max_by_key(|name| name.len())
                };
                let imported = used.iter().filter_map(of).map(String::as_str);
                (module.as_str(), imported.filter(|other| other != module).collect())
            })
            .collect();
        seen += imports.values().map(BTreeSet::len).sum::<usize>();
        // Files that import nothing are removed, again and again: what is left are circles, and
        // files that import one.
        let mut left = imports.clone();
        loop {
            let done: Vec<&str> = left
                .iter()
                .filter(|(_, imported)| imported.iter().all(|other| !left.contains_key(other)))
                .map(|(module, _)| *module)
                .collect();
            if done.is_empty() {
                break;
            }
            done.into_iter().for_each(|module| drop(left.remove(module)));
        }
        left.values_mut().for_each(|imported| imported.retain(|other| imports.contains_key(other)));
        circles.extend(left.into_iter().map(|(file, imported)| format!("{file}: {imported:?}")));
    }
    assert!(seen > 500, "only {seen} imports were found");
    assert!(circles.is_empty(), "circles among the files of src: {circles:#?}");
}

/// The folders whose front lists its files in the order in which they build on each other.
const IN_ORDER: [&str; 2] = ["daemon/actors", "engine"];

/// The names in the rows of the table of a folder's front, in order.
fn listed(folder: &str) -> Vec<String> {
    let front = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder).join("mod.rs");
    let text = fs::read_to_string(front).expect("readable");
    let rows = text.lines().filter(|line| line.starts_with("//! | "));
    let names = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

#[test]
fn the_list_of_a_folder_names_each_of_its_files_before_those_that_import_it() {
    for folder in IN_ORDER {
        let (modules, listed) = (modules(folder), listed(folder));
        let prefix = format!("{}::", folder.replace('/', "::"));
        // The part of a folder is its file's.
        let file = |path: &str| {
            let inside = path.strip_prefix(&prefix)?;
            Some(inside.split("::").next().unwrap_or_default().to_owned())
        };
        let place = |name: &str| listed.iter().position(|other| other == name);
        let names: BTreeSet<String> = modules.keys().filter_map(|module| file(module)).collect();
        for name in &names {
            assert!(place(name).is_some(), "src/{folder}/mod.rs does not list {name}");
        }
        for (module, text) in &modules {
            let name = file(module).expect("below the folder");
            for used in used(module, text).iter().filter_map(|used| file(used)) {
                assert!(
                    used == name || !names.contains(&used) || place(&used) < place(&name),
                    "src/{folder}/mod.rs lists {used} behind {name}, which imports it"
                );
            }
        }
    }
}

/// Tests break the daemon at points with names: whoever writes one looks into the table.
#[test]
fn each_point_at_which_tests_break_the_daemon_is_in_the_table() {
    let sources = sources();
    let table = sources.iter().find(|(_, path, _)| path.ends_with("base/faults.rs"));
    let (_, _, table) = table.expect("a table");
    let mut seen = 0;
    for (_, path, text) in &sources {
        for call in ["faults::hit(\"", "fail_point(\""] {
            for point in text.split(call).skip(1).filter_map(|rest| rest.split('"').next()) {
                seen += 1;
                let is_listed = table.contains(&format!("`{point}`"));
                assert!(is_listed, "{}: src/base/faults.rs does not list {point}", path.display());
            }
        }
    }
    assert!(seen > 15, "only {seen} were found");
}

/// The files that own or hold a lock, and what it guards. All others tell each other by mail.
const LOCKS: [(&str, &str); 35] = [
    ("daemon/access/certificate.rs", "the certificate, which is replaced when its files change"),
    ("daemon/access/login_limiter.rs", "the addresses that have sent wrong tokens"),
    ("daemon/access/mod.rs", "the tokens, which a reload replaces"),
    ("daemon/actors/bulk_requests.rs", "the counts that all jobs add to"),
    ("daemon/actors/buses.rs", "the buses that are started"),
    ("daemon/actors/health.rs", "the states of the buses"),
    ("daemon/actors/loaded_definitions.rs", "the definitions for new jobs"),
    ("daemon/actors/log_limiter.rs", "when each kind of line was logged"),
    ("daemon/actors/losses.rs", "what queues have lost"),
    ("daemon/actors/pauses.rs", "which queues and workflows are paused"),
    ("daemon/actors/queue_report.rs", "the last look at all queues"),
    ("daemon/actors/spare_places.rs", "the limits that may have places to spare"),
    ("grpc/incoming.rs", "what comes in on a call, until the call takes it"),
    ("grpc/outbound.rs", "the room of what is written next on a call"),
    (
        "daemon/api/connection_slots.rs",
        "which connections there are, of all threads that have some",
    ),
    ("daemon/api/rebuilt_jobs.rs", "the cache of jobs; that a job is rebuilt once at a time"),
    ("amqp/policy_lock.rs", "whether queues are declared or a policy is set"),
    ("amqp/wire/burst.rs", "whether writing is held back"),
    ("amqp/wire/delivery_budget.rs", "who waits for room for deliveries"),
    ("bus/lease_queue.rs", "the messages that workers on other threads take"),
    ("bus/lease_queues.rs", "the lease queues, by their buses"),
    ("bus/lease_queue/queues.rs", "threads that wait for a message of a queue"),
    ("bus/embedded.rs", "the replies without a verdict"),
    ("daemon/events/hub.rs", "the ring of events"),
    ("journal/postgres/connection.rs", "the prepared statements of a connection"),
    ("journal/postgres/pool.rs", "the connections of readers; the definitions"),
    ("journal/sqlite/unprojected.rs", "the ids that are not derived yet"),
    ("journal/sqlite/reader.rs", "the pool of connections; the definitions"),
    ("journal/sqlite/store.rs", "the writing end, which a reader may have derive"),
    ("daemon/reload.rs", "that one reload runs at a time"),
    ("daemon/telemetry/limits.rs", "which limits have series of their own"),
    ("daemon/telemetry/line_queue.rs", "the lines that are to be written"),
    ("daemon/telemetry/log.rs", "when a line was last let through"),
    ("daemon/telemetry/rates.rs", "what became of jobs in each minute"),
    ("daemon/telemetry/series.rs", "which workflows and steps have series of their own"),
];

#[test]
fn locks_are_in_the_files_that_are_listed() {
    let has_lock = |text: &str| {
        let release = release(text);
        let code = release.lines().map(|line| line.split("//").next().unwrap_or_default());
        // Whoever locks what another file owns says what happens if its holder has panicked.
        let words = ["Mutex", "RwLock", "Condvar", "PoisonError", ".lock()"];
        // Streams of the process, and a folder that other processes write to.
        let others = ["stdin().lock()", "stdout().lock()", "folder.lock()"];
        code.into_iter().any(|line| {
            words.iter().any(|word| line.contains(word))
                && !others.iter().any(|other| line.contains(other))
        })
    };
    let with_locks = sources().into_iter().filter(|(_, _, text)| has_lock(text));
    let found: BTreeSet<String> =
        with_locks.map(|(_, path, _)| path.to_string_lossy().into_owned()).collect();
    let listed: BTreeSet<String> = LOCKS.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(found, listed, "list what a lock guards, or send mail");
}

/// What the map in `src/lib.rs` says about clocks, tables and mail.
#[test]
fn the_invariants_that_a_search_can_hold_hold() {
    for (word, file) in [
        ("DashMap<", "daemon/actors/routes.rs"),
        ("Instant::now", "base/clock.rs"),
        ("SystemTime::now", "base/clock.rs"),
        ("UNIX_EPOCH.elapsed", "base/clock.rs"),
        ("Uuid::new_v4", "base/clock.rs"),
        (".do_send(", "daemon/actors/mailbox.rs"),
        ("self.route_table.insert(", "daemon/actors/router/lifecycle.rs"),
        ("self.route_table.remove_if_idle(", "daemon/actors/router/lifecycle.rs"),
    ] {
        let uses = |(_, path, text): &(String, PathBuf, String)| {
            path.ends_with(file) && release(text).contains(word)
        };
        // The one that is nowhere is another way to read the wall clock.
        let is_nowhere = word == "UNIX_EPOCH.elapsed";
        assert!(
            is_nowhere || sources().iter().any(uses),
            "{file} does not use {word}: what is searched for?"
        );
        for (_, path, text) in sources() {
            let release = release(&text);
            assert!(
                path.ends_with(file) || !release.contains(word),
                "{} uses {word}, which belongs to {file}",
                path.display()
            );
        }
    }
    let inside = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/daemon/actors");
    let outside = below(&["src", "benches", "examples"]).into_iter();
    let outside = outside.filter(|(path, _)| !path.starts_with(&inside));
    let mut seen = BTreeSet::new();
    for (path, text) in outside {
        let used = used("", &text);
        assert!(
            !used.iter().any(|path| path.contains("actors::inputs"))
                && !text.contains(".mailboxes()"),
            "{}: whoever is outside asks through actors::manager_handle",
            path.display()
        );
        seen.extend(path.parent().and_then(Path::file_name).map(ToOwned::to_owned));
    }
    for folder in ["src", "api", "cli", "benches", "word-counts"] {
        assert!(seen.contains(std::ffi::OsStr::new(folder)), "nothing was found in {folder}");
    }
    // Bugs are planted by handing in a wrong part.
    for (_, path, text) in sources() {
        assert!(!text.contains("planted"), "{}: a bug is planted in release code", path.display());
    }
    for part in ["router.rs", "router/", "job.rs", "job/", "bus.rs", "outbox.rs"] {
        let part = format!("daemon/actors/{part}");
        let mut parts = sources();
        parts.retain(|(_, path, _)| path.to_string_lossy().contains(&part));
        assert!(!parts.is_empty(), "there is no {part}");
        for (_, path, text) in parts {
            assert!(
                !text.contains(".reader"),
                "{}: no disk is read where replies pass: the archive reads for the router",
                path.display()
            );
        }
    }
}
