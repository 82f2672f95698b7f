//! Conditions in CEL (docs/workflow-file.md): compiled when a file is loaded, evaluated over a
//! job's state. This is the only user of the CEL crate.
//!
//! ```text
//! source    the text of an expression, and errors at a place in it
//! scope     what a condition sees of its job
//! syntax    what the parser says of a text that is not CEL, in words that teach
//! names     which variables, functions and steps a text uses; which part of the data it needs
//! exact     comparisons of whole numbers with decimals, without rounding
//! cost      the tree, in which each value that an evaluation copies, compares or runs through is
//!           paid for
//! values    JSON → CEL values, only those that are needed
//! ```
//!
//! Neither the text nor the data is trusted. The text's length and nesting are limited before
//! anything recurses over it. The evaluations of one decision end when together they have cost
//! [`DECISION_COST_MAX`]. No function knows the time or chance.

mod cost;
mod exact;
mod names;
mod scope;
mod source;
mod syntax;
mod values;

pub use scope::{Scope, ScopeStep};
pub use source::{DEPTH_MAX, ExpressionError};

use super::text::shorten;
use cel::common::ast::{IdedExpr, SourceInfo};
use cel::{Context, Env, ExecutionError, Value};
use cost::CostBudget;
use names::RequiredPart;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use source::Source;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

/// The longest expression, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;

/// The most operators, dots, brackets and other marks of an expression. The parser recurses over a
/// chain of them.
pub(crate) const MARKS_MAX: usize = 1_000;

/// What the evaluations of one decision may cost together; `when` and `cancelWhen` have this much
/// each. Each value that an evaluation builds, copies, compares or iterates over costs 1, and 1
/// more for each 32 bytes of text. Each iteration of a loop (`all`, `map` and the like) costs 4 and
/// the number of operations in it. Data that is only read, or that the expression does not name,
/// costs little. A unit takes at most about 0.2 µs of an optimised build, so both budgets together
/// take some 80 ms.
pub(crate) const DECISION_COST_MAX: u64 = 200_000;

/// The cost that is reserved for each evaluation that may follow in the same decision, so that a
/// costly one leaves enough for cheap ones.
const RESERVED_COST: u64 = 1_000;

/// What an expression can use: the standard library without optional values. The crate's features
/// for times and regular expressions are off.
static ENVIRONMENT: LazyLock<Arc<Env>> =
    LazyLock::new(|| Arc::new(Env::stdlib().with_optional_support(false)));

/// A compiled condition. Two are equal if their texts are.
#[derive(Clone)]
pub struct Expression(Arc<Compiled>);

struct Compiled {
    text: String,
    steps: Vec<String>,
    mistakes: Vec<ExpressionError>,
    required: RequiredPart,
    root: IdedExpr,
}

impl Expression {
    /// Compiles `text`.
    ///
    /// # Errors
    /// It is not CEL, it is too long, or it uses something unknown.
    pub fn parse(text: &str) -> Result<Expression, ExpressionError> {
        let (root, source) = parse_text(text)?;
        let found = names::check(&root, &Source { text, source: &source })?;
        let names::Names { required, steps, mistakes } = found;
        Ok(Expression(Arc::new(Compiled {
            text: text.to_owned(),
            steps,
            mistakes,
            required,
            root: cost::add_charges(root),
        })))
    }

    /// Returns the text, as it stands in the file.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Returns the steps that it names literally, as in `steps["a"]` and `steps.a`, in the order of
    /// the text, each once.
    pub fn steps(&self) -> &[String] {
        &self.0.steps
    }

    /// Returns what compiles but cannot have been meant: a key that no step has, a state that does
    /// not exist.
    pub fn mistakes(&self) -> &[ExpressionError] {
        &self.0.mistakes
    }

    /// Returns whether it reads the step called `name`, or all steps.
    pub(crate) fn reads_step(&self, name: &str) -> bool {
        self.0.required.under("steps").is_some_and(|need| need.under(name).is_some())
    }

    /// Returns whether it reads `input`.
    pub(crate) fn reads_input(&self) -> bool {
        self.0.required.under("input").is_some()
    }

    /// Returns its value, and spends the cost from the budget of the decision that needs it;
    /// `following` other evaluations may follow in the same decision.
    ///
    /// # Errors
    /// The value is neither true nor false, or the budget is used up; the error says why, in one
    /// sentence.
    pub(crate) fn evaluate(
        &self,
        scope: &dyn Scope,
        decision: &mut DecisionBudget,
        following: usize,
    ) -> Result<bool, String> {
        let share = decision.allowance(following);
        let budget = CostBudget::new(share);
        let value = self.resolve(scope, &budget);
        let earlier = decision.spend(share.saturating_sub(budget.left().saturating_sub(1)));
        // Checked first: `||` and `&&` may have ignored the error of an operand.
        if budget.is_spent() {
            let others = if earlier > 0 {
                format!(
                    " beside the {earlier} of the conditions before it, and one decision may \
                     take {DECISION_COST_MAX}"
                )
            } else {
                String::new()
            };
            return Err(format!(
                "takes more than {share} operations with this data{others}; look at less of it"
            ));
        }
        let value = value?;
        if let Value::Bool(truth) = value {
            Ok(truth)
        } else {
            Err(format!("came to {}, expected true or false", values::render_with_type(&value)))
        }
    }

    fn resolve(&self, scope: &dyn Scope, budget: &CostBudget) -> Result<Value, String> {
        let mut context = Context::with_env(ENVIRONMENT.clone());
        values::add_variables(&self.0.required, scope, budget, &mut context)?;
        budget.add_to(&mut context)?;
        exact::add_to(&mut context)?;
        // No data is known to make the crate panic, but if it did, the job must survive.
        match catch_unwind(AssertUnwindSafe(|| Value::resolve(&self.0.root, &context))) {
            Ok(result) => result.map_err(|error| render_error(&error)),
            Err(_) => Err("cannot be evaluated with this data".to_owned()),
        }
    }
}

/// What the evaluations of one decision have spent together.
#[derive(Debug, Default)]
pub struct DecisionBudget {
    spent: u64,
}

impl DecisionBudget {
    /// Returns what the next evaluation may cost if so many others may follow.
    fn allowance(&self, following: usize) -> u64 {
        let left = DECISION_COST_MAX.saturating_sub(self.spent);
        let behind = u64::try_from(following).unwrap_or(u64::MAX);
        let reserved = RESERVED_COST.min(left / behind.saturating_add(1));
        left.saturating_sub(reserved.saturating_mul(behind))
    }

    /// Spends `units`; returns what was spent before.
    fn spend(&mut self, units: u64) -> u64 {
        let earlier = self.spent;
        self.spent = earlier.saturating_add(units);
        earlier
    }
}

/// Parses `text`, unless it is too long or nests too deep.
fn parse_text(text: &str) -> Result<(IdedExpr, SourceInfo), ExpressionError> {
    let whole = |message: String| ExpressionError { line: 1, column: 1, message };
    if text.len() > TEXT_BYTES_MAX {
        return Err(whole(format!(
            "has {} bytes, more than the {TEXT_BYTES_MAX} allowed",
            text.len()
        )));
    }
    let marks =
        text.chars().filter(|c| !c.is_alphanumeric() && !c.is_whitespace() && *c != '_').count();
    if marks > MARKS_MAX {
        return Err(whole(format!(
            "has {marks} operators, dots, brackets and other marks, more than the {MARKS_MAX} \
             allowed"
        )));
    }
    let depth = u16::try_from(DEPTH_MAX).unwrap_or(u16::MAX);
    let parser = || ENVIRONMENT.parser().max_recursion_depth(depth).parse_with_source_info(text);
    match catch_unwind(AssertUnwindSafe(parser)) {
        Ok(Ok(parsed)) => Ok(parsed),
        Ok(Err(errors)) => Err(syntax::explain_errors(&errors, text)),
        Err(_) => Err(whole("is no CEL".to_owned())),
    }
}

/// Renders an error of the evaluation, as one sentence for users.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the crate's enum may grow; what is left has no better words than its own"
)]
fn render_error(error: &ExecutionError) -> String {
    let message = match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload(call) => {
            format!(
                "{} cannot be applied to {}",
                names::render_function(call.function()),
                call.argument_types().join(" and ")
            )
        }
        ExecutionError::UnsupportedBinaryOperator(operator, left, right) => {
            format!(
                "{} cannot be applied to {} and {}",
                names::render_operator(operator),
                values::type_name(left),
                values::type_name(right)
            )
        }
        ExecutionError::ValuesNotComparable(left, right) => {
            format!(
                "{} and {} cannot be compared",
                values::type_name(left),
                values::type_name(right)
            )
        }
        ExecutionError::UnexpectedType { got, want } => {
            format!("found {got} where {want} is expected")
        }
        ExecutionError::UnsupportedKeyType(key) => {
            format!("{} cannot be a key", values::render_with_type(key))
        }
        ExecutionError::FunctionError { function, message } => format!("{function}(): {message}"),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
            "division by zero".to_owned()
        }
        ExecutionError::Overflow(operator, ..) => {
            format!("{} leaves the range of its numbers", names::render_operator(operator))
        }
        ExecutionError::IndexOutOfBounds(index) => {
            format!("the list has no element {}", values::render_with_type(index))
        }
        ExecutionError::DuplicateKey(key) => {
            format!("the key {} is given twice", values::render_with_type(key))
        }
        other => other.to_string(),
    };
    shorten(&message)
}

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

impl Serialize for Expression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

impl<'de> Deserialize<'de> for Expression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Expression, D::Error> {
        let text = String::deserialize(deserializer)?;
        Expression::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::too_many_lines, reason = "lists of cases")]
mod tests;
