//! The findings of `doctor`: what a check has found, and how to repair it.

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Severity {
    /// The check found nothing wrong.
    Ok,
    /// Something may stop working, or does not work as intended.
    Warning,
    /// Something does not work.
    Error,
}

impl Severity {
    /// Returns the name in the output.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

/// A finding of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// The name of the check, in one word. A check may have several findings.
    pub(crate) check: &'static str,
    /// What was found, as a sentence.
    pub(crate) text: String,
    /// How to repair it, as a request to the operator. Empty if nothing is wrong.
    pub(crate) remedy: String,
}

impl Finding {
    pub(crate) fn ok(check: &'static str, text: impl Into<String>) -> Finding {
        Finding { severity: Severity::Ok, check, text: text.into(), remedy: String::new() }
    }

    pub(crate) fn warning(
        check: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { severity: Severity::Warning, check, text: text.into(), remedy: remedy.into() }
    }

    pub(crate) fn error(
        check: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { severity: Severity::Error, check, text: text.into(), remedy: remedy.into() }
    }
}
