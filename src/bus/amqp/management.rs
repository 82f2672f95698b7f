//! The dead-letter policy of the step queues, set through the broker's management API: a step
//! message that is rejected, or expires, or comes too often, then goes to the reply queue, and the
//! manager hears of it (SPEC §4).

use super::connection::Pauses;
use super::{AmqpError, Common, millis};
use base64::Engine;
use lapin::uri::AMQPUri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long one call of the API may take.
const CALL_MAX: Duration = Duration::from_secs(10);

/// When the broker has applied a policy to its queues.
const APPLIED_AFTER: Duration = Duration::from_secs(2);

/// Below the 0 that policies have of which nothing else is said: a policy of the user's comes
/// first.
const PRIORITY: i64 = -1;

/// The longest pattern of one policy, in bytes; more queues get several policies.
const PATTERN_BYTES_MAX: usize = 16 * 1024;

/// The most queues of which it is said that another policy has them.
const QUEUES_SHOWN_MAX: usize = 10;

/// The management API of a broker.
#[derive(Clone)]
pub(super) struct Management {
    /// Without credentials, and without a slash at the end.
    base: String,
    authorization: String,
}

impl Management {
    /// Reads `http://user:password@host:port`.
    pub(super) fn parse(url: &str) -> Result<Management, AmqpError> {
        let refused = |why: &str| AmqpError::Management {
            shown: super::connection::masked(url),
            why: why.to_owned(),
        };
        let rest =
            url.strip_prefix("http://").ok_or_else(|| refused("it does not begin with http://"))?;
        if super::connection::has_stray_at(url) {
            return Err(refused(super::connection::STRAY_AT));
        }
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host).trim_end_matches('/');
        if host.is_empty() {
            return Err(refused("the host is missing"));
        }
        // The credentials are written as in the address of the broker.
        let uri: AMQPUri = format!("amqp://{}", rest.split('/').next().unwrap_or_default())
            .parse()
            .map_err(|why: String| refused(&why))?;
        let user = uri.authority.userinfo;
        let credentials = base64::engine::general_purpose::STANDARD
            .encode(format!("{}:{}", user.username, user.password));
        Ok(Management {
            base: format!("http://{host}"),
            authorization: format!("Basic {credentials}"),
        })
    }

    fn call(&self, method: &str, path: &str, body: Option<String>) -> Result<String, String> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(CALL_MAX))
            .http_status_as_error(false)
            .build();
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("Authorization", &self.authorization);
        let agent = ureq::Agent::from(config);
        let sent = match body {
            Some(body) => request
                .header("Content-Type", "application/json")
                .body(body)
                .map_err(ureq::Error::from)
                .and_then(|request| agent.run(request)),
            None => {
                request.body(()).map_err(ureq::Error::from).and_then(|request| agent.run(request))
            }
        };
        let mut response =
            sent.map_err(|error| format!("{method} {}{path}: {error}", self.base))?;
        let text = response.body_mut().read_to_string().map_err(|error| error.to_string())?;
        if response.status().is_success() {
            return Ok(text);
        }
        Err(format!(
            "{method} {}{path}: {} {}",
            self.base,
            response.status(),
            text.chars().take(200).collect::<String>()
        ))
    }
}

/// What a queue holds, by the broker's statistics. They are some seconds old, and missing for a
/// queue that is new, or where the broker collects none.
#[derive(Deserialize)]
pub(super) struct Held {
    pub(super) name: String,
    /// Those that wait and those that a worker has.
    #[serde(default)]
    pub(super) messages: Option<u64>,
    #[serde(default)]
    pub(super) messages_unacknowledged: Option<u64>,
}

impl Management {
    /// What each queue of a virtual host holds.
    pub(super) fn held(&self, vhost: &str) -> Result<Vec<Held>, String> {
        self.read(&format!("/api/queues/{}?columns=name,messages", encoded(vhost)))
    }

    /// What a queue holds.
    pub(super) fn held_by(&self, vhost: &str, queue: &str) -> Result<Held, String> {
        self.read(&format!(
            "/api/queues/{}/{}?columns=name,messages,messages_unacknowledged",
            encoded(vhost),
            encoded(queue)
        ))
    }

    fn read<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        serde_json::from_str(&self.call("GET", path, None)?)
            .map_err(|error| format!("GET {path}: {error}"))
    }
}

/// Sets the policy, and once more for the queues that a reload brings, or a retry of a job whose
/// definition was replaced.
pub(super) async fn keep_policy(common: Rc<Common>) {
    let Some(management) = common.management.clone() else { return };
    let mut serving = common.serving.subscribe();
    let mut set_for: Vec<Arc<str>> = Vec::new();
    loop {
        let queues = serving.borrow_and_update().workers.clone();
        let queues: Vec<Arc<str>> =
            queues.into_iter().filter(|queue| **queue != *common.settings.reply_queue).collect();
        if queues != set_for && !queues.is_empty() {
            set_for.clone_from(&queues);
            let (vhost, reply_queue) =
                (encoded(common.address.vhost()), common.settings.reply_queue.clone());
            let wanted =
                Arc::new(Wanted { management: management.clone(), vhost, reply_queue, queues });
            set_policy(
                &wanted,
                Pauses::new(common.settings.reconnect_min, common.settings.reconnect_max),
            )
            .await;
        }
        if serving.changed().await.is_err() {
            return;
        }
    }
}

async fn set_policy(wanted: &Arc<Wanted>, mut pauses: Pauses) {
    while let Err(reason) = wanted.in_background(Wanted::set).await {
        let pause = pauses.next();
        tracing::warn!(reason, retry_in_ms = millis(pause), "the dead-letter policy cannot be set");
        tokio::time::sleep(pause).await;
    }
    tracing::info!(
        policy = wanted.reply_queue,
        queues = wanted.queues.len(),
        "the dead-letter policy is set"
    );
    tokio::time::sleep(APPLIED_AFTER).await;
    match wanted.in_background(Wanted::without_dead_letters).await {
        Ok(others) if others.is_empty() => tracing::info!(
            policy = wanted.reply_queue,
            "no other policy keeps dead letters from the reply queue"
        ),
        Ok(others) => tracing::warn!(
            queues = others.len(),
            first = others.join(" "),
            "policies of a higher priority have these queues, without dead letters to the reply queue: a message that is rejected or expires there is lost"
        ),
        Err(reason) => {
            tracing::warn!(reason, "whether the dead-letter policy applies cannot be seen")
        }
    }
}

/// What the policy is to be.
struct Wanted {
    management: Management,
    vhost: String,
    reply_queue: String,
    queues: Vec<Arc<str>>,
}

#[derive(Deserialize)]
struct Queue {
    name: String,
    /// The name of the policy that applies.
    #[serde(default)]
    policy: Option<String>,
    #[serde(default)]
    arguments: serde_json::Value,
}

#[derive(Deserialize)]
struct Policy {
    name: String,
    #[serde(default)]
    definition: serde_json::Value,
}

impl Wanted {
    async fn in_background<T: Send + 'static>(
        self: &Arc<Self>,
        work: fn(&Wanted) -> Result<T, String>,
    ) -> Result<T, String> {
        let wanted = self.clone();
        let done = actix_rt::task::spawn_blocking(move || work(&wanted)).await;
        done.map_err(|error| error.to_string()).flatten()
    }

    fn set(&self) -> Result<(), String> {
        // The last first: a new name moves others on to the pattern after theirs, and none is to be
        // without meanwhile.
        for (at, pattern) in patterns(&self.queues).into_iter().enumerate().rev() {
            let name = if at == 0 {
                self.reply_queue.clone()
            } else {
                format!("{}.{at}", self.reply_queue)
            };
            let policy = serde_json::json!({
                "pattern": pattern,
                "definition": { "dead-letter-exchange": "", "dead-letter-routing-key": self.reply_queue },
                "priority": PRIORITY,
                "apply-to": "queues",
            });
            self.management.call(
                "PUT",
                &format!("/api/policies/{}/{}", self.vhost, encoded(&name)),
                Some(policy.to_string()),
            )?;
        }
        Ok(())
    }

    /// Step queues that another policy has, and whose dead letters go elsewhere, or nowhere; some
    /// of them.
    fn without_dead_letters(&self) -> Result<Vec<String>, String> {
        // With statistics the names of the policies would be those of some seconds ago.
        let queues: Vec<Queue> = self.listed(&format!(
            "/api/queues/{}?columns=name,policy,arguments&disable_stats=true",
            self.vhost
        ))?;
        let policies: Vec<Policy> = self.listed(&format!("/api/policies/{}", self.vhost))?;
        Ok(others(&self.reply_queue, &self.queues, queues, &policies))
    }

    fn listed<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, String> {
        serde_json::from_str(&self.management.call("GET", path, None)?)
            .map_err(|error| error.to_string())
    }
}

/// Those of the step queues to which a policy applies that is known and does not send dead letters
/// to the reply queue.
fn others(
    reply_queue: &str,
    step_queues: &[Arc<str>],
    listed: Vec<Queue>,
    policies: &[Policy],
) -> Vec<String> {
    let goes_elsewhere = |queue: &Queue| {
        let policy = queue
            .policy
            .as_ref()
            .and_then(|name| policies.iter().find(|policy| policy.name == *name));
        policy.is_some_and(|policy| {
            let key = policy
                .definition
                .get("dead-letter-routing-key")
                .or_else(|| queue.arguments.get("x-dead-letter-routing-key"));
            key.is_none_or(|key| *key != *reply_queue)
        })
    };
    let ours = |queue: &Queue| step_queues.iter().any(|name| **name == *queue.name);
    listed
        .into_iter()
        .filter(|queue| ours(queue) && goes_elsewhere(queue))
        .map(|queue| queue.name)
        .take(QUEUES_SHOWN_MAX)
        .collect()
}

/// Patterns that match these names and no others.
fn patterns(queues: &[Arc<str>]) -> Vec<String> {
    let mut patterns = Vec::new();
    let mut alternatives = String::new();
    for queue in queues {
        if alternatives.len() + queue.len() > PATTERN_BYTES_MAX {
            patterns.push(format!("^({})$", std::mem::take(&mut alternatives)));
        }
        if !alternatives.is_empty() {
            alternatives.push('|');
        }
        for c in queue.chars() {
            if !c.is_alphanumeric() && c != '_' && c != '-' {
                alternatives.push('\\');
            }
            alternatives.push(c);
        }
    }
    patterns.push(format!("^({alternatives})$"));
    patterns
}

/// A part of a path.
fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_names_alone() {
        assert_eq!(patterns(&["price".into(), "a.b (c)".into()]), [r"^(price|a\.b\ \(c\))$"]);
        let many: Vec<Arc<str>> = (0..10_000).map(|at| format!("queue-{at}").into()).collect();
        let patterns = patterns(&many);
        assert!(patterns.len() > 1 && patterns.iter().all(|pattern| pattern.len() < 2 * PATTERN_BYTES_MAX && !pattern.contains("(|")));
    }

    #[test]
    fn only_a_queue_with_a_known_policy_of_another_is_told() {
        let listed = r#"[{"name":"mine","policy":"workflow-manager"},{"name":"theirs","policy":"other"},{"name":"none","policy":null},{"name":"unknown"},
            {"name":"by-argument","policy":"other","arguments":{"x-dead-letter-routing-key":"workflow-manager"}},{"name":"no-step","policy":"other"}]"#;
        let policies = r#"[{"name":"workflow-manager","definition":{"dead-letter-routing-key":"workflow-manager"}},
            {"name":"other","definition":{"max-length":10}}]"#;
        let steps = ["mine", "theirs", "none", "unknown", "by-argument"].map(Arc::from);
        let told = others(
            "workflow-manager",
            &steps,
            serde_json::from_str(listed).expect("queues"),
            &serde_json::from_str::<Vec<Policy>>(policies).expect("policies"),
        );
        assert_eq!(told, ["theirs"]);
    }

    #[test]
    fn the_address_is_taken_apart_and_never_shown_with_its_password() {
        let read = Management::parse("http://me:p%40ss@host:15672/")
            .map(|read| (read.base, read.authorization));
        assert_eq!(read, Ok(("http://host:15672".to_owned(), "Basic bWU6cEBzcw==".to_owned())));
        for wrong in [
            "https://me:p-word@host",
            "me:p-word@host",
            "http://me:p-word@",
            "http://me:1/p-word@host",
            "http://",
        ] {
            let refused =
                Management::parse(wrong).map(|read| read.base).expect_err(wrong).to_string();
            assert!(!refused.contains("p-word"), "{refused}");
        }
        assert_eq!(encoded("/a b"), "%2Fa%20b");
    }
}
