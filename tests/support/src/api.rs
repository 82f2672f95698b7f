//! The HTTP API of a manager in this process, called without a socket.

use crate::waits::until_async;
use actix_web::dev::{Service, ServiceResponse};
use actix_web::http::{Method, StatusCode, header};
use actix_web::test::{TestRequest, init_service, read_body};
use serde_json::Value;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use workflow_manager::actors::manager::Manager;
use workflow_manager::api;
use workflow_manager::api::state::ApiState;

/// Names and values of headers.
pub type Headers<'a> = &'a [(&'a str, &'a str)];

/// An answer of the API.
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: header::HeaderMap,
    /// The complete body.
    pub body: Vec<u8>,
}

impl Answer {
    /// Returns a header. Empty if it is missing.
    pub fn header(&self, name: impl header::AsHeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON. Panics if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Returns the detail of a problem. Panics if the answer is none.
    pub fn detail(&self) -> String {
        assert_eq!(self.header(header::CONTENT_TYPE), "application/problem+json");
        self.json()["detail"].as_str().expect("a detail").to_owned()
    }
}

/// Sends a request to the service. Boxed, because the type of the service cannot be named.
type SendRequest = dyn Fn(TestRequest) -> Pin<Box<dyn Future<Output = Answer>>>;

/// A client of the API. Clones share one service.
#[derive(Clone)]
pub struct Api {
    send: Rc<SendRequest>,
    state: Arc<ApiState>,
}

impl Api {
    /// Makes a client for the API of a manager.
    pub async fn new(manager: &Manager) -> Api {
        let state = ApiState::new(manager);
        let service = Rc::new(init_service(api::app(state.clone())).await);
        let send = move |request: TestRequest| -> Pin<Box<dyn Future<Output = Answer>>> {
            let service = service.clone();
            Box::pin(async move {
                let response: ServiceResponse =
                    service.call(request.to_request()).await.expect("an answer");
                let (status, headers) = (response.status(), response.headers().clone());
                Answer { status, headers, body: read_body(response).await.to_vec() }
            })
        };
        Api { send: Rc::new(send), state }
    }

    /// Returns the state that the handlers share.
    pub fn state(&self) -> &Arc<ApiState> {
        &self.state
    }

    /// Sends a request as it is.
    pub async fn send(&self, request: TestRequest) -> Answer {
        (self.send)(request).await
    }

    /// Sends a request. Its `Host` is 127.0.0.1:8088, unless `headers` has another one.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        headers: Headers<'_>,
        body: &str,
    ) -> Answer {
        let mut request = TestRequest::with_uri(path).method(method).set_payload(body.to_owned());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request = request.insert_header(("host", "127.0.0.1:8088"));
        }
        for (name, value) in headers {
            request = request.append_header((*name, *value));
        }
        self.send(request).await
    }

    /// Gets a path.
    pub async fn get(&self, path: &str, headers: Headers<'_>) -> Answer {
        self.request(Method::GET, path, headers, "").await
    }

    /// Gets a path, and returns the JSON of the answer. Panics if its status is not 200.
    pub async fn get_json(&self, path: &str) -> Value {
        let answer = self.get(path, &[]).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
        answer.json()
    }

    /// Posts to a path.
    pub async fn post(&self, path: &str, body: &str) -> Answer {
        self.request(Method::POST, path, &[], body).await
    }

    /// Posts to a path until the status of the answer is 200.
    pub async fn post_until_accepted(&self, path: &str, body: &str) {
        until_async(path, async || self.post(path, body).await.status == StatusCode::OK).await;
    }

    /// Creates a job, and returns its id. `workflow` may end with a query.
    pub async fn create_job(&self, workflow: &str, message: &str) -> String {
        let answer = self.post(&format!("/api/workflow/{workflow}"), message).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
        answer.json()["id"].as_str().expect("an id").to_owned()
    }

    /// Gets a path until the status is 200 and the JSON meets a condition. Returns the JSON.
    pub async fn until(&self, path: &str, is_met: impl Fn(&Value) -> bool) -> Value {
        let probe = async || {
            let answer = self.get(path, &[]).await;
            let json = (answer.status == StatusCode::OK).then(|| answer.json());
            json.filter(&is_met)
        };
        until_async(path, probe).await
    }
}
