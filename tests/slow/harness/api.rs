//! A client of the HTTP API, and its answers.

use super::{DEADLINE, JobView, eventually};
use serde_json::Value;
use std::fmt::Display;
use std::time::Duration;
use ureq::http::{Request, StatusCode, request};
use uuid::Uuid;

const RESPONSE_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// A client of the HTTP API.
#[derive(Clone)]
pub(crate) struct Api {
    agent: ureq::Agent,
    base: String,
    token: Option<String>,
}

fn agent_with_timeout(timeout: Duration) -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_global(Some(timeout))
        .proxy(None)
        .build();
    config.into()
}

impl Api {
    pub(crate) fn new(base: &str, token: Option<&str>) -> Api {
        Api {
            agent: agent_with_timeout(DEADLINE),
            base: base.to_owned(),
            token: token.map(str::to_owned),
        }
    }

    /// The same, without the connections that it keeps: those of a process that has ended.
    pub(crate) fn anew(&self) -> Api {
        Api::new(&self.base, self.token.as_deref())
    }

    /// The same, which waits for an answer no longer than this.
    pub(crate) fn with_timeout(&self, timeout: Duration) -> Api {
        Api { agent: agent_with_timeout(timeout), ..self.clone() }
    }

    /// Whether a page is answered with this status, at once.
    pub(crate) fn answers(&self, path: &str, status: u16) -> bool {
        let answer = self.with_timeout(Duration::from_secs(3)).try_send("GET", path, &[], None);
        answer.is_ok_and(|answer| answer.status == status)
    }

    pub(crate) fn with_token(&self, token: Option<&str>) -> Api {
        Api { token: token.map(str::to_owned), ..self.clone() }
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], None)
    }

    #[track_caller]
    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], None)
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.send("POST", path, &[], Some(body.as_ref()))
    }

    #[track_caller]
    pub(crate) fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Answer {
        self.try_send(method, path, headers, body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Sends a request; an `Err` is a request that got no answer.
    pub(crate) fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> Result<Answer, ureq::Error> {
        let mut request = self.request(method, path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut response = match body {
            Some(bytes) => {
                self.agent.run(request.header("Content-Type", "application/json").body(bytes)?)?
            }
            None => self.agent.run(request.body(())?)?,
        };
        let text = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_string()?;
        let headers = response.headers().iter().map(|(name, value)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        });
        Ok(Answer {
            request: format!("{method} {path}"),
            status: response.status().as_u16(),
            headers: headers.collect(),
            text,
        })
    }

    fn request(&self, method: &str, path: &str) -> request::Builder {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    /// Whether a page is answered within this time.
    pub(crate) fn answers_within(&self, path: &str, timeout: Duration) -> bool {
        let request = self.request("GET", path).body(()).unwrap();
        let request = self.agent.configure_request(request).timeout_global(Some(timeout)).build();
        self.agent.run(request).is_ok()
    }

    /// The value of a metric; one with labels is 0 until something is counted with them.
    #[track_caller]
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let text = self.get("/metrics").expect(200).text;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        assert!(value.is_some() || series.ends_with('}'), "no metric {series}");
        value.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }

    /// Creates a job, which must be accepted, and gives its id.
    #[track_caller]
    pub(crate) fn create(&self, workflow: &str, message: &str) -> Uuid {
        self.post(&format!("/api/workflow/{workflow}"), message).expect(201).id()
    }

    #[track_caller]
    pub(crate) fn job(&self, id: Uuid) -> JobView {
        JobView::read(&self.get(&format!("/api/job/{id}")).expect(200))
    }

    /// Waits until the job has the state.
    #[track_caller]
    pub(crate) fn await_state(&self, id: Uuid, state: &str) -> JobView {
        eventually(&format!("job {id} is {state}"), || {
            let job = self.job(id);
            if job.state == state { Ok(job) } else { Err(job.text) }
        })
    }

    /// Waits until the job is completed and gives its result as text.
    #[track_caller]
    pub(crate) fn await_result(&self, id: Uuid) -> String {
        self.await_state(id, "completed").message_of("__end__")
    }
}

/// An answer of the HTTP API.
#[derive(Debug)]
pub(crate) struct Answer {
    request: String,
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Answer {
        assert!(self.status == status, "expected {status}: {self}");
        self
    }

    /// The answer must be the problem details of RFC 9457 with this code, and its detail must have
    /// all of the words.
    #[track_caller]
    pub(crate) fn expect_problem(self, status: u16, words: &[&str]) -> Answer {
        let answer = self.expect(status);
        assert!(
            answer.header("content-type").starts_with("application/problem+json"),
            "expected problem details: {answer}"
        );
        let problem = answer.json();
        assert_eq!(problem["status"], status, "the member status must repeat the code: {answer}");
        assert!(
            problem["title"].as_str().is_some_and(|title| !title.is_empty()),
            "a problem has a title: {answer}"
        );
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(!detail.is_empty(), "a problem has a detail: {answer}");
        let missing: Vec<_> = words
            .iter()
            .filter(|word| !detail.to_lowercase().contains(&word.to_lowercase()))
            .collect();
        assert!(missing.is_empty(), "the detail must have {missing:?}: {answer}");
        answer
    }

    /// The value of a header, empty where it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map_or("", |(_, value)| value)
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {self}"))
    }

    /// The member `id` of a creation's answer.
    #[track_caller]
    pub(crate) fn id(&self) -> Uuid {
        self.json()["id"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("no \"id\" that is a UUID: {self}"))
    }

    /// A list of UUIDs under a key; a key that is missing is an empty list.
    #[track_caller]
    pub(crate) fn ids(&self, key: &str) -> Vec<Uuid> {
        let json = self.json();
        let list = json.get(key).cloned().unwrap_or_else(|| Value::Array(Vec::new()));
        serde_json::from_value(list)
            .unwrap_or_else(|error| panic!("\"{key}\" is not a list of UUIDs ({error}): {self}"))
    }
}

impl Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reason = StatusCode::from_u16(self.status)
            .ok()
            .and_then(|code| code.canonical_reason())
            .unwrap_or_default();
        let shown: String = self.text.chars().take(2000).collect();
        write!(
            f,
            "{} -> {} {reason}, {}: {shown}",
            self.request,
            self.status,
            self.header("content-type")
        )
    }
}
