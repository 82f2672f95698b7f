//! Asks a person to confirm a bulk operation that ends or deletes jobs.

use super::error::ClientError;
use std::io::{IsTerminal, Write, stderr, stdin};

/// Returns whether a person can answer: standard input and standard error are terminals.
pub(super) fn is_interactive() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// Asks a question on standard error. Any answer but `y` or `yes` counts as no.
pub(super) fn confirm(question: &str) -> Result<bool, ClientError> {
    let mut prompt = stderr();
    write!(prompt, "{question} [y/N] ")?;
    prompt.flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(is_yes(&answer))
}

fn is_yes(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        assert!(is_yes("y\n") && is_yes(" Yes \n"));
        assert!(!is_yes("") && !is_yes("\n") && !is_yes("n\n") && !is_yes("yeah\n"));
    }
}
