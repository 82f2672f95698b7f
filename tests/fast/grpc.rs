//! Workers over gRPC, on a socket of this machine: a stream with its credit, single calls, who may
//! call, what hostile clients can do, and that the generated code is what the `.proto` file says.

mod batches;
mod calls;
mod gate;
mod generated;
mod hostile;
mod leases;
mod room;
mod stops;
mod stream;

use actix_web::http::{Method, StatusCode};
use serde_json::Value;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use support::api::{Answer, Api};
use support::grpc::{GrpcWorker, WorkersClient, connect, with_bearer};
use support::manager::TestManager;
use support::waits::{DEADLINE, until_async, within};
use tonic::Status;
use tonic::transport::Channel;
use workflow_manager::grpc::wire::to_worker::Say as Tell;
use workflow_manager::grpc::wire::{Gone, Taken};
use workflow_manager::grpc::{self, GrpcServer};
use workflow_manager::settings::{DurationSetting, Secret, Settings};

const WORKFLOW: &str = "
workflows:
  - name: orders
    steps: [ { name: price, retry: { attempts: 2, backoff: 1ms } } ]
  - name: hurried
    steps: [ { name: hasty, timeout: 300ms } ]
  - name: other
    steps: [ { name: stock } ]
  - name: guarded
    steps: [ { name: vault, replyUsers: [ treasury ] } ]
  - name: elsewhere
    steps: [ { name: abroad, bus: hooks } ]
";

/// A manager that is asked over HTTP and gRPC.
#[derive(Clone)]
struct Rig {
    api: Api,
    address: SocketAddr,
    client: WorkersClient<Channel>,
    server: Rc<RefCell<Option<GrpcServer>>>,
}

/// Runs `test` on a manager with these settings.
fn served<F: Future<Output = ()>>(change: impl FnOnce(&mut Settings), test: impl FnOnce(Rig) -> F) {
    actix_rt::System::new().block_on(async {
        let listens = |settings: &mut Settings| {
            settings.grpc.listen = Some("127.0.0.1:0".parse().expect("an address"));
            settings.grpc.handshake_timeout = DurationSetting(DEADLINE);
            let hooks = serde_json::json!({
                "kind": "push",
                "endpoints": { "abroad": { "url": "http://127.0.0.1:9/" } },
            });
            settings
                .buses
                .insert("hooks".to_owned(), serde_json::from_value(hooks).expect("a bus"));
        };
        let manager = TestManager::with(WORKFLOW).set(listens).set(change).await;
        manager.core().health.wait_until_ready().await;
        let api = Api::new(&manager).await;
        let server = grpc::start(api.state().clone()).await.expect("listens").expect("is on");
        let address = server.address;
        let rig = Rig {
            api,
            address,
            client: connect(address).await,
            server: Rc::new(RefCell::new(Some(server))),
        };
        let tested = tokio::time::timeout(4 * DEADLINE, test(rig.clone())).await;
        rig.stop().await;
        manager.stop().await;
        tested.expect("the test ends");
    });
}

fn with_token(settings: &mut Settings) {
    settings.http.token = Secret("secret".to_owned());
}

impl Rig {
    async fn stop(&self) {
        let server = self.server.borrow_mut().take();
        if let Some(server) = server {
            server.stop().await;
        }
    }

    async fn post(&self, path: &str, body: &str) -> Answer {
        self.api.request(Method::POST, path, &[("authorization", "Bearer secret")], body).await
    }

    async fn get(&self, path: &str) -> Value {
        self.api.get(path, &[("authorization", "Bearer secret")]).await.json()
    }

    /// Asks for a job; its id.
    async fn create(&self, workflow: &str, message: &str) -> String {
        let created = self.post(&format!("/api/workflow/{workflow}"), message).await;
        assert_eq!(created.status, StatusCode::CREATED);
        created.json()["id"].as_str().expect("an id").to_owned()
    }

    /// The job, once it is as wanted.
    async fn job(&self, id: &str, fits: impl Fn(&Value) -> bool) -> Value {
        self.until(&format!("/api/job/{id}"), fits).await
    }

    async fn until(&self, path: &str, fits: impl Fn(&Value) -> bool) -> Value {
        until_async(path, async || Some(self.get(path).await).filter(&fits)).await
    }

    async fn worker(&self, queues: &[&str]) -> GrpcWorker {
        GrpcWorker::open(&self.client, queues).await.expect("a stream")
    }
}

/// How many messages of a queue are leased, by what the API tells of it.
fn leased(queue: &Value) -> usize {
    queue["leases"].as_array().map_or(0, Vec::len)
}

/// What became of something that the worker has said.
async fn taken(worker: &mut GrpcWorker) -> Taken {
    match worker.receive().await {
        Ok(Some(Tell::Taken(taken))) => taken,
        other => panic!("expected Taken, heard {other:?}"),
    }
}

async fn gone(worker: &mut GrpcWorker) -> Gone {
    match worker.receive().await {
        Ok(Some(Tell::Gone(gone))) => gone,
        other => panic!("expected Gone, heard {other:?}"),
    }
}

/// Why the stream ends.
async fn refused(worker: &mut GrpcWorker) -> Status {
    worker.receive().await.expect_err("an end with a reason")
}
