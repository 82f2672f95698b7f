//! Several buses: which the settings have, which a workflow and its steps name, and that each
//! message goes to its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::api::Api;
use support::manager::{TestManager, load_settings};
use support::waits::{until, until_async};
use workflow_manager::actors::bulk_requests::BulkRedispatch;
use workflow_manager::actors::bus_starter::{BusOptions, BusProvider};
use workflow_manager::actors::health::HealthCheck;
use workflow_manager::actors::inputs::RouterInput;
use workflow_manager::actors::manager::{self, Parts, Threads};
use workflow_manager::bus::LeaseQueues;
use workflow_manager::bus::embedded::{EmbeddedBus, EmbeddedConfig, Workers};
use workflow_manager::bus::lease_queue::{LeasePolicy, ReceiveOptions};
use workflow_manager::bus::{Address, BusKey, BusState};
use workflow_manager::clock;
use workflow_manager::engine::{Definition, JobState, StepState};
use workflow_manager::load::{load_for_manager, load_text};
use workflow_manager::settings::{BusKind, BusSettings, DurationSetting, Settings};

const ONE: &str = "workflows: [ { name: w, steps: [ { name: a } ] } ]";

fn definition(text: &str) -> Arc<Definition> {
    let loaded = load_text("f", text).unwrap_or_else(|errors| panic!("{errors}"));
    loaded.definitions[0].clone()
}

#[test]
fn a_step_has_its_own_bus_or_that_of_its_workflow_in_tasks_too() {
    let definition = definition(
        "
workflows:
  - name: w
    bus: invoices
    steps:
      - { name: a }
      - { name: b, bus: embedded }
      - { name: c, external: true }
      - { name: d, task: t }
    tasks:
      - { name: t, itemListKey: items, steps: [ { name: e }, { name: f, bus: hooks } ] }
",
    );
    assert_eq!(definition.bus.as_deref(), Some("invoices"));
    let buses: BTreeMap<&str, Option<&str>> = definition
        .graphs
        .iter()
        .flat_map(|graph| &graph.steps)
        .map(|step| (&*step.name, step.bus.as_deref()))
        .collect();
    let expected = [
        ("a", Some("invoices")),
        ("b", Some("embedded")),
        ("c", None),
        ("d", None),
        ("e", Some("invoices")),
        ("f", Some("hooks")),
    ];
    assert_eq!(buses, expected.into());
}

#[test]
fn a_file_that_names_no_bus_has_the_hash_that_it_always_had() {
    let definition = definition("workflows: [ { name: w, steps: [ { name: a, queue: q } ] } ]");
    let text = serde_json::to_string(&*definition).expect("JSON");
    assert_eq!(text, r#"{"name":"w","graphs":[{"name":"w","steps":[{"name":"a","queue":"q"}]}]}"#);
}

#[test]
fn a_bus_of_a_step_that_sends_nothing_is_pointed_out() {
    let loaded = load_text(
        "f",
        "workflows: [ { name: w, steps: [ { name: a, external: true, bus: hooks } ] } ]",
    );
    let warnings: Vec<String> =
        loaded.expect("valid").warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["f:1:66: workflow \"w\", step \"a\": \"bus\" has no effect: an external step \
          sends no message"]
    );
}

#[test]
fn without_settings_nobody_has_looked_whether_a_bus_is_there() {
    let loaded = load_text(
        "f",
        "workflows: [ { name: w, steps: [ { name: a, timeout: 1m, bus: hooks } ] } ]",
    );
    let advice: Vec<String> =
        loaded.expect("valid").advice.iter().map(ToString::to_string).collect();
    assert_eq!(
        advice,
        ["f:1:63: workflow \"w\": whether the manager has the bus \"hooks\" is not known here: \
          name its settings with --config"]
    );
}

#[test]
fn a_step_that_may_take_longer_than_a_broker_waits_for_its_worker_is_pointed_out() {
    let text = "
workflows:
  - name: w
    steps:
      - { name: a, bus: amqp, timeout: 2h }
      - { name: b, bus: amqp, timeout: 30m }
      - { name: c, bus: embedded, timeout: 2h }
      - { name: d, task: t }
    tasks:
      - { name: t, itemListKey: items, steps: [ { name: e, bus: amqp, timeout: 31m } ] }
";
    let loaded = load_text("f", text).expect("valid");
    let advice = loaded.advice.iter().map(ToString::to_string);
    let advice: Vec<String> = advice.filter(|advice| advice.contains("consumer_timeout")).collect();
    let expected = |place: &str, timeout: &str| {
        format!(
            "{place}: \"timeout\" is {timeout}, and RabbitMQ gives a message to another worker \
             too if it is not acknowledged within its \"consumer_timeout\", 30m unless \
             rabbitmq.conf says otherwise: raise it, or two may work on the same message"
        )
    };
    assert_eq!(
        advice,
        [
            expected("f:5:40: workflow \"w\", step \"a\"", "2h"),
            expected("f:10:80: workflow \"w\", task \"t\", step \"e\"", "31m"),
        ]
    );
}

const INVOICES: &str = "
buses:
  invoices: { kind: amqp, server: 'amqp://me:hunter2@there:5672/v', reply_queue: answers, \
      prefetch: 7 }
";

#[test]
fn a_bus_of_the_settings_has_the_defaults_of_its_kind() {
    let settings = load_settings(INVOICES).expect("valid");
    let invoices = settings.amqp_bus("invoices").expect("it is there");
    assert_eq!((invoices.prefetch, invoices.reply_queue.as_str()), (7, "answers"));
    assert_eq!(invoices.reconnect_max, settings.amqp.reconnect_max);
    let kinds =
        [("embedded", BusKind::Embedded), ("invoices", BusKind::Amqp), ("push", BusKind::Push)];
    assert_eq!(settings.bus_kinds(), kinds.into());
    assert_eq!(settings.default_bus(), "embedded");
    let shown = serde_json::to_string(&settings).expect("JSON");
    assert!(shown.contains(r#""invoices":{"kind":"amqp","server":"amqp://me:***@there:5672/v""#));
    assert!(!shown.contains("hunter2") && !format!("{settings:?}").contains("hunter2"));
}

#[test]
fn the_default_bus_is_the_one_that_is_named_else_the_broker_else_the_embedded_one() {
    let with = |more: &str| {
        let settings = load_settings(&format!("{INVOICES}{more}"));
        settings.map(|settings| settings.default_bus().to_owned())
    };
    assert_eq!(with("").as_deref(), Ok("embedded"));
    assert_eq!(with("amqp: { server: 'amqp://here' }").as_deref(), Ok("amqp"));
    let named = "amqp: { server: 'amqp://here' }\nbus: invoices";
    assert_eq!(with(named).as_deref(), Ok("invoices"));
    assert_eq!(with("bus: embedded").as_deref(), Ok("embedded"));
}

#[test]
fn what_is_wrong_with_buses_is_told() {
    for (text, said) in [
        (
            "bus: invoice",
            r#"bus is "invoice", and the settings have no such bus; did you mean "invoices"?"#,
        ),
        (
            "bus: other",
            r#"the settings have no such bus; they have "embedded", "invoices" and "push""#,
        ),
        ("bus: amqp", r#"bus is "amqp", and the settings have no such bus"#),
        ("buses: { a: { server: x } }", "a bus has a kind, such as `kind: amqp`"),
        ("buses: { a: { kind: nats } }", r#"a bus is of the kind "nats", expected amqp"#),
        ("buses: { a: { kind: amqp } }", "buses.a.server is missing"),
        (
            "buses: { amqp: { kind: amqp, server: 'amqp://h' } }",
            r#""amqp" is the bus of the section amqp"#,
        ),
        (
            "buses: { embedded: { kind: amqp, server: 'amqp://h' } }",
            r#""embedded" is the bus of the section"#,
        ),
        ("buses: { A: { kind: amqp, server: 'amqp://h' } }", r#""A" is not a valid name of a bus"#),
        ("buses: { a: { kind: amqp, server: 'amqp://h', prefech: 1 } }", "unknown field `prefech`"),
        ("buses: { a: { kind: amqp, server: 'amqp://h', prefetch: 0 } }", "buses.a.prefetch is 0"),
        (
            "buses: { a: { kind: amqp, server: 'amqp://h', linger: soon } }",
            "\"soon\" is not a duration",
        ),
        (
            "amqp: { server: 'amqp://h' }\nbuses: { a: { kind: amqp, server: 'amqp://h' } }",
            r#"amqp and buses.a have the same server and the same reply_queue, "workflow-manager""#,
        ),
    ] {
        let told = match text.starts_with("bus:") {
            true => load_settings(&format!("{INVOICES}{text}")),
            false => load_settings(text),
        };
        let told = told.err().unwrap_or_else(|| panic!("{text} was taken"));
        assert!(told.contains(said), "{text}: {told}");
    }
}

const HERE: &str = "amqp: { server: 'amqp://here' }";

#[test]
fn the_exchange_for_events_is_on_the_broker_of_a_bus_over_amqp() {
    let found = |more: &str| {
        let settings = load_settings(&format!("{INVOICES}{more}")).expect(more);
        let found = settings.exchange_bus().expect(more);
        assert_eq!(found.is_some(), settings.events.has_exchange(), "{more}");
        found.map(|(name, section)| (name.to_owned(), section.server.to_texts().join(",")))
    };
    let invoices = Some(("invoices".to_owned(), "amqp://me:hunter2@there:5672/v".to_owned()));
    let section = Some(("amqp".to_owned(), "amqp://here".to_owned()));
    for (more, expected) in [
        ("", &None),
        ("events: { bus: invoices }", &None),
        ("events: { exchange: e, bus: invoices }", &invoices),
        (&format!("{HERE}\nevents: {{ exchange: e, bus: invoices }}"), &invoices),
        (&format!("{HERE}\nevents: {{ exchange: e }}"), &section),
        (&format!("{HERE}\nbus: invoices\nevents: {{ exchange: e }}"), &section),
        (&format!("{HERE}\nevents: {{ exchange: e, bus: amqp }}"), &section),
    ] {
        assert_eq!(&found(more), expected, "{more}");
    }
}

#[test]
fn an_exchange_for_events_without_a_broker_is_refused_with_the_buses_that_could_have_it() {
    let one = r#"set events.bus to "invoices", the bus of the kind amqp"#;
    let two = r#"set events.bus to a bus of the kind amqp, "amqp" or "invoices""#;
    let none = "add a bus of the kind amqp to buses and name it in events.bus, or set amqp.server";
    let exchange = "events.exchange needs a broker, and amqp.server is empty: ";
    let unknown = r#"events.bus is "invoces", and the settings have no such bus: "#;
    let push = r#"events.bus is "push", a bus of the kind push, expected one of the kind amqp: "#;
    for (text, said, to_do) in [
        ("events: { exchange: e }".to_owned(), exchange, none),
        (format!("{INVOICES}events: {{ exchange: e }}"), exchange, one),
        (format!("{INVOICES}events: {{ exchange: e, bus: invoces }}"), unknown, one),
        ("events: { exchange: e, bus: invoces }".to_owned(), unknown, none),
        (format!("{HERE}{INVOICES}events: {{ exchange: e, bus: invoces }}"), unknown, two),
        (format!("{INVOICES}events: {{ exchange: e, bus: push }}"), push, one),
        ("events: { exchange: e, bus: push }".to_owned(), push, none),
        (format!("{INVOICES}events: {{ bus: invoces }}"), unknown, one),
        (
            format!("{INVOICES}events: {{ exchange: e, bus: amqp }}"),
            r#"events.bus is "amqp", and the settings have no such bus: "#,
            one,
        ),
    ] {
        let told = load_settings(&text).err().unwrap_or_else(|| panic!("{text} was taken"));
        assert!(told.contains(&format!("{said}{to_do}")), "{text}: {told}");
    }
}

#[test]
fn an_address_that_is_none_is_told_with_its_place() {
    let odd = "buses: { a: { kind: amqp, server: 'http://there' } }";
    for (text, place) in [
        ("amqp: { server: 'http://there' }", "amqp.server"),
        (&format!("{odd}\nbus: a"), "buses.a.server"),
        (&format!("{odd}\nevents: {{ exchange: e, bus: a }}"), "buses.a.server"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = load_settings(text).expect(text);
        settings.journal.file = folder.path().join("journal.db");
        let workflow = "workflows: [ { name: w, steps: [ { name: a } ] } ]";
        let started = actix_rt::System::new().block_on(manager::start(
            settings,
            vec![definition(workflow)],
            Workers::new(),
        ));
        let told = started.err().unwrap_or_else(|| panic!("{text}: it started")).to_string();
        let said =
            format!("{place} \"http://there\" is not an address of a broker: it does not begin");
        assert!(told.starts_with(&said), "{text}: {told}");
    }
}

#[test]
fn files_are_loaded_for_the_buses_of_the_settings() {
    let settings = load_settings(INVOICES).expect("valid");
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |text: &str| {
        let file = folder.path().join("w.yaml");
        fs::write(&file, text).expect("written");
        load_for_manager(&[file], &settings).map(drop).map_err(|errors| errors.to_string())
    };
    assert_eq!(
        refused("workflows: [ { name: w, bus: invoices, steps: [ { name: a } ] } ]"),
        Ok(())
    );
    for (text, said) in [
        (
            "workflows: [ { name: w, bus: invoces, steps: [ { name: a } ] } ]",
            "w.yaml:1:30: workflow \"w\": \"bus\" is \"invoces\", and the settings have no such \
             bus; did you mean \"invoices\"?",
        ),
        (
            "workflows: [ { name: w, steps: [ { name: a, bus: amqp } ] } ]",
            "step \"a\": \"bus\" is \"amqp\", and the settings have no such bus; they have \
             \"embedded\", \"invoices\" and \"push\"",
        ),
        (
            "workflows: [ { name: w, steps: [ { name: a, bus: invoices, queue: answers } ] } ]",
            r#"replies wait in the queue "answers" (setting buses.invoices.reply_queue)"#,
        ),
        (
            "workflows: [ { name: w, steps: [ { name: a, queue: workflow-manager } ] } ]",
            r#"replies wait in the queue "workflow-manager" (of the embedded bus)"#,
        ),
    ] {
        let told = refused(text).expect_err(text);
        assert!(told.contains(said), "{text}: {told}");
    }
    let answers = "workflows: [ { name: w, steps: [ { name: a, queue: answers } ] } ]";
    assert_eq!(refused(answers), Ok(()), "of another bus");
}

#[test]
fn tokens_of_workers_are_settings_too() {
    let text = "http: { token: the-one-for-all-calls, workers: { pricing: { token: \
                hunter2-and-hunter3, queues: [ price, stock ] } } }";
    let pricing = &load_settings(text).expect("valid").http.workers["pricing"];
    assert_eq!(pricing.queues.0, ["price", "stock"]);
    let from_environment = "http: { token: the-one-for-all-calls, workers: { w: { token: \
                            worker-and-no-more, queues: 'a, b' } } }";
    assert_eq!(
        load_settings(from_environment).expect("valid").http.workers["w"].queues.0,
        ["a", "b"]
    );
    let shown = serde_json::to_string(&load_settings(text).expect("valid")).expect("JSON");
    assert!(
        !shown.contains("hunter") && shown.contains(r#""queues":["price","stock"]"#),
        "{shown}"
    );
    for (text, said) in [
        (
            "http: { workers: { w: { token: worker-and-no-more, queues: [ a ] } } }",
            "so that every call is open",
        ),
        (
            "http: { token: the-one-for-all-calls, workers: { w: { token: the-one-for-all-calls, \
             queues: [ a ] } } }",
            "http.workers.w.token is empty or that",
        ),
        (
            "http: { token: the-one-for-all-calls, workers: { w: { token: worker-and-no-more, \
             queues: [] } } }",
            "http.workers.w.queues is empty",
        ),
        (
            "http: { token: the-one-for-all-calls, workers: { w: { token: t, queues: 7 } } }",
            "a list of names",
        ),
    ] {
        let told = load_settings(text).expect_err(text);
        assert!(told.contains(said), "{text}: {told}");
    }
}

// ---- a manager on two buses

const TWO: &str = "
workflows:
  - name: both
    steps:
      - { name: here, queue: work }
      - { name: there, queue: work, bus: other, depends: [ here ] }
      - { name: again, queue: work, depends: [ there ] }
  - name: called
    bus: other
    steps: [ { name: inner, queue: work } ]
  - name: calls
    steps: [ { name: ask, queue: workflow.called, bus: other } ]
";

/// What came to the queue `work` of each bus: the bus, and the step.
type Came = Arc<Mutex<Vec<(String, String)>>>;

/// A second bus of another name, on lease queues of its own.
fn two_buses(came: &Came, shut: &'static str) -> Parts {
    let lease_queues: Arc<LeaseQueues> = Arc::default();
    let (came, known) = (came.clone(), Arc::clone(&lease_queues));
    let bus_provider: BusProvider =
        Arc::new(move |_: &Settings, key: &BusKey, opening: BusOptions| {
            let (bus, came) = (key.name.to_string(), came.clone());
            let mut workers = Workers::new();
            if bus != shut {
                workers = workers.with_worker("work", 1, move |message| {
                    let step = message.correlation_id.as_deref().unwrap_or_default();
                    let step = step.rsplit(':').next().unwrap_or_default().to_owned();
                    came.lock().expect("no panic").push((bus.clone(), step));
                    Ok(message.body.to_bytes())
                });
            }
            let policy = LeasePolicy {
                lease: Duration::from_secs(300),
                deliveries_max: 5,
                reports_leases: true,
            };
            let made_of =
                EmbeddedConfig { key: key.clone(), workers, policy, lease_queues: known.clone() };
            Ok(Box::new(move |sink| Box::new(EmbeddedBus::new(made_of, opening.served, sink))))
        });
    Parts { bus_provider, lease_queues, ..Parts::standard(Workers::new()) }
}

/// Has a second bus of the kind `amqp`, which the parts of the test stand in for.
fn with_other(settings: &mut Settings) {
    let mut other = settings.amqp.clone();
    other.server = "amqp://nowhere".into();
    other.replies_first = DurationSetting(Duration::ZERO);
    settings.buses.insert("other".to_owned(), BusSettings::Amqp(Box::new(other)));
}

/// Starts a manager with both buses, whose journal stays in this folder.
fn start(folder: &Path, workflows: &str, parts: Parts) -> TestManager {
    let setup = TestManager::with(workflows).folder(folder).set(with_other);
    setup.start_on(Threads::Own(Vec::new()), parts)
}

#[test]
fn each_message_goes_to_the_bus_of_its_step_and_calls_are_answered_where_they_came() {
    actix_rt::System::new().block_on(async {
        let (folder, came) = (tempfile::tempdir().expect("a folder"), Came::default());
        let manager = start(folder.path(), TWO, two_buses(&came, ""));
        let both = manager.create_job("both", "{}").await;
        assert_eq!(manager.until_ended(both).await.state(), JobState::Completed);
        let calls = manager.create_job("calls", "{}").await;
        assert_eq!(manager.until_ended(calls).await.state(), JobState::Completed);
        let came: Vec<(String, String)> = came.lock().expect("no panic").clone();
        let came: Vec<(&str, &str)> = came.iter().map(|(bus, step)| (&**bus, &**step)).collect();
        let expected =
            [("embedded", "here"), ("other", "there"), ("embedded", "again"), ("other", "inner")];
        assert_eq!(came, expected);
        manager.stop().await;
    });
}

#[test]
fn what_happens_to_a_queue_concerns_the_steps_of_its_bus_alone() {
    actix_rt::System::new().block_on(async {
        let (folder, came) = (tempfile::tempdir().expect("a folder"), Came::default());
        let manager = start(folder.path(), TWO, two_buses(&came, "embedded"));
        let id = manager.create_job("both", "{}").await;
        let buses = &manager.core().buses;
        let here = Address { bus: buses.resolve(None, ""), queue: "work".into() };
        let there = Address { bus: buses.resolve(Some(&"other".into()), ""), ..here.clone() };
        let handle = manager.handle();
        let step =
            |id| async move { handle.inspect_job(id, |job| job.confirmed_steps().count()).await };
        // The embedded bus confirms nothing: as if it had.
        let confirmed = workflow_manager::engine::Input::Confirmed {
            step: workflow_manager::engine::StepIndex(0),
            attempt: 1,
            dispatch: None,
        };
        manager.mailboxes().router.send(RouterInput::InputForJob(id, confirmed));
        until_async("it is confirmed", async || step(id).await == Some(1)).await;
        let waits = manager
            .handle()
            .redispatch(BulkRedispatch::new(there.clone()).with_dry_run(true))
            .await;
        assert_eq!(waits, Ok((0, 0)), "nothing waits on the other bus");
        assert_eq!(
            manager.handle().redispatch(BulkRedispatch::new(here.clone()).with_dry_run(true)).await,
            Ok((1, 1))
        );
        for (queue, left) in [(there, Some(1)), (here, Some(0))] {
            let (taken, is_taken) = tokio::sync::oneshot::channel();
            manager.mailboxes().router.send(RouterInput::QueueMissing { queue, handled: taken });
            is_taken.await.expect("taken");
            assert_eq!(step(id).await, left);
        }
        manager.stop().await;
    });
}

#[test]
fn a_job_whose_bus_is_no_longer_in_the_settings_waits_for_it_and_says_so() {
    actix_rt::System::new().block_on(async {
        let (folder, came) = (tempfile::tempdir().expect("a folder"), Came::default());
        let manager = start(folder.path(), TWO, two_buses(&came, "other"));
        let id = manager.create_job("both", "{}").await;
        let is_here = || came.lock().expect("no panic").iter().any(|(_, step)| step == "here");
        until("the first step has its message", is_here).await;
        manager.stop().await;

        let other = TestManager::with(ONE).folder(folder.path());
        let manager = other.start_on(Threads::Own(Vec::new()), two_buses(&came, ""));
        let api = Api::new(&manager).await;
        let why = api.get_json(&format!("/api/job/{id}/why")).await;
        let told = "step \"there\" sends to the bus \"other\", which was not started";
        assert!(why.to_string().replace("\\\"", "\"").contains(told), "{why}");
        manager.stop().await;

        let manager = start(folder.path(), TWO, two_buses(&came, ""));
        assert_eq!(manager.until_ended(id).await.state(), JobState::Completed);
        manager.stop().await;
    });
}

#[test]
fn a_bus_that_is_away_holds_up_the_timeouts_of_its_own_steps_alone() {
    const AWAY: &str = "
workflows:
  - name: away
    steps:
      - { name: there, bus: other, queue: nobody, timeout: 1ms }
      - { name: here, queue: nobody, timeout: 50ms }
";
    actix_rt::System::new().block_on(async {
        let (folder, came) = (tempfile::tempdir().expect("a folder"), Came::default());
        let manager = start(folder.path(), AWAY, two_buses(&came, ""));
        let away = BusState::Disconnected { reason: "its cable is cut".to_owned() };
        let other = manager.core().buses.resolve(Some(&"other".into()), "");
        let health = &manager.core().health;
        for bus in [&other, &manager.core().buses.resolve(None, "")] {
            until("it is connected", || health.bus(bus) == Some(BusState::CONNECTED)).await;
        }
        health.set_bus(&other, away);
        let mut checks = health.checks();
        checks.retain(|check| check.name.starts_with("bus"));
        let expected = [
            ("bus", true, "connected (embedded: no broker is set)"),
            ("bus other", false, "not connected: its cable is cut"),
        ];
        let expected = expected.map(|(name, is_passed, message)| HealthCheck {
            name: name.to_owned(),
            is_passed,
            message: message.to_owned(),
        });
        assert_eq!(checks, expected);
        let id = manager.create_job("away", "{}").await;
        // Workers have both.
        for bus in [&other, &manager.core().buses.resolve(None, "")] {
            let lease_queue = manager.core().lease_queues.find(bus).expect("its lease queues");
            let until = clock::timer_now() + Duration::from_secs(60);
            let leased =
                lease_queue.receive(&"nobody".into(), &ReceiveOptions::default(), until).await;
            assert!(leased.is_some(), "it is leased");
        }
        let job = manager.until_ended(id).await;
        let reason = job.reason().expect("it failed");
        assert!(reason.contains("here"), "{reason}");
        let states: Vec<StepState> = job.steps().map(|(_, run)| run.state).collect();
        assert_ne!(states[0], StepState::Failed, "a reply may still be on its way");
        assert_eq!(states[1], StepState::Failed);
        manager.stop().await;
    });
}

#[test]
fn a_manager_that_has_stopped_leaves_nothing_open() {
    actix_rt::System::new().block_on(async {
        let manager = TestManager::with(ONE).await;
        let health = Arc::downgrade(&manager.core().health);
        manager.stop().await;
        until("nothing holds what the manager had", || health.upgrade().is_none()).await;
    });
}

#[cfg(feature = "kafka")]
#[test]
fn the_buses_of_the_reference_are_valid_settings() {
    let page = include_str!("../../docs/reference/buses.md");
    let block = page.split("```yaml\n").nth(1).and_then(|block| block.split("```").next());
    load_settings(block.expect("a block")).expect("the settings of docs/reference/buses.md");
}
