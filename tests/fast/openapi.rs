//! The OpenAPI document says what the API does: each call with its parameters, and no other.

use actix_web::http::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use support::manager::TestManager;

const WORKFLOW: &str = "workflows: [{name: single, steps: [{name: work}]}]";

/// Everything that refers to another part of the document.
fn references<'d>(value: &'d Value, found: &mut Vec<&'d str>) {
    match value {
        Value::Object(keys) => {
            found.extend(keys.get("$ref").and_then(Value::as_str));
            keys.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Everything that has this key.
fn parts<'d>(value: &'d Value, key: &str, found: &mut Vec<&'d Value>) {
    match value {
        Value::Object(keys) => {
            found.extend(keys.get(key));
            keys.values().for_each(|value| parts(value, key, found));
        }
        Value::Array(items) => items.iter().for_each(|item| parts(item, key, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The parameters that a call knows, as it tells of one that it does not.
fn known(detail: &str) -> Option<BTreeSet<String>> {
    let names = detail
        .split_once("nown are ")
        .or_else(|| detail.split_once("the only one here is "))
        .map(|(_, names)| names.split(", ").map(str::to_owned).collect());
    names.or_else(|| detail.ends_with("this call takes none").then(BTreeSet::new))
}

/// The calls of the document: path, method, and what it says of them.
fn calls(document: &Value) -> impl Iterator<Item = (&String, &String, &Value)> {
    let paths = document["paths"].as_object().expect("paths").iter();
    paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("methods").iter();
        methods.map(move |(method, call)| (path, method, call))
    })
}

#[test]
fn the_headers_of_a_trace_are_described_where_a_job_is_created() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let document = api.get("/openapi.json", &[]).await.json();
        let mut found = Vec::new();
        for (path, method, call) in calls(&document) {
            let given = call["parameters"].as_array().into_iter().flatten();
            let headers = given.filter(|given| given["in"] == "header");
            found.extend(headers.map(|given| {
                assert_eq!(given["required"], false);
                (method.clone(), path.clone(), given["name"].as_str().map(str::to_owned))
            }));
        }
        let of = |name: &str| {
            let [method, path] = ["post", "/api/workflow/{name}"].map(str::to_owned);
            (method, path, Some(name.to_owned()))
        };
        assert_eq!(found, [of("traceparent"), of("tracestate")]);
    });
}

#[test]
fn each_call_is_described_with_its_parameters_and_no_other_is() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let document = api.get("/openapi.json", &[]).await.json();
        assert_eq!(document["openapi"], "3.1.0");
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let mut ids = BTreeSet::new();
        let mut asked = 0;
        for (path, method, call) in calls(&document) {
            let id = call["operationId"].as_str().expect("an id");
            assert!(ids.insert(id.to_owned()), "{id} is there twice");
            let empty = Vec::new();
            let parameters = call["parameters"].as_array().unwrap_or(&empty);
            let of = |place: &str| -> BTreeSet<String> {
                let of_place = parameters.iter().filter(|given| given["in"] == place);
                of_place.filter_map(|given| given["name"].as_str().map(str::to_owned)).collect()
            };
            let in_path: BTreeSet<String> =
                path.split(['{', '}']).skip(1).step_by(2).map(str::to_owned).collect();
            assert_eq!(of("path"), in_path, "{method} {path}");
            let real = path
                .replace("{id}", "f557697b-f911-401c-86b7-6d9b62f1f2bb")
                .replace("{message}", "f557697b-f911-401c-86b7-6d9b62f1f2bb:work:1")
                .replace("{delivery}", "1")
                .replace("{hash}", &"0".repeat(64))
                .replace("{name}", "single")
                .replace(['{', '}'], "");
            let method = method.to_uppercase().parse::<Method>().expect("a method");
            let told = api.request(method.clone(), &format!("{real}?zzz=1"), &[], "{}").await;
            // Each other parameter of these is a step; those of health and metrics are not
            // looked at.
            if path.starts_with("/api/status") || !path.starts_with("/api") {
                continue;
            }
            asked += 1;
            assert_eq!(told.status, StatusCode::BAD_REQUEST, "{method} {path}");
            let mut names = known(&told.detail())
                .unwrap_or_else(|| panic!("{method} {path}: {}", told.detail()));
            names.remove("status.<step>");
            names.remove("column.<name>");
            if path.starts_with("/api/job/{id}/") && !path.ends_with("/rerun") {
                // One handler serves all operations, and refuses what an operation has not.
                let is_of_rerun = |name: &str| name == "step" || name == "items";
                names.retain(|name| !is_of_rerun(name) || of("query").contains(name));
            }
            if path.starts_with("/api/jobs/") && !path.ends_with("/rerun") {
                names.retain(|name| name != "step" && name != "items");
            }
            if path == "/api/jobs/delete" {
                names.remove("reason");
            }
            assert_eq!(of("query"), names, "{method} {path}");
        }
        assert!(asked > 35, "only {asked} calls were asked");

        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 200, "{} references", found.len());
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("within the document");
            assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
        }
        for part in ["components", "responses"] {
            let mut sent = Vec::new();
            parts(&document, part, &mut sent);
            assert!(!sent.is_empty());
            let has_null = sent.iter().any(|sent| sent.to_string().contains("\"null\""));
            assert!(!has_null, "the API never sends null");
        }
    });
}

#[test]
fn what_needs_another_parameter_is_refused_alone_as_the_document_says() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let document = api.get("/openapi.json", &[]).await.json();
        let mut refused = BTreeSet::new();
        for (path, method, call) in calls(&document) {
            let parameters = call["parameters"].as_array().into_iter().flatten();
            for given in parameters.filter(|given| given.get("x-needs").is_some()) {
                let name = given["name"].as_str().expect("a name");
                let value = if name == "delay" { "1s" } else { "1" };
                let real = path
                    .replace("{message}", "f557697b-f911-401c-86b7-6d9b62f1f2bb:work:1")
                    .replace("{delivery}", "1")
                    .replace("{name}", "single")
                    .replace(['{', '}'], "");
                let method = method.to_uppercase().parse::<Method>().expect("a method");
                let told = api.request(method, &format!("{real}?{name}={value}"), &[], "{}").await;
                assert_eq!(told.status, StatusCode::BAD_REQUEST, "{path}: {}", told.detail());
                let examples = &call["responses"]["400"]["content"];
                let examples = &examples["application/problem+json"]["examples"];
                let mut shown = examples.as_object().expect("examples").values();
                let is_shown = shown.any(|shown| shown["value"]["detail"] == told.detail());
                assert!(is_shown, "{path}: {} is not in {examples}", told.detail());
                refused.insert(format!("{} {name}", call["operationId"]));
            }
        }
        // The search, six operations on many jobs, the stream, reasons, trends, the inbox; states;
        // delay; burst.
        assert_eq!(refused.len(), 14, "{refused:?}");
    });
}

#[test]
fn schemas_tell_what_may_be_left_out() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let document = api.get("/openapi.json", &[]).await.json();
        let job = &document["components"]["schemas"]["Job"];
        let required = job["required"].as_array().expect("a list");
        for (key, is_required) in
            [("uuid", true), ("state", true), ("reason", false), ("running", false)]
        {
            assert_eq!(required.contains(&json!(key)), is_required, "{key}");
        }
        assert_eq!(job["properties"]["state"]["$ref"], "#/components/schemas/JobState");
        assert_eq!(job["properties"]["reason"]["type"], "string");
    });
}

#[test]
fn what_a_standby_answers_is_described() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let document = api.get("/openapi.json", &[]).await.json();
        let answer = &document["components"]["responses"]["Overloaded"];
        assert!(answer["headers"]["Workflow-Manager-Active"]["schema"].is_object(), "{answer}");
        let schemas = &document["components"]["schemas"];
        assert!(schemas["Problem"]["properties"]["active"].is_object());
        assert!(schemas["Manager"]["properties"]["cluster"].is_object());
        let cluster = schemas["Cluster"]["required"].as_array().expect("what is always there");
        assert_eq!(json!(["name", "role", "names", "managers"]), json!(cluster));
        for (path, _, call) in calls(&document) {
            let is_described = !call["responses"]["503"].is_null();
            assert!(is_described, "{path}: the 503 is not described");
        }
    });
}
