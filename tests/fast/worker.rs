//! Workers over HTTP, on the embedded bus: messages are leased, replies count once, leases end.

#[cfg(feature = "failpoints")]
mod journal_waits;
mod kept;
mod leases;
mod replies;
mod silent_bus;

use actix_web::http::{Method, StatusCode};
use serde_json::{Value, json};
use std::time::Duration;
use support::api::{Answer, Api};
use support::manager::TestManager;
use support::waits::{until_async, within};
use workflow_manager::settings::{DurationSetting, Names, Secret, Settings, WorkerToken};

const WORKFLOW: &str = "
workflows:
  - name: orders
    steps:
      - name: price
        retry: { attempts: 2, backoff: 1ms }
      - name: ship
        depends: [ price ]
  - name: ranked
    steps:
      - { name: low, queue: ranks, priority: 1 }
      - { name: high, queue: ranks, priority: 9 }
";

const ID: &str = "f557697b-f911-401c-86b7-6d9b62f1f2bb";

/// The next message of a queue, which must come.
async fn receive(api: &Api, queue_and_query: &str) -> Answer {
    let answer = api.post(&format!("/api/queue/{queue_and_query}"), "").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", String::from_utf8_lossy(&answer.body));
    answer
}

/// What became of a reply.
async fn reply(api: &Api, message: &Answer, query: &str, body: &str) -> Value {
    let answer = api.post(&format!("{}{query}", message.header("reply-to")), body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", String::from_utf8_lossy(&answer.body));
    answer.json()
}

/// A call beside that of the reply.
async fn tell(api: &Api, message: &Answer, word: &str) -> Answer {
    let path = message.header("reply-to").replace("/reply", &format!("/{word}"));
    api.post(&path, "").await
}

/// Gives a message back until it waits.
async fn give_back(api: &Api, message: &Answer) {
    until_async("its lease has ended", async || {
        tell(api, message, "nack?requeue=true").await.status == StatusCode::GONE
    })
    .await;
}

/// Nobody gets a message of the queue `price` now.
async fn none_waits(api: &Api) {
    let none = api.post("/api/queue/price/receive?wait=0s", "").await;
    assert_eq!(none.status, StatusCode::NO_CONTENT);
}

async fn until(api: &Api, fits: impl Fn(&Value) -> bool) -> Value {
    api.until(&format!("/api/job/{ID}"), fits).await
}

#[test]
fn a_worker_takes_messages_and_replies_until_the_job_is_done() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let none = api.post("/api/queue/price/receive?wait=0s", "").await;
        assert_eq!(none.status, StatusCode::NO_CONTENT);
        api.create_job(
            &format!("orders?id={ID}"),
            r#"{"cents":1740.50,"long":12345678901234567890}"#,
        )
        .await;
        let message = receive(&api, "price/receive").await;
        assert_eq!(
            String::from_utf8_lossy(&message.body),
            r#"{"cents":1740.50,"long":12345678901234567890}"#,
            "every digit, and nothing around it"
        );
        for (name, value) in [
            ("correlation-id", format!("{ID}:price")),
            ("message-id", format!("{ID}:price:1")),
            ("workflow", "orders".to_owned()),
            ("job", ID.to_owned()),
            ("attempt", "1".to_owned()),
            ("delivery", "1".to_owned()),
            ("content-type", "application/json".to_owned()),
        ] {
            assert_eq!(message.header(name), value, "{name}");
        }
        assert!(message.header("traceparent").starts_with("00-"));
        assert!(message.header("lease-until").ends_with('Z'));
        let why = api.get(&format!("/api/job/{ID}/why"), &[]).await.json();
        assert_eq!(why["cause"], "working", "{why}");

        let told = reply(&api, &message, "?type=progress", r#"{"progress":0.5}"#).await;
        assert!(told["taken"] == true && told["until"].is_string(), "{told}");
        assert_eq!(reply(&api, &message, "", r#"{"ok":1.0}"#).await, json!({ "taken": true }));
        let again = reply(&api, &message, "", r#"{"ok":2}"#).await;
        assert_eq!(again, json!({ "taken": false, "reason": "duplicate" }));

        let second = receive(&api, "ship/receive?max=10").await.json();
        let second = &second[0];
        assert_eq!(second["body"]["ok"].to_string(), "1.0");
        assert_eq!((&second["attempt"], &second["delivery"]), (&json!(1), &json!(1)));
        let path = second["reply_to"].as_str().expect("a path");
        assert_eq!(api.post(path, "").await.json(), json!({ "taken": true }));
        until(&api, |job| job["state"] == "completed").await;
        let late = reply(&api, &message, "", "{}").await;
        assert_eq!(late["taken"], false, "{late}");
        assert_eq!(receive(&api, "ship/receive?max=2&wait=0s").await.json(), json!([]));
    });
}

#[test]
fn a_worker_that_waits_gets_the_message_as_soon_as_it_is_there() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        // One goes away while it waits: the message is not lost with it.
        let gone = api.post("/api/queue/price/receive?wait=50s", "");
        let _ = actix_rt::time::timeout(Duration::from_millis(20), gone).await;
        let waiting = [(); 2].map(|()| {
            let api = api.clone();
            actix_rt::spawn(async move { api.post("/api/queue/price/receive?wait=50s", "").await })
        });
        let look = async || api.get("/api/queues?_=1", &[]).await.json();
        let seen = look().await;
        assert!(seen["queues"].is_array(), "{seen}");
        api.create_job(&format!("orders?id={ID}"), "{}").await;
        let [first, second] = waiting;
        let (first, rest) = futures_util::future::select(first, second).await.into_inner_pair();
        let first = first.expect("answered");
        assert_eq!(first.status, StatusCode::OK);
        assert!(reply(&api, &first, "?type=error", r#"{"error":"no"}"#).await["taken"] == true);
        let second = within("in time", rest).await;
        let second = second.expect("answered");
        assert_eq!(second.header("attempt"), "2", "the other one has the next attempt");
    });
}

/// Both sides of a choice, the first to come first.
trait Pair<T, F> {
    fn into_inner_pair(self) -> (T, F);
}

impl<T, F> Pair<T, F> for futures_util::future::Either<(T, F), (T, F)> {
    fn into_inner_pair(self) -> (T, F) {
        match self {
            futures_util::future::Either::Left(pair)
            | futures_util::future::Either::Right(pair) => pair,
        }
    }
}

#[test]
fn what_is_not_settled_within_its_lease_is_given_to_another_worker() {
    TestManager::with(WORKFLOW).set(|settings| settings.embedded.deliveries_max = 2).serve(
        |api| async move {
            api.create_job(&format!("orders?id={ID}"), "{}").await;
            let first = receive(&api, "price/receive?lease=1s").await;
            let second = receive(&api, "price/receive?lease=1s").await;
            assert_eq!((second.header("delivery"), second.header("attempt")), ("2", "1"));
            let late = tell(&api, &first, "extend").await;
            assert_eq!(late.status, StatusCode::GONE);
            assert!(late.detail().starts_with("lease expired"), "{}", late.detail());
            let extended = tell(&api, &second, "extend").await.json();
            assert!(extended["until"].is_string(), "{extended}");
            // Delivered twice, it counts as what kills its workers.
            let job = until(&api, |job| job["steps"][0]["attempt"] == 2).await;
            let record = api.get(&format!("/api/job/{ID}/entries"), &[]).await.json();
            assert!(record.to_string().contains("delivery_limit"), "{record} {job}");
            let third = receive(&api, "price/receive").await;
            assert_eq!((third.header("delivery"), third.header("attempt")), ("1", "2"));
            // Who lost the lease may still be the first to reply, but not to another attempt.
            assert_eq!(
                reply(&api, &first, "?type=error", r#"{"error":"no"}"#).await["taken"],
                false
            );
            assert_eq!(reply(&api, &third, "", "{}").await, json!({ "taken": true }));
        },
    );
}

#[test]
fn a_queue_tells_who_has_its_messages() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        let queue =
            async |query: &str| api.get(&format!("/api/queue/ranks{query}"), &[]).await.json();
        assert_eq!(queue("").await["leases"], json!([]));
        api.create_job(&format!("ranked?id={ID}"), "{}").await;
        // Either message may be the first in the queue.
        let first = receive(&api, "ranks/receive?lease=1h&worker=the%20first").await;
        let second = receive(&api, "ranks/receive?lease=10m").await;
        let told = queue("?bus=embedded").await;
        assert_eq!(told["usedBy"].as_array().map(Vec::len), Some(2), "{told}");
        let leases = &told["leases"];
        // The one that ends first is the first.
        assert_eq!(leases[0]["messageId"], second.header("message-id"), "{leases}");
        assert!(leases[0].get("worker").is_none(), "{leases}");
        assert_eq!(leases[1]["messageId"], first.header("message-id"), "{leases}");
        assert_eq!(
            (&leases[1]["worker"], &leases[1]["delivery"]),
            (&json!("the first"), &json!(1))
        );
        assert!(leases[1]["leaseUntil"].as_str() > leases[0]["leaseUntil"].as_str(), "{leases}");
        tell(&api, &first, "extend?lease=1s").await;
        assert_eq!(queue("").await["leases"][0]["worker"], "the first");
        reply(&api, &first, "", "{}").await;
        assert_eq!(queue("").await["leases"].as_array().map(Vec::len), Some(1));

        let unknown = api.get("/api/queue/rank", &[]).await;
        assert_eq!(unknown.status, StatusCode::NOT_FOUND);
        assert!(unknown.detail().contains("did you mean"), "{}", unknown.detail());
        let other = api.get("/api/queue/ranks?bus=rabbit", &[]).await;
        assert_eq!(other.status, StatusCode::NOT_FOUND);
        let long = format!("/api/queue/ranks/receive?wait=0s&worker={}", "x".repeat(101));
        assert_eq!(api.post(&long, "").await.status, StatusCode::BAD_REQUEST);
    });
}

#[test]
fn a_reply_needs_no_lease() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        api.create_job(&format!("orders?id={ID}"), "{}").await;
        let first = receive(&api, "price/receive?lease=1s").await;
        let second = receive(&api, "price/receive").await;
        assert_eq!(reply(&api, &first, "", r#"{"by":"first"}"#).await, json!({ "taken": true }));
        let other = reply(&api, &second, "", r#"{"by":"second"}"#).await;
        assert_eq!(other, json!({ "taken": false, "reason": "duplicate" }));
        let next = receive(&api, "ship/receive").await;
        assert_eq!(next.json(), json!({ "by": "first" }));
    });
}

#[test]
fn what_was_replied_to_is_not_given_out_any_more() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        api.create_job(&format!("orders?id={ID}"), "{}").await;
        let lost = receive(&api, "price/receive").await;
        // It waits when the reply comes.
        give_back(&api, &lost).await;
        assert_eq!(reply(&api, &lost, "", "{}").await, json!({ "taken": true }));
        none_waits(&api).await;
    });
}

#[test]
fn a_worker_hears_of_the_end_of_its_attempt_and_can_refuse_it() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        api.create_job(&format!("orders?id={ID}"), "{}").await;
        let message = receive(&api, "price/receive").await;
        let back = tell(&api, &message, "nack?requeue=true").await;
        assert_eq!(back.json(), json!({ "taken": true }));
        let message = receive(&api, "price/receive").await;
        assert_eq!(message.header("delivery"), "2", "each delivery counts");
        assert_eq!(tell(&api, &message, "nack").await.json(), json!({ "taken": true }));
        let message = receive(&api, "price/receive").await;
        assert_eq!(message.header("attempt"), "2");
        assert_eq!(tell(&api, &message, "extend?lease=10m").await.status, StatusCode::OK);
        assert_eq!(api.post(&format!("/api/job/{ID}/cancel"), "").await.status, StatusCode::OK);
        let gone = tell(&api, &message, "extend").await;
        assert_eq!(gone.status, StatusCode::GONE);
        assert!(gone.detail().contains("cancelled: the attempt is over"), "{}", gone.detail());
        assert_eq!(gone.json()["reason"], "cancelled");
        assert_eq!(reply(&api, &message, "", "{}").await["taken"], false);
    });
}

#[test]
fn the_message_of_an_attempt_that_is_over_is_not_given_out() {
    TestManager::with(WORKFLOW)
        .set(|settings| settings.shutdown.grace = DurationSetting(Duration::from_secs(1)))
        .serve(|api| async move {
            api.create_job(&format!("orders?id={ID}"), "{}").await;
            let leased = receive(&api, "price/receive?lease=1s").await;
            assert_eq!(api.post(&format!("/api/job/{ID}/cancel"), "").await.status, StatusCode::OK);
            // Its lease ends, but nobody gets it again.
            let none = api.post("/api/queue/price/receive?wait=2s", "").await;
            assert_eq!(none.status, StatusCode::NO_CONTENT);
            assert_eq!(reply(&api, &leased, "", "{}").await["taken"], false);
        });
}

#[test]
fn the_highest_priority_comes_first() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        api.create_job(&format!("ranked?id={ID}"), "{}").await;
        until_both_wait(&api).await;
        let first = receive(&api, "ranks/receive").await;
        let second = receive(&api, "ranks/receive").await;
        assert_eq!((first.header("priority"), second.header("priority")), ("9", "1"));
    });
}

#[test]
fn what_a_worker_asks_wrongly_is_told() {
    TestManager::with(WORKFLOW).set(|settings| settings.http.waiters_max = 1).serve(
        |api| async move {
            let refused = async |path: &str| {
                let answer = api.post(&format!("/api/queue/{path}"), "").await;
                (answer.status.as_u16(), answer.detail())
            };
            for (path, status, said) in [
                ("prise/receive", 404, "did you mean \"price\""),
                ("price/receive?wait=1h", 400, "wait is \"1h\", expected a time from 0s to 50s"),
                ("price/receive?lease=1ms", 400, "lease is \"1ms\""),
                ("price/receive?max=0", 400, "max is \"0\", expected a whole number from 1 to 100"),
                (
                    "price/receive?vhost=nowhere",
                    404,
                    "of virtual host nowhere, and neither a loaded workflow nor a job under way",
                ),
                ("price/message/x/1/reply", 400, "expected <job UUID>:<step name>:<attempt>"),
                (&format!("price/message/{ID}:price:1/x/reply"), 400, "the delivery is \"x\""),
                (&format!("price/message/{ID}:price:1/1/extend"), 410, "settled"),
                (&format!("price/message/{ID}:price:1/1/nack"), 410, "lease expired"),
                (&format!("price/message/{ID}:price:1/1/nack?delay=1s"), 400, "delay needs"),
                (&format!("price/message/{ID}:price:1/1/reply?type=no"), 400, "type is \"no\""),
            ] {
                let (got, detail) = refused(path).await;
                assert_eq!(got, status, "{path}: {detail}");
                assert!(detail.contains(said), "{path}: {detail}");
            }
            let stale = format!("/api/queue/price/message/{ID}:price:1/1/reply");
            let unknown = api.post(&stale, "{}").await;
            assert_eq!(unknown.json(), json!({ "taken": false, "reason": "unknown_job" }));
            let wait = async || api.post("/api/queue/price/receive?wait=1s", "").await.status;
            let (one, other) = futures_util::future::join(wait(), wait()).await;
            assert_eq!(one, StatusCode::NO_CONTENT);
            assert_eq!(other, StatusCode::SERVICE_UNAVAILABLE, "one waits at once");
        },
    );
}

#[test]
fn the_token_of_a_worker_is_for_its_queues_alone() {
    let tokens = |settings: &mut Settings| {
        settings.http.token = Secret("all".to_owned());
        let worker = |token: &str, queues: &[&str]| WorkerToken {
            token: Secret(token.to_owned()),
            queues: Names(queues.iter().map(|queue| (*queue).to_owned()).collect()),
            vhost: String::new(),
        };
        let workers =
            [("pricing", worker("pp", &["price"])), ("ranking", worker("rr", &["ranks", "ship"]))];
        settings.http.workers = workers.map(|(name, worker)| (name.to_owned(), worker)).into();
    };
    TestManager::with(WORKFLOW).set(tokens).serve(|api| async move {
        let ask = async |token: &str, method: Method, path: &str| {
            let bearer = format!("Bearer {token}");
            api.request(method, path, &[("authorization", &bearer)], "").await
        };
        let created = ask("all", Method::POST, &format!("/api/workflow/orders?id={ID}")).await;
        assert_eq!(created.status, StatusCode::CREATED);
        for (token, method, path, status) in [
            ("rr", Method::POST, "/api/queue/price/receive?wait=0s", 403),
            ("pp", Method::POST, "/api/queue/ship/receive?wait=0s", 403),
            ("pp", Method::POST, "/api/queue/pric%65/receive/?wait=50s", 200),
            ("rr", Method::POST, "/api/queue/ship/receive?wait=0s", 204),
            ("pp", Method::POST, "/api/queue/price/redispatch", 403),
            ("pp", Method::GET, "/api/jobs", 403),
            ("pp", Method::GET, "/api/settings", 403),
            ("pp", Method::POST, "/api/workflow/orders", 403),
            ("pp", Method::GET, "/livez", 200),
            ("ppp", Method::POST, "/api/queue/price/receive?wait=0s", 401),
            ("", Method::POST, "/api/queue/price/receive?wait=0s", 401),
            ("all", Method::POST, "/api/queue/price/receive?wait=0s", 204),
            ("all", Method::GET, "/api/jobs", 200),
        ] {
            let answer = ask(token, method.clone(), path).await;
            assert_eq!(answer.status.as_u16(), status, "{token} {method} {path}");
        }
        let message = format!("/api/queue/price/message/{ID}:price:1/1");
        for (token, call, status) in [
            ("rr", "reply", 403),
            ("rr", "extend", 403),
            ("pp", "extend", 200),
            ("pp", "reply", 200),
        ] {
            let answer = ask(token, Method::POST, &format!("{message}/{call}")).await;
            assert_eq!(answer.status.as_u16(), status, "{token} {call}");
        }
        let refused = ask("rr", Method::POST, &format!("{message}/extend")).await.detail();
        assert!(
            refused.contains(
                r#"the token "ranking" is for messages of the queues "ranks" and "ship" alone"#
            ),
            "{refused}"
        );
        let gone = ask("pp", Method::POST, &format!("{message}/extend")).await;
        assert_eq!(gone.status, StatusCode::GONE);
        assert_eq!(gone.json()["reason"], "settled");
    });
}

#[test]
fn what_progress_does_not_say_again_stays() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        api.create_job(&format!("orders?id={ID}"), "{}").await;
        let message = receive(&api, "price/receive").await;
        let shown = async |said: &str| {
            let told = reply(&api, &message, "?type=progress", said).await;
            assert_eq!(told["taken"], true, "{said}");
            let step = api.get(&format!("/api/job/{ID}/step/price"), &[]).await.json();
            json!({ "progress": step["progress"], "message": step["message"] })
        };
        assert_eq!(shown("{}").await, json!({ "progress": null, "message": null }));
        let half = json!({ "progress": 0.5, "message": "half" });
        assert_eq!(shown(r#"{"progress":0.5,"message":"half"}"#).await, half);
        assert_eq!(shown("{}").await, half);
        assert_eq!(shown("").await, half);
        assert_eq!(shown(r#"{"progress":null,"other":1}"#).await, half);
        let more = json!({ "progress": 0.75, "message": "half" });
        assert_eq!(shown(r#"{"progress":0.75}"#).await, more);
        let other = json!({ "progress": 0.75, "message": "nearly" });
        assert_eq!(shown(r#"{"message":"nearly"}"#).await, other);
    });
}

#[test]
fn bad_progress_leaves_the_message_with_its_worker() {
    TestManager::with(WORKFLOW).serve(|api| async move {
        api.create_job(&format!("orders?id={ID}"), "{}").await;
        let message = receive(&api, "price/receive").await;
        let told = reply(&api, &message, "?type=progress", r#"{"progress":1.5}"#).await;
        assert_eq!(told, json!({ "taken": false, "reason": "bad_progress" }));
        none_waits(&api).await;
        assert_eq!(tell(&api, &message, "extend").await.status, StatusCode::OK);
        give_back(&api, &message).await;
        let again = receive(&api, "price/receive").await;
        assert_eq!(again.header("delivery"), "2");
    });
}

#[test]
fn who_goes_away_while_messages_are_collected_takes_none_with_it() {
    const MESSAGES: usize = 5;
    TestManager::with(WORKFLOW)
        .set(|settings| {
            settings.embedded.lease = DurationSetting(Duration::from_secs(3600));
            settings.embedded.deliveries_max = 1_000_000;
        })
        .serve(|api| async move {
            for _ in 0..MESSAGES {
                let created = api.post("/api/workflow/orders", "{}").await;
                assert_eq!(created.status, StatusCode::CREATED);
            }
            // What was leased before is looked at, each by a question to its job.
            let mut leased = Vec::new();
            while leased.len() < MESSAGES {
                let given = receive(&api, "price/receive?max=10").await.json();
                leased.extend(given.as_array().expect("messages").clone());
            }
            // It goes away later and later, until it is given them all.
            let (mut polls, mut given_all, mut cut_short) = (0, 0, 0);
            while given_all < 10 {
                polls += 1;
                for message in leased.drain(..) {
                    let path = message["reply_to"].as_str().expect("a path");
                    let path = path.replace("/reply", "/nack?requeue=true");
                    assert_eq!(api.post(&path, "").await.status, StatusCode::OK);
                }
                until_none_is_leased(&api).await;
                let asks = receive(&api, "price/receive?max=10");
                let goes_away = async {
                    for _ in 0..polls {
                        actix_rt::task::yield_now().await;
                    }
                };
                let mut asks = std::pin::pin!(asks);
                tokio::select! {
                    biased;
                    given = &mut asks => {
                        leased = given.json().as_array().expect("messages").clone();
                        assert_eq!(leased.len(), MESSAGES);
                        given_all += 1;
                    }
                    () = goes_away => cut_short += 1,
                }
            }
            assert!(cut_short > 10, "it went away {cut_short} times");
        });
}

/// Waits until both messages of a ranked job are in their queue.
async fn until_both_wait(api: &Api) {
    api.until("/api/queue/ranks", |queue| queue["messages"] == 2).await;
}

async fn until_none_is_leased(api: &Api) {
    let none = |queue: &Value| queue["leases"].as_array().is_none_or(Vec::is_empty);
    api.until("/api/queue/price", none).await;
}
