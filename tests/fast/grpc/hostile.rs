//! What clients can do that mean harm, or that are broken: they cost themselves.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use tonic::Code;
use workflow_manager::grpc::wire::{Hello, Kind, ReceiveRequest};

/// How HTTP/2 begins: the preface, and empty settings.
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Reads until the other end closes the connection; how much there was.
async fn closes(socket: TcpStream) -> usize {
    let read = tokio::task::spawn_blocking(move || {
        let mut socket = socket;
        socket.set_read_timeout(Some(DEADLINE)).expect("a limit");
        let (mut sum, mut part) = (0, [0; 4096]);
        loop {
            match socket.read(&mut part) {
                Ok(0) => return sum,
                Ok(length) => sum += length,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return sum,
                Err(error) => panic!("it is not closed: {error}"),
            }
        }
    });
    read.await.expect("read")
}

fn open_socket(rig: &Rig) -> TcpStream {
    TcpStream::connect(rig.address).expect("connected")
}

/// A worker finds everything in order.
async fn all_is_well(rig: &Rig, token: &str) {
    let client = connect(rig.address).await;
    let hello = Hello { queues: vec!["price".to_owned()], ..Hello::default() };
    let mut worker = GrpcWorker::open_with(&client, hello, token).await.expect("a stream");
    worker.want(1);
    rig.create("orders", "{}").await;
    let message = worker.message().await;
    worker.reply(&message.receipt, Kind::Result, "{}");
    assert!(taken(&mut worker).await.changed);
}

#[test]
fn bytes_that_are_no_http2_end_their_connection() {
    served(
        |_| {},
        |rig| async move {
            let mut chance = fastrand::Rng::with_seed(7);
            for round in 0..60 {
                let mut bytes = if round % 2 == 0 { BEGIN.to_vec() } else { Vec::new() };
                bytes.extend((0..chance.usize(1..4000)).map(|_| chance.u8(..)));
                let mut socket = open_socket(&rig);
                // The other end may have closed it already.
                let _ = socket.write_all(&bytes);
                let _ = socket.shutdown(std::net::Shutdown::Write);
                closes(socket).await;
            }
            let mut socket = open_socket(&rig);
            socket.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("written");
            closes(socket).await;
            all_is_well(&rig, "").await;
        },
    );
}

#[test]
fn a_connection_without_an_admitted_call_is_closed() {
    let short = |settings: &mut Settings| {
        with_token(settings);
        settings.grpc.handshake_timeout = DurationSetting(Duration::from_millis(200));
    };
    served(short, |rig| async move {
        // Says nothing; begins and says nothing more; begins half.
        for bytes in [&b""[..], BEGIN, &BEGIN[..10]] {
            let mut socket = open_socket(&rig);
            socket.write_all(bytes).expect("written");
            closes(socket).await;
        }
        // Asks for health again and again, which needs no token.
        let endpoint = format!("http://{}", rig.address);
        let channel = tonic::transport::Endpoint::from_shared(endpoint).expect("an address");
        let channel = channel.connect().await.expect("connected");
        let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
        let watched = health.watch(tonic_health::pb::HealthCheckRequest::default()).await;
        let mut watched = watched.expect("a stream").into_inner();
        let ends = async { while let Ok(Some(_)) = watched.message().await {} };
        within("its connection is closed", ends).await;
        // A worker that was admitted stays, however long it is silent.
        let hello = Hello { queues: vec!["price".to_owned()], ..Hello::default() };
        let client = connect(rig.address).await;
        let mut worker = GrpcWorker::open_with(&client, hello, "secret").await.expect("a stream");
        let silence = tokio::time::timeout(Duration::from_millis(500), worker.receive()).await;
        assert!(silence.is_err(), "{silence:?}");
        // One that does not say hello has no such time.
        let mut silent = GrpcWorker::open_silent(&client, "secret").await.expect("a stream");
        let told = refused(&mut silent).await;
        assert_eq!(told.code(), Code::DeadlineExceeded);
        assert!(told.message().contains("no Hello came within 200ms"), "{told}");
        all_is_well(&rig, "secret").await;
    });
}

#[test]
fn connections_beyond_the_limit_wait() {
    served(
        |settings| settings.grpc.connections_max = 3,
        |rig| async move {
            // The rig has one.
            let mut others = vec![open_socket(&rig), open_socket(&rig)];
            for other in &mut others {
                other.write_all(BEGIN).expect("written");
                let mut first = [0; 9];
                other.read_exact(&mut first).expect("settings");
            }
            let mut late = open_socket(&rig);
            late.write_all(BEGIN).expect("written");
            late.set_read_timeout(Some(Duration::from_millis(200))).expect("a limit");
            assert!(late.read_exact(&mut [0; 9]).is_err(), "it waits");
            drop(others);
            late.set_read_timeout(Some(DEADLINE)).expect("a limit");
            late.read_exact(&mut [0; 9]).expect("it is served");
        },
    );
}

#[test]
fn a_newcomer_has_the_place_of_an_idle_connection_and_of_no_busy_one() {
    served(
        |settings| settings.grpc.connections_max = 16,
        |rig| async move {
            // Half have workers on streams; the others say nothing any more.
            let mut workers = Vec::new();
            for _ in 0..6 {
                let client = connect(rig.address).await;
                workers.push(GrpcWorker::open(&client, &["price"]).await.expect("a stream"));
            }
            let mut silent = Vec::new();
            for number in 0..40 {
                let mut other = open_socket(&rig);
                other.write_all(BEGIN).expect("written");
                other.set_read_timeout(Some(DEADLINE)).expect("a limit");
                other.read_exact(&mut [0; 9]).unwrap_or_else(|error| {
                    panic!("connection {number} finds no place: {error}");
                });
                silent.push(other);
            }
            closes(silent.swap_remove(0)).await;
            for worker in &mut workers {
                worker.want(1);
            }
            for _ in 0..workers.len() {
                rig.create("orders", "{}").await;
            }
            for worker in &mut workers {
                let message = worker.message().await;
                worker.reply(&message.receipt, Kind::Result, "{}");
            }
            let metrics = rig.api.get("/metrics", &[]).await;
            let metrics = String::from_utf8(metrics.body).expect("text");
            assert!(metrics.contains("workflow_connections_ended_total{reason=\"room\"}"));
        },
    );
}

#[test]
fn streams_and_calls_beyond_the_limits_are_refused() {
    served(
        |settings| settings.grpc.streams_max = 2,
        |rig| async move {
            let first = rig.worker(&["price"]).await;
            let _second = rig.worker(&["price"]).await;
            let third = GrpcWorker::open(&rig.client, &["price"]).await.err().expect("refused");
            assert_eq!(third.code(), Code::Unavailable);
            assert!(third.message().contains("grpc.streams_max"), "{third}");
            drop(first);
            let is_open = async || GrpcWorker::open(&rig.client, &["price"]).await.is_ok();
            until_async("there is room again", is_open).await;
        },
    );
}

#[test]
fn a_worker_that_does_not_read_loses_its_stream() {
    let hurried = |settings: &mut Settings| {
        settings.http.answer_timeout = DurationSetting(Duration::from_millis(300))
    };
    served(hurried, |rig| async move {
        let endpoint = format!("http://{}", rig.address);
        let endpoint = tonic::transport::Endpoint::from_shared(endpoint).expect("an address");
        let window = Some(65_535);
        let endpoint =
            endpoint.initial_stream_window_size(window).initial_connection_window_size(window);
        let client = WorkersClient::new(endpoint.connect().await.expect("connected"));
        let mut worker = GrpcWorker::open(&client, &["price"]).await.expect("a stream");
        let message = format!(r#"{{"text":"{}"}}"#, "x".repeat(400_000));
        for _ in 0..20 {
            rig.create("orders", &message).await;
        }
        worker.want(100);
        // It is leased some, not all that it wants: as many as it reads. They are given back.
        let leased = |queue: &Value| queue["leases"].as_array().map_or(0, Vec::len);
        let most = std::cell::Cell::new(0);
        let all_back = |queue: &Value| {
            most.set(most.get().max(leased(queue)));
            most.get() > 0 && leased(queue) == 0
        };
        rig.until("/api/queue/price", all_back).await;
        assert!(most.get() < 10, "{}", most.get());
        all_is_well(&rig, "").await;
    });
}

#[test]
fn metadata_beyond_the_limit_is_refused() {
    served(
        |_| (),
        |rig| async move {
            let wait = Some(prost_types::Duration::default());
            let request =
                ReceiveRequest { queue: "price".to_owned(), wait, ..ReceiveRequest::default() };
            for (length, is_taken) in [(1000, true), (20_000, false)] {
                let mut request = tonic::Request::new(request.clone());
                let value = "x".repeat(length).parse().expect("a header");
                request.metadata_mut().insert("filler", value);
                let answer = rig.client.clone().receive(request).await;
                assert_eq!(answer.is_ok(), is_taken, "{length}");
            }
            all_is_well(&rig, "").await;
        },
    );
}

#[test]
fn messages_beyond_their_room_wait_and_small_ones_do_not() {
    let narrow = |settings: &mut Settings| {
        settings.http.body_bytes_max = 300_000;
        settings.http.bodies_bytes_max = 400_000;
        settings.http.body_timeout = DurationSetting(Duration::from_millis(300));
    };
    served(narrow, |rig| async move {
        // Three messages that begin and do not go on would need three times the room for large
        // ones.
        let mut sockets = Vec::new();
        for _ in 0..3 {
            let hello = Hello { queues: vec!["price".to_owned()], ..Hello::default() };
            sockets.push(half_a_reply(&rig, hello));
        }
        all_is_well(&rig, "").await;
        for socket in sockets {
            // It is not waited for without end.
            tokio::task::spawn_blocking(move || until_the_end(socket)).await.expect("read");
        }
        all_is_well(&rig, "").await;
    });
}

#[test]
fn a_call_that_is_cancelled_at_once_keeps_no_room() {
    served(
        |_| {},
        |rig| async move {
            const CANCEL: [u8; 4] = [0, 0, 0, 8];
            let lease = Some(prost_types::Duration { seconds: 3600, nanos: 0 });
            let wait = Some(prost_types::Duration::default());
            let cancelled =
                ReceiveRequest { queue: "price".into(), lease, ..ReceiveRequest::default() };
            let second =
                ReceiveRequest { queue: "stock".into(), wait, ..ReceiveRequest::default() };
            for _ in 0..50 {
                rig.create("orders", "{}").await;
                rig.until("/api/queue/price", |queue| queue["messages"] != 0).await;
                // The question and its end in one piece, so that the answer is dropped as it is;
                // behind it a question that is answered.
                let head = head_of_call(&rig, "Receive");
                let mut said = BEGIN.to_vec();
                said.extend(frame_of((1, 4), 1, &head));
                said.extend(frame_of((0, 1), 1, &framed(&cancelled)));
                said.extend(frame_of((3, 0), 1, &CANCEL));
                said.extend(frame_of((1, 4), 3, &head));
                said.extend(frame_of((0, 1), 3, &framed(&second)));
                let mut socket = open_socket(&rig);
                socket.write_all(&said).expect("written");
                let read = tokio::task::spawn_blocking(move || until_the_end(socket));
                read.await.expect("answered");
            }
            super::room::until_nothing_is_sent(&rig).await;
        },
    );
}

/// What is no receipt is not kept for a worker that does not read.
#[test]
fn a_receipt_that_cannot_be_one_is_not_told_back() {
    served(
        |_| {},
        |rig| async move {
            let mut worker = rig.worker(&["price"]).await;
            let receipt = "a".repeat(1_000_000);
            worker.reply(&receipt, Kind::Result, "{}");
            worker.extend(&receipt);
            worker.nack(&receipt, true);
            for _ in 0..3 {
                let told = taken(&mut worker).await;
                assert_eq!((told.receipt.as_str(), told.why_not.as_str()), ("", "malformed"));
                assert!(told.detail.len() < 1000, "{} bytes", told.detail.len());
            }
        },
    );
}

/// The head of a call, by HPACK without compression: literals that are not kept.
fn head_of_call(rig: &Rig, method: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST".to_owned()),
        (":scheme", "http".to_owned()),
        (":path", format!("/workflow_manager.v1.Workers/{method}")),
        (":authority", rig.address.to_string()),
        ("content-type", "application/grpc".to_owned()),
        ("te", "trailers".to_owned()),
    ] {
        block.push(0);
        for text in [name, &value] {
            block.push(u8::try_from(text.len()).expect("short"));
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// A stream on a connection of its own: the Hello, and the head of a message of 290,000 bytes.
fn half_a_reply(rig: &Rig, hello: Hello) -> TcpStream {
    let mut socket = open_socket(rig);
    socket.write_all(BEGIN).expect("written");
    frame(&mut socket, 1, 4, &head_of_call(rig, "Work"));
    let say = workflow_manager::grpc::wire::from_worker::Say::Hello(hello);
    let said = workflow_manager::grpc::wire::FromWorker { say: Some(say) };
    let mut data = framed(&said);
    data.push(0);
    data.extend_from_slice(&290_000_u32.to_be_bytes());
    data.extend_from_slice(&[b'x'; 100]);
    frame(&mut socket, 0, 0, &data);
    socket
}

/// A message as gRPC sends it.
fn framed(message: &impl prost::Message) -> Vec<u8> {
    let message = message.encode_to_vec();
    let mut data = vec![0];
    data.extend_from_slice(&u32::try_from(message.len()).expect("short").to_be_bytes());
    data.extend_from_slice(&message);
    data
}

/// A frame of the first stream.
fn frame(socket: &mut TcpStream, kind: u8, flags: u8, payload: &[u8]) {
    socket.write_all(&frame_of((kind, flags), 1, payload)).expect("written");
}

fn frame_of((kind, flags): (u8, u8), stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// Reads until the stream is ended.
fn until_the_end(mut socket: TcpStream) {
    const HEADERS: u8 = 1;
    const END_STREAM: u8 = 1;
    socket.set_read_timeout(Some(DEADLINE)).expect("a limit");
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        socket.read_exact(&mut vec![0; length]).expect("a frame");
        if head[3] == HEADERS && head[4] & END_STREAM != 0 {
            return;
        }
    }
}
