//! The JSON Schema that `schema` prints takes what loads, and refuses what no editor should offer.

use super::{only, refused};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use workflow_manager::load::{json_schema, load_text};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// The schema, compiled; draft-07's own schema says whether it is valid.
struct Validator(boon::Schemas, boon::SchemaIndex);

impl Validator {
    fn new() -> Validator {
        let mut schemas = boon::Schemas::new();
        let mut compiler = boon::Compiler::new();
        compiler.add_resource("workflows.json", json_schema()).expect("a resource");
        let index = compiler
            .compile("workflows.json", &mut schemas)
            .unwrap_or_else(|error| panic!("{error:#}"));
        Validator(schemas, index)
    }

    fn error(&self, value: &Value) -> Option<String> {
        self.0.validate(value, self.1).err().map(|error| error.to_string())
    }
}

/// What a YAML editor sees.
fn seen(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The files with this ending below a folder.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
}

#[test]
fn the_schema_is_one_and_says_what_each_key_means() {
    let schema = json_schema();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    Validator::new();
    let mut keys = 0;
    for definition in
        schema["definitions"].as_object().expect("definitions").values().chain([&schema])
    {
        assert_eq!(definition["additionalProperties"], json!(false));
        for (key, property) in definition["properties"].as_object().expect("properties") {
            let about =
                property["description"].as_str().unwrap_or_else(|| panic!("{key} says nothing"));
            assert!(about.ends_with('.') && about.len() < 300, "{key}: {about}");
            keys += 1;
        }
    }
    assert_eq!(keys, 67);
    let mut printed = Vec::new();
    workflow_manager::cli::print_schema(&mut printed).expect("a vector takes everything");
    assert_eq!(serde_json::from_slice::<Value>(&printed).expect("JSON"), schema);
}

#[test]
fn every_sample_validates() {
    let validator = Validator::new();
    let mut samples: Vec<(String, String)> = Vec::new();
    for folder in ["config", "examples", "fuzz/corpus/workflow_files"] {
        let mut found = Vec::new();
        files(&root().join(folder), "yaml", &mut found);
        for path in found {
            let text = fs::read_to_string(&path).expect("text");
            if load_text("f", &text).is_ok() {
                samples.push((path.display().to_string(), text));
            }
        }
    }
    let mut pages = vec![root().join("README.md")];
    files(&root().join("docs"), "md", &mut pages);
    for page in pages {
        let text = fs::read_to_string(&page).expect("text");
        for block in text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            // Files of tests name workflow files under the same key.
            if block.contains("workflows:") && !block.contains("tests:") {
                assert!(
                    load_text("f", block).is_ok(),
                    "{}: {:?}\n{block}",
                    page.display(),
                    load_text("f", block).err()
                );
                samples.push((page.display().to_string(), block.to_owned()));
            }
        }
    }
    let mut vectors = Vec::new();
    files(&root().join("tests/conformance"), "json", &mut vectors);
    for path in vectors {
        let text = fs::read_to_string(&path).expect("text");
        let vectors: Vec<Value> = serde_json::from_str(&text).expect("a list of vectors");
        // Vectors of schedules have no definition.
        let vectors = vectors.iter().filter(|vector| vector.get("definition").is_some());
        samples.extend(vectors.map(|vector| {
            (format!("{}: {}", path.display(), vector["name"]), vector["definition"].to_string())
        }));
    }
    assert!(samples.len() >= 50, "only {} samples", samples.len());
    for (name, text) in samples {
        assert_eq!(validator.error(&seen(&text)), None, "{name}");
    }
}

/// A file of a step with these keys, and one of a task.
fn with(place: &str, keys: &str) -> String {
    let (workflow, task, step) = match place {
        "file" => {
            return format!(
                "{{ workflows: [ {{ name: w, vhosts: [ v ], steps: [ {{ name: s }} ] }} ], \
                 {keys} }}"
            );
        }
        "workflow" => (keys, "", ""),
        "task" => ("", keys, ""),
        "step" => ("", "", keys),
        other => panic!("{other}"),
    };
    let task = format!("{{ name: t, itemListKey: as, steps: [ {{ name: d }} ], {task} }}");
    format!(
        "{{ workflows: [ {{ name: w, steps: [ {{ name: s, task: t }}, {{ name: r, {step} }} ], \
         tasks: [ {task} ], {workflow} }} ] }}"
    )
}

#[test]
#[allow(clippy::too_many_lines, reason = "one list of cases")]
fn schema_and_loader_agree_on_single_values() {
    let validator = Validator::new();
    let good = [
        ("file", "x-any: [ 1 ]"),
        ("workflow", "deadline: 1h30m, retention: 0s, vhosts: [ / ]"),
        ("workflow", "vhosts: []"),
        ("workflow", "bus: amqp"),
        ("step", "bus: invoices_2"),
        ("task", "itemKey: a b, maxConcurrency: 1, tolerate: 4294967295"),
        ("task", "tolerate: 2.5%"),
        ("task", "tolerate: 100.00%"),
        ("step", "queue: some.queue, depends: [ __start__, s ], priority: 9, timeout: 500ms"),
        (
            "step",
            "queueType: quorum, queueArguments: { x-delivery-limit: 5, x-overflow: drop-head }",
        ),
        ("step", "queueArguments: { x-single-active-consumer: true }"),
        ("step", "depends:"),
        ("step", "retry: { attempts: 1000, backoff: 0s, factor: 1.125, maxBackoff: 3650d }"),
        ("step", "when: input.n > 3, cancelWhen: job.stop, onFailure: continue, external: true"),
        ("step", "statusKey: k, statuses: [ A, 'NO' ], skippedStatus: '', cancelledStatus: ä"),
        ("step", "replyUsers: [ pricing, 'other user' ]"),
    ];
    for (place, keys) in good {
        let text = with(place, keys);
        only(&text);
        assert_eq!(validator.error(&seen(&text)), None, "{text}");
    }
    let bad = [
        ("file", "workflow: []"),
        ("file", "timeout: 5s"),
        ("workflow", "colour: red"),
        ("workflow", "bus: Amqp"),
        ("task", "bus: amqp"),
        ("step", "bus: 1st"),
        ("step", "bus: ''"),
        ("workflow", "deadline: 0s"),
        ("workflow", "deadline: 30"),
        ("workflow", "retention: 1 month"),
        ("workflow", "vhosts: [ a, a ]"),
        ("task", "tolerence: 5"),
        ("task", "tolerate: 101%"),
        ("task", "tolerate: 1.5"),
        ("task", "maxConcurrency: 0"),
        ("step", "timeout: 5"),
        ("step", "timeout: 1m1h"),
        ("step", "timeout: s"),
        ("step", "timeOut: 5s"),
        ("step", "retry: 3"),
        ("step", "retry: {}"),
        ("step", "retry: { attempts: 0 }"),
        ("step", "retry: { attempts: 2, back: 1s }"),
        ("step", "retry: { attempts: 2, factor: 0.5 }"),
        ("step", "when: true"),
        ("step", "when: ''"),
        ("step", "onFailure: ignore"),
        ("step", "external: maybe"),
        ("step", "statuses: []"),
        ("step", "statuses:"),
        ("step", "statuses: [ A, A ]"),
        ("step", "statuses: [ '' ]"),
        ("step", "skippedStatus: 5"),
        ("step", "replyUsers: pricing"),
        ("step", "replyUsers: []"),
        ("step", "replyUsers: [ a, a ]"),
        ("step", "replyUsers: [ '' ]"),
        ("step", "queue: amq.x"),
        ("step", "priority: 10"),
        ("step", "queueType: stream"),
        ("step", "queueArguments: [ x-max-length ]"),
        ("step", "queueArguments: { x-max-length: [ 1 ] }"),
        ("step", "queueArguments: { x-queue-type: quorum }"),
        ("step", "queueArguments: { durable: true }"),
        ("step", "depends: s"),
        ("step", "depends: [ 1a ]"),
        ("step", "steps: []"),
    ];
    for (place, keys) in bad {
        let text = with(place, keys);
        refused(&text);
        assert!(validator.error(&seen(&text)).is_some(), "{text}");
    }
}
