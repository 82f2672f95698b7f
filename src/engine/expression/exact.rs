//! Comparisons of numbers, exact. The CEL crate compares a whole number with a decimal as two
//! `double`s, which rounds whole numbers beyond 2^53. So each comparison in the tree becomes a call
//! of [`COMPARE`], which leaves to the crate what is no such pair.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelUInt};
use cel::common::value::{CowVal, Val};
use cel::{Context, ExecutionError, FunctionContext};
use std::cmp::Ordering;

/// The function that compares its first two arguments; the third says how, as an index of
/// [`OPERATORS`]. No text can call it: `@` is not a letter in CEL.
const COMPARE: &str = "@compare";

const OPERATORS: [&str; 7] = [
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::IN,
];

/// The call, of [`COMPARE`] if it is a comparison.
pub(super) fn made_exact(mut call: CallExpr) -> CallExpr {
    let at = OPERATORS.iter().position(|operator| *operator == call.func_name);
    if let (Some(at), [_, right]) = (at, call.args.as_slice()) {
        let at = LiteralValue::Int(i64::try_from(at).unwrap_or(i64::MAX).into());
        call.args.push(IdedExpr { id: right.id, expr: Expr::Literal(at) });
        COMPARE.clone_into(&mut call.func_name);
    }
    call
}

/// Gives the tree its function.
pub(super) fn add_to(context: &mut Context<'_, '_>) -> Result<(), String> {
    type Comparing = Box<
        dyn for<'c, 'v> Fn(&mut FunctionContext<'c, 'v>) -> Result<CowVal<'c, 'v>, ExecutionError>
            + Send
            + Sync,
    >;
    let comparing: Comparing = Box::new(compare);
    context.add_function(COMPARE, comparing).map_err(|error| error.to_string())
}

fn compare<'c, 'v>(call: &mut FunctionContext<'c, 'v>) -> Result<CowVal<'c, 'v>, ExecutionError> {
    let at = call.args.pop().and_then(|at| at.downcast_ref::<CelInt>().map(|at| *at.inner()));
    let operator = at.and_then(|at| OPERATORS.get(usize::try_from(at).ok()?).copied());
    let (right, left) = (call.args.pop(), call.args.pop());
    let (Some(operator), Some(left), Some(right)) = (operator, left, right) else {
        return Err(ExecutionError::function_error(COMPARE, "two values and an operator"));
    };
    let (left, right) = (left.as_ref(), right.as_ref());
    let result = match operator {
        operators::EQUALS => Ok(are_equal(left, right)),
        operators::NOT_EQUALS => Ok(!are_equal(left, right)),
        operators::LESS => order(left, right).map(Ordering::is_lt),
        operators::LESS_EQUALS => order(left, right).map(Ordering::is_le),
        operators::GREATER => order(left, right).map(Ordering::is_gt),
        operators::GREATER_EQUALS => order(left, right).map(Ordering::is_ge),
        _ => is_in(left, right),
    };
    match result {
        Ok(truth) => Ok(CowVal::owned(CelBool::from(truth))),
        Err(Some(error)) if !is_of_types(&error) => Err(error),
        Err(_) => {
            let types = [left, right].map(|value| value.get_type().name().to_owned());
            Err(ExecutionError::no_such_overload(operator, types.to_vec()))
        }
    }
}

/// Whether the operands are of types that the operator does not take.
fn is_of_types(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::NoSuchOverload(_)
            | ExecutionError::ValuesNotComparable(..)
            | ExecutionError::UnsupportedKeyType(_)
            | ExecutionError::UnexpectedType { .. }
    )
}

/// Why a comparison came to nothing; none: the operator does not take these types.
type NoTruth = Option<ExecutionError>;

fn order(left: &dyn Val, right: &dyn Val) -> Result<Ordering, NoTruth> {
    match mixed(left, right) {
        Some(order) => order.ok_or(None),
        None => left.as_comparer().ok_or(None)?.compare(right).map_err(Some),
    }
}

fn are_equal(left: &dyn Val, right: &dyn Val) -> bool {
    if let Some(order) = mixed(left, right) {
        return order == Some(Ordering::Equal);
    }
    if let (Some(left), Some(right)) =
        (left.downcast_ref::<CelList>(), right.downcast_ref::<CelList>())
    {
        let (left, right) = (left.inner(), right.inner());
        return left.len() == right.len()
            && left
                .iter()
                .zip(right)
                .all(|(left, right)| are_equal(left.as_ref(), right.as_ref()));
    }
    if let (Some(lefts), Some(rights)) =
        (left.downcast_ref::<CelMap>(), right.downcast_ref::<CelMap>())
    {
        let (lefts, rights) = (lefts.inner(), rights.inner());
        // The crate finds `1u` where `1` is asked for.
        return match lefts.keys().all(|key| rights.contains_key(key)) {
            true => {
                lefts.len() == rights.len()
                    && lefts.iter().all(|(key, left)| {
                        let right = rights.get(key);
                        right.is_some_and(|right| are_equal(left.as_ref(), right.as_ref()))
                    })
            }
            false => left.equals(right),
        };
    }
    left.equals(right)
}

fn is_in(value: &dyn Val, container: &dyn Val) -> Result<bool, NoTruth> {
    match container.downcast_ref::<CelList>() {
        Some(list) => Ok(list.inner().iter().any(|item| are_equal(item.as_ref(), value))),
        None => container.as_container().ok_or(None)?.contains(value).map_err(Some),
    }
}

/// The order of a whole number and a decimal; none: it is no such pair, or, within, the decimal is
/// no number.
fn mixed(left: &dyn Val, right: &dyn Val) -> Option<Option<Ordering>> {
    if let (Some(whole), Some(decimal)) = (whole(left), right.downcast_ref::<CelDouble>()) {
        return Some(order_of(whole, *decimal.inner()));
    }
    let (decimal, whole) = (left.downcast_ref::<CelDouble>()?, whole(right)?);
    Some(order_of(whole, *decimal.inner()).map(Ordering::reverse))
}

fn whole(value: &dyn Val) -> Option<i128> {
    match value.downcast_ref::<CelInt>() {
        Some(value) => Some(i128::from(*value.inner())),
        None => value.downcast_ref::<CelUInt>().map(|value| i128::from(*value.inner())),
    }
}

/// How a whole number of at most 64 bits compares with a decimal; none: that is no number.
#[allow(
    clippy::cast_possible_truncation,
    reason = "what an i128 cannot hold becomes its end, which is beyond all 64 bits"
)]
fn order_of(whole: i128, decimal: f64) -> Option<Ordering> {
    if decimal.is_nan() {
        return None;
    }
    let below = decimal.floor();
    let fraction = if decimal > below { Ordering::Less } else { Ordering::Equal };
    Some(whole.cmp(&(below as i128)).then(fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_and_decimals_compare_exactly() {
        use Ordering::{Equal, Greater, Less};
        const AT_53: f64 = 9_007_199_254_740_992.0;
        let cases = [
            (1 << 53, AT_53, Equal),
            ((1 << 53) + 1, AT_53, Greater),
            ((1 << 53) - 1, AT_53, Less),
            (-(1 << 53) - 1, -AT_53, Less),
            (-(1 << 53), -AT_53, Equal),
            (i128::from(i64::MAX), 9_223_372_036_854_775_808.0, Less),
            (i128::from(i64::MIN), -9_223_372_036_854_775_808.0, Equal),
            (i128::from(i64::MAX), 1e19, Less),
            (i128::from(u64::MAX), 1e19, Greater),
            (i128::from(u64::MAX), 18_446_744_073_709_551_616.0, Less),
            (1, 1.5, Less),
            (2, 1.5, Greater),
            (-1, -1.5, Greater),
            (-2, -1.5, Less),
            (0, -0.0, Equal),
            (i128::from(u64::MAX), f64::INFINITY, Less),
            (i128::from(i64::MIN), f64::NEG_INFINITY, Greater),
        ];
        for (whole, decimal, order) in cases {
            assert_eq!(order_of(whole, decimal), Some(order), "{whole} and {decimal}");
        }
        assert_eq!(order_of(1, f64::NAN), None);
    }
}
