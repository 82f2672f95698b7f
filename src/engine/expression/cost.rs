//! What an evaluation costs. The CEL crate has no limit, so the tree itself pays. Each value that
//! an operation copies, compares or iterates over is wrapped in a call of [`CHARGE`], which takes
//! the value's size from the budget and returns the value. So the cost is measured, not guessed
//! from the text: `input.a.all(x, x in input.b)` costs as much as its lists are long. Operations
//! that take the same time for all operands are free: logic, indexing, selecting a key. The text
//! limits their number, and each iteration of a loop pays for those in its body.

use super::exact::made_exact;
use super::names::parts;
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
const FREE: [&str; 7] = [
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
const TURN_COST: usize = 4;

/// What an evaluation may still cost.
#[derive(Clone)]
pub(super) struct Budget(Arc<AtomicU64>);

impl Budget {
    pub(super) fn new(units: u64) -> Budget {
        // One unit more than may be spent: if nothing is left, too much was asked for.
        Budget(Arc::new(AtomicU64::new(units.saturating_add(1))))
    }

    pub(super) fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left() == 0
    }

    /// Spends `units`; returns whether there were enough. They stay spent in any case.
    pub(super) fn take(&self, units: u64) -> bool {
        let left = self.left().saturating_sub(units);
        self.0.store(left, Ordering::Relaxed);
        left > 0
    }

    /// Spends what a text of `bytes` costs.
    pub(super) fn take_text(&self, bytes: usize) -> bool {
        self.take(text_units(bytes))
    }

    /// Spends what it costs to look through the keys of a message.
    pub(super) fn take_keys(&self, keys: usize) -> bool {
        self.take(u64::try_from(keys / KEYS_PER_UNIT).unwrap_or(u64::MAX))
    }

    /// Spends what it costs to read JSON text, whatever is built from it.
    pub(super) fn take_read(&self, text: &str) -> bool {
        let marks = text.bytes().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
        self.take(
            u64::try_from(text.len() / READ_BYTES_PER_UNIT + marks / READ_MARKS_PER_UNIT)
                .unwrap_or(u64::MAX),
        )
    }

    /// Spends what an entry of a map costs whose key has `bytes`, without its value.
    pub(super) fn take_entry(&self, bytes: usize) -> bool {
        self.take(text_units(bytes).saturating_add(ENTRY_COST))
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
        let refusal = || ExecutionError::function_error(CHARGE, "the budget is spent");
        let besides = match call.args.len() {
            2 => call.args.pop().and_then(|units| {
                units.downcast_ref::<cel::common::types::CelInt>().map(|units| *units.inner())
            }),
            _ => None,
        };
        let value = call.args.pop().ok_or_else(refusal)?;
        let besides = besides.and_then(|units| u64::try_from(units).ok()).unwrap_or_default();
        let size = size(value.as_ref(), self.left());
        if self.take(size.saturating_add(besides)) { Ok(value) } else { Err(refusal()) }
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
pub(super) fn charged(node: IdedExpr) -> IdedExpr {
    let IdedExpr { id, expr } = node;
    let expr = match expr {
        Expr::Call(call) => Expr::Call(charged_call(call)),
        Expr::Comprehension(parts) => Expr::Comprehension(Box::new(charged_loop(*parts))),
        Expr::List(mut list) => {
            list.elements = list.elements.into_iter().map(paid).collect();
            Expr::List(list)
        }
        Expr::Map(mut map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    entry.key = paid(std::mem::take(&mut entry.key));
                    entry.value = paid(std::mem::take(&mut entry.value));
                }
            }
            Expr::Map(map)
        }
        Expr::Select(mut select) => {
            *select.operand = charged(std::mem::take(&mut select.operand));
            Expr::Select(select)
        }
        leaf @ (Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) | Expr::Unspecified) => leaf,
    };
    IdedExpr { id, expr }
}

fn charged_call(mut call: CallExpr) -> CallExpr {
    let operand = if FREE.contains(&call.func_name.as_str()) { charged } else { paid };
    call.target = call.target.map(|target| Box::new(operand(*target)));
    call.args = call.args.into_iter().map(operand).collect();
    made_exact(call)
}

/// Adds the charges to a loop. It pays for its range at once, and for its body at each iteration.
/// `all` and `exists` go on after an error in their body, where nothing would be charged: so they
/// pay in the condition that begins each iteration.
fn charged_loop(mut parts: ComprehensionExpr) -> ComprehensionExpr {
    parts.iter_range = paid(parts.iter_range);
    if matches!(parts.loop_cond.expr, Expr::Literal(_)) {
        parts.loop_step = charged_step(parts.loop_step, &parts.accu_var);
    } else {
        parts.loop_cond = paid_turn(parts.loop_cond, count(&parts.loop_step));
        parts.loop_step = charged(parts.loop_step);
    }
    parts
}

/// Adds the charges to the step of a loop. The macros give it one of a few forms: the result so
/// far, and what the body adds. The form is kept, because the crate recognises it and appends to
/// the list in place.
fn charged_step(step: IdedExpr, result: &str) -> IdedExpr {
    let is_result = |part: &IdedExpr| matches!(&part.expr, Expr::Ident(name) if name == result);
    let IdedExpr { id, expr } = step;
    let Expr::Call(mut call) = expr else { return paid_body(IdedExpr { id, expr }) };
    if !call.args.iter().any(is_result) {
        return paid_body(IdedExpr { id, expr: Expr::Call(call) });
    }
    let conditional = call.func_name == operators::CONDITIONAL;
    call.args = call
        .args
        .into_iter()
        .enumerate()
        .map(|(at, part)| match (&part.expr, at) {
            _ if is_result(&part) => part,
            (_, 1) if conditional => charged_step(part, result),
            // `@result + [item]`: charged as the element of a list.
            (Expr::List(_), _) => charged(part),
            _ => paid_body(part),
        })
        .collect();
    IdedExpr { id, expr: Expr::Call(call) }
}

fn paid_body(body: IdedExpr) -> IdedExpr {
    let operations = count(&body);
    paid_turn(charged(body), operations)
}

/// Charges what each iteration evaluates, and the cost of the iteration itself.
fn paid_turn(part: IdedExpr, operations: usize) -> IdedExpr {
    let units = i64::try_from(operations + TURN_COST).unwrap_or(i64::MAX);
    let id = part.id;
    let besides = IdedExpr { id, expr: Expr::Literal(LiteralValue::Int(units.into())) };
    call_of_charge(id, vec![part, besides])
}

/// Charges what an operation pays for an operand; a literal costs nothing.
fn paid(operand: IdedExpr) -> IdedExpr {
    let id = operand.id;
    if matches!(operand.expr, Expr::Literal(_)) {
        operand
    } else {
        call_of_charge(id, vec![charged(operand)])
    }
}

fn call_of_charge(id: u64, args: Vec<IdedExpr>) -> IdedExpr {
    IdedExpr { id, expr: Expr::Call(CallExpr { func_name: CHARGE.to_owned(), target: None, args }) }
}

fn count(node: &IdedExpr) -> usize {
    1 + parts(node).into_iter().map(count).sum::<usize>()
}
