//! What settings and workflow files say of buses over Kafka, and what is wrong with them.

use std::fs;
use support::manager::load_settings;
use workflow_manager::load::{load_files, load_for_manager};
use workflow_manager::settings::{BusKind, Settings};

/// Settings that a build without Kafka takes: the bus has no brokers.
const SECTION: &str = "kafka: { reply_topic: answers, prefix: 'orders.', group: 'w-{topic}' }\n";

fn refusal(text: &str) -> String {
    load_settings(text).err().unwrap_or_else(|| panic!("{text} was taken"))
}

#[test]
fn a_queue_has_a_topic_and_a_group_after_it() {
    let settings = load_settings(SECTION).expect("valid");
    let section = &settings.kafka;
    assert_eq!(section.topic("price"), "orders.price");
    assert_eq!(section.group("price"), "w-orders.price");
    assert_eq!(settings.bus_kind("kafka"), None, "it has no brokers");
    assert!(settings.kafka_bus("kafka").is_none());
}

#[test]
fn what_is_wrong_with_a_bus_is_told_with_what_is_expected() {
    for (bus, told) in [
        ("servers: [ kafka ]", "expected host:port, such as kafka-1:9092"),
        ("servers: [ 'kafka://a:9092' ]", "expected host:port"),
        ("servers: [ 'a:0' ]", "expected host:port"),
        ("reply_topic: 'a b'", "cannot be the name of a topic"),
        ("reply_topic: ''", "has 1 to 249 bytes"),
        ("prefix: 'a/'", "kafka.prefix"),
        ("group: workers", "expected a string with {topic} in it"),
        ("partitions: 0", "expected 1 to 10000"),
        ("replication: 0", "or -1 for what the broker chooses"),
        ("message_bytes_max: 1", "expected 4096 to"),
        ("prefetch: 0", "kafka.prefetch is 0, expected at least 1"),
        ("checked_every: 0s", "expected some time, such as 10s"),
        ("reconnect_min: 1m, reconnect_max: 1s", "expected at most kafka.reconnect_max"),
        (
            "properties: { acks: 1 }",
            "set by the manager itself, because its guarantees depend on it",
        ),
        ("properties: { group.id: mine }", "set group instead"),
        (
            "properties: { enable_auto_commit: true }",
            "\"enable.auto.commit\" is set by the manager",
        ),
        ("properties: { plugin.library.paths: x }", "is not a property that can be set here"),
    ] {
        let why = refusal(&format!("kafka: {{ {bus} }}"));
        assert!(why.contains(told), "{bus}: {why}");
    }
    let why = refusal("buses: { events: { kind: kafka } }");
    assert!(why.contains("buses.events.servers is missing"), "{why}");
}

#[test]
fn a_build_without_kafka_says_so_and_one_with_it_shows_no_secrets() {
    let text = "
buses:
  events:
    kind: kafka
    servers: [ 'k1:9092' ]
    properties: { security.protocol: SASL_SSL, sasl.username: me, sasl.password: hunter2 }
";
    let has_kafka = cfg!(feature = "kafka");
    match load_settings(text) {
        Err(why) => {
            if has_kafka {
                panic!("{why}");
            }
            assert!(why.contains("this build has no Kafka") && why.contains("--features kafka"));
        }
        Ok(settings) => {
            if !has_kafka {
                panic!("taken, and nothing could be done with it");
            }
            assert_eq!(settings.bus_kind("events"), Some(BusKind::Kafka));
            let shown = serde_json::to_string(&settings).expect("JSON");
            let sourced = serde_json::to_string(&settings.with_sources()).expect("JSON");
            for shown in [shown, sourced, format!("{settings:?}")] {
                assert!(shown.contains("SASL_SSL") && !shown.contains("hunter2"), "{shown}");
            }
        }
    }
}

#[cfg(feature = "kafka")]
#[test]
fn two_buses_do_not_read_the_same_replies() {
    let buses = |second: &str| {
        format!(
            "kafka: {{ servers: [ 'a:1', 'b:1' ] }}\n\
             buses: {{ events: {{ kind: kafka, servers: [ {second} ] }} }}\n"
        )
    };
    let why = refusal(&buses("'b:1', 'a:1'"));
    assert!(why.contains("the same servers and the same reply_topic"), "{why}");
    assert!(load_settings(&buses("'c:1'")).is_ok());
}

/// The warnings about a workflow with this step, or the errors.
fn checked(step: &str, settings: Option<&Settings>) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("w.yaml");
    let text = format!("workflows: [ {{ name: w, bus: kafka, steps: [ {{ name: a{step} }} ] }} ]");
    fs::write(&file, text).expect("written");
    let loaded = match settings {
        None => load_files(&[file]),
        Some(settings) => load_for_manager(&[file], settings),
    };
    let loaded = loaded.map_err(|error| error.to_string())?;
    Ok(loaded.warnings.iter().map(ToString::to_string).collect())
}

#[test]
fn a_step_over_kafka_has_a_timeout_and_a_queue_that_can_be_a_topic() {
    let with_brokers = {
        let mut settings = load_settings(SECTION).expect("valid");
        settings.kafka.servers.0.push("k1:9092".to_owned());
        settings
    };
    for known in [None, Some(&with_brokers)] {
        assert!(checked(", timeout: 1h", known).is_ok());
        let why = checked("", known).expect_err("no timeout");
        assert!(why.contains("over Kafka has a \"timeout\", and this one has none"), "{why}");
        let why = checked(", timeout: 1h, queue: 'a/b'", known).expect_err("no topic");
        assert!(why.contains("cannot be the name of a topic"), "{why}");
        let why = checked(", timeout: 1h, queue: workflow.x", known).expect_err("no call");
        assert!(why.contains("no workflow takes calls over Kafka"), "{why}");
        let warnings = checked(", timeout: 1h, priority: 3", known).expect("loads");
        let told = warnings.iter().any(|text| text.contains("\"priority\" has no effect"));
        assert!(told, "{warnings:?}");
    }
    let why = checked(", timeout: 1h, queue: workflow-manager", Some(&with_brokers));
    assert!(why.is_ok(), "with the prefix it is another topic: {why:?}");
}
