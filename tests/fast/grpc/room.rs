//! Messages on their way to workers: all of them together stay within their room, also what HTTP/2
//! keeps of them because nobody reads it.

use super::*;
use workflow_manager::grpc::wire::{Kind, ReceiveRequest};

/// What a message has besides its letters, and less than a unit of the room.
const LETTERS: usize = 1_000_000;

/// Three of the messages fit into what is for large ones.
fn narrow(settings: &mut Settings) {
    settings.embedded.sending_bytes_max = 4 << 20;
}

fn large() -> String {
    format!(r#"{{"text":"{}"}}"#, "x".repeat(LETTERS))
}

/// A client with a connection of its own, whose window is small.
async fn narrow_client(rig: &Rig) -> WorkersClient<Channel> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", rig.address));
    let window = Some(65_535);
    let endpoint = endpoint.expect("an address").initial_stream_window_size(window);
    let endpoint = endpoint.initial_connection_window_size(window);
    let client = WorkersClient::new(endpoint.connect().await.expect("connected"));
    client.max_decoding_message_size(64 << 20)
}

/// The room that is taken.
async fn sending(rig: &Rig) -> usize {
    let answer = rig.api.get("/metrics", &[("authorization", "Bearer secret")]).await;
    let text = String::from_utf8(answer.body).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix("workflow_messages_sending_bytes "));
    line.expect("the metric").parse().expect("a number")
}

pub(super) async fn until_nothing_is_sent(rig: &Rig) {
    until_async("all room is given back", async || sending(rig).await == 0).await;
}

#[test]
fn all_streams_together_stay_within_the_room() {
    const STREAMS: usize = 8;
    const MESSAGES: usize = 12;
    served(narrow, |rig| async move {
        let mut workers = Vec::new();
        for _ in 0..STREAMS {
            let client = narrow_client(&rig).await;
            let mut worker = GrpcWorker::open(&client, &["price"]).await.expect("a stream");
            worker.want(1000);
            workers.push(worker);
        }
        for _ in 0..MESSAGES {
            rig.create("orders", &large()).await;
        }
        let full = rig.until("/api/queue/price", |queue| leased(queue) >= 3).await;
        assert_eq!(leased(&full), 3, "{full}");
        // Small ones have a room of their own.
        let mut other = rig.worker(&["stock"]).await;
        other.want(1);
        rig.create("other", "{}").await;
        let small = other.message().await;
        other.reply(&small.receipt, Kind::Result, "{}");
        assert!(taken(&mut other).await.changed);
        // What waits is not leased to anybody, whichever way it comes.
        let wait = Some(prost_types::Duration::default());
        let request = ReceiveRequest { queue: "price".into(), wait, ..ReceiveRequest::default() };
        let answer = rig.client.clone().receive(request).await.expect("an answer");
        assert!(answer.into_inner().messages.is_empty());
        let answer = rig.post("/api/queue/price/receive?wait=0s", "").await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
        let still = rig.get("/api/queue/price").await;
        assert_eq!(leased(&still), 3, "{still}");
        assert!(sending(&rig).await <= 4 << 20);
        // As workers read, the others come.
        let (heard, mut all) = tokio::sync::mpsc::unbounded_channel();
        for mut worker in workers {
            let heard = heard.clone();
            actix_rt::spawn(async move {
                while let Ok(Some(told)) = worker.receive().await {
                    if let Tell::Message(message) = told {
                        assert!(message.body.len() > LETTERS);
                        worker.reply(&message.receipt, Kind::Result, "{}");
                    } else {
                        // An error means that the test is over.
                        let _ = heard.send(());
                    }
                }
            });
        }
        for _ in 0..MESSAGES {
            within("all come", all.recv()).await;
        }
        until_nothing_is_sent(&rig).await;
    });
}

#[test]
fn who_does_not_read_gives_the_room_back() {
    let hurried = |settings: &mut Settings| {
        narrow(settings);
        settings.http.answer_timeout = DurationSetting(Duration::from_millis(300));
    };
    served(hurried, |rig| async move {
        // One that stays on its stream, and one that has closed its half.
        let mut workers = Vec::new();
        for is_closed in [false, true] {
            let client = narrow_client(&rig).await;
            let mut worker = GrpcWorker::open(&client, &["price"]).await.expect("a stream");
            worker.want(1);
            rig.create("orders", &large()).await;
            rig.until("/api/queue/price", |queue| leased(queue) > 0).await;
            if is_closed {
                worker.close();
            }
            workers.push((client, worker));
            rig.until("/api/queue/price", |queue| leased(queue) == 0).await;
            until_nothing_is_sent(&rig).await;
            // The message is there for others.
            let mut good = rig.worker(&["price"]).await;
            good.want(1);
            let message = good.message().await;
            good.reply(&message.receipt, Kind::Result, "{}");
            assert!(taken(&mut good).await.changed);
            until_nothing_is_sent(&rig).await;
        }
    });
}

#[test]
fn one_call_holds_room_until_its_answer_is_read() {
    served(narrow, |rig| async move {
        for _ in 0..4 {
            rig.create("orders", &large()).await;
        }
        let receive = |max| ReceiveRequest { queue: "price".into(), max, ..Default::default() };
        let answer = rig.client.clone().receive(receive(10)).await.expect("an answer").into_inner();
        // The fourth has no room, and is not waited for.
        assert_eq!(answer.messages.len(), 3);
        until_nothing_is_sent(&rig).await;
        let answer = rig.post("/api/queue/price/receive?max=10", "").await;
        assert_eq!(answer.json().as_array().map(Vec::len), Some(1));
        until_nothing_is_sent(&rig).await;
    });
}

#[test]
fn what_http_2_has_not_taken_costs_no_delivery() {
    const MESSAGES: usize = 6;
    let ends_soon = |settings: &mut Settings| {
        settings.http.answer_timeout = DurationSetting(Duration::from_secs(3));
    };
    served(ends_soon, |rig| async move {
        for _ in 0..MESSAGES {
            rig.create("orders", &format!(r#"{{"text":"{}"}}"#, "x".repeat(40_000))).await;
        }
        let client = narrow_client(&rig).await;
        let mut deaf = GrpcWorker::open(&client, &["price"]).await.expect("a stream");
        deaf.want(MESSAGES as u32);
        rig.until("/api/queue/price", |queue| leased(queue) == MESSAGES).await;
        // It reads nothing, so its stream ends, and the messages come to another worker.
        let mut good = rig.worker(&["price"]).await;
        good.want(MESSAGES as u32);
        let mut counted = 0;
        for _ in 0..MESSAGES {
            counted += usize::from(good.message().await.delivery > 1);
        }
        // The window has room for one message, and HTTP/2 takes one behind it.
        assert!((1..MESSAGES - 1).contains(&counted), "{counted}");
        drop(deaf);
    });
}
