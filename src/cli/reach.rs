//! Which manager to call: that of a flag, of the environment, of a context, or the one on this
//! machine.

use super::arguments::{ReachArguments, address};
use super::contexts::{Contexts, Named};
use super::error::ClientError;
use crate::settings::stray_of_client;
use crate::telemetry::log::say;
use std::fmt;

/// The address at which a manager listens by default.
const DEFAULT: &str = "http://127.0.0.1:8088";

/// The address of a manager and the token for it.
pub(super) struct Reach {
    /// The address, without a slash at the end.
    pub(super) server: String,
    /// The token, or an empty text.
    pub(super) token: String,
    pub(super) server_source: Source,
    pub(super) token_source: Source,
}

/// Where a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Flag(&'static str),
    Environment(&'static str),
    Context(String),
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag(name) | Source::Environment(name) => write!(f, "from {name}"),
            Source::Context(name) => write!(f, "from the context {name}"),
            Source::Default => f.write_str("by default"),
        }
    }
}

impl Reach {
    /// Flags take precedence over the environment, and the environment over the current context.
    /// `--context` is a flag. The token of a context is sent to the address of that context only.
    pub(super) fn of(asked: &ReachArguments) -> Result<Reach, ClientError> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for stray in names.filter_map(|name| stray_of_client(&name)) {
            say(&format!("workflow-manager: warning: {stray}"));
        }
        Reach::with(asked, &|name| std::env::var(name).ok(), Contexts::read)
    }

    fn with(
        asked: &ReachArguments,
        variable: &dyn Fn(&str) -> Option<String>,
        contexts: impl FnOnce() -> Result<Contexts, ClientError>,
    ) -> Result<Reach, ClientError> {
        let set = |name: &'static str| variable(name).filter(|value| !value.is_empty());
        let by_environment =
            if asked.context.is_some() { None } else { set("WORKFLOW_MANAGER_URL") };
        let named = match &asked.server {
            Some(server) => Some((server.clone(), Source::Flag("--server"))),
            None => by_environment
                .map(|server| {
                    checked(&server)
                        .map(|server| (server, Source::Environment("WORKFLOW_MANAGER_URL")))
                })
                .transpose()?,
        };
        // With an explicit address no context is read, so a broken one does no harm.
        let context = if named.is_some() && asked.context.is_none() {
            None
        } else {
            chosen(asked, set("WORKFLOW_MANAGER_CONTEXT"), contexts)?
        };
        let (server, server_source) = match (named, &context) {
            (Some(named), _) => named,
            (None, Some(context)) => {
                (checked(&context.server)?, Source::Context(context.name.clone()))
            }
            (None, None) => (DEFAULT.to_owned(), Source::Default),
        };
        let server = server.trim_end_matches('/').to_owned();
        let own = context.filter(|context| context.server.trim_end_matches('/') == server);
        let by_environment = set("WORKFLOW_MANAGER_TOKEN").filter(|_| asked.context.is_none());
        let (token, token_source) = match (&asked.token, by_environment, own) {
            (Some(token), _, _) => (token.clone(), Source::Flag("--token")),
            (None, Some(token), _) => (token, Source::Environment("WORKFLOW_MANAGER_TOKEN")),
            (None, None, Some(context)) => (context.token()?, Source::Context(context.name)),
            (None, None, None) => (String::new(), Source::Default),
        };
        Ok(Reach { server, token, server_source, token_source })
    }

    /// Returns the address without its password.
    pub(super) fn shown(&self) -> String {
        match self.server.split_once("://") {
            Some((scheme, rest)) if rest.contains('@') => {
                let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
                format!("{scheme}://***@{host}")
            }
            Some(_) | None => self.server.clone(),
        }
    }
}

fn chosen(
    asked: &ReachArguments,
    by_environment: Option<String>,
    contexts: impl FnOnce() -> Result<Contexts, ClientError>,
) -> Result<Option<Named>, ClientError> {
    let contexts = contexts()?;
    match asked.context.clone().or(by_environment) {
        Some(name) => contexts.named(&name).cloned().map(Some),
        None => Ok(contexts.current()?.cloned()),
    }
}

fn checked(server: &str) -> Result<String, ClientError> {
    address(server).map_err(ClientError::Usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts() -> Contexts {
        let text = r#"{"current":"home","contexts":[
            {"name":"home","server":"http://home:1","token":"home-token"},
            {"name":"work","server":"https://work","tokenCommand":"echo work-token"}]}"#;
        serde_json::from_str(text).expect("contexts")
    }

    /// Returns the address, the token, and the sources of both.
    fn reached(asked: &ReachArguments, set: &[(&str, &str)]) -> Result<[String; 4], String> {
        let variable = |name: &str| {
            let found = set.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let reach = Reach::with(asked, &variable, || Ok(contexts()));
        let Reach { server, token, server_source, token_source } =
            reach.map_err(|error| error.to_string())?;
        Ok([server, token, server_source.to_string(), token_source.to_string()])
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_context() {
        let flags = |server: Option<&str>, token: Option<&str>, context: Option<&str>| {
            let own = |text: Option<&str>| text.map(str::to_owned);
            ReachArguments { server: own(server), token: own(token), context: own(context) }
        };
        let none = flags(None, None, None);
        let url = [("WORKFLOW_MANAGER_URL", "http://url"), ("WORKFLOW_MANAGER_TOKEN", "env")];
        let home =
            ["http://home:1", "home-token", "from the context home", "from the context home"];
        assert_eq!(reached(&none, &[]), Ok(home.map(str::to_owned)));
        let by_environment =
            ["http://url", "env", "from WORKFLOW_MANAGER_URL", "from WORKFLOW_MANAGER_TOKEN"];
        assert_eq!(reached(&none, &url), Ok(by_environment.map(str::to_owned)));
        let work = reached(&none, &[("WORKFLOW_MANAGER_CONTEXT", "work")]).expect("work");
        assert_eq!(work[..2], ["https://work", "work-token"]);
        let work = reached(&flags(None, None, Some("work")), &url).expect("work");
        assert_eq!(work[..2], ["https://work", "work-token"], "--context is a flag");
        let both = reached(&flags(Some("http://flag/"), Some("t"), None), &url).expect("flags");
        assert_eq!(both[..2], ["http://flag", "t"]);
    }

    #[test]
    fn the_token_of_a_context_goes_to_its_own_address_alone() {
        let server = Some("http://elsewhere".to_owned());
        let context = Some("home".to_owned());
        let asked = ReachArguments { server: server.clone(), token: None, context };
        assert_eq!(reached(&asked, &[]).expect("reached")[..2], ["http://elsewhere", ""]);
        let asked = ReachArguments { server, ..ReachArguments::default() };
        assert_eq!(reached(&asked, &[]).expect("reached")[..2], ["http://elsewhere", ""]);
    }

    #[test]
    fn an_unknown_context_is_told_with_what_was_meant() {
        let context = Some("wrok".to_owned());
        let asked = ReachArguments { context, ..ReachArguments::default() };
        let error = reached(&asked, &[]).expect_err("unknown");
        assert_eq!(error, "there is no context \"wrok\"; did you mean \"work\"?");
    }
}
