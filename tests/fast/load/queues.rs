//! How queues are declared: the keys of steps and workflows, and what is wrong with them.

use super::check::checked;
use super::{only, refused};
use insta::assert_snapshot;
use workflow_manager::engine::{QueueArgument, QueueDeclaration, QueueType};
use workflow_manager::load::{load_for_manager, load_text};
use workflow_manager::settings::Settings;

#[test]
fn a_step_has_its_own_keys_or_else_those_of_the_workflow() {
    let text = "
workflows:
  - name: w
    queueType: quorum
    queueArguments: { x-delivery-limit: 5 }
    steps:
      - { name: a }
      - { name: b, queueType: classic, queueArguments: { x-max-priority: 9, x-overflow: drop-head, \
          x-single-active-consumer: true } }
      - { name: c, queueArguments: {} }
      - { name: d, queue: workflow.other }
      - { name: e, external: true }
      - { name: f, task: t }
    tasks:
      - { name: t, itemListKey: items, steps: [ { name: g } ] }
";
    let definition = only(text);
    let said = |name: &str| {
        let steps = definition.graphs.iter().flat_map(|graph| &graph.steps);
        let mut steps = steps.filter(|step| &*step.name == name);
        steps.next().expect("a step").declared.to_string()
    };
    for (step, expected) in [
        ("a", "quorum, x-delivery-limit 5"),
        ("b", "classic, x-max-priority 9, x-overflow drop-head, x-single-active-consumer true"),
        ("c", "quorum"),
        ("d", "without arguments"),
        ("e", "without arguments"),
        ("g", "quorum, x-delivery-limit 5"),
    ] {
        assert_eq!(said(step), expected, "{step}");
    }
    let limit = ("x-delivery-limit".into(), QueueArgument::Number(5));
    let quorum =
        QueueDeclaration { kind: Some(QueueType::Quorum), arguments: Some([limit].into()) };
    assert_eq!(definition.queue, quorum, "its own queue");
    // The journal keeps it as JSON.
    let kept = serde_json::to_string(&definition).expect("JSON");
    assert_eq!(
        serde_json::from_str::<workflow_manager::engine::Definition>(&kept).expect("read"),
        definition
    );
    let (valid, shown) = checked(text, false);
    assert!(valid && shown.contains("queue a (quorum, x-delivery-limit 5)"), "{shown}");
    let (_, shown) = checked(text, true);
    let view: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(
        view["workflows"][0]["steps"][1],
        serde_json::json!({ "name": "b", "depends": [], "queue": "b", "queueType": "classic",
            "queueArguments": { "x-max-priority": 9, "x-overflow": "drop-head",
                                "x-single-active-consumer": true } })
    );
}

#[test]
fn wrong_types_and_arguments_are_refused_with_what_is_expected() {
    assert_snapshot!(refused(
        "\
workflows:
  - name: w
    queueType: [ quorum ]
    queueArguments: x-max-length
    steps:
      - { name: a, queueType: qorum }
      - { name: b, queueType: stream }
      - { name: c, queueArguments: { x-max-lenght: 5, x-max-length: '5', x-queue-type: quorum } }
      - { name: d, queueArguments: { x-overflow: reject, x-expires: 0, x-message-ttl: [ 5 ] } }
      - { name: e, queueType: quorum, queueArguments: { x-max-priority: 9 } }
      - { name: f, queueArguments: { x-max-length: 1.5, durable: true } }
      - { name: g, quequeType: quorum }
"
    ));
}

#[test]
fn two_steps_of_one_queue_say_the_same_of_it() {
    assert_snapshot!(refused(
        "\
workflows:
  - name: v
    steps: [ { name: a, queue: q, queueType: quorum } ]
  - name: w
    queueArguments: { x-max-length: 10 }
    steps:
      - { name: b, queue: q }
      - { name: c, queue: p }
      - { name: d, queue: p, queueArguments: { x-max-length: 11 } }
      - { name: e, queueType: quorum, queueArguments: { x-delivery-limit: 3 } }
  - name: x
    queueType: classic
    steps: [ { name: f, queue: o, queueArguments: { x-delivery-limit: 3 } } ]
"
    ));
    // One that says nothing agrees with all; and other buses and virtual hosts have other queues.
    let text = "
workflows:
  - { name: v, steps: [ { name: a, queue: q, queueType: quorum }, { name: b, queue: q } ] }
  - { name: w, vhosts: [ x, y ], steps: [ { name: a, queue: q, queueType: classic } ] }
  - { name: z, steps: [ { name: a, queue: q, bus: other, queueType: classic } ] }
";
    assert_eq!(load_text("f", text).expect("valid").definitions.len(), 4);
}

#[test]
fn what_a_priority_needs_is_told_for_the_bus_of_the_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("w.yaml");
    let warned = |keys: &str, change: fn(&mut Settings)| {
        let mut settings = Settings::defaults().expect("defaults");
        change(&mut settings);
        let text =
            format!("workflows: [ {{ name: w, steps: [ {{ name: a, priority: 9, {keys} }} ] }} ]");
        std::fs::write(&file, text).expect("written");
        let loaded = load_for_manager(std::slice::from_ref(&file), &settings).expect("valid");
        loaded.warnings.iter().map(|problem| problem.message.clone()).collect::<Vec<String>>()
    };
    let amqp = |settings: &mut Settings| {
        settings.amqp.server = "amqp://localhost".into();
    };
    let quorum = |settings: &mut Settings| {
        settings.amqp.server = "amqp://localhost".into();
        settings.amqp.queue_type = serde_json::from_str("\"quorum\"").expect("a type");
    };
    let needs = "\"priority\" works over AMQP only on a queue that honours it";
    let without_effect = "has no effect: \"embedded\" has no queues of RabbitMQ";
    assert!(warned("timeout: 1s", |_| {}).is_empty(), "the embedded bus always honours it");
    assert!(warned("timeout: 1s", amqp)[0].starts_with(needs));
    for keys in ["queueType: quorum", "queueArguments: { x-max-priority: 9 }"] {
        assert!(warned(keys, amqp).is_empty(), "{keys}");
        assert_eq!(warned(keys, |_| {}), [without_effect], "{keys}");
    }
    assert!(warned("timeout: 1s", quorum).is_empty(), "the bus declares quorum queues");
}
