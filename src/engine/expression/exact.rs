//! Exact comparisons of integers with floating-point numbers.
//!
//! The CEL crate compares such a pair as two `double`s, which rounds integers beyond 2^53. So each
//! comparison in the syntax tree becomes a call of [`COMPARE`], which compares these pairs exactly
//! and leaves all others to the crate.

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelUInt};
use cel::common::value::{CowVal, Val};
use cel::{Context, ExecutionError, FunctionContext};
use std::cmp::Ordering;

/// The function that compares its first two arguments. The third is the operator, as an index into
/// [`OPERATORS`]. No text can call the function: `@` is not allowed in CEL identifiers.
const COMPARE: &str = "@compare";

/// The comparison operators that are made exact.
const OPERATORS: [&str; 7] = [
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::IN,
];

/// Replaces a comparison by a call of [`COMPARE`], and returns any other call unchanged.
pub(super) fn make_exact(mut call: CallExpr) -> CallExpr {
    let index = OPERATORS.iter().position(|operator| *operator == call.func_name);
    if let (Some(index), [_, right]) = (index, call.args.as_slice()) {
        let literal = LiteralValue::Int(i64::try_from(index).unwrap_or(i64::MAX).into());
        call.args.push(IdedExpr { id: right.id, expr: Expr::Literal(literal) });
        COMPARE.clone_into(&mut call.func_name);
    }
    call
}

/// Adds the function [`COMPARE`] to the context.
pub(super) fn add_to(context: &mut Context<'_, '_>) -> Result<(), String> {
    type CompareFunction = Box<
        dyn for<'c, 'v> Fn(&mut FunctionContext<'c, 'v>) -> Result<CowVal<'c, 'v>, ExecutionError>
            + Send
            + Sync,
    >;
    let function: CompareFunction = Box::new(compare);
    context.add_function(COMPARE, function).map_err(|error| error.to_string())
}

/// Handles a call of [`COMPARE`]: applies the operator to the two values.
fn compare<'c, 'v>(call: &mut FunctionContext<'c, 'v>) -> Result<CowVal<'c, 'v>, ExecutionError> {
    let operator = call.args.pop().and_then(|index| {
        let index = *index.downcast_ref::<CelInt>()?.inner();
        OPERATORS.get(usize::try_from(index).ok()?).copied()
    });
    let (right, left) = (call.args.pop(), call.args.pop());
    let (Some(operator), Some(left), Some(right)) = (operator, left, right) else {
        return Err(ExecutionError::function_error(COMPARE, "two values and an operator"));
    };
    let (left, right) = (left.as_ref(), right.as_ref());
    let result = match operator {
        operators::EQUALS => Ok(are_equal(left, right)),
        operators::NOT_EQUALS => Ok(!are_equal(left, right)),
        operators::LESS => compare_values(left, right).map(Ordering::is_lt),
        operators::LESS_EQUALS => compare_values(left, right).map(Ordering::is_le),
        operators::GREATER => compare_values(left, right).map(Ordering::is_gt),
        operators::GREATER_EQUALS => compare_values(left, right).map(Ordering::is_ge),
        // The only other operator is `in`.
        _ => is_in(left, right),
    };
    match result {
        Ok(is_true) => Ok(CowVal::owned(CelBool::from(is_true))),
        Err(Some(error)) if !is_type_error(&error) => Err(error),
        Err(_) => {
            let types = [left, right].map(|value| value.get_type().name().to_owned());
            Err(ExecutionError::no_such_overload(operator, types.to_vec()))
        }
    }
}

/// Returns whether the error means that the operator does not accept the types of its operands.
fn is_type_error(error: &ExecutionError) -> bool {
    matches!(
        error,
        ExecutionError::NoSuchOverload(_)
            | ExecutionError::ValuesNotComparable(..)
            | ExecutionError::UnsupportedKeyType(_)
            | ExecutionError::UnexpectedType { .. }
    )
}

/// Why a comparison has no result; `None`: the operator does not accept the types of its operands.
type ComparisonError = Option<ExecutionError>;

/// Compares two values by their order.
fn compare_values(left: &dyn Val, right: &dyn Val) -> Result<Ordering, ComparisonError> {
    match compare_mixed(left, right) {
        Some(order) => order.ok_or(None),
        None => left.as_comparer().ok_or(None)?.compare(right).map_err(Some),
    }
}

/// Returns whether two values are equal. Numbers in lists and maps are compared exactly too.
fn are_equal(left: &dyn Val, right: &dyn Val) -> bool {
    if let Some(order) = compare_mixed(left, right) {
        return order == Some(Ordering::Equal);
    }
    if let (Some(left_list), Some(right_list)) =
        (left.downcast_ref::<CelList>(), right.downcast_ref::<CelList>())
    {
        let (left_items, right_items) = (left_list.inner(), right_list.inner());
        return left_items.len() == right_items.len()
            && left_items
                .iter()
                .zip(right_items)
                .all(|(left, right)| are_equal(left.as_ref(), right.as_ref()));
    }
    if let (Some(left_map), Some(right_map)) =
        (left.downcast_ref::<CelMap>(), right.downcast_ref::<CelMap>())
    {
        let (left_entries, right_entries) = (left_map.inner(), right_map.inner());
        // Keys such as `1` and `1u` are different here, but equal for the CEL crate: if a key is
        // missing, the crate compares the maps.
        if left_entries.keys().all(|key| right_entries.contains_key(key)) {
            return left_entries.len() == right_entries.len()
                && left_entries.iter().all(|(key, left)| {
                    let right = right_entries.get(key);
                    right.is_some_and(|right| are_equal(left.as_ref(), right.as_ref()))
                });
        }
    }
    left.equals(right)
}

/// Returns whether a list has an element, or a map has a key. Elements are compared exactly.
fn is_in(value: &dyn Val, container: &dyn Val) -> Result<bool, ComparisonError> {
    match container.downcast_ref::<CelList>() {
        Some(list) => Ok(list.inner().iter().any(|item| are_equal(item.as_ref(), value))),
        None => container.as_container().ok_or(None)?.contains(value).map_err(Some),
    }
}

/// Compares an integer with a `double`, in either order. Returns `None` if the values are not such
/// a pair, and `Some(None)` if the `double` is NaN, which has no order.
fn compare_mixed(left: &dyn Val, right: &dyn Val) -> Option<Option<Ordering>> {
    if let (Some(integer), Some(double)) = (as_integer(left), right.downcast_ref::<CelDouble>()) {
        return Some(compare_numbers(integer, *double.inner()));
    }
    let (double, integer) = (left.downcast_ref::<CelDouble>()?, as_integer(right)?);
    Some(compare_numbers(integer, *double.inner()).map(Ordering::reverse))
}

/// Returns the value of an `int` or `uint`; `None`: it is of another type.
fn as_integer(value: &dyn Val) -> Option<i128> {
    match value.downcast_ref::<CelInt>() {
        Some(int) => Some(i128::from(*int.inner())),
        None => value.downcast_ref::<CelUInt>().map(|uint| i128::from(*uint.inner())),
    }
}

/// Compares an integer of at most 64 bits with a `double`, without rounding; `None`: the `double`
/// is NaN.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the cast saturates at the limits of i128, which are beyond all 64-bit integers"
)]
fn compare_numbers(integer: i128, double: f64) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    let floor = double.floor();
    // If the whole parts are equal, a fraction makes the `double` the larger one.
    let fraction_order = if double > floor { Ordering::Less } else { Ordering::Equal };
    Some(integer.cmp(&(floor as i128)).then(fraction_order))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_doubles_compare_exactly() {
        use Ordering::{Equal, Greater, Less};
        const TWO_TO_THE_53: f64 = 9_007_199_254_740_992.0;
        let cases = [
            (1 << 53, TWO_TO_THE_53, Equal),
            ((1 << 53) + 1, TWO_TO_THE_53, Greater),
            ((1 << 53) - 1, TWO_TO_THE_53, Less),
            (-(1 << 53) - 1, -TWO_TO_THE_53, Less),
            (-(1 << 53), -TWO_TO_THE_53, Equal),
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
        for (integer, double, order) in cases {
            assert_eq!(compare_numbers(integer, double), Some(order), "{integer} and {double}");
        }
        assert_eq!(compare_numbers(1, f64::NAN), None);
    }
}
