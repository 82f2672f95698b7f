//! RabbitMQ: a node, and a virtual host of one test.

use super::Client;
use crate::harness::{DEADLINE, eventually, must_succeed};
use serde_json::Value;
use std::{
    env,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

/// A RabbitMQ node.
#[derive(Clone)]
pub(crate) struct Broker {
    pub(super) server: String,
    pub(super) ctl: String,
    pub(super) management: String,
}

impl Broker {
    /// The node that all tests share.
    pub(crate) fn shared() -> Broker {
        let named = |name: &str| {
            env::var(name).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| {
                panic!(
                    "{name} is not set: these tests need a RabbitMQ. Use tests/run, \
                     or: tests/rabbitmq start DIR && . DIR/env (and later tests/rabbitmq stop DIR)"
                )
            })
        };
        Broker {
            server: named("AMQP_SERVER"),
            ctl: named("RABBITMQCTL"),
            management: named("RABBITMQ_MANAGEMENT"),
        }
    }

    /// A new virtual host, which is deleted when the value is dropped.
    pub(crate) fn vhost(&self) -> Vhost {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("slow-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        self.management("PUT", &format!("/api/vhosts/{name}"), Some("{}"));
        let user = self.user();
        self.management(
            "PUT",
            &format!("/api/permissions/{name}/{user}"),
            Some(r#"{"configure":".*","write":".*","read":".*"}"#),
        );
        let url = self.url(&name);
        Vhost { broker: self.clone(), name, url }
    }

    /// The broker's address with another virtual host.
    pub(crate) fn url(&self, vhost: &str) -> String {
        format!(
            "{}/{vhost}",
            self.server.rsplit_once('/').expect("AMQP_SERVER ends with /<vhost>").0
        )
    }

    pub(crate) fn user(&self) -> &str {
        self.server
            .split_once("//")
            .and_then(|(_, rest)| rest.split_once(':'))
            .expect("AMQP_SERVER has a user name")
            .0
    }

    pub(crate) fn address(&self) -> &str {
        &self.server
    }

    /// What the management API says of a queue of the default virtual host; `None` if it does not
    /// answer.
    pub(crate) fn try_read_queue(&self, queue: &str) -> Option<Value> {
        let mut answer =
            self.ask_management("GET", &format!("/api/queues/%2F/{queue}"), None).ok()?;
        serde_json::from_str(&answer.body_mut().read_to_string().ok()?).ok()
    }

    /// The address of the management API, with credentials.
    pub(crate) fn management_url(&self) -> String {
        self.management.replace("://", "://guest:guest@")
    }

    /// Runs rabbitmqctl.
    #[track_caller]
    pub(crate) fn ctl(&self, arguments: &[&str]) {
        let mut words = self.ctl.split_whitespace();
        must_succeed(
            Command::new(words.next().expect("RABBITMQCTL is a command"))
                .args(words)
                .args(arguments),
        );
    }

    #[track_caller]
    fn management(&self, method: &str, path: &str, body: Option<&str>) -> String {
        let sent = self.ask_management(method, path, body);
        let mut response = sent
            .unwrap_or_else(|error| panic!("RabbitMQ's management API: {method} {path}: {error}"));
        response.body_mut().read_to_string().unwrap()
    }

    fn ask_management(
        &self,
        method: &str,
        path: &str,
        body: Option<&str>,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let config =
            ureq::Agent::config_builder().timeout_global(Some(DEADLINE)).proxy(None).build();
        let agent = ureq::Agent::from(config);
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.management))
            .header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=");
        match body {
            Some(text) => agent.run(request.header("Content-Type", "application/json").body(text)?),
            None => agent.run(request.body(())?),
        }
    }
}

/// A virtual host of one test.
pub(crate) struct Vhost {
    broker: Broker,
    pub(crate) name: String,
    pub(crate) url: String,
}

impl Vhost {
    pub(crate) fn new() -> Vhost {
        Broker::shared().vhost()
    }

    /// Messages in the queue, ready or delivered and not acknowledged.
    #[track_caller]
    pub(crate) fn messages(&self, queue: &str) -> Option<u64> {
        let answer =
            self.broker.management("GET", &format!("/api/queues/{}/{queue}", self.name), None);
        let json: Value = serde_json::from_str(&answer).unwrap();
        json["messages"].as_u64()
    }

    /// Waits until the queue has nothing more, not even a message that is delivered and not
    /// acknowledged.
    #[track_caller]
    pub(crate) fn await_drained(&self, queue: &str) {
        eventually(&format!("the queue {queue} is drained"), || match self.messages(queue) {
            Some(0) => Ok(()),
            Some(count) => Err(format!("{count} messages")),
            None => Err("no figures yet".to_owned()),
        });
    }

    /// The policy that a queue has. It asks without statistics: an idle queue's statistics may
    /// never show a policy that is set later.
    #[track_caller]
    pub(crate) fn policy_of(&self, queue: &str) -> Option<String> {
        let path = format!("/api/queues/{}?columns=name,policy&disable_stats=true", self.name);
        let answer = self
            .broker
            .ask_management("GET", &path, None)
            .ok()?
            .body_mut()
            .read_to_string()
            .ok()?;
        let listed: Vec<Value> = serde_json::from_str(&answer).ok()?;
        listed.iter().find(|listed| listed["name"] == queue)?["policy"].as_str().map(str::to_owned)
    }

    /// Runs rabbitmqctl on this virtual host.
    #[track_caller]
    pub(crate) fn ctl(&self, command: &str, arguments: &[&str]) {
        self.broker.ctl(&[&["-p", &self.name, command], arguments].concat());
    }

    /// The address of the management API, with the credentials of `user`.
    pub(crate) fn management_url(&self, credentials: &str) -> String {
        self.broker.management.replace("://", &format!("://{credentials}@"))
    }

    /// Has the broker close all connections of the virtual host.
    pub(crate) fn close_connections(&self) {
        self.broker.ctl(&["close_all_connections", "--vhost", &self.name, "closed by a test"]);
    }

    /// Has the management API close the connections with that name; tells how many it lists.
    pub(crate) fn close_connection(&self, name: &str) -> usize {
        let listed =
            self.broker.management("GET", &format!("/api/vhosts/{}/connections", self.name), None);
        let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
        let named: Vec<_> = listed
            .iter()
            .filter(|connection| connection["client_properties"]["connection_name"] == name)
            .collect();
        for connection in &named {
            let id = connection["name"].as_str().unwrap().replace(' ', "%20").replace('>', "%3E");
            // One that has gone in the meantime answers 404.
            let _gone =
                self.broker.ask_management("DELETE", &format!("/api/connections/{id}"), None);
        }
        named.len()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.url)
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        // Also while a test fails: a second panic would hide the first.
        let config =
            ureq::Agent::config_builder().timeout_global(Some(DEADLINE)).proxy(None).build();
        let request = ureq::Agent::from(config)
            .delete(format!("{}/api/vhosts/{}", self.broker.management, self.name));
        let _left_behind = request.header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=").call();
    }
}
