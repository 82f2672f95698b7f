//! Probes a broker from outside: whether it can be reached, what it permits, and the status of
//! queues. One message is sent through a temporary queue; nothing else is changed.

use amqp::{
    AmqpSettings, BrokerAddress, ManagementApi, PolicyStatus, QueueDeclarer, channel_error,
    close_connection, inspect_policy, queue_status, short_string,
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

/// How long the message may take to pass through its queue.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of probing a broker.
#[derive(Debug)]
pub(super) struct BrokerProbe {
    /// Whether the manager may declare, publish and consume; if not, why, in one sentence.
    pub(super) permissions: Result<(), String>,
    /// The queue that workers reply to.
    pub(super) reply_queue: QueueStatus,
    /// The status of the requested queues, in the same order.
    pub(super) queues: Vec<QueueStatus>,
    /// The status of the dead-letter policy; `None` without the management API.
    pub(super) policy: Option<Result<PolicyStatus, String>>,
}

/// Probes the broker of `settings`, and `queues` on it.
/// An error says in one sentence, without the password, why the broker cannot be reached.
pub(super) async fn probe_broker(
    settings: &AmqpSettings,
    queues: &[Arc<str>],
) -> Result<BrokerProbe, String> {
    let address = BrokerAddress::parse(settings).map_err(|error| error.to_string())?;
    let connection = Rc::new(address.open("doctor").await?);
    let name = format!("{}.doctor", settings.reply_queue);
    let may_work =
        match tokio::time::timeout(CHECK_TIMEOUT, check_permissions(&connection, &name)).await {
            Ok(tried) => tried.map_err(|(what, error)| explain_failure(&address, what, &error)),
            Err(_) => Err(format!(
                "a message did not come through within {CHECK_TIMEOUT:?}: is the broker blocked \
             (memory or disk alarm)?"
            )),
        };
    let declarer = QueueDeclarer::new(connection.clone());
    let reply_queue = queue_status(&address, declarer.check(&settings.reply_queue).await);
    let found = join_all(queues.iter().map(|queue| declarer.check(queue))).await;
    let found = found.into_iter().map(|found| queue_status(&address, found)).collect();
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
    Ok(BrokerProbe { permissions: may_work, reply_queue, queues: found, policy })
}

/// Sends a message to itself, through a queue that only this connection may use and that is deleted
/// with it. An error comes with the action that failed.
async fn check_permissions(
    connection: &Connection,
    queue: &str,
) -> Result<(), (&'static str, lapin::Error)> {
    let during = |what: &'static str| move |error| (what, error);
    let channel = connection.create_channel().await.map_err(during("open a channel"))?;
    let confirm = ConfirmSelectOptions::default();
    channel.confirm_select(confirm).await.map_err(during("ask for confirms"))?;
    let options = QueueDeclareOptions {
        exclusive: true,
        auto_delete: true,
        ..QueueDeclareOptions::default()
    };
    let declaring = channel.queue_declare(short_string(queue), options, FieldTable::default());
    declaring.await.map_err(during("declare a queue (permission \"configure\")"))?;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let properties = BasicProperties::default();
    let publish = "publish to the default exchange (permission \"write\")";
    let published =
        channel.basic_publish("".into(), short_string(queue), options, b"doctor", properties);
    let confirmed = published.await.map_err(during(publish))?.await.map_err(during(publish))?;
    debug_assert!(matches!(confirmed, Confirmation::Ack(None)), "{confirmed:?}");
    let taking = channel.basic_get(short_string(queue), BasicGetOptions { no_ack: true });
    taking.await.map_err(during("take from a queue (permission \"read\")"))?;
    let deleting = channel.queue_delete(short_string(queue), QueueDeleteOptions::default());
    deleting.await.map_err(during("delete a queue (permission \"configure\")"))?;
    Ok(())
}

fn explain_failure(address: &BrokerAddress, what: &str, error: &lapin::Error) -> String {
    match channel_error(error) {
        Some((_, broker_text)) => format!("it may not {what}: {broker_text}"),
        None => format!("it could not {what}: {}", address.explain(error)),
    }
}
