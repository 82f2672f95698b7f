//! Probes an AMQP broker as a client: whether it can be reached, what it permits, and the status of
//! queues. One message is sent through a temporary queue. Nothing else is changed.

use amqp::{
    AmqpSettings, BrokerAddress, BrokerAddresses, ManagementApi, PolicyStatus, QueueDeclarer,
    channel_error, close_connection, inspect_policy, queue_status, short_string,
};
use bus::QueueStatus;
use futures_util::future::join_all;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation, Connection};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How long the check of permissions may take, which sends a message through a temporary queue.
const PERMISSIONS_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of probing a broker.
#[derive(Debug)]
pub(super) struct BrokerProbe {
    /// Whether each node answers, by its host and port, in the order of the setting; empty if there
    /// is only one address. The error is one sentence.
    pub(super) nodes: Vec<(String, Result<(), String>)>,
    /// Whether the user may declare, publish and consume. The error is one sentence about the
    /// action that failed.
    pub(super) permissions: Result<(), String>,
    /// The queue that workers reply to.
    pub(super) reply_queue: QueueStatus,
    /// The status of the requested queues, in the same order.
    pub(super) queues: Vec<QueueStatus>,
    /// The status of the dead-letter policy; `None` without the management API.
    pub(super) policy: Option<Result<PolicyStatus, String>>,
}

/// Probes the broker of `settings`, and `queues` on it: each of its addresses, and the first that
/// answers for all else.
///
/// # Errors
///
/// Returns an error if no address can be reached, or if the settings of its address or
/// management API are not valid. The error is one sentence, without the password.
pub(super) async fn probe_broker(
    settings: &AmqpSettings,
    queues: &[Arc<str>],
) -> Result<BrokerProbe, String> {
    let addresses = BrokerAddresses::parse(settings).map_err(|error| error.to_string())?;
    let opened = join_all(addresses.iter().map(|address| address.open("doctor"))).await;
    let (mut nodes, mut reasons, mut connections) = (Vec::new(), Vec::new(), Vec::new());
    for (address, result) in addresses.iter().zip(opened) {
        nodes.push((address.authority(), result.as_ref().map(drop).map_err(String::clone)));
        match result {
            Ok(connection) => connections.push((address, Rc::new(connection))),
            Err(reason) => reasons.push(reason),
        }
    }
    let mut connections = connections.into_iter();
    let Some((address, connection)) = connections.next() else { return Err(reasons.join("; ")) };
    for (_, other) in connections {
        close_connection(&other).await;
    }
    if !addresses.are_several() {
        nodes.clear();
    }
    let temporary_queue = format!("{}.doctor", settings.reply_queue);
    let check = check_permissions(&connection, &temporary_queue);
    let permissions = match tokio::time::timeout(PERMISSIONS_TIMEOUT, check).await {
        Ok(result) => result.map_err(|(action, error)| explain_failure(address, action, &error)),
        Err(_) => Err(format!(
            "a message did not come through within {PERMISSIONS_TIMEOUT:?}: is the broker blocked \
             (memory or disk alarm)?"
        )),
    };
    let declarer = QueueDeclarer::new(connection.clone());
    let reply_queue = queue_status(address, declarer.check(&settings.reply_queue).await);
    let results = join_all(queues.iter().map(|queue| declarer.check(queue))).await;
    let statuses = results.into_iter().map(|result| queue_status(address, result)).collect();
    drop(declarer);
    close_connection(&connection).await;
    let policy = match ManagementApi::from_settings(settings).map_err(|error| error.to_string())? {
        None => None,
        Some(management) => {
            let reply_queue = settings.reply_queue.clone();
            let queues = queues.to_vec();
            Some(inspect_policy(management, address.vhost(), reply_queue, queues).await)
        }
    };
    Ok(BrokerProbe { nodes, permissions, reply_queue, queues: statuses, policy })
}

/// Declares an exclusive queue, publishes a message to it, receives the message, and deletes the
/// queue. Returns an error with the action that failed.
async fn check_permissions(
    connection: &Connection,
    queue: &str,
) -> Result<(), (&'static str, lapin::Error)> {
    let to_failed = |action: &'static str| move |error| (action, error);
    let channel = connection.create_channel().await.map_err(to_failed("open a channel"))?;
    let options = ConfirmSelectOptions::default();
    channel.confirm_select(options).await.map_err(to_failed("ask for confirms"))?;
    let options = QueueDeclareOptions {
        exclusive: true,
        auto_delete: true,
        ..QueueDeclareOptions::default()
    };
    let declare = channel.queue_declare(short_string(queue), options, FieldTable::default());
    declare.await.map_err(to_failed("declare a queue (permission \"configure\")"))?;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = BasicProperties::default();
    let publish_action = "publish to the default exchange (permission \"write\")";
    let publish =
        channel.basic_publish("".into(), short_string(queue), options, b"doctor", properties);
    let confirm = publish.await.map_err(to_failed(publish_action))?;
    let confirmation = confirm.await.map_err(to_failed(publish_action))?;
    debug_assert!(matches!(confirmation, Confirmation::Ack(None)), "{confirmation:?}");
    // With automatic acknowledgement.
    let get = channel.basic_get(short_string(queue), BasicGetOptions { no_ack: true });
    get.await.map_err(to_failed("take from a queue (permission \"read\")"))?;
    let delete = channel.queue_delete(short_string(queue), QueueDeleteOptions::default());
    delete.await.map_err(to_failed("delete a queue (permission \"configure\")"))?;
    Ok(())
}

/// Explains the failure of an action in one sentence: the broker has refused it, or could not be
/// called.
fn explain_failure(address: &BrokerAddress, action: &str, error: &lapin::Error) -> String {
    match channel_error(error) {
        Some((_, broker_text)) => format!("it may not {action}: {broker_text}"),
        None => format!("it could not {action}: {}", address.explain(error)),
    }
}
