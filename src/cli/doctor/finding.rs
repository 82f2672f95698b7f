//! The findings of `doctor`.

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Level {
    /// All is well.
    Ok,
    /// It works, but may stop working, or does not work as intended.
    Warning,
    /// It does not work.
    Error,
}

impl Level {
    pub(in crate::cli) const fn word(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// The result of a check, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Finding {
    pub(in crate::cli) level: Level,
    /// The name of the check, in one word.
    pub(in crate::cli) what: &'static str,
    /// What was found.
    pub(in crate::cli) text: String,
    /// What to do. Empty if all is well.
    pub(in crate::cli) to_do: String,
}

impl Finding {
    pub(in crate::cli) fn ok(what: &'static str, text: impl Into<String>) -> Finding {
        Finding { level: Level::Ok, what, text: text.into(), to_do: String::new() }
    }

    pub(in crate::cli) fn warning(
        what: &'static str,
        text: impl Into<String>,
        to_do: impl Into<String>,
    ) -> Finding {
        Finding { level: Level::Warning, what, text: text.into(), to_do: to_do.into() }
    }

    pub(in crate::cli) fn error(
        what: &'static str,
        text: impl Into<String>,
        to_do: impl Into<String>,
    ) -> Finding {
        Finding { level: Level::Error, what, text: text.into(), to_do: to_do.into() }
    }
}
