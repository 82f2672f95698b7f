//! The parts of the tests of the bus: a bus that is watched, a plain client, and a relay that cuts
//! connections.

use bytes::Bytes;
use lapin::options::{BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use support::waits::{DEADLINE, until};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use uuid::Uuid;
use workflow_manager::amqp::{AmqpBus, AmqpSettings, Connector};
use workflow_manager::bus::{
    Address, Addressee, Bus, BusEvent, BusKey, BusNotice, BusState, ConfirmPayload, ConfirmToken,
    Delivery, EventSink, Header, Lifetime, Publication, ServedQueues,
};
use workflow_manager::engine::{JobId, QueueDeclaration};
use workflow_manager::settings::{ReplyQueueType, UnreadableMessages};
use workflow_manager::trust::Authorities;

pub(super) fn on_an_arbiter(test: impl Future<Output = ()> + 'static) {
    actix_rt::System::new()
        .block_on(async { tokio::time::timeout(2 * DEADLINE, test).await.expect("the test ends") });
}

pub(super) fn server() -> String {
    std::env::var("AMQP_SERVER")
        .expect("AMQP_SERVER is not set: these tests need a RabbitMQ; see tests/rabbitmq")
}

pub(super) fn unique(name: &str) -> String {
    format!("bus-{name}-{}", Uuid::new_v4())
}

pub(super) fn settings(server: &str, name: &str) -> AmqpSettings {
    AmqpSettings {
        server: server.to_owned(),
        vhost: None,
        management: String::new(),
        reply_queue: unique(&format!("{name}-replies")),
        reply_queue_type: ReplyQueueType::Classic,
        declaration: QueueDeclaration::default(),
        unreadable: UnreadableMessages::Keep,
        prefetch: 100,
        replies_bytes_max: 64 << 20,
        unconfirmed_max: 500,
        unconfirmed_bytes_max: 64 << 20,
        linger: Duration::from_millis(5),
        reconnect_min: Duration::from_millis(50),
        reconnect_max: Duration::from_millis(500),
        heartbeat: Duration::from_secs(5),
        served: ServedQueues::default(),
        authorities: Authorities::default(),
        waits_for_reply_queue: false,
    }
}

/// What a bus reported.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) states: Vec<BusState>,
    pub(super) confirmed: Vec<JobId>,
    pub(super) unroutable: Vec<JobId>,
    pub(super) missing: Vec<String>,
    /// Answers that the test gives itself.
    pub(super) held: Vec<oneshot::Sender<()>>,
    pub(super) notices: Vec<BusNotice>,
    pub(super) deliveries: Vec<Delivery>,
    pub(super) refused: Option<String>,
}

impl Seen {
    pub(super) fn is_connected(&self) -> bool {
        self.states.last() == Some(&BusState::Connected)
    }

    pub(super) fn count(&self, notice: BusNotice) -> usize {
        self.notices.iter().filter(|seen| **seen == notice).count()
    }
}

/// A bus and what it reports.
pub(super) struct Observed {
    pub(super) bus: AmqpBus,
    pub(super) seen: Arc<Mutex<Seen>>,
}

impl Observed {
    pub(super) fn connect(settings: AmqpSettings) -> Observed {
        Observed::start(settings, false)
    }

    /// With `holding`, the test itself answers when queues are missing.
    pub(super) fn start(settings: AmqpSettings, holding: bool) -> Observed {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let kept = seen.clone();
        let sink: EventSink = Arc::new(move |event| {
            let mut seen = kept.lock().expect("no test panics while it looks");
            match event {
                BusEvent::Reply(delivery) => seen.deliveries.push(delivery),
                BusEvent::Confirmed(receipt) => {
                    let Of(job) = receipt.downcast().expect("the receipt that was sent along");
                    seen.confirmed.push(job);
                }
                BusEvent::Unroutable(receipt) => {
                    let Of(job) = receipt.downcast().expect("the receipt that was sent along");
                    seen.unroutable.push(job);
                }
                BusEvent::Call { .. }
                | BusEvent::Unreadable { .. }
                | BusEvent::Leased { .. }
                | BusEvent::HandedOver(_)
                | BusEvent::EndpointCalled { .. }
                | BusEvent::OffsetReached(_) => {}
                BusEvent::State(state) => seen.states.push(state),
                BusEvent::QueueMissing { queue, journaled: taken } => {
                    seen.missing.push(queue.to_string());
                    if holding {
                        seen.held.push(taken);
                    }
                }
                BusEvent::Fatal(reason) => seen.refused = Some(reason),
                BusEvent::Notice(notice) => seen.notices.push(notice),
            }
        });
        Observed { bus: Connector::new(settings).expect("good settings").connect(sink), seen }
    }

    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no test panics while it looks")
    }

    pub(super) async fn until(&self, what: &str, condition: impl Fn(&Seen) -> bool) {
        until(what, || condition(&self.seen())).await;
    }

    pub(super) fn publish(&mut self, queue: &str, count: u32) -> Vec<JobId> {
        let jobs: Vec<JobId> = (0..count).map(|_| JobId(Uuid::new_v4())).collect();
        jobs.iter().for_each(|job| self.bus.publish(message(*job, queue)));
        jobs
    }

    /// Waits until each of `jobs` is confirmed, and checks that none was confirmed twice.
    pub(super) async fn until_confirmed(&self, jobs: &[JobId]) {
        until("all are confirmed", || self.bus.unconfirmed() == 0).await;
        let mut confirmed: Vec<JobId> = self.seen().confirmed.clone();
        let mut expected = jobs.to_vec();
        confirmed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(confirmed, expected);
    }
}

/// A queue of the bus that is looked at.
pub(super) fn address(queue: &str) -> Address {
    Address { bus: BusKey { name: "amqp".into(), vhost: "".into() }, queue: queue.into() }
}

/// What a receipt holds: which message it is.
struct Of(JobId);

impl ConfirmPayload for Of {
    fn try_clone(&self) -> Option<ConfirmToken> {
        None
    }
}

pub(super) fn message(job: JobId, queue: &str) -> Publication {
    Publication {
        address: address(queue),
        addressee: Addressee::Worker,
        id: format!("{job}:split:2"),
        correlation_id: Some(format!("{job}:split").into()),
        kind: None,
        priority: Some(4),
        timestamp_s: 1_700_000_000,
        headers: vec![
            Header::from_text("workflow", "book-word-counts"),
            Header::from_text("job", job.to_string()),
            Header::from_number("attempt", 2),
            Header::from_text(
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            ),
        ],
        body: Bytes::from_static(br#"{"filename":"alice.txt"}"#).into(),
        lease: None,
        sets_user_id: false,
        lifetime: Lifetime::default(),
        confirm_token: ConfirmToken::new(Of(job)),
    }
}

/// A plain client next to the bus.
pub(super) struct Client {
    pub(super) connection: Connection,
    pub(super) channel: Channel,
}

impl Client {
    pub(super) async fn connect() -> Client {
        let connection = Connection::connect(&server(), ConnectionProperties::default())
            .await
            .expect("the broker answers");
        let channel = connection.create_channel().await.expect("a channel");
        Client { connection, channel }
    }

    /// Messages that are ready in a queue, or none if it does not exist.
    pub(super) async fn ready(&self, queue: &str) -> Option<u32> {
        let channel = self.connection.create_channel().await.expect("a channel");
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await
            .ok()
            .map(|queue| queue.message_count())
    }

    pub(super) async fn declare(&self, queue: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(queue.into(), options, arguments).await.expect("declared");
    }

    pub(super) async fn delete(&self, queue: &str) {
        self.channel
            .queue_delete(queue.into(), QueueDeleteOptions::default())
            .await
            .expect("deleted");
    }

    pub(super) async fn reply(&self, queue: &str, body: &str, properties: BasicProperties) {
        self.channel
            .basic_publish(
                "".into(),
                queue.into(),
                BasicPublishOptions::default(),
                body.as_bytes(),
                properties,
            )
            .await
            .expect("published");
    }
}

/// A network that can be cut.
pub(super) struct Relay {
    pub(super) port: u16,
    pub(super) wires: Rc<RefCell<Vec<actix_rt::task::JoinHandle<()>>>>,
    pub(super) listening: Option<actix_rt::task::JoinHandle<()>>,
}

impl Relay {
    pub(super) async fn open() -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mut relay = Relay {
            port: listener.local_addr().expect("an address").port(),
            wires: Rc::default(),
            listening: None,
        };
        relay.listen(listener);
        relay
    }

    pub(super) fn listen(&mut self, listener: TcpListener) {
        let wires = self.wires.clone();
        self.listening = Some(actix_rt::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let wire = actix_rt::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(host(&server())).await else { return };
                    // Whether it ended well is for both ends to say.
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                });
                wires.borrow_mut().push(wire);
            }
        }));
    }

    pub(super) fn cut(&self) {
        self.wires.borrow_mut().drain(..).for_each(|wire| wire.abort());
    }

    pub(super) async fn close(&mut self) {
        if let Some(listening) = self.listening.take() {
            listening.abort();
            let _ = listening.await;
        }
        self.cut();
    }

    pub(super) async fn open_again(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.expect("the same port");
        self.listen(listener);
    }

    pub(super) fn server(&self) -> String {
        server().replace(&host(&server()), &format!("127.0.0.1:{}", self.port))
    }
}

/// `host:port` of an address.
pub(super) fn host(server: &str) -> String {
    let rest = server.split_once("://").map_or(server, |(_, rest)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or_default().to_owned()
}

pub(super) fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(text))
}

pub(super) fn arguments(pairs: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (key, value) in pairs {
        table.insert((*key).into(), value.clone());
    }
    table
}
