//! Limits the cost of an evaluation.
//!
//! The CEL crate has no limit, so the syntax tree is instrumented: each operand that an operation
//! copies, compares or iterates over is wrapped in a call of [`CHARGE`], which spends the operand's
//! size from the budget and returns the operand. The cost is measured, not estimated from the text:
//! that of `input.a.all(x, x in input.b)` depends on the lengths of the lists.
//!
//! Operations that take O(1) are free: logic, indexing, selecting a key. The length of the text
//! limits their number, and each iteration of a loop pays for those in its body.

use super::exact::make_exact;
use super::names::child_nodes;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators,
};
use cel::common::types::{CelBytes, CelInt, CelList, CelMap, CelString};
use cel::common::value::{CowVal, Val};
use cel::{Context, ExecutionError, FunctionContext};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The function that spends the size of its first argument and returns it. An optional second
/// argument is an additional cost. No text can call the function: `@` is not allowed in CEL
/// identifiers.
const CHARGE: &str = "@charge";

/// The operators that take O(1), whatever their operands.
const FREE_OPERATORS: [&str; 7] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::NEGATE,
    operators::INDEX,
    operators::NOT_STRICTLY_FALSE,
];

/// The bytes of a string that cost one unit.
const TEXT_BYTES_PER_UNIT: usize = 32;

/// The keys of a message that cost one unit when they are searched.
const KEYS_PER_UNIT: usize = 4;

/// The bytes of JSON text that cost one unit when they are parsed.
const READ_BYTES_PER_UNIT: usize = 512;

/// The commas, colons and brackets of JSON text that cost one unit when they are parsed.
const READ_MARKS_PER_UNIT: usize = 16;

/// The cost of an entry of a map that is built, in addition to its key and its value.
const ENTRY_COST: u64 = 3;

/// The cost of an iteration of a loop, in addition to its operations.
const ITERATION_COST: usize = 4;

/// The cost that an evaluation may still spend, in units. Clones share it. It holds one unit more
/// than may be spent: 0 means that more was requested.
///
/// It is atomic because the CEL crate requires functions that are `Sync`. An evaluation runs on one
/// thread, so a load and a store need not be one operation.
#[derive(Clone)]
pub(super) struct CostBudget(Arc<AtomicU64>);

impl CostBudget {
    /// Creates a budget of `units`.
    pub(super) fn new(units: u64) -> CostBudget {
        CostBudget(Arc::new(AtomicU64::new(units.saturating_add(1))))
    }

    /// Returns the units that may still be spent.
    pub(super) fn remaining(&self) -> u64 {
        self.0.load(Ordering::Relaxed).saturating_sub(1)
    }

    /// Returns whether more units were requested than the budget had.
    pub(super) fn is_exhausted(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Spends `units`, and returns whether the budget was sufficient. If not, it is exhausted.
    pub(super) fn spend(&self, units: u64) -> bool {
        let remainder = self.0.load(Ordering::Relaxed).saturating_sub(units);
        self.0.store(remainder, Ordering::Relaxed);
        remainder > 0
    }

    /// Spends the cost of a value with a text of `bytes`, or of a value without text if `bytes` is
    /// 0. As all `spend_…` functions, it returns whether the budget was sufficient.
    pub(super) fn spend_text(&self, bytes: usize) -> bool {
        self.spend(text_units(bytes))
    }

    /// Spends the cost of searching a message with this number of keys.
    pub(super) fn spend_keys(&self, key_count: usize) -> bool {
        self.spend(u64::try_from(key_count / KEYS_PER_UNIT).unwrap_or(u64::MAX))
    }

    /// Spends the cost of parsing JSON text, whatever is built from it.
    pub(super) fn spend_read(&self, text: &str) -> bool {
        let mark_count =
            text.bytes().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
        let units = text.len() / READ_BYTES_PER_UNIT + mark_count / READ_MARKS_PER_UNIT;
        self.spend(u64::try_from(units).unwrap_or(u64::MAX))
    }

    /// Spends the cost of a map's entry whose key has `bytes`, without the cost of its value.
    pub(super) fn spend_entry(&self, bytes: usize) -> bool {
        self.spend(text_units(bytes).saturating_add(ENTRY_COST))
    }

    /// Adds the function [`CHARGE`], which spends from this budget, to the context.
    pub(super) fn add_to(&self, context: &mut Context<'_, '_>) -> Result<(), String> {
        type ChargeFunction = Box<
            dyn for<'c, 'v> Fn(
                    &mut FunctionContext<'c, 'v>,
                ) -> Result<CowVal<'c, 'v>, ExecutionError>
                + Send
                + Sync,
        >;
        let budget = self.clone();
        let function: ChargeFunction = Box::new(move |call| budget.charge(call));
        context.add_function(CHARGE, function).map_err(|error| error.to_string())
    }

    /// Handles a call of [`CHARGE`]: spends the size of the first argument and the additional cost,
    /// and returns the first argument.
    fn charge<'c, 'v>(
        &self,
        call: &mut FunctionContext<'c, 'v>,
    ) -> Result<CowVal<'c, 'v>, ExecutionError> {
        let error = || ExecutionError::function_error(CHARGE, "the budget is spent");
        let extra_cost = match call.args.len() {
            2 => call.args.pop().and_then(|cost| {
                let cost = cost.downcast_ref::<CelInt>()?;
                u64::try_from(*cost.inner()).ok()
            }),
            _ => Some(0),
        };
        let (value, extra_cost) = call.args.pop().zip(extra_cost).ok_or_else(error)?;
        let size = measure(value.as_ref(), self.remaining());
        if self.spend(size.saturating_add(extra_cost)) { Ok(value) } else { Err(error()) }
    }
}

/// Returns the cost of a text of `bytes`.
fn text_units(bytes: usize) -> u64 {
    u64::try_from(bytes / TEXT_BYTES_PER_UNIT).unwrap_or(u64::MAX).saturating_add(1)
}

/// Returns the size of a value with everything in it, in units. It stops counting once the size
/// exceeds `limit`.
fn measure(value: &dyn Val, limit: u64) -> u64 {
    let mut units: u64 = 1;
    if let Some(text) = value.downcast_ref::<CelString>() {
        units = text_units(text.inner().len());
    } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        units = text_units(bytes.inner().len());
    } else if let Some(list) = value.downcast_ref::<CelList>() {
        for item in list.inner() {
            units = units.saturating_add(measure(item.as_ref(), limit.saturating_sub(units)));
            if units > limit {
                break;
            }
        }
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        for value in map.inner().values() {
            // One more unit for the key.
            units = units
                .saturating_add(measure(value.as_ref(), limit.saturating_sub(units)))
                .saturating_add(1);
            if units > limit {
                break;
            }
        }
    }
    units
}

/// Adds charges to a syntax tree, whose depth at most doubles.
pub(super) fn add_charges(node: IdedExpr) -> IdedExpr {
    let IdedExpr { id, expr } = node;
    let expr = match expr {
        Expr::Call(call) => Expr::Call(add_charges_to_call(call)),
        Expr::Comprehension(comprehension) => {
            Expr::Comprehension(Box::new(add_charges_to_loop(*comprehension)))
        }
        Expr::List(mut list) => {
            list.elements = list.elements.into_iter().map(charge_operand).collect();
            Expr::List(list)
        }
        Expr::Map(mut map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    entry.key = charge_operand(std::mem::take(&mut entry.key));
                    entry.value = charge_operand(std::mem::take(&mut entry.value));
                }
            }
            Expr::Map(map)
        }
        Expr::Select(mut select) => {
            *select.operand = add_charges(std::mem::take(&mut select.operand));
            Expr::Select(select)
        }
        leaf @ (Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified) => leaf,
    };
    IdedExpr { id, expr }
}

/// Adds charges to a call. Its operands are charged unless the call takes O(1). A comparison
/// becomes an exact one (see [`make_exact`]).
fn add_charges_to_call(mut call: CallExpr) -> CallExpr {
    let transform_operand = if FREE_OPERATORS.contains(&call.func_name.as_str()) {
        add_charges
    } else {
        charge_operand
    };
    call.target = call.target.map(|target| Box::new(transform_operand(*target)));
    call.args = call.args.into_iter().map(transform_operand).collect();
    make_exact(call)
}

/// Adds charges to a loop. It pays for its range before the first iteration, and for its body in
/// each iteration. `all` and `exists` continue after an error in their body, where a charge would
/// have no effect, so they pay in the condition that each iteration evaluates first.
fn add_charges_to_loop(mut comprehension: ComprehensionExpr) -> ComprehensionExpr {
    comprehension.iter_range = charge_operand(comprehension.iter_range);
    let step = comprehension.loop_step;
    // The condition of `map`, `filter` and `exists_one` is the literal `true`.
    if matches!(comprehension.loop_cond.expr, Expr::Literal(_)) {
        comprehension.loop_step = add_charges_to_loop_step(step, &comprehension.accu_var);
    } else {
        comprehension.loop_cond =
            charge_iteration(comprehension.loop_cond, count_operations(&step));
        comprehension.loop_step = add_charges(step);
    }
    comprehension
}

/// Adds charges to the step of a loop, which combines the accumulator with the value of the body.
/// The step keeps its form, because the CEL crate recognises it and appends to the list in place.
fn add_charges_to_loop_step(step: IdedExpr, accumulator: &str) -> IdedExpr {
    let is_accumulator =
        |node: &IdedExpr| matches!(&node.expr, Expr::Ident(name) if name == accumulator);
    let IdedExpr { id, expr } = step;
    let Expr::Call(mut call) = expr else { return charge_body(IdedExpr { id, expr }) };
    if !call.args.iter().any(is_accumulator) {
        return charge_body(IdedExpr { id, expr: Expr::Call(call) });
    }
    let is_conditional = call.func_name == operators::CONDITIONAL;
    call.args = call
        .args
        .into_iter()
        .enumerate()
        .map(|(position, arg)| match (&arg.expr, position) {
            _ if is_accumulator(&arg) => arg,
            (_, 1) if is_conditional => add_charges_to_loop_step(arg, accumulator),
            // `@result + [item]`: the item is charged as the element of a list.
            (Expr::List(_), _) => add_charges(arg),
            _ => charge_body(arg),
        })
        .collect();
    IdedExpr { id, expr: Expr::Call(call) }
}

/// Charges the body of a loop in each iteration.
fn charge_body(body: IdedExpr) -> IdedExpr {
    let operation_count = count_operations(&body);
    charge_iteration(add_charges(body), operation_count)
}

/// Charges a node that each iteration evaluates, with the cost of the iteration and its operations.
fn charge_iteration(node: IdedExpr, operation_count: usize) -> IdedExpr {
    let units = i64::try_from(operation_count + ITERATION_COST).unwrap_or(i64::MAX);
    let id = node.id;
    let extra_cost = IdedExpr { id, expr: Expr::Literal(LiteralValue::Int(units.into())) };
    charge_call(id, vec![node, extra_cost])
}

/// Charges an operand of an operation. A literal is free.
fn charge_operand(operand: IdedExpr) -> IdedExpr {
    let id = operand.id;
    if matches!(operand.expr, Expr::Literal(_)) {
        operand
    } else {
        charge_call(id, vec![add_charges(operand)])
    }
}

/// Creates a call of [`CHARGE`].
fn charge_call(id: u64, args: Vec<IdedExpr>) -> IdedExpr {
    IdedExpr { id, expr: Expr::Call(CallExpr { func_name: CHARGE.to_owned(), target: None, args }) }
}

/// Counts the nodes of a syntax tree.
fn count_operations(node: &IdedExpr) -> usize {
    1 + child_nodes(node).into_iter().map(count_operations).sum::<usize>()
}
