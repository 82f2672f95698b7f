//! `whoami`: prints which manager is called, and what the token allows.

use super::arguments::ClientArguments;
use super::client::Client;
use super::error::ClientError;
use super::responses::parse_response;
use super::screen::print_json;
use super::target::ManagerTarget;
use super::text::Text;
use serde::Deserialize;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use ureq::http::StatusCode;

/// The version and the health of a manager.
#[derive(Deserialize)]
pub(super) struct ManagerResponse {
    pub(super) version: Text,
    #[serde(rename = "ready")]
    pub(super) is_ready: bool,
    #[serde(default)]
    pub(super) checks: Vec<CheckResponse>,
}

/// The result of a health check.
#[derive(Deserialize)]
pub(super) struct CheckResponse {
    pub(super) name: Text,
    #[serde(rename = "ok")]
    pub(super) is_ok: bool,
    pub(super) detail: Text,
}

/// A token and its permissions, as the manager knows them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenResponse {
    /// Whether the manager accepts calls only with a token.
    #[serde(rename = "asksForToken")]
    is_token_required: bool,
    name: Option<Text>,
    scope: Option<Text>,
    /// The queues whose messages the token may receive and settle.
    queues: Vec<Text>,
    /// The virtual host of `queues`.
    vhost: Option<Text>,
}

impl TokenResponse {
    /// Describes what the token allows, for people.
    fn describe_permissions(&self) -> String {
        if !self.is_token_required {
            return "every call: this manager asks for no token".to_owned();
        }
        let queues: Vec<String> = self.queues.iter().map(ToString::to_string).collect();
        let vhost_text = self
            .vhost
            .as_ref()
            .map_or_else(String::new, |vhost| format!(" of the virtual host {vhost}"));
        let queue_permission =
            (!queues.is_empty()).then(|| format!("messages of {}{vhost_text}", queues.join(", ")));
        let scope_permission = self.scope.as_ref().map(|scope| match scope.to_string().as_str() {
            "admin" => "every call: the token is right".to_owned(),
            "operate" => "to look, to create jobs, and operations that erase nothing".to_owned(),
            "read" => "to look".to_owned(),
            other => format!("the scope {other}"),
        });
        scope_permission.into_iter().chain(queue_permission).collect::<Vec<_>>().join("; ")
    }
}

/// Runs `whoami`. If the manager refuses the token, that is printed, and is also the error.
pub(super) fn print_identity(
    arguments: &ClientArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let target = ManagerTarget::from_arguments(&arguments.target)?;
    let server_source = target.server_source.to_string();
    let has_token = !target.token.is_empty();
    let token_source = has_token.then(|| target.token_source.to_string());
    let client = Client::for_target(target);
    let response = client.try_get("/api/whoami")?;
    let server = client.display_address();
    let token: Option<TokenResponse> =
        response.as_ref().ok().map(|body| parse_response(body)).transpose()?;
    let permissions = match (&token, &response) {
        (Some(token), _) => token.describe_permissions(),
        (None, Err((StatusCode::UNAUTHORIZED, _))) if has_token => {
            "nothing: the token is wrong".to_owned()
        }
        (None, Err((StatusCode::UNAUTHORIZED, _))) => {
            "nothing: this manager asks for a token".to_owned()
        }
        (None, _) => "unknown".to_owned(),
    };
    // The token of a worker does not permit this call, so a refusal is ignored.
    let manager = client.try_get("/api/manager")?.ok();
    let manager: Option<ManagerResponse> = manager.map(|body| parse_response(&body)).transpose()?;
    let name = token.as_ref().and_then(|token| token.name.as_ref()).map(ToString::to_string);
    let version = manager.as_ref().map(|manager| manager.version.to_string());
    if arguments.json {
        let output = json!({
            "server": server, "serverFrom": server_source, "tokenFrom": token_source,
            "name": name, "allowed": permissions, "isAllowed": response.is_ok(), "version": version,
            "ready": manager.as_ref().map(|manager| manager.is_ready),
            "clientVersion": env!("CARGO_PKG_VERSION"),
        });
        print_json(&output.to_string(), out)?;
    } else {
        let client_version = env!("CARGO_PKG_VERSION");
        let mut print_field = |key: &str, value: &str| writeln!(out, "{key:<9} {value}");
        print_field("manager", &format!("{server} ({server_source})"))?;
        print_field("token", token_source.as_deref().unwrap_or("none"))?;
        if let Some(name) = &name {
            print_field("name", name)?;
        }
        print_field("allows", &permissions)?;
        if let (Some(version), Some(manager)) = (&version, &manager) {
            let mismatch = if version == client_version {
                String::new()
            } else {
                format!("; this command line is {client_version}")
            };
            print_field("version", &format!("{version}{mismatch}"))?;
            let failed_checks = manager.checks.iter().filter(|check| !check.is_ok);
            let details: Vec<String> =
                failed_checks.map(|check| format!("{}: {}", check.name, check.detail)).collect();
            let readiness = if manager.is_ready {
                "yes".to_owned()
            } else {
                format!("no: {}", details.join("; "))
            };
            print_field("ready", &readiness)?;
        }
    }
    match response {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err((_, detail)) => Err(ClientError::Refused(detail)),
    }
}
