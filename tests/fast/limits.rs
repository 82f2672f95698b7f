//! Limits of rate and concurrency: the engine's side. A step claims places, sends its message when
//! it is admitted, and holds its places until its attempt is settled.

use std::cell::Cell;
use std::sync::Arc;
use workflow_manager::engine::{
    ClaimState, Context, Decision, Definition, Demand, Effect, Entry, Expression, Graph, Input,
    Job, JobId, JobState, LimitDefinition, Limits, Message, Millis, Operation, Origin, Pauses,
    Rate, Reply, Retry, Sender, SpareSource, Step, StepEntry, StepIndex, StepState, Timestamp,
};

const STEP: StepIndex = StepIndex(0);

const LIMITS: Limits = Limits {
    step_message_bytes_max: 1 << 20,
    reply_bytes_max: 1 << 20,
    depth_max: 3,
    window: 10,
    window_bytes: 1 << 26,
};

fn context(now: i64) -> Context<'static> {
    Context { now: Timestamp(now), limits: &LIMITS, pauses: None, spare: None }
}

/// A workflow with one step, under a rate with a key.
fn definition(key: &str) -> Arc<Definition> {
    let limit = LimitDefinition {
        name: "bank".into(),
        rate: Some(Rate { count: 1, per: Millis(1_000), burst: 1 }),
        concurrency: Some(1),
        key: Some(Expression::parse(key).expect("a key")),
        fair: None,
    };
    let step = Step {
        limits: vec!["bank".into()],
        timeout: Some(Millis(1_000)),
        retry: Some(Retry { attempts: 2, ..Retry::default() }),
        ..Step::with_name("pay")
    };
    let graphs = vec![Graph::new("w".to_owned(), None, vec![step])];
    Arc::new(Definition { limits: vec![limit], ..Definition::new("w", graphs) })
}

fn create(key: &str, message: &str) -> (Job, Decision) {
    let message = Message::parse(message.as_bytes()).expect("a message");
    let origin = Origin::for_root_job(JobId::from_call(&[]), definition(key), Timestamp(0));
    Job::create(origin, message, &context(1))
}

fn only_demand(decision: &Decision) -> Option<Demand> {
    match (&decision.effects[..], &decision.demands[..]) {
        ([], [(STEP, demand)]) => demand.clone(),
        found => panic!("expected one demand, found {found:?}"),
    }
}

fn admit(job: &mut Job, ticket: u64, now: i64) -> Decision {
    let input = Input::Admitted { step: STEP, ticket, marks: Vec::new() };
    job.handle_input(input, &context(now)).expect("it is admitted")
}

fn reply(job: &mut Job, reply: Reply, now: i64) -> Decision {
    let (step, from) = ("pay".to_owned(), Sender::Unknown);
    let input = Input::Reply { step, attempt: Some(1), reply, from };
    job.handle_input(input, &context(now)).expect("the reply is accepted")
}

#[test]
fn a_step_sends_its_message_when_it_is_admitted_and_holds_its_place_until_the_reply() {
    let (mut job, decision) = create("job.customer", r#"{"customer":"c1"}"#);
    let claim = only_demand(&decision).expect("it waits").claim;
    assert_eq!((claim.state, claim.since), (ClaimState::Waiting, Timestamp(1)));
    assert_eq!(claim.places[0].key.as_deref(), Some("c1"));
    assert_eq!(job.next_timer(), None, "its timeout has not begun");
    let late = Input::Admitted { step: STEP, ticket: claim.ticket + 1, marks: Vec::new() };
    assert!(job.handle_input(late, &context(2)).is_err(), "another ticket");
    let decision = admit(&mut job, claim.ticket, 3);
    assert!(matches!(
        decision.recorded.entries[..],
        [Entry::Step(STEP, StepEntry::Started { attempt: 1, .. })]
    ));
    assert!(matches!(
        (&decision.effects[..], &decision.demands[..]),
        ([Effect::Dispatch { attempt: 1, .. }], [(STEP, Some(demand))])
            if demand.claim.state == ClaimState::Holding
    ));
    let again = Input::Admitted { step: STEP, ticket: claim.ticket, marks: Vec::new() };
    assert!(job.handle_input(again, &context(4)).is_err(), "it is admitted once");
    let decision = reply(&mut job, Reply::Result("{}".into()), 5);
    assert_eq!(only_demand(&decision), None);
    assert_eq!(job.state(), JobState::Completed);
    job.assert_invariants();
}

#[test]
fn a_failed_attempt_releases_its_place_and_the_next_one_claims_again() {
    let (mut job, decision) = create("job.customer", r#"{"customer":7}"#);
    admit(&mut job, only_demand(&decision).expect("it waits").claim.ticket, 2);
    let decision = reply(&mut job, Reply::Error(r#"{"message":"no"}"#.into()), 3);
    assert_eq!(only_demand(&decision), None, "a backoff holds nothing");
    let due = job.next_timer().expect("the next attempt is due");
    let unread = Default::default();
    let decision = job.handle_input(Input::Timer { due, unread }, &context(due.0)).expect("due");
    let claim = only_demand(&decision).expect("it claims again").claim;
    assert_eq!((claim.state, claim.since), (ClaimState::Waiting, due));
    let decision = admit(&mut job, claim.ticket, due.0 + 1);
    assert!(matches!(
        decision.recorded.entries[..],
        [Entry::Step(STEP, StepEntry::Started { attempt: 2, .. })]
    ));
}

#[test]
fn a_pause_and_a_cancel_withdraw_a_claim_and_a_resume_states_it_again() {
    let (mut job, decision) = create("job.customer", r#"{"customer":true}"#);
    let first = only_demand(&decision).expect("it waits");
    let operate = |job: &mut Job, operation| {
        job.handle_input(Input::from_request(operation), &context(2)).expect("it is possible")
    };
    let decision = operate(&mut job, Operation::Pause);
    assert_eq!(only_demand(&decision), None);
    let ticket = first.claim.ticket;
    let admitted = Input::Admitted { step: STEP, ticket, marks: Vec::new() };
    assert!(job.handle_input(admitted, &context(3)).is_err(), "a paused job sends nothing");
    let decision = operate(&mut job, Operation::Resume);
    assert_eq!(only_demand(&decision), Some(first), "with the time since when it waits");
    let decision = operate(&mut job, Operation::Cancel { reason: "enough".into() });
    assert_eq!(only_demand(&decision), None);
    assert!(job.is_closed());
}

#[test]
fn a_key_that_is_missing_or_no_text_fails_the_step() {
    for (message, expected) in [
        ("{}", "no such key: customer"),
        (r#"{"customer":[1]}"#, "expected a text, a number, or true or false"),
        (r#"{"customer":null}"#, "expected a text, a number, or true or false"),
    ] {
        let (job, _) = create("job.customer", message);
        assert_eq!(job.step(STEP).state, StepState::Failed, "{message}");
        let failure = job.step(STEP).failure.as_ref().expect("a failure");
        assert!(
            failure.reason.contains("`key: job.customer` of its limit \"bank\"")
                && failure.reason.contains(expected),
            "{}",
            failure.reason
        );
    }
}

#[test]
fn a_message_that_is_sent_again_passes_the_gate_and_so_does_one_that_a_restart_finds_unconfirmed() {
    let (mut job, decision) = create("job.customer", r#"{"customer":"c1"}"#);
    admit(&mut job, only_demand(&decision).expect("it waits").claim.ticket, 2);
    let [(_, unconfirmed)] = &job.demands_at_start()[..] else { panic!("one demand") };
    assert_eq!(unconfirmed.claim.state, ClaimState::Resending, "it may be sent a second time");
    let kept = unconfirmed.clone().without_resending();
    assert_eq!(kept.claim.state, ClaimState::Holding, "a bus of this process still has it");
    let confirmed = Input::Confirmed { step: STEP, attempt: 1, dispatch: None };
    job.handle_input(confirmed, &context(3)).expect("it is confirmed");
    let [(_, confirmed)] = &job.demands_at_start()[..] else { panic!("one demand") };
    assert_eq!(confirmed.claim.state, ClaimState::Holding);
    let redispatch = Operation::Redispatch { step: "pay".to_owned() };
    let decision =
        job.handle_input(Input::from_request(redispatch), &context(4)).expect("it is possible");
    let claim = only_demand(&decision).expect("it waits").claim;
    assert_eq!(claim.state, ClaimState::Resending);
    let decision = admit(&mut job, claim.ticket, 5);
    assert!(matches!(decision.recorded.entries[..], [Entry::Step(STEP, StepEntry::Unconfirmed)]));
    assert!(matches!(&decision.effects[..], [Effect::Dispatch { attempt: 1, .. }]));
    assert!(matches!(&decision.demands[..], [(STEP, Some(demand))] if demand.holds()));
    job.assert_invariants();
}

#[test]
fn a_step_without_limits_tells_the_gate_nothing() {
    let graphs = vec![Graph::new("w".to_owned(), None, vec![Step::with_name("pay")])];
    let definition = Arc::new(Definition::new("w", graphs));
    let origin = Origin::for_root_job(JobId::from_call(&[]), definition, Timestamp(0));
    let (job, decision) = Job::create(origin, Message::default(), &context(1));
    assert!(matches!(&decision.effects[..], [Effect::Dispatch { .. }]));
    assert!(decision.demands.is_empty() && job.demands().is_empty());
}

#[test]
fn a_step_that_waits_for_its_limits_for_too_long_fails_and_is_withdrawn() {
    let mut plain = (*definition("job.customer")).clone();
    Arc::make_mut(&mut plain.graphs)[0].steps[0].wait_at_most = Some(Millis(1));
    let message = Message::parse(br#"{"customer":"c1"}"#).expect("a message");
    let origin = Origin::for_root_job(JobId::from_call(&[]), Arc::new(plain), Timestamp(0));
    let (mut job, decision) = Job::create(origin, message, &context(1));
    assert!(only_demand(&decision).is_some());
    let due = Timestamp(1_000_001);
    assert_eq!(job.next_timer(), Some(due));
    let mut admitted = job.clone();
    let timer = |due| Input::Timer { due, unread: Default::default() };
    assert!(job.handle_input(timer(Timestamp(due.0 - 1)), &context(due.0 - 1)).is_err());
    let decision = job.handle_input(timer(due), &context(due.0)).expect("it is due");
    assert_eq!(only_demand(&decision), None, "it waits no more");
    assert_eq!(job.state(), JobState::Failed);
    assert_eq!(
        job.reason_text().as_ref(),
        "step \"pay\": it waited for limit bank for longer than its waitAtMost of 1ms"
    );
    // Once it is admitted, the bound is over.
    admit(&mut admitted, 2, 2);
    assert_eq!(admitted.next_timer(), None);
}

/// Has places of the limit "bank" to spare, and knows whether it was asked.
#[derive(Default)]
struct Spare(Cell<bool>);

impl SpareSource for Spare {
    fn take(&self, limit: &str) -> bool {
        self.0.set(true);
        limit == "bank"
    }
}

/// Creates a job of one step under limits while there are places to spare. Returns also whether it
/// has asked for one.
fn create_with_spare(limits: &[LimitDefinition], pauses: Option<&Pauses>) -> (Job, Decision, bool) {
    let names = limits.iter().map(|limit| limit.name.clone()).collect();
    let step = Step { limits: names, timeout: Some(Millis(1_000)), ..Step::with_name("pay") };
    let graphs = vec![Graph::new("w".to_owned(), None, vec![step])];
    let definition = Definition { limits: limits.to_vec(), ..Definition::new("w", graphs) };
    let origin = Origin::for_root_job(JobId::from_call(&[]), definition.into(), Timestamp(0));
    let message = Message::parse(b"{\"customer\":1}").expect("a message");
    let spare = Spare::default();
    let context = Context { pauses, spare: Some(&spare), ..context(1) };
    let (job, decision) = Job::create(origin, message, &context);
    (job, decision, spare.0.get())
}

fn plain_limit(name: &str) -> LimitDefinition {
    let (rate, concurrency) = (None, Some(1));
    LimitDefinition { name: name.into(), rate, concurrency, key: None, fair: None }
}

#[test]
fn a_step_begins_with_the_decision_that_claims_a_place_which_is_to_spare() {
    let (mut job, decision, _) = create_with_spare(&[plain_limit("bank")], None);
    assert!(matches!(
        decision.recorded.entries[1..],
        [
            Entry::Step(STEP, StepEntry::Claimed { .. }),
            Entry::Step(STEP, StepEntry::Started { attempt: 1, .. })
        ]
    ));
    let ([Effect::Dispatch { attempt: 1, .. }], [(STEP, Some(demand))]) =
        (&decision.effects[..], &decision.demands[..])
    else {
        panic!("{decision:?}")
    };
    let claim = &demand.claim;
    assert_eq!((claim.state, claim.since), (ClaimState::Holding, Timestamp(1)));
    assert_eq!(claim.ticket, 3, "the entry that sends the message holds the place");
    let decision = reply(&mut job, Reply::Result("{}".into()), 5);
    assert_eq!(only_demand(&decision), None);
    job.assert_invariants();
}

#[test]
fn who_claims_more_than_one_plain_place_or_is_paused_takes_none_to_spare() {
    let parse = |text: &str| Some(Expression::parse(text).expect("an expression"));
    let key = LimitDefinition { key: parse("job.customer"), ..plain_limit("bank") };
    let fair = LimitDefinition { fair: parse("job.customer"), ..plain_limit("bank") };
    let pauses = Pauses { workflows: ["w".into()].into(), ..Pauses::default() };
    for (limits, pauses) in [
        (&[key][..], None),
        (&[fair], None),
        (&[plain_limit("bank"), plain_limit("other")], None),
        (&[plain_limit("bank")], Some(&pauses)),
        (&[plain_limit("other")], None),
    ] {
        let (_, decision, has_asked) = create_with_spare(limits, pauses);
        let claim = only_demand(&decision).expect("it waits").claim;
        assert_eq!(claim.state, ClaimState::Waiting, "{limits:?}");
        assert_eq!(has_asked, *limits[0].name == *"other", "{limits:?}");
    }
}
