//! The page: how its files are served, what they are made of, and what they must not do.

use actix_web::http::StatusCode;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use support::api::{Answer, Api};
use support::manager::TestManager;
use workflow_manager::settings::{Secret, Settings};

const WORKFLOW: &str = "workflows: [{name: single, steps: [{name: work}]}]";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("page")
}

/// All files of the page, by their paths within it.
fn files(below: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(below).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else {
            let path = path.strip_prefix(folder()).expect("within it");
            found.push(path.to_string_lossy().into_owned());
        }
    }
}

fn all_files() -> Vec<String> {
    let mut found = Vec::new();
    files(&folder(), &mut found);
    found
}

async fn got(api: &Api, path: &str, headers: &[(&str, &str)]) -> Answer {
    let answer = api.get(path, headers).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        assert_eq!(answer.header(name), value, "{path}");
    }
    let policy = answer.header("content-security-policy");
    for rule in [
        "default-src 'none'",
        "script-src 'self';",
        "style-src 'self';",
        "require-trusted-types-for 'script'",
    ] {
        assert!(policy.contains(rule), "{path}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{path}: {policy}");
    answer
}

/// Where the files are: what `index.html` says.
fn place(index: &Answer) -> String {
    let text = String::from_utf8_lossy(&index.body).into_owned();
    let (_, rest) = text.split_once("src=\"assets/").expect("a script");
    format!("/assets/{}/", rest.split('/').next().expect("a name"))
}

#[test]
fn the_page_needs_no_token_and_each_of_its_files_is_served_as_it_is() {
    let change = |settings: &mut Settings| settings.http.token = Secret("secret".to_owned());
    TestManager::with(WORKFLOW).set(change).serve(|api| async move {
        // A link on another site may lead here.
        let index = got(&api, "/", &[("sec-fetch-site", "cross-site")]).await;
        assert_eq!(index.header("content-type"), "text/html; charset=utf-8");
        assert_eq!(index.header("cache-control"), "no-cache");
        let known = api.get("/", &[("if-none-match", index.header("etag"))]).await;
        assert_eq!((known.status, known.body.len()), (StatusCode::NOT_MODIFIED, 0));
        let place = place(&index);
        assert!(!place.contains("dev"), "{place}");
        for file in all_files() {
            if file == "index.html" {
                continue;
            }
            let answer = got(&api, &format!("{place}{file}"), &[]).await;
            if file != "main.js" {
                assert!(answer.body == fs::read(folder().join(&file)).expect("readable"), "{file}");
            }
            assert!(answer.header("cache-control").contains("immutable"), "{file}");
            let content = match file.rsplit('.').next() {
                Some("js") => "text/javascript; charset=utf-8",
                Some("css") => "text/css; charset=utf-8",
                Some("svg") => "image/svg+xml",
                Some("json") => "application/json",
                _ => "text/plain; charset=utf-8",
            };
            assert_eq!(answer.header("content-type"), content, "{file}");
        }
        for nothing in ["nothing.js", "index.html", "../Cargo.toml", "%2e%2e/Cargo.toml", "vendor"]
        {
            let answer = api.get(&format!("{place}{nothing}"), &[]).await;
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{nothing}");
        }
        let posted = api.post("/", "").await;
        assert_eq!(posted.status, StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(api.get("/api/workflows", &[]).await.status, StatusCode::UNAUTHORIZED);
    });
}

/// Finds a text after the first so many bytes, and returns where it ends.
fn find_after(text: &str, at: usize, wanted: &str) -> usize {
    let found = text[at..].find(wanted);
    at + found.unwrap_or_else(|| panic!("{wanted} is not there after byte {at}")) + wanted.len()
}

#[test]
fn the_script_has_each_module_once_after_those_that_it_imports_and_unchanged() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let place = place(&got(&api, "/", &[]).await);
        let script = got(&api, &format!("{place}main.js"), &[]).await;
        let script = String::from_utf8(script.body.to_vec()).expect("UTF-8");
        let is_module = |file: &String| {
            file.ends_with(".js")
                && ["lib/", "views/", "main.js"].iter().any(|begin| file.starts_with(begin))
                && !["lib/layout-worker.js", "lib/types.js"].contains(&file.as_str())
        };
        let modules: Vec<_> = all_files().into_iter().filter(is_module).collect();
        assert!(modules.len() > 50, "{modules:?}");
        for file in modules {
            let heading = format!("\n// {file}\n");
            let begin = find_after(&script, 0, &heading);
            assert_eq!(script.matches(&heading).count(), 1, "{file}");
            let text = fs::read_to_string(folder().join(&file)).expect("readable");
            // What follows its imports is there line by line. Its imports come before it.
            let (imports, body): (Vec<_>, Vec<_>) =
                text.lines().partition(|line| line.starts_with("import "));
            for import in imports {
                let imported = import.rsplit(['/', '\'']).nth(1).expect("a name");
                let heading = format!("/{imported}\nconst module");
                assert!(script[..begin].contains(&heading), "{file}: {import}");
            }
            let is_comment = |line: &str| ["//", "/*", " *"].iter().any(|it| line.starts_with(it));
            let mut at = begin;
            for line in body.into_iter().filter(|line| !is_comment(line)) {
                if !line.contains("import.meta.url") {
                    at = find_after(&script, at, line.strip_prefix("export ").unwrap_or(line));
                }
            }
        }
        assert!(!script.contains("\nimport ") && !script.contains("\nexport "));
    });
}

#[test]
fn only_the_name_that_says_what_the_files_hold_is_kept() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let place = place(&got(&api, "/", &[]).await);
        let own = got(&api, &format!("{place}main.js"), &[]).await;
        assert!(own.header("cache-control").contains("immutable"));
        let upper = place.to_uppercase().replace("/ASSETS/", "/assets/");
        for other in ["/assets/x/", "/assets/0123456789abcdef/", "/assets/dev/", &upper] {
            let answer = got(&api, &format!("{other}main.js"), &[]).await;
            assert_eq!(answer.header("cache-control"), "no-cache", "{other}");
        }
    });
}

#[test]
fn a_setting_turns_the_page_off() {
    let change = |settings: &mut Settings| settings.http.page = false;
    TestManager::with(WORKFLOW).set(change).serve(|api| async move {
        for path in ["/", "/assets/x/main.js"] {
            assert_eq!(api.get(path, &[]).await.status, StatusCode::NOT_FOUND, "{path}");
        }
    });
}

#[test]
fn what_others_wrote_is_as_they_published_it() {
    let manifest = fs::read_to_string(folder().join("vendor/manifest.json")).expect("readable");
    let listed: Vec<Value> = serde_json::from_str(&manifest).expect("JSON");
    let mut names = BTreeSet::new();
    for file in &listed {
        let name = format!("vendor/{}", file["file"].as_str().expect("a name"));
        let bytes = fs::read(folder().join(&name)).expect("readable");
        let hash: String =
            Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(file["sha256"], hash, "{name}");
        names.insert(name);
    }
    let there: BTreeSet<String> = all_files()
        .into_iter()
        .filter(|file| file.starts_with("vendor/") && file != "vendor/manifest.json")
        .collect();
    let unlisted: Vec<_> = there.difference(&names).collect();
    assert!(unlisted.iter().all(|file| file.ends_with("dagre.esm.d.ts")), "{unlisted:?}");
}

#[test]
fn the_page_makes_nothing_of_text_but_text() {
    let sinks = [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "unsafeHTML",
        "unsafeSVG",
        "styleMap",
        " style=",
        "srcdoc",
        "javascript:",
    ];
    for file in all_files() {
        let is_ours = !file.starts_with("vendor/");
        if is_ours && [".js", ".html", ".css"].iter().any(|end| file.ends_with(end)) {
            let text = fs::read_to_string(folder().join(&file)).expect("readable");
            for (line, number) in text.lines().zip(1..) {
                for sink in sinks {
                    assert!(!line.contains(sink), "page/{file}:{number}: {sink}");
                }
            }
            assert!(text.lines().count() <= 600, "page/{file} is longer than a reader takes in");
        }
    }
}
