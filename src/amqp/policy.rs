//! The dead-letter policy of the step queues, set through the broker's management API. With it, the
//! broker moves step messages that are rejected, expire or exceed the delivery limit to the reply
//! queue, where the manager handles them (docs/how-to/dead-letters-and-lost-messages.md).

use super::connection::{ReconnectBackoff, millis};
use super::management::{ManagementApi, encode_segment, parse_json};
use super::policy_lock::PolicyLock;
use super::queues::DELIVERY_LIMIT_UNREACHABLE;
use super::state::AmqpState;
use engine::text::quote;
use reqwest::Method;
use serde::Deserialize;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait until the broker has applied a policy to its queues.
const APPLY_DELAY: Duration = Duration::from_secs(2);

/// The priority of the policy. It is below the default of 0, so that policies of users take
/// precedence.
const PRIORITY: i64 = -1;

/// The approximate length of one pattern, in bytes. Further names go into another pattern, which
/// needs another policy.
const PATTERN_BYTES_MAX: usize = 16 * 1024;

/// The most queues with another policy that are reported by name.
const QUEUES_LISTED_MAX: usize = 10;

/// Sets the policy, and sets it again whenever a reload or the retry of an old job adds worker
/// queues.
pub(super) async fn maintain(state: Rc<AmqpState>) {
    let Some(management) = state.management.clone() else { return };
    let mut active_queues = state.active_queues.subscribe();
    let mut last_queues: Vec<Arc<str>> = Vec::new();
    loop {
        let worker_queues = active_queues.borrow_and_update().worker_queues.clone();
        let queues: Vec<Arc<str>> = worker_queues
            .into_iter()
            .filter(|queue| **queue != *state.settings.reply_queue)
            .collect();
        if queues != last_queues && !queues.is_empty() {
            last_queues.clone_from(&queues);
            let policy = Arc::new(DeadLetterPolicy {
                management: management.clone(),
                vhost: encode_segment(state.addresses.vhost()),
                reply_queue: state.settings.reply_queue.clone(),
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

/// Sets the policy, with retries, and logs which queues do not use it.
async fn set_policy(
    policy: &Arc<DeadLetterPolicy>,
    policy_lock: &PolicyLock,
    mut backoff: ReconnectBackoff,
) {
    while let Err(reason) = policy.set_exclusively(policy_lock).await {
        let delay = backoff.next_delay();
        tracing::warn!(reason, retry_in_ms = millis(delay), "the dead-letter policy cannot be set");
        tokio::time::sleep(delay).await;
    }
    tracing::info!(
        policy = policy.reply_queue,
        queues = policy.queues.len(),
        "the dead-letter policy is set"
    );
    tokio::time::sleep(APPLY_DELAY).await;
    match policy.find_overridden_queues().await {
        Ok(overridden_queues) if overridden_queues.is_empty() => tracing::info!(
            policy = policy.reply_queue,
            "no other policy keeps dead letters from the reply queue"
        ),
        Ok(overridden_queues) => tracing::warn!(
            queues = overridden_queues.len(),
            first = overridden_queues.join(" "),
            "policies of a higher priority apply to these queues and send no dead letters to the \
             reply queue: a message that is rejected or expires there is lost"
        ),
        Err(reason) => {
            tracing::warn!(reason, "it is unknown whether the dead-letter policy applies")
        }
    }
}

/// The dead-letter policy of a bus.
struct DeadLetterPolicy {
    management: ManagementApi,
    /// The virtual host, percent-encoded.
    vhost: String,
    /// The queue to which dead letters are moved. It is also the name of the policy.
    reply_queue: String,
    /// The step queues.
    queues: Vec<Arc<str>>,
}

/// The status of the dead-letter policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyStatus {
    /// Whether the policy is set.
    pub is_set: bool,
    /// Step queues whose dead letters are not moved to the reply queue, because another policy
    /// applies: at most `QUEUES_LISTED_MAX`.
    pub overridden_queues: Vec<String>,
    /// Rules by which the broker may drop replies, such as
    /// `message-ttl 60000, by the policy "short"`.
    pub reply_drop_rules: Vec<String>,
}

/// The keys of policies by which the broker drops messages, or a whole queue. The arguments of
/// queues have the same keys, with the prefix `x-`.
const DROP_KEYS: [&str; 5] =
    ["message-ttl", "max-length", "max-length-bytes", "expires", "delivery-limit"];

/// Returns the status of the policy for these step queues.
///
/// # Errors
///
/// Returns an error if a request to the management API fails.
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
    let reply_drop_rules = policy.find_reply_drop_rules().await?;
    Ok(PolicyStatus {
        is_set,
        overridden_queues: policy.find_overridden_queues().await?,
        reply_drop_rules,
    })
}

/// A policy that applies to a queue.
struct AppliedPolicy {
    /// What it is called: `policy` or `operator policy`.
    kind: &'static str,
    name: String,
    definition: serde_json::Value,
}

/// The policy and the arguments of a queue, as the API lists them.
#[derive(Deserialize)]
struct ListedQueuePolicy {
    name: String,
    /// The name of the policy that applies to the queue; `None` if there is none or it is unknown.
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

/// A policy, as the API lists it.
#[derive(Deserialize)]
struct ListedPolicy {
    name: String,
    #[serde(default)]
    definition: serde_json::Value,
}

impl DeadLetterPolicy {
    /// Sets the policy while no queue is being declared.
    async fn set_exclusively(self: &Arc<Self>, policy_lock: &PolicyLock) -> Result<(), String> {
        let (guard, policy) = (policy_lock.lock_for_policy().await, self.clone());
        // The broker handles the request even if this future is dropped. So the lock must be held
        // until the request has ended.
        let task = actix_rt::spawn(async move {
            let _guard = guard;
            policy.set().await
        });
        task.await.map_err(|error| error.to_string()).flatten()
    }

    /// Sets one policy for each pattern.
    async fn set(&self) -> Result<(), String> {
        // A new queue may move others to the next pattern. The last pattern is set first, so that
        // no queue is without a policy in between.
        for (index, pattern) in build_patterns(&self.queues).into_iter().enumerate().rev() {
            let name = if index == 0 {
                self.reply_queue.clone()
            } else {
                format!("{}.{index}", self.reply_queue)
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

    /// Returns the rules by which the broker may drop replies. There are none if the reply queue
    /// does not exist.
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
        // Only the statistics name the operator policy, and only some users may list operator
        // policies.
        let statistics_path = format!(
            "/api/queues/{}/{}?columns=operator_policy",
            self.vhost,
            encode_segment(&self.reply_queue)
        );
        let operator_policy = self
            .get_json::<ListedOperatorPolicy>(&statistics_path)
            .await
            .ok()
            .and_then(|statistics| statistics.operator_policy);
        let operator_policies_path = format!("/api/operator-policies/{}", self.vhost);
        let operator_policies: Vec<ListedPolicy> =
            self.get_json(&operator_policies_path).await.unwrap_or_default();
        let find_policy = |kind, name: Option<&String>, policies: &'_ [ListedPolicy]| {
            let policy = policies.iter().find(|policy| Some(&policy.name) == name)?;
            let (name, definition) = (policy.name.clone(), policy.definition.clone());
            Some(AppliedPolicy { kind, name, definition })
        };
        let applied_policies = [
            find_policy("policy", queue.policy.as_ref(), &policies),
            find_policy("operator policy", operator_policy.as_ref(), &operator_policies),
        ];
        let overview: Overview = self.get_json("/api/overview?columns=rabbitmq_version").await?;
        Ok(list_drop_rules(
            &queue.arguments,
            applied_policies.into_iter().flatten(),
            overview.takes_negative_as_none(),
        ))
    }

    /// Returns the step queues whose dead letters are not moved to the reply queue, because another
    /// policy applies: at most [`QUEUES_LISTED_MAX`].
    async fn find_overridden_queues(&self) -> Result<Vec<String>, String> {
        // With statistics, the policies of the queues would be some seconds old.
        let queues: Vec<ListedQueuePolicy> = self
            .get_json(&format!(
                "/api/queues/{}?columns=name,policy,arguments&disable_stats=true",
                self.vhost
            ))
            .await?;
        let policies: Vec<ListedPolicy> =
            self.get_json(&format!("/api/policies/{}", self.vhost)).await?;
        Ok(list_overridden_queues(&self.reply_queue, &self.queues, queues, &policies))
    }

    /// Sends a GET request, and parses the response.
    async fn get_json<T: serde::de::DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
    ) -> Result<T, String> {
        parse_json(self.management.send_request(Method::GET, path, None).await?).await
    }
}

/// What the management API says of the broker.
#[derive(Deserialize)]
struct Overview {
    rabbitmq_version: String,
}

impl Overview {
    /// Returns whether a negative delivery limit means that there is none, as from RabbitMQ 4.0 on.
    fn takes_negative_as_none(&self) -> bool {
        let major = self.rabbitmq_version.split('.').next();
        major.and_then(|major| major.parse().ok()).is_some_and(|major: u32| major >= 4)
    }
}

/// Returns the rules by which the broker drops messages of a queue with these arguments and
/// policies. `takes_negative_as_none` is whether the broker takes a negative delivery limit for
/// "none"; if not, a message is dropped when it comes back for the first time.
fn list_drop_rules(
    arguments: &serde_json::Value,
    policies: impl Iterator<Item = AppliedPolicy>,
    takes_negative_as_none: bool,
) -> Vec<String> {
    let is_no_limit = |value: &serde_json::Value| {
        value.as_i64().is_some_and(|limit| {
            limit >= i64::from(DELIVERY_LIMIT_UNREACHABLE) || (limit < 0 && takes_negative_as_none)
        })
    };
    let by_argument = DROP_KEYS.iter().filter_map(|key| {
        let key = format!("x-{key}");
        let value = arguments.get(&key).filter(|value| !is_no_limit(value))?;
        Some(format!("{key} {value}, by its declaration"))
    });
    let by_policy = policies.flat_map(|AppliedPolicy { kind, name, definition }| {
        let describe = |key: &&str| {
            Some(format!("{key} {}, by the {kind} {}", definition.get(*key)?, quote(&name)))
        };
        DROP_KEYS.iter().filter_map(describe).collect::<Vec<String>>()
    });
    by_policy.chain(by_argument).collect()
}

/// Returns the step queues with a known policy that does not send dead letters to the reply queue,
/// at most [`QUEUES_LISTED_MAX`].
fn list_overridden_queues(
    reply_queue: &str,
    step_queues: &[Arc<str>],
    listed_queues: Vec<ListedQueuePolicy>,
    policies: &[ListedPolicy],
) -> Vec<String> {
    let is_overridden = |queue: &ListedQueuePolicy| {
        let policy = queue
            .policy
            .as_ref()
            .and_then(|name| policies.iter().find(|policy| policy.name == *name));
        policy.is_some_and(|policy| {
            let routing_key = policy
                .definition
                .get("dead-letter-routing-key")
                .or_else(|| queue.arguments.get("x-dead-letter-routing-key"));
            routing_key.is_none_or(|key| *key != *reply_queue)
        })
    };
    let step_queue_names: HashSet<&str> = step_queues.iter().map(|name| &**name).collect();
    let is_step_queue = |queue: &ListedQueuePolicy| step_queue_names.contains(&*queue.name);
    listed_queues
        .into_iter()
        .filter(|queue| is_step_queue(queue) && is_overridden(queue))
        .map(|queue| queue.name)
        .take(QUEUES_LISTED_MAX)
        .collect()
}

/// Builds regular expressions that together match exactly these names.
fn build_patterns(queues: &[Arc<str>]) -> Vec<String> {
    let mut patterns = Vec::new();
    let mut alternatives = String::new();
    for queue in queues {
        if alternatives.len() + queue.len() > PATTERN_BYTES_MAX {
            patterns.push(format!("^({})$", std::mem::take(&mut alternatives)));
        }
        if !alternatives.is_empty() {
            alternatives.push('|');
        }
        // Every character that may have a meaning in a regular expression is escaped.
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
    fn the_patterns_match_exactly_the_names() {
        assert_eq!(build_patterns(&["price".into(), "a.b (c)".into()]), [r"^(price|a\.b\ \(c\))$"]);
        let queues: Vec<Arc<str>> =
            (0..10_000).map(|index| format!("queue-{index}").into()).collect();
        let patterns = build_patterns(&queues);
        assert!(
            patterns.len() > 1
                && patterns.iter().all(|pattern| {
                    pattern.len() < 2 * PATTERN_BYTES_MAX && !pattern.contains("(|")
                })
        );
    }

    #[test]
    fn only_a_queue_with_another_known_policy_is_reported() {
        let listed_queues = r#"[{"name":"mine","policy":"workflow-manager"},
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
        let reported = list_overridden_queues(
            "workflow-manager",
            &steps,
            serde_json::from_str(listed_queues).expect("queues"),
            &serde_json::from_str::<Vec<ListedPolicy>>(policies).expect("policies"),
        );
        assert_eq!(reported, ["theirs"]);
    }

    #[test]
    fn drop_rules_are_reported_with_their_source() {
        let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        let applied_policy = |kind: &'static str, name: &str, definition: &str| AppliedPolicy {
            kind,
            name: name.to_owned(),
            definition: json(definition),
        };
        let arguments = json(r#"{"x-expires":5000,"x-queue-type":"quorum","x-delivery-limit":-1}"#);
        let policies = [
            applied_policy("policy", "short", r#"{"message-ttl":60000,"ha-mode":"all"}"#),
            applied_policy("operator policy", "bound", r#"{"max-length":1000}"#),
        ];
        assert_eq!(
            list_drop_rules(&arguments, policies.into_iter(), true),
            [
                r#"message-ttl 60000, by the policy "short""#,
                r#"max-length 1000, by the operator policy "bound""#,
                "x-expires 5000, by its declaration",
            ]
        );
        let limited = |limit: i64| {
            list_drop_rules(
                &json(&format!(r#"{{"x-delivery-limit":{limit}}}"#)),
                [].into_iter(),
                false,
            )
        };
        assert_eq!(limited(-1), ["x-delivery-limit -1, by its declaration"]);
        assert_eq!(limited(20), ["x-delivery-limit 20, by its declaration"]);
        assert!(limited(i64::from(DELIVERY_LIMIT_UNREACHABLE)).is_empty());
        let version = |text: &str| Overview { rabbitmq_version: text.to_owned() };
        assert!(version("4.0.5").takes_negative_as_none());
        assert!(version("10.1").takes_negative_as_none());
        assert!(!version("3.13.7").takes_negative_as_none());
        let harmless_arguments = json(r#"{"x-queue-type":"classic"}"#);
        let own_policy = applied_policy("policy", "own", r#"{"dead-letter-exchange":""}"#);
        assert!(list_drop_rules(&harmless_arguments, [own_policy].into_iter(), true).is_empty());
        // The API may list an empty table as an empty array.
        assert!(list_drop_rules(&json("[]"), std::iter::empty(), true).is_empty());
    }
}
