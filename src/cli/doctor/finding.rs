//! The findings of `doctor`.

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// All is well.
    Ok,
    /// It works, but may stop working, or does not work as intended.
    Warning,
    /// It does not work.
    Error,
}

impl Severity {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// The result of a check, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// The name of the check, in one word.
    pub(crate) check: &'static str,
    /// What was found.
    pub(crate) text: String,
    /// What to do. Empty if all is well.
    pub(crate) to_do: String,
}

impl Finding {
    pub(crate) fn ok(check: &'static str, text: impl Into<String>) -> Finding {
        Finding { severity: Severity::Ok, check, text: text.into(), to_do: String::new() }
    }

    pub(crate) fn warning(
        check: &'static str,
        text: impl Into<String>,
        to_do: impl Into<String>,
    ) -> Finding {
        Finding { severity: Severity::Warning, check, text: text.into(), to_do: to_do.into() }
    }

    pub(crate) fn error(
        check: &'static str,
        text: impl Into<String>,
        to_do: impl Into<String>,
    ) -> Finding {
        Finding { severity: Severity::Error, check, text: text.into(), to_do: to_do.into() }
    }
}
