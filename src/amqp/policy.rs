//! The dead-letter policy of the step queues, set through the broker's management API. A step
//! message that is rejected, expires or is delivered too often then goes to the reply queue, and
//! the manager learns of it (docs/operations.md).

use super::connection::{ReconnectBackoff, millis};
use super::management::{ManagementApi, encode_segment, parse_json};
use super::policy_lock::PolicyLock;
use super::state::AmqpState;
use engine::text::quote;
use reqwest::Method;
use serde::Deserialize;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long the broker may take to apply a policy to its queues.
const APPLY_DELAY: Duration = Duration::from_secs(2);

/// Below 0, the default priority of policies, so that a policy of the user takes precedence.
const PRIORITY: i64 = -1;

/// The longest pattern of one policy, in bytes. More queues need several policies.
const PATTERN_BYTES_MAX: usize = 16 * 1024;

/// How many queues with another policy the log names at most.
const QUEUES_LISTED_MAX: usize = 10;

/// Sets the policy, and sets it again when queues are added by a reload or by the retry of a job
/// whose definition was replaced.
pub(super) async fn maintain(state: Rc<AmqpState>) {
    let Some(management) = state.management.clone() else { return };
    let mut active_queues = state.active_queues.subscribe();
    let mut set_for: Vec<Arc<str>> = Vec::new();
    loop {
        let queues = active_queues.borrow_and_update().worker_queues.clone();
        let queues: Vec<Arc<str>> =
            queues.into_iter().filter(|queue| **queue != *state.settings.reply_queue).collect();
        if queues != set_for && !queues.is_empty() {
            set_for.clone_from(&queues);
            let (vhost, reply_queue) =
                (encode_segment(state.address.vhost()), state.settings.reply_queue.clone());
            let policy = Arc::new(DeadLetterPolicy {
                management: management.clone(),
                vhost,
                reply_queue,
                queues,
            });
            set_policy(
                &policy,
                &state.policy_lock,
                ReconnectBackoff::new(state.settings.reconnect_min, state.settings.reconnect_max),
            )
            .await;
        }
        if active_queues.changed().await.is_err() {
            return;
        }
    }
}

async fn set_policy(
    policy: &Arc<DeadLetterPolicy>,
    policy_lock: &PolicyLock,
    mut backoff: ReconnectBackoff,
) {
    while let Err(reason) = policy.set_exclusively(policy_lock).await {
        let pause = backoff.next_delay();
        tracing::warn!(reason, retry_in_ms = millis(pause), "the dead-letter policy cannot be set");
        tokio::time::sleep(pause).await;
    }
    tracing::info!(
        policy = policy.reply_queue,
        queues = policy.queues.len(),
        "the dead-letter policy is set"
    );
    tokio::time::sleep(APPLY_DELAY).await;
    match policy.find_overridden_queues().await {
        Ok(others) if others.is_empty() => tracing::info!(
            policy = policy.reply_queue,
            "no other policy keeps dead letters from the reply queue"
        ),
        Ok(others) => tracing::warn!(
            queues = others.len(),
            first = others.join(" "),
            "policies of a higher priority apply to these queues and send no dead letters to the \
             reply queue: a message that is rejected or expires there is lost"
        ),
        Err(reason) => {
            tracing::warn!(reason, "cannot tell whether the dead-letter policy applies")
        }
    }
}

/// The policy that is to be set.
struct DeadLetterPolicy {
    management: ManagementApi,
    vhost: String,
    reply_queue: String,
    queues: Vec<Arc<str>>,
}

/// The status of the dead-letter policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyStatus {
    /// Whether it is set.
    pub is_set: bool,
    /// Queues with another policy, which sends their dead letters elsewhere.
    pub overridden_queues: Vec<String>,
    /// Rules that may drop waiting replies, such as `message-ttl 60000, by the policy "short"`.
    pub reply_drop_rules: Vec<String>,
}

/// The keys of policies by which the broker drops waiting messages, or the queue itself. The
/// arguments of queues have the same keys, with the prefix `x-`.
const DROP_KEYS: [&str; 5] =
    ["message-ttl", "max-length", "max-length-bytes", "expires", "delivery-limit"];

/// Returns whether the policy is set, and which of `queues` have another one.
pub async fn inspect_policy(
    management: ManagementApi,
    vhost: &str,
    reply_queue: String,
    queues: Vec<Arc<str>>,
) -> Result<PolicyStatus, String> {
    let policy = DeadLetterPolicy { management, vhost: encode_segment(vhost), reply_queue, queues };
    let policies: Vec<ListedPolicy> =
        policy.get_json(&format!("/api/policies/{}", policy.vhost)).await?;
    let is_set = policies.iter().any(|listed| listed.name == policy.reply_queue);
    let drops_replies = policy.find_reply_drop_rules().await?;
    Ok(PolicyStatus {
        is_set,
        overridden_queues: policy.find_overridden_queues().await?,
        reply_drop_rules: drops_replies,
    })
}

#[derive(Deserialize)]
struct ListedQueuePolicy {
    name: String,
    /// The name of the policy that applies to the queue.
    #[serde(default)]
    policy: Option<String>,
    #[serde(default)]
    arguments: serde_json::Value,
}

/// The part of a queue's statistics that names its operator policy.
#[derive(Deserialize)]
struct ListedOperatorPolicy {
    #[serde(default)]
    operator_policy: Option<String>,
}

#[derive(Deserialize)]
struct ListedPolicy {
    name: String,
    #[serde(default)]
    definition: serde_json::Value,
}

impl DeadLetterPolicy {
    async fn set_exclusively(self: &Arc<Self>, policy_lock: &PolicyLock) -> Result<(), String> {
        let (guard, policy) = (policy_lock.lock_for_policy().await, self.clone());
        // The request continues if nobody waits for it any more, and so must the lock.
        let set = actix_rt::spawn(async move {
            let _turn = guard;
            policy.set().await
        });
        set.await.map_err(|error| error.to_string()).flatten()
    }

    async fn set(&self) -> Result<(), String> {
        // The last pattern first: a new queue moves others to the next pattern, and none may be
        // without a policy meanwhile.
        for (at, pattern) in patterns(&self.queues).into_iter().enumerate().rev() {
            let name = if at == 0 {
                self.reply_queue.clone()
            } else {
                format!("{}.{at}", self.reply_queue)
            };
            let policy = serde_json::json!({
                "pattern": pattern,
                "definition": {
                    "dead-letter-exchange": "",
                    "dead-letter-routing-key": self.reply_queue,
                },
                "priority": PRIORITY,
                "apply-to": "queues",
            });
            let path = format!("/api/policies/{}/{}", self.vhost, encode_segment(&name));
            self.management.send_request(Method::PUT, &path, Some(policy.to_string())).await?;
        }
        Ok(())
    }

    /// Returns the rules that may drop replies waiting in the reply queue; none if the queue does
    /// not exist.
    async fn find_reply_drop_rules(&self) -> Result<Vec<String>, String> {
        let queues: Vec<ListedQueuePolicy> = self
            .get_json(&format!(
                "/api/queues/{}?columns=name,policy,arguments&disable_stats=true",
                self.vhost
            ))
            .await?;
        let Some(queue) = queues.into_iter().find(|queue| queue.name == self.reply_queue) else {
            return Ok(Vec::new());
        };
        let policies: Vec<ListedPolicy> =
            self.get_json(&format!("/api/policies/{}", self.vhost)).await?;
        // Only the statistics name the operator policy, and only some users may list these
        // policies.
        let path = format!(
            "/api/queues/{}/{}?columns=operator_policy",
            self.vhost,
            encode_segment(&self.reply_queue)
        );
        let by_operator = self
            .get_json::<ListedOperatorPolicy>(&path)
            .await
            .ok()
            .and_then(|of| of.operator_policy);
        let path = format!("/api/operator-policies/{}", self.vhost);
        let operators: Vec<ListedPolicy> = self.get_json(&path).await.unwrap_or_default();
        let named = |kind, name: Option<&String>, policies: &'_ [ListedPolicy]| {
            let found = policies.iter().find(|policy| Some(&policy.name) == name)?;
            Some((kind, found.name.clone(), found.definition.clone()))
        };
        let policies = [
            named("policy", queue.policy.as_ref(), &policies),
            named("operator policy", by_operator.as_ref(), &operators),
        ];
        Ok(drop_rules(&queue.arguments, policies.into_iter().flatten()))
    }

    /// Returns some of the step queues whose dead letters go elsewhere or nowhere, because of
    /// another policy.
    async fn find_overridden_queues(&self) -> Result<Vec<String>, String> {
        // With statistics, the names of the policies would be some seconds old.
        let queues: Vec<ListedQueuePolicy> = self
            .get_json(&format!(
                "/api/queues/{}?columns=name,policy,arguments&disable_stats=true",
                self.vhost
            ))
            .await?;
        let policies: Vec<ListedPolicy> =
            self.get_json(&format!("/api/policies/{}", self.vhost)).await?;
        Ok(overridden_queues(&self.reply_queue, &self.queues, queues, &policies))
    }

    async fn get_json<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
    ) -> Result<T, String> {
        parse_json(self.management.send_request(Method::GET, path, None).await?).await
    }
}

/// Returns the rules that drop messages of a queue with these arguments and policies. Each policy
/// comes with its kind and name.
fn drop_rules(
    arguments: &serde_json::Value,
    policies: impl Iterator<Item = (&'static str, String, serde_json::Value)>,
) -> Vec<String> {
    let by_argument = DROP_KEYS.iter().filter_map(|key| {
        let key = format!("x-{key}");
        // A negative limit means none.
        let value = arguments.get(&key).filter(|value| value.as_i64() != Some(-1))?;
        Some(format!("{key} {value}, by its declaration"))
    });
    let by_policy = policies.flat_map(|(kind, name, definition)| {
        let describe = |key: &&str| {
            Some(format!("{key} {}, by the {kind} {}", definition.get(*key)?, quote(&name)))
        };
        DROP_KEYS.iter().filter_map(describe).collect::<Vec<String>>()
    });
    by_policy.chain(by_argument).collect()
}

/// Returns the step queues with a known policy that does not send dead letters to the reply queue.
fn overridden_queues(
    reply_queue: &str,
    step_queues: &[Arc<str>],
    listed: Vec<ListedQueuePolicy>,
    policies: &[ListedPolicy],
) -> Vec<String> {
    let goes_elsewhere = |queue: &ListedQueuePolicy| {
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
    let step_queues: HashSet<&str> = step_queues.iter().map(|name| &**name).collect();
    let ours = |queue: &ListedQueuePolicy| step_queues.contains(&*queue.name);
    listed
        .into_iter()
        .filter(|queue| ours(queue) && goes_elsewhere(queue))
        .map(|queue| queue.name)
        .take(QUEUES_LISTED_MAX)
        .collect()
}

/// Returns patterns that match exactly these names.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_the_names_alone() {
        assert_eq!(patterns(&["price".into(), "a.b (c)".into()]), [r"^(price|a\.b\ \(c\))$"]);
        let many: Vec<Arc<str>> = (0..10_000).map(|at| format!("queue-{at}").into()).collect();
        let patterns = patterns(&many);
        assert!(
            patterns.len() > 1
                && patterns.iter().all(|pattern| {
                    pattern.len() < 2 * PATTERN_BYTES_MAX && !pattern.contains("(|")
                })
        );
    }

    #[test]
    fn only_a_queue_with_a_known_foreign_policy_is_reported() {
        let listed = r#"[{"name":"mine","policy":"workflow-manager"},
            {"name":"theirs","policy":"other"},
            {"name":"none","policy":null},
            {"name":"unknown"},
            {"name":"by-argument","policy":"other",
             "arguments":{"x-dead-letter-routing-key":"workflow-manager"}},
            {"name":"no-step","policy":"other"}]"#;
        let policies = r#"[{"name":"workflow-manager",
             "definition":{"dead-letter-routing-key":"workflow-manager"}},
            {"name":"other","definition":{"max-length":10}}]"#;
        let steps = ["mine", "theirs", "none", "unknown", "by-argument"].map(Arc::from);
        let reported = overridden_queues(
            "workflow-manager",
            &steps,
            serde_json::from_str(listed).expect("queues"),
            &serde_json::from_str::<Vec<ListedPolicy>>(policies).expect("policies"),
        );
        assert_eq!(reported, ["theirs"]);
    }

    #[test]
    fn drop_rules_for_replies_are_reported_with_their_source() {
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        let short = json(r#"{"message-ttl":60000,"ha-mode":"all"}"#);
        let bound = json(r#"{"max-length":1000}"#);
        let set = json(r#"{"x-expires":5000,"x-queue-type":"quorum","x-delivery-limit":-1}"#);
        let policies =
            [("policy", "short".to_owned(), short), ("operator policy", "bound".to_owned(), bound)];
        assert_eq!(
            drop_rules(&set, policies.into_iter()),
            [
                r#"message-ttl 60000, by the policy "short""#,
                r#"max-length 1000, by the operator policy "bound""#,
                "x-expires 5000, by its declaration",
            ]
        );
        let good = json(r#"{"x-queue-type":"classic"}"#);
        let ours = ("policy", "ours".to_owned(), json(r#"{"dead-letter-exchange":""}"#));
        assert!(drop_rules(&good, [ours].into_iter()).is_empty());
        // An empty table may come as an empty list.
        assert!(drop_rules(&json("[]"), std::iter::empty()).is_empty());
    }
}
