//! `whoami`: which manager is used, and what the token allows.

use super::arguments::ClientArguments;
use super::client::Client;
use super::error::ClientError;
use super::reach::Reach;
use super::screen::print_json;
use super::show::parse;
use super::text::Text;
use serde::Deserialize;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use ureq::http::StatusCode;

/// The state of a manager, as far as the command line prints it.
#[derive(Deserialize)]
pub(super) struct ManagerAnswer {
    pub(super) version: Text,
    pub(super) ready: bool,
    #[serde(default)]
    pub(super) checks: Vec<CheckAnswer>,
}

#[derive(Deserialize)]
pub(super) struct CheckAnswer {
    pub(super) name: Text,
    pub(super) ok: bool,
    pub(super) detail: Text,
}

/// What the manager knows about a token.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenAnswer {
    asks_for_token: bool,
    name: Option<Text>,
    scope: Option<Text>,
    queues: Vec<Text>,
    vhost: Option<Text>,
}

impl TokenAnswer {
    fn allows(&self) -> String {
        if !self.asks_for_token {
            return "every call: this manager asks for no token".to_owned();
        }
        let queues: Vec<String> = self.queues.iter().map(ToString::to_string).collect();
        let place = self.vhost.as_ref().map(|vhost| format!(" of the virtual host {vhost}"));
        let queues = (!queues.is_empty())
            .then(|| format!("messages of {}{}", queues.join(", "), place.unwrap_or_default()));
        let scope = self.scope.as_ref().map(|scope| match scope.to_string().as_str() {
            "admin" => "every call: the token is right".to_owned(),
            "operate" => "to look, to create jobs, and operations that erase nothing".to_owned(),
            "read" => "to look".to_owned(),
            other => format!("the scope {other}"),
        });
        scope.into_iter().chain(queues).collect::<Vec<_>>().join("; ")
    }
}

/// Runs `whoami`. The exit code is 1 if the manager does not accept the token.
pub(super) fn whoami(
    arguments: &ClientArguments,
    out: &mut dyn Write,
) -> Result<ExitCode, ClientError> {
    let reach = Reach::of(&arguments.reach)?;
    let (server, server_source) = (reach.shown(), reach.server_source.to_string());
    let has_token = !reach.token.is_empty();
    let token_source = has_token.then(|| reach.token_source.to_string());
    let client = Client::of(reach);
    let answer = client.ask("/api/whoami")?;
    let token: Option<TokenAnswer> = answer.as_ref().ok().map(|body| parse(body)).transpose()?;
    let allowed = match (&token, &answer) {
        (Some(token), _) => token.allows(),
        (None, Err((StatusCode::UNAUTHORIZED, _))) if has_token => {
            "nothing: the token is wrong".to_owned()
        }
        (None, Err((StatusCode::UNAUTHORIZED, _))) => {
            "nothing: this manager asks for a token".to_owned()
        }
        (None, _) => "unknown".to_owned(),
    };
    // A token of a worker may not read this, so an error is ignored.
    let manager = client.ask("/api/manager")?.ok();
    let manager: Option<ManagerAnswer> = manager.map(|body| parse(&body)).transpose()?;
    let name = token.as_ref().and_then(|token| token.name.as_ref()).map(ToString::to_string);
    let version = manager.as_ref().map(|manager| manager.version.to_string());
    if arguments.json {
        let told = json!({
            "server": server, "serverFrom": server_source, "tokenFrom": token_source,
            "name": name, "allowed": allowed, "isAllowed": answer.is_ok(), "version": version,
            "ready": manager.as_ref().map(|manager| manager.ready),
            "clientVersion": env!("CARGO_PKG_VERSION"),
        });
        print_json(&told.to_string(), out)?;
    } else {
        let own = env!("CARGO_PKG_VERSION");
        let mut tell = |key: &str, value: &str| writeln!(out, "{key:<9} {value}");
        tell("manager", &format!("{server} ({server_source})"))?;
        tell("token", token_source.as_deref().unwrap_or("none"))?;
        if let Some(name) = &name {
            tell("name", name)?;
        }
        tell("allows", &allowed)?;
        if let (Some(version), Some(manager)) = (&version, &manager) {
            let differs = if version == own {
                String::new()
            } else {
                format!("; this command line is {own}")
            };
            tell("version", &format!("{version}{differs}"))?;
            let bad = manager.checks.iter().filter(|check| !check.ok);
            let bad: Vec<String> =
                bad.map(|check| format!("{}: {}", check.name, check.detail)).collect();
            let ready =
                if manager.ready { "yes".to_owned() } else { format!("no: {}", bad.join("; ")) };
            tell("ready", &ready)?;
        }
    }
    match answer {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err((_, detail)) => Err(ClientError::Refused(detail)),
    }
}
