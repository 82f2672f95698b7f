//! Conditions in CEL, the Common Expression Language (docs/reference/workflow-data.md). They are
//! compiled when a file is loaded, and evaluated with a job's state. Only this module uses the CEL
//! crate.
//!
//! ```text
//! source    the text of an expression, and errors at a position in it
//! scope     the variables of a condition
//! syntax    helpful explanations of syntax errors
//! names     checks variables, functions and steps; finds which part of the data is needed
//! exact     comparisons of integers with floating-point numbers, without rounding
//! cost      instruments the syntax tree: operations are charged to a cost budget
//! values    converts the needed part of the data from JSON to CEL values
//! ```
//!
//! Neither the text nor the data is trusted. The length and the nesting of the text are limited
//! before anything recurses over it. The total cost of the evaluations of one decision is limited
//! to [`DECISION_COST_MAX`]. Evaluation is deterministic: no function reads a clock or is random.

mod cost;
mod exact;
mod names;
mod scope;
mod source;
mod syntax;
mod values;

pub use scope::{Scope, ScopeStep};
pub use source::{DEPTH_MAX, ExpressionError};

use super::cell::{Cell, CellKind};
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

/// The maximum length of an expression, in bytes.
pub const TEXT_BYTES_MAX: usize = 4096;

/// The maximum length of the key of a limit, in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// The maximum number of operators, dots, brackets and other punctuation marks in an expression. It
/// bounds the parser's recursion over chains of them.
pub(crate) const MARKS_MAX: usize = 1_000;

/// The maximum total cost of the evaluations of one decision, separately for `when` and
/// `cancelWhen`. Each value that an evaluation builds, copies, compares or iterates over costs 1,
/// and 1 more for each 32 bytes of text. Each iteration of a loop (`all`, `map` and the like) costs
/// 4 plus the number of its operations. Data that is only parsed, or that the expression does not
/// name, costs little. A unit takes at most about 0.2 µs in an optimised build, so both budgets
/// together take at most about 80 ms.
pub(crate) const DECISION_COST_MAX: u64 = 200_000;

/// From this on a floating-point number has no place for a fraction: 2^53.
const WHOLE_FLOAT_MAX: f64 = 9_007_199_254_740_992.0;

/// The cost that is reserved for each later evaluation of the same decision, so that a costly
/// condition leaves enough for cheap ones.
const RESERVED_COST: u64 = 1_000;

/// The functions and operators of expressions: the standard library without optional values. The
/// crate's features for times and regular expressions are disabled.
static ENVIRONMENT: LazyLock<Arc<Env>> =
    LazyLock::new(|| Arc::new(Env::stdlib().with_optional_support(false)));

/// A compiled condition. Two conditions are equal if their texts are. Clones share it.
#[derive(Clone)]
pub struct Expression(Arc<Compiled>);

struct Compiled {
    text: String,
    /// The steps that the text names literally, without duplicates.
    steps: Vec<String>,
    /// What compiles but must be a mistake.
    mistakes: Vec<ExpressionError>,
    /// The part of the data that an evaluation reads.
    required: RequiredPart,
    /// The instrumented syntax tree.
    root: IdedExpr,
}

impl Expression {
    /// Compiles `text`.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not CEL, is too long or too complex, or uses an unknown
    /// name.
    pub fn parse(text: &str) -> Result<Expression, ExpressionError> {
        let (root, source_info) = parse_text(text)?;
        let names::Names { required, steps, mistakes } =
            names::check(&root, &Source { text, info: &source_info })?;
        Ok(Expression(Arc::new(Compiled {
            text: text.to_owned(),
            steps,
            mistakes,
            required,
            root: cost::add_charges(root),
        })))
    }

    /// Returns the text as it is in the file.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Returns the steps that it names literally, as in `steps["a"]` and `steps.a`, in the order of
    /// the text, without duplicates.
    pub fn steps(&self) -> &[String] {
        &self.0.steps
    }

    /// Returns what compiles but must be a mistake: a key that no step has, a state that does not
    /// exist.
    pub fn mistakes(&self) -> &[ExpressionError] {
        &self.0.mistakes
    }

    /// Returns whether it reads the step called `name`, by its name or among all steps.
    pub(crate) fn reads_step(&self, name: &str) -> bool {
        self.0.required.under("steps").is_some_and(|steps| steps.under(name).is_some())
    }

    /// Returns whether it reads `steps`.
    pub fn reads_steps(&self) -> bool {
        self.0.required.under("steps").is_some()
    }

    /// Returns whether it reads anything of the job.
    pub fn reads_data(&self) -> bool {
        ["input", "job", "steps"].iter().any(|name| self.0.required.under(name).is_some())
    }

    /// Returns what its value is, if it is a list or an object whatever the data; `None`: it may
    /// be a text, a number or a boolean.
    pub fn literal_kind(&self) -> Option<&'static str> {
        let text = self.text().trim();
        if text.starts_with('[') {
            Some("a list")
        } else if text.starts_with('{') || text == "job" || text == "input" {
            Some("an object")
        } else {
            None
        }
    }

    /// Returns whether it reads `input`.
    pub(crate) fn reads_input(&self) -> bool {
        self.0.required.under("input").is_some()
    }

    /// Evaluates the condition, and spends its cost from the budget of the decision. `later_count`:
    /// how many other evaluations with this budget may follow in the same decision.
    ///
    /// # Errors
    ///
    /// Returns an error, in one sentence, if the value is neither true nor false, or the budget is
    /// exhausted.
    pub(crate) fn evaluate(
        &self,
        scope: &dyn Scope,
        decision_budget: &mut DecisionBudget,
        later_count: usize,
    ) -> Result<bool, String> {
        let value = self.evaluate_value(scope, decision_budget, later_count)?;
        if let Value::Bool(is_true) = value {
            Ok(is_true)
        } else {
            Err(format!(
                "evaluates to {}, expected true or false",
                values::render_with_type(&value)
            ))
        }
    }

    /// Evaluates the expression as the key of a limit: a text, a number, or true or false, as text.
    /// Its cost is spent from the budget of the decision.
    ///
    /// # Errors
    ///
    /// Returns an error, in one sentence, if the value is none of them, or the budget is exhausted.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the crate's enum may grow")]
    pub(crate) fn evaluate_key(
        &self,
        scope: &dyn Scope,
        decision_budget: &mut DecisionBudget,
    ) -> Result<Arc<str>, String> {
        let value = self.evaluate_value(scope, decision_budget, 0)?;
        let key: Arc<str> = match &value {
            Value::String(text) => text.as_str().into(),
            Value::Int(number) => number.to_string().into(),
            Value::UInt(number) => number.to_string().into(),
            Value::Float(number) => number.to_string().into(),
            Value::Bool(is_true) => is_true.to_string().into(),
            other => {
                return Err(format!(
                    "evaluates to {}, expected a text, a number, or true or false",
                    values::render_with_type(other)
                ));
            }
        };
        if key.len() > KEY_BYTES_MAX {
            return Err(format!(
                "evaluates to a text of {} bytes, and a key has at most {KEY_BYTES_MAX}",
                key.len()
            ));
        }
        Ok(key)
    }

    /// Evaluates the expression as a cell of a column: a text, a number, or true or false; `None`:
    /// the value is null.
    ///
    /// # Errors
    ///
    /// Returns an error, in one sentence, if the value is anything else, or the budget is
    /// exhausted.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the crate's enum may grow")]
    pub(crate) fn evaluate_cell(
        &self,
        scope: &dyn Scope,
        budget: &mut DecisionBudget,
    ) -> Result<Option<Cell>, String> {
        let (kind, text) = match self.evaluate_value(scope, budget, 0)? {
            Value::Null => return Ok(None),
            Value::String(text) => (CellKind::Text, text.as_str().into()),
            Value::Int(number) => (CellKind::Number, number.to_string().into()),
            Value::UInt(number) => (CellKind::Number, number.to_string().into()),
            Value::Float(number) => (CellKind::Number, render_float(number)?),
            Value::Bool(is_true) => (CellKind::Boolean, is_true.to_string().into()),
            other => {
                return Err(format!(
                    "evaluates to {}, expected a text, a number, or true or false",
                    values::render_with_type(&other)
                ));
            }
        };
        Ok(Some(Cell { kind, text }))
    }

    fn evaluate_value(
        &self,
        scope: &dyn Scope,
        decision_budget: &mut DecisionBudget,
        later_count: usize,
    ) -> Result<Value, String> {
        let cost_max = decision_budget.allowance(later_count);
        let budget = CostBudget::new(cost_max);
        let result = self.compute(scope, &budget);
        let earlier_cost = decision_budget.spend(cost_max.saturating_sub(budget.remaining()));
        // This takes precedence over a result: `||` and `&&` may have ignored the error of an
        // operand that exhausted the budget.
        if budget.is_exhausted() {
            let earlier_cost_note = if earlier_cost > 0 {
                format!(
                    " beside the {earlier_cost} of the conditions before it, and one decision may \
                     take {DECISION_COST_MAX}"
                )
            } else {
                String::new()
            };
            return Err(format!(
                "takes more than {cost_max} operations with this data{earlier_cost_note}; look \
                 at less of it"
            ));
        }
        result
    }

    /// Computes the value of the expression, within a cost budget.
    fn compute(&self, scope: &dyn Scope, budget: &CostBudget) -> Result<Value, String> {
        let mut context = Context::with_env(ENVIRONMENT.clone());
        values::add_variables(&self.0.required, scope, budget, &mut context)?;
        budget.add_to(&mut context)?;
        exact::add_to(&mut context)?;
        // No data is known to make the CEL crate panic. If some does, the job must survive.
        match catch_unwind(AssertUnwindSafe(|| Value::resolve(&self.0.root, &context))) {
            Ok(result) => result.map_err(|error| render_error(&error)),
            Err(_) => Err("cannot be evaluated with this data".to_owned()),
        }
    }
}

/// The budget that the evaluations of one decision share.
#[derive(Debug)]
pub struct DecisionBudget {
    /// The cost spent so far.
    spent: u64,
    /// The most that may be spent.
    cost_max: u64,
}

impl Default for DecisionBudget {
    fn default() -> DecisionBudget {
        DecisionBudget::of_cost(DECISION_COST_MAX)
    }
}

impl DecisionBudget {
    /// Creates a budget of this cost.
    pub(crate) fn of_cost(cost_max: u64) -> DecisionBudget {
        DecisionBudget { spent: 0, cost_max }
    }

    /// Returns what the next evaluation may cost. For each of the `later_count` evaluations that
    /// may follow, [`RESERVED_COST`] is left, or an equal share if there is less.
    fn allowance(&self, later_count: usize) -> u64 {
        let remaining = self.cost_max.saturating_sub(self.spent);
        let later_count = u64::try_from(later_count).unwrap_or(u64::MAX);
        let reserved = RESERVED_COST.min(remaining / later_count.saturating_add(1));
        remaining.saturating_sub(reserved.saturating_mul(later_count))
    }

    /// Spends `units`, and returns the cost spent before.
    fn spend(&mut self, units: u64) -> u64 {
        let earlier_cost = self.spent;
        self.spent = earlier_cost.saturating_add(units);
        earlier_cost
    }
}

/// Renders a number for people: a whole one without a point, such as 3.0 as 3.
fn render_float(number: f64) -> Result<Arc<str>, String> {
    if !number.is_finite() {
        return Err("evaluates to a number that is not finite".to_owned());
    }
    let is_whole = number.fract() == 0.0 && number.abs() < WHOLE_FLOAT_MAX;
    let text = if is_whole { format!("{number:.0}") } else { format!("{number:?}") };
    Ok(text.into())
}

/// Parses `text`, unless it is too long, has too many marks, or nests too deeply.
fn parse_text(text: &str) -> Result<(IdedExpr, SourceInfo), ExpressionError> {
    let error = |message: String| ExpressionError { line: 1, column: 1, message };
    if text.len() > TEXT_BYTES_MAX {
        return Err(error(format!(
            "has {} bytes, more than the {TEXT_BYTES_MAX} allowed",
            text.len()
        )));
    }
    let mark_count =
        text.chars().filter(|c| !c.is_alphanumeric() && !c.is_whitespace() && *c != '_').count();
    if mark_count > MARKS_MAX {
        return Err(error(format!(
            "has {mark_count} operators, dots, brackets and other marks, more than the {MARKS_MAX} \
             allowed"
        )));
    }
    let depth_max = u16::try_from(DEPTH_MAX).unwrap_or(u16::MAX);
    let parse = || ENVIRONMENT.parser().max_recursion_depth(depth_max).parse_with_source_info(text);
    match catch_unwind(AssertUnwindSafe(parse)) {
        Ok(Ok(tree_and_source)) => Ok(tree_and_source),
        Ok(Err(errors)) => Err(syntax::explain_errors(&errors, text)),
        Err(_) => Err(error("is not CEL".to_owned())),
    }
}

/// Renders an evaluation error as one sentence for users.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the crate's enum may grow; its own message suits the other variants"
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
