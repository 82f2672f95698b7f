//! Selects the manager to call: by a flag, the environment or a context. By default it is the one
//! on this machine.

use super::addresses::Addresses;
use super::arguments::TargetArguments;
use super::contexts::{Contexts, ManagerContext};
use super::error::ClientError;
use daemon::settings::check_client_variable;
use daemon::telemetry::log::print;
use std::fmt;

/// The address at which a manager listens by default.
pub(super) const DEFAULT_SERVER: &str = "http://127.0.0.1:8088";

/// The addresses of a manager and the token for it.
#[derive(Clone)]
pub(super) struct ManagerTarget {
    pub(super) addresses: Addresses,
    /// The token. Empty if there is none.
    pub(super) token: String,
    pub(super) server_source: TargetSource,
    /// The source of the token. `Default` if there is no token.
    pub(super) token_source: TargetSource,
}

/// The source of an address or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetSource {
    /// The flag, or the settings, with this name.
    Flag(&'static str),
    /// The environment variable with this name.
    Environment(&'static str),
    /// The context with this name.
    Context(String),
    /// None of the others.
    Default,
}

impl fmt::Display for TargetSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetSource::Flag(name) | TargetSource::Environment(name) => write!(f, "from {name}"),
            TargetSource::Context(name) => write!(f, "from the context {name}"),
            TargetSource::Default => f.write_str("by default"),
        }
    }
}

impl ManagerTarget {
    /// Resolves the address and the token. Flags, of which `--context` is one, take precedence over
    /// the environment, and the environment over the current context. The token of a context is
    /// sent to the addresses of that context only, and to the one that a manager there names.
    pub(super) fn from_arguments(
        arguments: &TargetArguments,
    ) -> Result<ManagerTarget, ClientError> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for warning in names.filter_map(|name| check_client_variable(&name)) {
            print(&format!("workflow-manager: warning: {warning}"));
        }
        ManagerTarget::resolve(arguments, &|name| std::env::var(name).ok(), Contexts::read)
    }

    /// Resolves the address and the token with the given environment variables and contexts.
    fn resolve(
        arguments: &TargetArguments,
        variable: &dyn Fn(&str) -> Option<String>,
        read_contexts: impl FnOnce() -> Result<Contexts, ClientError>,
    ) -> Result<ManagerTarget, ClientError> {
        let non_empty = |name: &'static str| variable(name).filter(|value| !value.is_empty());
        let server_variable =
            if arguments.context.is_some() { None } else { non_empty("WORKFLOW_MANAGER_URL") };
        let explicit_server = match &arguments.server {
            Some(server) => Some((parse_addresses(server)?, TargetSource::Flag("--server"))),
            None => server_variable
                .map(|server| {
                    parse_addresses(&server).map(|addresses| {
                        (addresses, TargetSource::Environment("WORKFLOW_MANAGER_URL"))
                    })
                })
                .transpose()?,
        };
        // With an explicit address no context is read, so a broken file of contexts does no harm.
        let context = if explicit_server.is_some() && arguments.context.is_none() {
            None
        } else {
            find_context(arguments, non_empty("WORKFLOW_MANAGER_CONTEXT"), read_contexts)?
        };
        let (addresses, server_source) = match (explicit_server, &context) {
            (Some(explicit), _) => explicit,
            (None, Some(context)) => {
                let source = TargetSource::Context(context.name.clone());
                (parse_addresses(&context.server)?, source)
            }
            (None, None) => (parse_addresses(DEFAULT_SERVER)?, TargetSource::Default),
        };
        let matching_context = context.filter(|context| {
            Addresses::parse(&context.server).is_ok_and(|listed| addresses.is_subset_of(&listed))
        });
        let token_variable =
            non_empty("WORKFLOW_MANAGER_TOKEN").filter(|_| arguments.context.is_none());
        let (token, token_source) = match (&arguments.token, token_variable, matching_context) {
            (Some(token), _, _) => (token.clone(), TargetSource::Flag("--token")),
            (None, Some(token), _) => (token, TargetSource::Environment("WORKFLOW_MANAGER_TOKEN")),
            (None, None, Some(context)) => {
                (context.resolve_token()?, TargetSource::Context(context.name))
            }
            (None, None, None) => (String::new(), TargetSource::Default),
        };
        Ok(ManagerTarget { addresses, token, server_source, token_source })
    }
}

/// Finds the context that the flag or the environment variable names. If neither does, returns the
/// context in use, if there is one.
fn find_context(
    arguments: &TargetArguments,
    name_variable: Option<String>,
    read_contexts: impl FnOnce() -> Result<Contexts, ClientError>,
) -> Result<Option<ManagerContext>, ClientError> {
    let contexts = read_contexts()?;
    match arguments.context.clone().or(name_variable) {
        Some(name) => contexts.find(&name).cloned().map(Some),
        None => Ok(contexts.current()?.cloned()),
    }
}

fn parse_addresses(text: &str) -> Result<Addresses, ClientError> {
    Addresses::parse(text).map_err(ClientError::Usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts() -> Contexts {
        let text = r#"{"current":"home","contexts":[
            {"name":"home","server":"http://home:1","token":"home-token"},
            {"name":"work","server":"https://work","tokenCommand":"echo work-token"},
            {"name":"pair","server":"https://a,https://b/","token":"pair-token"}]}"#;
        serde_json::from_str(text).expect("contexts")
    }

    /// Returns the address, the token, and the sources of both.
    fn resolve(
        arguments: &TargetArguments,
        variables: &[(&str, &str)],
    ) -> Result<[String; 4], String> {
        let variable = |name: &str| {
            let entry = variables.iter().find(|(key, _)| *key == name);
            entry.map(|(_, value)| (*value).to_owned())
        };
        let result = ManagerTarget::resolve(arguments, &variable, || Ok(contexts()));
        let ManagerTarget { addresses, token, server_source, token_source } =
            result.map_err(|error| error.to_string())?;
        let server = addresses.display();
        Ok([server, token, server_source.to_string(), token_source.to_string()])
    }

    #[test]
    fn flags_override_the_environment_which_overrides_the_context() {
        let flags = |server: Option<&str>, token: Option<&str>, context: Option<&str>| {
            let to_owned = |text: Option<&str>| text.map(str::to_owned);
            TargetArguments {
                server: to_owned(server),
                token: to_owned(token),
                context: to_owned(context),
            }
        };
        let none = flags(None, None, None);
        let url = [("WORKFLOW_MANAGER_URL", "http://url"), ("WORKFLOW_MANAGER_TOKEN", "env")];
        let home =
            ["http://home:1", "home-token", "from the context home", "from the context home"];
        assert_eq!(resolve(&none, &[]), Ok(home.map(str::to_owned)));
        let by_environment =
            ["http://url", "env", "from WORKFLOW_MANAGER_URL", "from WORKFLOW_MANAGER_TOKEN"];
        assert_eq!(resolve(&none, &url), Ok(by_environment.map(str::to_owned)));
        let work = resolve(&none, &[("WORKFLOW_MANAGER_CONTEXT", "work")]).expect("work");
        assert_eq!(work[..2], ["https://work", "work-token"]);
        let work = resolve(&flags(None, None, Some("work")), &url).expect("work");
        assert_eq!(work[..2], ["https://work", "work-token"], "--context is a flag");
        let both = resolve(&flags(Some("http://flag/"), Some("t"), None), &url).expect("flags");
        assert_eq!(both[..2], ["http://flag", "t"]);
    }

    #[test]
    fn the_token_of_a_context_is_sent_to_its_own_address_only() {
        let server = Some("http://elsewhere".to_owned());
        let context = Some("home".to_owned());
        let arguments = TargetArguments { server: server.clone(), token: None, context };
        assert_eq!(resolve(&arguments, &[]).expect("a target")[..2], ["http://elsewhere", ""]);
        let arguments = TargetArguments { server, ..TargetArguments::default() };
        assert_eq!(resolve(&arguments, &[]).expect("a target")[..2], ["http://elsewhere", ""]);
    }

    #[test]
    fn a_context_may_have_several_addresses_and_its_token_goes_to_each() {
        let to_pair = |server: Option<&str>| {
            let server = server.map(str::to_owned);
            let arguments =
                TargetArguments { server, token: None, context: Some("pair".to_owned()) };
            let [server, token, ..] = resolve(&arguments, &[]).expect("a target");
            (server, token)
        };
        let expected = |server: &str, token: &str| (server.to_owned(), token.to_owned());
        assert_eq!(to_pair(None), expected("https://a, https://b", "pair-token"));
        assert_eq!(to_pair(Some("https://b")), expected("https://b", "pair-token"));
        assert_eq!(to_pair(Some("https://b,https://c")), expected("https://b, https://c", ""));
    }

    #[test]
    fn an_unknown_context_is_an_error_with_a_suggestion() {
        let context = Some("wrok".to_owned());
        let arguments = TargetArguments { context, ..TargetArguments::default() };
        let error = resolve(&arguments, &[]).expect_err("unknown");
        assert_eq!(error, "there is no context \"wrok\"; did you mean \"work\"?");
    }
}
