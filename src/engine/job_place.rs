//! The place of the limit of its workflow that a job claims.

use super::definition::Definition;
use super::expression::{DecisionBudget, Expression, Scope, ScopeStep};
use super::job_limit::JobLimit;
use super::json::Message;
use super::limit::ClaimedPlace;

impl Definition {
    /// Evaluates which place a job with this message claims; `None`: the workflow has no limit.
    ///
    /// # Errors
    ///
    /// Returns in one sentence why a key has no value.
    pub fn claim_job_place(&self, message: &Message) -> Result<Option<ClaimedPlace>, String> {
        let Some(JobLimit { name, .. }) = &self.limit else { return Ok(None) };
        let Some(limit) = self.find_limit(name) else { return Ok(None) };
        let mut budget = DecisionBudget::default();
        let mut evaluate = |key: &str, expression: &Option<Expression>| {
            let Some(expression) = expression else { return Ok(None) };
            let scope = MessageScope(message);
            expression.evaluate_key(&scope, &mut budget).map(Some).map_err(|reason| {
                format!(
                    "`{key}: {}` of the limit \"{name}\" of workflow \"{}\" cannot be evaluated: \
                     {reason}",
                    expression.text(),
                    self.full_name()
                )
            })
        };
        let (key, fair) = (evaluate("key", &limit.key)?, evaluate("fair", &limit.fair)?);
        Ok(Some(ClaimedPlace { limit: name.clone(), key, fair }))
    }
}

/// The variables of the keys of a job's limit: its message. It has no steps yet.
struct MessageScope<'a>(&'a Message);

impl Scope for MessageScope<'_> {
    fn input(&self) -> Message {
        self.0.clone()
    }

    fn job(&self) -> &Message {
        self.0
    }

    fn step(&self, _: &str) -> Option<ScopeStep<'_>> {
        None
    }

    fn steps(&self) -> Vec<ScopeStep<'_>> {
        Vec::new()
    }
}
