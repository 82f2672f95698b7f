//! What an evaluation costs. The CEL crate has no limit, so the tree itself pays. Each value that
//! an operation copies, compares or iterates over is wrapped in a call of [`CHARGE`], which takes
//! the value's size from the budget and returns the value. So the cost is measured, not guessed
//! from the text: `input.a.all(x, x in input.b)` costs as much as its lists are long. Operations
//! that take the same time for all operands are free: logic, indexing, selecting a key. The text
//! limits their number, and each iteration of a loop pays for those in its body.

use super::exact::made_exact;
use super::names::child_nodes;
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators,
};
use cel::common::types::{CelBytes, CelList, CelMap, CelString};
use cel::common::value::{CowVal, Val};
use cel::{Context, ExecutionError, FunctionContext};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The function that charges for its first argument and returns it; the second is an extra cost. No
/// text can call it: `@` is not a letter in CEL.
const CHARGE: &str = "@charge";

/// Operators that take the same time whatever their operands.
const FREE_OPERATORS: [&str; 7] = [
    operators::CONDITIONAL,
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::NEGATE,
    operators::INDEX,
    operators::NOT_STRICTLY_FALSE,
];

/// How many bytes of text cost as much as one value.
const TEXT_BYTES_PER_UNIT: usize = 32;

/// How many keys of a message cost as much as one value when they are only searched.
const KEYS_PER_UNIT: usize = 4;

/// How many bytes of JSON text cost as much as one value when it is read and not built.
const READ_BYTES_PER_UNIT: usize = 512;

/// How many commas, colons and brackets in that text cost one more.
const READ_MARKS_PER_UNIT: usize = 16;

/// What an entry of a built map costs, besides its key and its value.
const ENTRY_COST: u64 = 3;

/// What each iteration of a loop costs, besides its operations.
const ITERATION_COST: usize = 4;

/// What an evaluation may still cost.
#[derive(Clone)]
pub(super) struct CostBudget(Arc<AtomicU64>);

impl CostBudget {
    pub(super) fn new(units: u64) -> CostBudget {
        // One unit more than may be spent: if nothing is left, too much was asked for.
        CostBudget(Arc::new(AtomicU64::new(units.saturating_add(1))))
    }

    pub(super) fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left() == 0
    }

    /// Spends `units`; returns whether there were enough. They stay spent in any case.
    pub(super) fn spend(&self, units: u64) -> bool {
        let left = self.left().saturating_sub(units);
        self.0.store(left, Ordering::Relaxed);
        left > 0
    }

    /// Spends what a text of `bytes` costs.
    pub(super) fn spend_text(&self, bytes: usize) -> bool {
        self.spend(text_units(bytes))
    }

    /// Spends what it costs to look through the keys of a message.
    pub(super) fn spend_keys(&self, keys: usize) -> bool {
        self.spend(u64::try_from(keys / KEYS_PER_UNIT).unwrap_or(u64::MAX))
    }

    /// Spends what it costs to read JSON text, whatever is built from it.
    pub(super) fn spend_read(&self, text: &str) -> bool {
        let marks = text.bytes().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
        self.spend(
            u64::try_from(text.len() / READ_BYTES_PER_UNIT + marks / READ_MARKS_PER_UNIT)
                .unwrap_or(u64::MAX),
        )
    }

    /// Spends what an entry of a map costs whose key has `bytes`, without its value.
    pub(super) fn spend_entry(&self, bytes: usize) -> bool {
        self.spend(text_units(bytes).saturating_add(ENTRY_COST))
    }

    /// Adds the function [`CHARGE`] to the context.
    pub(super) fn add_to(&self, context: &mut Context<'_, '_>) -> Result<(), String> {
        type Charging = Box<
            dyn for<'c, 'v> Fn(
                    &mut FunctionContext<'c, 'v>,
                ) -> Result<CowVal<'c, 'v>, ExecutionError>
                + Send
                + Sync,
        >;
        let budget = self.clone();
        let charging: Charging = Box::new(move |call| budget.charge(call));
        context.add_function(CHARGE, charging).map_err(|error| error.to_string())
    }

    fn charge<'c, 'v>(
        &self,
        call: &mut FunctionContext<'c, 'v>,
    ) -> Result<CowVal<'c, 'v>, ExecutionError> {
        let spent = || ExecutionError::function_error(CHARGE, "the budget is spent");
        let extra = match call.args.len() {
            2 => call.args.pop().and_then(|units| {
                let units = units.downcast_ref::<cel::common::types::CelInt>()?;
                u64::try_from(*units.inner()).ok()
            }),
            _ => Some(0),
        };
        let (value, extra) = call.args.pop().zip(extra).ok_or_else(spent)?;
        let size = size(value.as_ref(), self.left());
        if self.spend(size.saturating_add(extra)) { Ok(value) } else { Err(spent()) }
    }
}

fn text_units(bytes: usize) -> u64 {
    u64::try_from(bytes / TEXT_BYTES_PER_UNIT).unwrap_or(u64::MAX).saturating_add(1)
}

/// Returns the size of a value with all that is in it, in units; counted up to `limit`.
fn size(value: &dyn Val, limit: u64) -> u64 {
    let mut units: u64 = 1;
    if let Some(text) = value.downcast_ref::<CelString>() {
        units = text_units(text.inner().len());
    } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        units = text_units(bytes.inner().len());
    } else if let Some(list) = value.downcast_ref::<CelList>() {
        for item in list.inner() {
            units = units.saturating_add(size(item.as_ref(), limit.saturating_sub(units)));
            if units > limit {
                break;
            }
        }
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        for item in map.inner().values() {
            units = units
                .saturating_add(size(item.as_ref(), limit.saturating_sub(units)))
                .saturating_add(1);
            if units > limit {
                break;
            }
        }
    }
    units
}

/// Adds the charges to a tree. It then nests at most twice as deep.
pub(super) fn add_charges(node: IdedExpr) -> IdedExpr {
    let IdedExpr { id, expr } = node;
    let expr = match expr {
        Expr::Call(call) => Expr::Call(add_charges_to_call(call)),
        Expr::Comprehension(parts) => Expr::Comprehension(Box::new(add_charges_to_loop(*parts))),
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

fn add_charges_to_call(mut call: CallExpr) -> CallExpr {
    let operand = if FREE_OPERATORS.contains(&call.func_name.as_str()) {
        add_charges
    } else {
        charge_operand
    };
    call.target = call.target.map(|target| Box::new(operand(*target)));
    call.args = call.args.into_iter().map(operand).collect();
    made_exact(call)
}

/// Adds the charges to a loop. It pays for its range at once, and for its body at each iteration.
/// `all` and `exists` go on after an error in their body, where nothing would be charged: so they
/// pay in the condition that begins each iteration.
fn add_charges_to_loop(mut parts: ComprehensionExpr) -> ComprehensionExpr {
    parts.iter_range = charge_operand(parts.iter_range);
    if matches!(parts.loop_cond.expr, Expr::Literal(_)) {
        parts.loop_step = add_charges_to_loop_step(parts.loop_step, &parts.accu_var);
    } else {
        parts.loop_cond = charge_iteration(parts.loop_cond, count_operations(&parts.loop_step));
        parts.loop_step = add_charges(parts.loop_step);
    }
    parts
}

/// Adds the charges to the step of a loop. The macros give it one of a few forms: the result so
/// far, and what the body adds. The form is kept, because the crate recognises it and appends to
/// the list in place.
fn add_charges_to_loop_step(step: IdedExpr, result: &str) -> IdedExpr {
    let is_result = |part: &IdedExpr| matches!(&part.expr, Expr::Ident(name) if name == result);
    let IdedExpr { id, expr } = step;
    let Expr::Call(mut call) = expr else { return charge_body(IdedExpr { id, expr }) };
    if !call.args.iter().any(is_result) {
        return charge_body(IdedExpr { id, expr: Expr::Call(call) });
    }
    let conditional = call.func_name == operators::CONDITIONAL;
    call.args = call
        .args
        .into_iter()
        .enumerate()
        .map(|(at, part)| match (&part.expr, at) {
            _ if is_result(&part) => part,
            (_, 1) if conditional => add_charges_to_loop_step(part, result),
            // `@result + [item]`: charged as the element of a list.
            (Expr::List(_), _) => add_charges(part),
            _ => charge_body(part),
        })
        .collect();
    IdedExpr { id, expr: Expr::Call(call) }
}

fn charge_body(body: IdedExpr) -> IdedExpr {
    let operations = count_operations(&body);
    charge_iteration(add_charges(body), operations)
}

/// Charges what each iteration evaluates, and the cost of the iteration itself.
fn charge_iteration(part: IdedExpr, operations: usize) -> IdedExpr {
    let units = i64::try_from(operations + ITERATION_COST).unwrap_or(i64::MAX);
    let id = part.id;
    let extra = IdedExpr { id, expr: Expr::Literal(LiteralValue::Int(units.into())) };
    charge_call(id, vec![part, extra])
}

/// Charges what an operation pays for an operand; a literal costs nothing.
fn charge_operand(operand: IdedExpr) -> IdedExpr {
    let id = operand.id;
    if matches!(operand.expr, Expr::Literal(_)) {
        operand
    } else {
        charge_call(id, vec![add_charges(operand)])
    }
}

fn charge_call(id: u64, args: Vec<IdedExpr>) -> IdedExpr {
    IdedExpr { id, expr: Expr::Call(CallExpr { func_name: CHARGE.to_owned(), target: None, args }) }
}

fn count_operations(node: &IdedExpr) -> usize {
    1 + child_nodes(node).into_iter().map(count_operations).sum::<usize>()
}
