//! Who may call, and which queues.

use super::*;
use tonic::{Code, Request, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use workflow_manager::grpc::wire::{Hello, Kind, ReceiveRequest, ReplyRequest};
use workflow_manager::settings::{Names, WorkerToken};

fn with_worker(settings: &mut Settings) {
    with_token(settings);
    let queues = Names(vec!["price".to_owned()]);
    let token = Secret("pricing".to_owned());
    settings
        .http
        .workers
        .insert("pricing".to_owned(), WorkerToken { token, queues, vhost: String::new() });
}

fn receive(queue: &str) -> ReceiveRequest {
    let wait = Some(prost_types::Duration::default());
    ReceiveRequest { queue: queue.to_owned(), wait, ..ReceiveRequest::default() }
}

fn hello(queue: &str) -> Hello {
    Hello { queues: vec![queue.to_owned()], ..Hello::default() }
}

#[test]
fn a_call_without_the_right_token_is_refused() {
    served(with_token, |rig| async move {
        let mut client = rig.client.clone();
        let none = client.receive(receive("price")).await.expect_err("no token");
        assert_eq!(none.code(), Code::Unauthenticated);
        assert!(none.message().contains("Authorization: Bearer <token>"), "{none}");
        let wrong = client.receive(with_bearer(receive("price"), "other")).await;
        assert_eq!(wrong.expect_err("another token").code(), Code::Unauthenticated);
        for token in ["", "other"] {
            let refused = GrpcWorker::open_with(&rig.client, hello("price"), token).await;
            assert_eq!(refused.err().map(|status| status.code()), Some(Code::Unauthenticated));
        }
        let right = client.receive(with_bearer(receive("price"), "secret")).await;
        assert!(right.expect("taken").into_inner().messages.is_empty());
        assert!(GrpcWorker::open_with(&rig.client, hello("price"), "secret").await.is_ok());
    });
}

#[test]
fn a_stream_ends_when_its_token_is_taken_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokens.yaml");
    std::fs::write(&file, "tokens: {}").expect("written");
    let with_file = |settings: &mut Settings| {
        with_token(settings);
        settings.http.tokens_file = file.display().to_string();
        let token = serde_json::json!({ "token": "the-token-of-pricing", "queues": [ "price" ] });
        let token = serde_json::from_value(token).expect("a token");
        settings.http.file_tokens.insert("pricing".to_owned(), token);
    };
    served(with_file, |rig| async move {
        let greet = |token| GrpcWorker::open_with(&rig.client, hello("price"), token);
        let mut kept = greet("secret").await.expect("a stream");
        let mut taken = greet("the-token-of-pricing").await.expect("a stream");
        assert_eq!(rig.post("/api/reload", "").await.status, StatusCode::OK);
        assert_eq!(refused(&mut taken).await.code(), Code::Unauthenticated);
        kept.want(1);
        rig.create("orders", "{}").await;
        assert_eq!(kept.message().await.queue, "price");
    });
}

#[test]
fn a_workers_token_is_for_its_queues_alone() {
    served(with_worker, |rig| async move {
        let mut client = rig.client.clone();
        let with = with_bearer::<ReceiveRequest>;
        assert!(client.receive(with(receive("price"), "pricing")).await.is_ok());
        let foreign = client.receive(with(receive("stock"), "pricing")).await.expect_err("foreign");
        assert_eq!(foreign.code(), Code::PermissionDenied);
        assert!(foreign.message().contains("of the queue \"price\" alone"), "{foreign}");
        let mut stream =
            GrpcWorker::open_with(&rig.client, hello("stock"), "pricing").await.expect("a stream");
        assert_eq!(refused(&mut stream).await.code(), Code::PermissionDenied);

        // Neither by its own stream nor by a call may it answer for another queue.
        let mut own =
            GrpcWorker::open_with(&rig.client, hello("price"), "pricing").await.expect("a stream");
        let mut other =
            GrpcWorker::open_with(&rig.client, hello("stock"), "secret").await.expect("a stream");
        other.want(1);
        rig.create("other", "{}").await;
        let message = other.message().await;
        let disguised = message.receipt.replace("/queue/stock/", "/queue/price/");
        assert_ne!(message.receipt, disguised);
        for receipt in [&message.receipt, &disguised] {
            own.reply(receipt, Kind::Result, "{}");
            let told = taken(&mut own).await;
            assert_eq!((told.changed, told.why_not.as_str()), (false, "forbidden"), "{receipt}");
            own.extend(receipt);
            assert_eq!(taken(&mut own).await.why_not, "forbidden", "{receipt}");
            own.nack(receipt, false);
            assert_eq!(taken(&mut own).await.why_not, "forbidden", "{receipt}");
            let reply = ReplyRequest { receipt: receipt.clone(), ..ReplyRequest::default() };
            let denied = client.reply(with_bearer(reply, "pricing")).await;
            assert_eq!(denied.expect_err("denied").code(), Code::PermissionDenied, "{receipt}");
            // Nor over HTTP.
            let headers = [("authorization", "Bearer pricing")];
            for word in ["reply", "extend", "nack"] {
                let path = receipt.replace("/reply", &format!("/{word}"));
                let answer = rig.api.request(Method::POST, &path, &headers, "{}").await;
                assert_eq!(answer.status, StatusCode::FORBIDDEN, "{path}");
            }
        }
        other.reply(&message.receipt, Kind::Result, "{}");
        assert!(taken(&mut other).await.changed);
    });
}

#[test]
fn a_worker_whose_reply_does_not_count_has_the_message_until_its_stream_ends() {
    served(with_token, |rig| async move {
        rig.create("guarded", "{}").await;
        for delivery in 1..=2 {
            let mut worker = GrpcWorker::open_with(&rig.client, hello("vault"), "secret")
                .await
                .expect("a stream");
            worker.want(1);
            let message = worker.message().await;
            assert_eq!(message.delivery, delivery);
            for _ in 0..2 {
                worker.reply(&message.receipt, Kind::Result, "{}");
                let told = taken(&mut worker).await;
                assert_eq!((told.changed, told.why_not.as_str()), (false, "foreign_user"));
            }
        }
    });
}

#[test]
fn a_queue_must_be_one_of_the_embedded_bus() {
    served(
        |settings| settings.grpc.stream_queues_max = 2,
        |rig| async move {
            let mut client = rig.client.clone();
            for (queue, code, words) in [
                ("pricee", Code::NotFound, "did you mean \"price\"?"),
                ("abroad", Code::FailedPrecondition, "on the bus \"hooks\""),
            ] {
                let mut stream = rig.worker(&[queue]).await;
                let told = refused(&mut stream).await;
                assert_eq!(told.code(), code, "{told}");
                assert!(told.message().contains(words), "{told}");
                let told = client.receive(receive(queue)).await.expect_err("refused");
                assert_eq!(told.code(), code, "{told}");
            }
            for queues in [&[][..], &["price", "stock", "hasty"]] {
                let told = refused(&mut rig.worker(queues).await).await;
                assert_eq!(told.code(), Code::InvalidArgument);
                assert!(told.message().contains("grpc.stream_queues_max"), "{told}");
            }
            let hello = Hello { worker: "w".repeat(101), ..hello("price") };
            let mut stream = GrpcWorker::open_with(&rig.client, hello, "").await.expect("a stream");
            assert!(refused(&mut stream).await.message().contains("worker has 101 characters"));
        },
    );
}

#[test]
fn a_call_to_another_name_or_from_a_browser_is_refused() {
    served(
        |settings| settings.http.hosts = vec!["manager.example".to_owned()],
        |rig| async move {
            let endpoint = |name: &str| {
                let to = format!("http://{}", rig.address);
                let named = format!("http://{name}").parse().expect("a name");
                tonic::transport::Endpoint::from_shared(to).expect("an address").origin(named)
            };
            for (name, is_ours) in [
                ("localhost:1", true),
                ("127.0.0.1:1", true),
                ("manager.example", true),
                ("evil.example", false),
            ] {
                let channel = endpoint(name).connect().await.expect("connected");
                let told = WorkersClient::new(channel).receive(receive("price")).await;
                let code = told.err().map(|status| status.code());
                assert_eq!(code, (!is_ours).then_some(Code::PermissionDenied), "{name}");
            }
            let mut request = Request::new(receive("price"));
            let page = "http://evil.example".parse().expect("a header");
            request.metadata_mut().insert("origin", page);
            let told = rig.client.clone().receive(request).await.expect_err("a page");
            assert_eq!(told.code(), Code::PermissionDenied);
            assert!(told.message().contains("header origin"), "{told}");
        },
    );
}

#[test]
fn health_and_descriptions_need_no_token() {
    served(with_token, |rig| async move {
        let endpoint = format!("http://{}", rig.address);
        let channel = tonic::transport::Endpoint::from_shared(endpoint).expect("an address");
        let channel = channel.connect().await.expect("connected");
        let mut health = HealthClient::new(channel.clone());
        for service in ["", "workflow_manager.v1.Workers"] {
            let request = HealthCheckRequest { service: service.to_owned() };
            let answer = health.check(request).await.expect("an answer").into_inner();
            assert_eq!(answer.status, 1, "{service}: SERVING");
        }
        let unknown = HealthCheckRequest { service: "unknown".to_owned() };
        assert_eq!(health.check(unknown).await.expect_err("unknown").code(), Code::NotFound);
        let ask = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let asked = futures_util::stream::iter([ask]);
        let mut reflection = tonic::client::Grpc::new(channel);
        reflection.ready().await.expect("ready");
        let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let path = path.parse().expect("a path");
        let codec = tonic_prost::ProstCodec::default();
        let answered = reflection.streaming(Request::new(asked), path, codec).await;
        let answered: Result<tonic::Response<Streaming<ServerReflectionResponse>>, Status> =
            answered;
        let answer = answered.expect("an answer").into_inner().message().await.expect("an answer");
        let Some(MessageResponse::ListServicesResponse(services)) =
            answer.expect("an answer").message_response
        else {
            panic!("no services");
        };
        let names: Vec<&str> =
            services.service.iter().map(|service| service.name.as_str()).collect();
        assert!(names.contains(&"workflow_manager.v1.Workers"), "{names:?}");
    });
}

#[test]
fn calls_are_counted_by_method_and_code() {
    served(with_token, |rig| async move {
        let counted = async |method: &str, code: &str| {
            let answer = rig.api.get("/metrics", &[("authorization", "Bearer secret")]).await;
            let text = String::from_utf8(answer.body).expect("text");
            let start =
                format!("workflow_grpc_calls_total{{code=\"{code}\",method=\"{method}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap_or(0)
        };
        let receive = |token: &str| {
            let wait = Some(prost_types::Duration::default());
            let queue = "price".to_owned();
            let request = ReceiveRequest { queue, wait, ..ReceiveRequest::default() };
            with_bearer(request, token)
        };
        let mut client = rig.client.clone();
        client.receive(receive("secret")).await.expect("an answer");
        client.receive(receive("wrong-wrong-wrong")).await.expect_err("a refusal");
        let unknown = ReceiveRequest { queue: "nothing".to_owned(), ..ReceiveRequest::default() };
        client.receive(with_bearer(unknown, "secret")).await.expect_err("no such queue");
        let hello = Hello { queues: vec!["price".to_owned()], ..Hello::default() };
        let mut leaves =
            GrpcWorker::open_with(&client, hello.clone(), "secret").await.expect("a stream");
        leaves.close();
        assert!(matches!(leaves.receive().await, Ok(None)));
        let breaks = GrpcWorker::open_with(&client, hello, "secret").await.expect("a stream");
        // It counts when it ends.
        assert_eq!(counted("Work", "CANCELLED").await, 0);
        drop(breaks);
        for (method, code) in [
            ("Receive", "OK"),
            ("Receive", "UNAUTHENTICATED"),
            ("Receive", "NOT_FOUND"),
            ("Work", "OK"),
            ("Work", "CANCELLED"),
        ] {
            let what = format!("{method} {code} is counted once");
            until_async(&what, async || counted(method, code).await == 1).await;
        }
    });
}
