//! What settings and workflow files say of web services, and what is wrong with them.

use std::fs;
use support::manager::load_settings;
use workflow_manager::load::{load_for_manager, load_text};
use workflow_manager::settings::Settings;

const HOOKS: &str = "
buses:
  hooks:
    kind: push
    endpoints:
      price: { url: 'https://price.example/step?v=1', concurrency: 3, timeout: 30s, \
          headers: { Authorization: 'Bearer hunter2' }, secret: hunter3 }
      stock: { url: 'http://10.0.0.7:8080/stock' }
";

#[test]
fn an_endpoint_has_the_defaults_of_the_section_and_its_secrets_are_never_shown() {
    let settings = load_settings(&format!("{HOOKS}\npush: {{ timeout: 45s, concurrency: 5 }}"));
    let settings = settings.expect("valid");
    let endpoints = settings.push_bus("hooks").expect("it is there");
    let (price, stock) = (&endpoints["price"], &endpoints["stock"]);
    let of = |endpoint: &workflow_manager::settings::EndpointSettings| {
        (endpoint.concurrency(&settings.push), endpoint.timeout(&settings.push).as_secs())
    };
    assert_eq!((of(price), of(stock)), ((3, 30), (5, 45)));
    let shown = serde_json::to_string(&settings).expect("JSON");
    assert!(shown.contains(r#""kind":"push""#) && shown.contains(r#""Authorization":"***""#));
    for text in [shown, format!("{settings:?}")] {
        assert!(!text.contains("hunter"), "{text}");
    }
    assert!(settings.push_bus("push").is_some_and(|none| none.is_empty()));
    assert!(settings.push_bus("embedded").is_none());
}

#[test]
fn what_is_wrong_with_web_services_is_told() {
    let one = |endpoint: &str| {
        format!("buses: {{ hooks: {{ kind: push, endpoints: {{ price: {{ {endpoint} }} }} }} }}")
    };
    let with = |more: &str| one(&format!("url: 'https://p.example', {more}"));
    for (text, said) in [
        (
            "buses: { hooks: { kind: push } }".to_owned(),
            "missing configuration field \"endpoints\"",
        ),
        ("buses: { hooks: { kind: push, endpoints: {} } }".to_owned(), "endpoints is empty"),
        (
            "buses: { push: { kind: push, endpoints: { a: { url: 'https://a' } } } }".to_owned(),
            "\"push\" is the bus of the section push",
        ),
        (one("url: 'ftp://p.example'"), "buses.hooks.endpoints.price.url: it does not start with"),
        (one("url: 'https://'"), "empty host"),
        (one("url: 'https://me:hunter2@p.example'"), "has no user and no password"),
        (one("url: 'https://p.example/${TENANT}'"), "data never chooses where a message goes"),
        (one("url: 'https://p.example/#x'"), "a part behind #"),
        (one("url: 'http://169.254.169.254/latest'"), "nothing is ever sent there"),
        (one("url: 'http://[fe80::1]/'"), "link-local"),
        (with("concurrency: 0"), "price.concurrency is 0"),
        (with("timeout: 5s"), "expected more than push.connect_timeout, 10s"),
        (with("headers: { 'a b': x }"), "\"a b\" is not a name of a header"),
        (with("headers: { Idempotency-Key: x }"), "the manager itself sets Idempotency-Key"),
        (with("headers: { X-Token: \"hunter2\\n\" }"), "headers.X-Token has a character"),
        (with("urls: x"), "unknown field `urls`"),
        ("push: { calls_max: 0 }".to_owned(), "push.calls_max is 0"),
        ("push: { retry_min: 0s }".to_owned(), "push.retry_min is 0s"),
        ("push: { retry_max: 10ms }".to_owned(), "push.retry_max is 10ms, less than"),
        ("push: { networks: { deny: [ 10.0.0.0/40 ] } }".to_owned(), "push.networks.deny: found"),
        ("push: { networks: { allow: nowhere } }".to_owned(), "push.networks.allow: found"),
        (
            format!("{HOOKS}\npush: {{ networks: {{ deny: 10.0.0.0/8 }} }}"),
            "endpoints.stock.url: the address 10.0.0.7 is refused",
        ),
        ("http: { public_url: manager.example }".to_owned(), "http.public_url: it does not start"),
    ] {
        let told = load_settings(&text).err().unwrap_or_else(|| panic!("{text} was taken"));
        assert!(told.contains(said), "{text}: {told}");
        assert!(!told.contains("hunter"), "{text}: {told}");
    }
}

/// What is wrong with a workflow of one step, and what is pointed out.
fn checked(step: &str, settings: Option<&Settings>) -> Result<Vec<String>, String> {
    let text = format!("workflows: [ {{ name: w, steps: [ {{ name: a, {step} }} ] }} ]");
    let loaded = match settings {
        None => load_text("f", &text),
        Some(settings) => {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("w.yaml");
            fs::write(&file, text).expect("written");
            load_for_manager(&[file], settings)
        }
    };
    match loaded {
        Ok(loaded) => {
            assert!(loaded.advice.is_empty(), "{:?}", loaded.advice);
            Ok(loaded.warnings.iter().map(ToString::to_string).collect())
        }
        Err(errors) => Err(errors.to_string()),
    }
}

#[test]
fn a_queue_that_is_an_address_is_a_web_service() {
    for url in
        ["https://p.example/step", "http://127.0.0.1:80/", "http://localhost/", "http://[::1]/"]
    {
        let step = format!("queue: '{url}', timeout: 1m");
        assert_eq!(checked(&step, None), Ok(Vec::new()), "{url}");
        let priority = format!("{step}, priority: 9");
        assert_eq!(checked(&priority, None), Ok(Vec::new()), "{url}: it honours priorities");
    }
    let open = checked("queue: 'http://p.example/step', timeout: 1m", None).expect("valid");
    assert!(open[0].contains("can be read and changed on the way"), "{open:?}");
    for (step, said) in [
        (
            "queue: 'https://p.example', timeout: 1m, bus: hooks",
            "\"bus\" does not go with a queue that is the address of a web service",
        ),
        ("queue: 'https://p.example/{input.id}', timeout: 1m", "data never chooses where"),
        ("queue: 'https://${HOST}/', timeout: 1m", "data never chooses where"),
        ("queue: 'https://me:secret@p.example', timeout: 1m", "no user and no password"),
        ("queue: 'https:///x y', timeout: 1m", "address of a web service"),
        ("queue: 'https://p.example'", "has a \"timeout\", and this one has none"),
        ("queue: 'HTTP://169.254.169.254/', timeout: 1m", "the address 169.254.169.254 is refused"),
        ("queue: 'http://[::ffff:a9fe:a9fe]/', timeout: 1m", "is refused"),
    ] {
        let told = checked(step, None).expect_err(step);
        assert!(told.contains(said), "{step}: {told}");
    }
}

#[test]
fn a_queue_of_a_bus_of_web_services_is_one_of_its_endpoints() {
    let settings = load_settings(HOOKS).expect("valid");
    let of = |step: &str| checked(step, Some(&settings));
    assert_eq!(of("bus: hooks, queue: price, timeout: 1m"), Ok(Vec::new()));
    let open = of("bus: hooks, queue: stock, timeout: 1m").expect("valid");
    assert!(open[0].contains("messages to \"10.0.0.7\" can be read"), "{open:?}");
    for (step, said) in [
        ("bus: hooks, queue: prize, timeout: 1m", "did you mean \"price\"?"),
        (
            "bus: hooks, queue: other, timeout: 1m",
            "has no web service \"other\"; buses.hooks.endpoints has \"price\" and \"stock\"",
        ),
        ("bus: hooks, queue: price", "has a \"timeout\", and this one has none"),
        ("bus: push, queue: price, timeout: 1m", "write the address of the web service"),
        ("bus: hooks, queue: workflow.w, timeout: 1m", "has no web service \"workflow.w\""),
    ] {
        let told = of(step).expect_err(step);
        assert!(told.contains(said), "{step}: {told}");
    }
}
