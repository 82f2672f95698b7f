//! Checks the names in an expression: variables, functions and steps. An unknown name is an error.
//! The names that exist determine which part of the data an evaluation needs.

use super::source::{DEPTH_MAX, ExpressionError, Source};
use crate::state::StepState;
use crate::text::{did_you_mean, enumerate_quoted, quote};
use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use std::collections::BTreeMap;

/// The variables of an expression.
const VARIABLES: [&str; 3] = ["input", "job", "steps"];

/// The keys of a step, `steps["name"]`.
const STEP_KEYS: [&str; 3] = ["state", "status", "output"];

/// The names of types, for `type(x) == int`.
const TYPES: [&str; 10] =
    ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// A function that an expression may call.
struct Function {
    name: &'static str,
    /// The number of arguments as a function, `name(..)`; `None`: it is not a function.
    function_args: Option<usize>,
    /// The number of arguments as a method, `x.name(..)`; `None`: it is not a method.
    method_args: Option<usize>,
    /// A correct call, for errors.
    example: &'static str,
}

const fn function(
    name: &'static str,
    function_args: Option<usize>,
    method_args: Option<usize>,
    example: &'static str,
) -> Function {
    Function { name, function_args, method_args, example }
}

/// All functions. Those without a number of arguments are macros. The parser expands correct uses
/// of macros, so a call of one that remains in the syntax tree is an error.
const FUNCTIONS: [Function; 18] = [
    function("size", Some(1), Some(0), "size(input.lines)"),
    function("contains", None, Some(1), "input.title.contains(\"draft\")"),
    function("startsWith", None, Some(1), "input.title.startsWith(\"draft\")"),
    function("endsWith", None, Some(1), "input.file.endsWith(\".pdf\")"),
    function("has", None, None, "has(input.count)"),
    function("all", None, None, "input.lines.all(line, line.count > 0)"),
    function("exists", None, None, "input.lines.exists(line, line.count > 0)"),
    function("exists_one", None, None, "input.lines.exists_one(line, line.count > 0)"),
    function("existsOne", None, None, "input.lines.existsOne(line, line.count > 0)"),
    function("map", None, None, "input.lines.map(line, line.count)"),
    function("filter", None, None, "input.lines.filter(line, line.count > 0)"),
    function("int", Some(1), None, "int(input.count)"),
    function("uint", Some(1), None, "uint(input.count)"),
    function("double", Some(1), None, "double(input.count)"),
    function("string", Some(1), None, "string(input.count)"),
    function("bool", Some(1), None, "bool(input.flag)"),
    function("bytes", Some(1), None, "bytes(input.title)"),
    function("type", Some(1), None, "type(input.count)"),
];

/// The part of a value that an evaluation needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequiredPart {
    /// The whole value.
    All,
    /// Whether the value exists, and these keys if it is a map.
    Keys(BTreeMap<String, RequiredPart>),
}

impl RequiredPart {
    /// Returns the smallest part: whether the value exists.
    fn presence() -> RequiredPart {
        RequiredPart::Keys(BTreeMap::new())
    }

    /// Returns the part of the value under `key` that is needed; `None`: not even whether it
    /// exists.
    pub(super) fn under(&self, key: &str) -> Option<&RequiredPart> {
        match self {
            RequiredPart::All => Some(&RequiredPart::All),
            RequiredPart::Keys(keys) => keys.get(key),
        }
    }

    /// Returns the keys that are needed; `None`: all keys.
    pub(super) fn keys(&self) -> Option<impl Iterator<Item = &str>> {
        match self {
            RequiredPart::All => None,
            RequiredPart::Keys(keys) => Some(keys.keys().map(String::as_str)),
        }
    }

    /// Returns whether the whole value is needed.
    pub(super) fn is_all(&self) -> bool {
        *self == RequiredPart::All
    }

    /// Adds the value at the end of a path of keys: the whole value if `needs_value`, otherwise
    /// whether it exists.
    fn add(&mut self, path: &[&str], needs_value: bool) {
        let RequiredPart::Keys(keys) = self else { return };
        match path {
            [] if needs_value => *self = RequiredPart::All,
            [] => (),
            [key, later_keys @ ..] => keys
                .entry((*key).to_owned())
                .or_insert_with(RequiredPart::presence)
                .add(later_keys, needs_value),
        }
    }
}

/// The names that an expression uses.
pub(super) struct Names {
    /// The part of the variables that an evaluation needs.
    pub(super) required: RequiredPart,
    /// The steps that are named literally, without duplicates.
    pub(super) steps: Vec<String>,
    /// What compiles but must be a mistake: keys and states that no step has.
    pub(super) mistakes: Vec<ExpressionError>,
}

/// Checks the names and the depth of an expression.
///
/// # Errors
///
/// Returns an error if the expression nests too deeply, or uses an unknown variable or function.
pub(super) fn check(root: &IdedExpr, source: &Source<'_>) -> Result<Names, ExpressionError> {
    if let Some(node) = find_deeper_than(root, DEPTH_MAX) {
        return Err(source.error(
            node,
            format!(
                "nests deeper than {DEPTH_MAX} levels; a chain of operators nests one level for \
                 each"
            ),
        ));
    }
    let mut checker = Checker {
        source,
        names: Names {
            required: RequiredPart::presence(),
            steps: Vec::new(),
            mistakes: Vec::new(),
        },
        loop_variables: Vec::new(),
    };
    checker.visit(root)?;
    Ok(checker.names)
}

/// Returns the children of a node, in the order in which they are evaluated first.
pub(super) fn child_nodes(node: &IdedExpr) -> Vec<&IdedExpr> {
    match &node.expr {
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Comprehension(comprehension) => vec![
            &comprehension.iter_range,
            &comprehension.accu_init,
            &comprehension.loop_cond,
            &comprehension.loop_step,
            &comprehension.result,
        ],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_nodes(&entry.expr)).collect(),
        Expr::Struct(structure) => {
            structure.entries.iter().flat_map(|entry| entry_nodes(&entry.expr)).collect()
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => Vec::new(),
    }
}

/// Returns the children of an entry of a map or struct.
fn entry_nodes(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        EntryExpr::StructField(field) => vec![&field.value],
    }
}

/// Returns a node that is deeper than `depth_max`, if there is one. `node` has the depth 1.
fn find_deeper_than(node: &IdedExpr, depth_max: usize) -> Option<&IdedExpr> {
    match depth_max.checked_sub(1) {
        None => Some(node),
        Some(child_depth_max) => {
            let mut children = child_nodes(node).into_iter();
            children.find_map(|child| find_deeper_than(child, child_depth_max))
        }
    }
}

/// Visits the nodes of an expression, and collects the names that it uses.
struct Checker<'t> {
    source: &'t Source<'t>,
    names: Names,
    /// The variables of the enclosing loops.
    loop_variables: Vec<String>,
}

impl Checker<'_> {
    /// Checks a node and its children, and collects their names.
    fn visit(&mut self, node: &IdedExpr) -> Result<(), ExpressionError> {
        if let Some(path) = KeyPath::from_node(node)
            && VARIABLES.contains(&path.variable)
            && !self.is_loop_variable(path.variable)
        {
            self.add_path(&path);
            self.collect_key_mistake(node, &path);
            return Ok(());
        }
        match &node.expr {
            Expr::Ident(name) => self.check_variable(node, name),
            Expr::Call(call) => {
                self.check_function(node, call)?;
                self.collect_state_mistakes(call);
                self.visit_children(node)
            }
            Expr::Comprehension(comprehension) => {
                self.visit(&comprehension.iter_range)?;
                let variables = [&comprehension.iter_var, &comprehension.accu_var];
                self.loop_variables.extend(variables.map(Clone::clone));
                // A macro generated the other parts of the loop: they need no check.
                self.visit(&comprehension.loop_step)?;
                self.loop_variables.truncate(self.loop_variables.len() - 2);
                Ok(())
            }
            Expr::Struct(_) => Err(self.source.error(
                node,
                "there are no messages to build; a map is written with quotes around its \
                 keys: {\"count\": 1}",
            )),
            Expr::Unspecified => Err(self.source.error(node, "a value is missing here")),
            Expr::List(_) | Expr::Map(_) | Expr::Select(_) | Expr::Literal(_) => {
                self.visit_children(node)
            }
        }
    }

    fn visit_children(&mut self, node: &IdedExpr) -> Result<(), ExpressionError> {
        child_nodes(node).into_iter().try_for_each(|child| self.visit(child))
    }

    /// Adds a mistake if a path reads a key that no step has. `node`: the node of the path.
    fn collect_key_mistake(&mut self, node: &IdedExpr, path: &KeyPath<'_>) {
        let ("steps", [_, key, later_keys @ ..]) = (path.variable, path.keys.as_slice()) else {
            return;
        };
        if STEP_KEYS.contains(key) {
            return;
        }
        // `node` selects the last key, and its operand the key before: follow the operands to the
        // node that selects the wrong key.
        let mut wrong_node = node;
        for _ in later_keys {
            wrong_node = child_nodes(wrong_node).first().copied().unwrap_or(wrong_node);
        }
        let hint = did_you_mean(key, STEP_KEYS);
        let message = format!(
            "a step has no {}, it has {}{hint}",
            quote(key),
            enumerate_quoted(STEP_KEYS, "and")
        );
        self.names.mistakes.push(self.source.error(wrong_node, message));
    }

    /// Adds a mistake for each state that a step's state is compared with and that does not exist.
    fn collect_state_mistakes(&mut self, call: &CallExpr) {
        let [left, right] = call.args.as_slice() else { return };
        let is_state = |node| {
            KeyPath::from_node(node).is_some_and(|path| {
                path.variable == "steps"
                    && path.needs_value
                    && matches!(path.keys.as_slice(), [_, "state"])
            })
        };
        let operands: Vec<&IdedExpr> = match (call.func_name.as_str(), &right.expr) {
            (operators::EQUALS | operators::NOT_EQUALS, _) if is_state(left) => vec![right],
            (operators::EQUALS | operators::NOT_EQUALS, _) if is_state(right) => vec![left],
            (operators::IN, Expr::List(list)) if is_state(left) => list.elements.iter().collect(),
            _ => return,
        };
        if self.is_loop_variable("steps") {
            return;
        }
        let states = StepState::ALL.map(StepState::as_str);
        for operand in operands {
            if let Expr::Literal(LiteralValue::String(text)) = &operand.expr
                && !states.contains(&text.inner())
            {
                let hint = did_you_mean(text.inner(), states);
                let message = format!(
                    "a step's state is never {}, it is {}{hint}",
                    quote(text.inner()),
                    enumerate_quoted(states, "or")
                );
                self.names.mistakes.push(self.source.error(operand, message));
            }
        }
    }

    fn is_loop_variable(&self, name: &str) -> bool {
        self.loop_variables.iter().any(|variable| variable == name)
    }

    /// Adds a variable, the path of keys in it, and the step that the path names.
    fn add_path(&mut self, path: &KeyPath<'_>) {
        let full_path: Vec<&str> =
            std::iter::once(path.variable).chain(path.keys.iter().copied()).collect();
        self.names.required.add(&full_path, path.needs_value);
        if path.variable == "steps"
            && let Some(step) = path.keys.first()
            && !self.names.steps.iter().any(|other| other == step)
        {
            self.names.steps.push((*step).to_owned());
        }
    }

    /// Checks that a variable exists.
    fn check_variable(&self, node: &IdedExpr, name: &str) -> Result<(), ExpressionError> {
        if self.is_loop_variable(name) || TYPES.contains(&name) {
            return Ok(());
        }
        let loop_variables = self
            .loop_variables
            .iter()
            .map(String::as_str)
            .filter(|variable| !variable.starts_with('@'));
        let hint = match self.find_dashed_key(node) {
            Some(key) => format!("; a key with `-` goes into brackets: [\"{key}\"]"),
            None => match did_you_mean(name, VARIABLES.into_iter().chain(loop_variables)) {
                hint if hint.is_empty() => {
                    format!(
                        "; known are {}; a string goes into quotes",
                        enumerate_quoted(VARIABLES, "and")
                    )
                }
                hint => hint,
            },
        };
        Err(self.source.error(node, format!("unknown variable {}{hint}", quote(name))))
    }

    /// Returns the key with dashes of which the variable at `node` is a part: `book-split` for the
    /// variable `split` in `steps.book-split`; `None`: it is part of no such key.
    fn find_dashed_key(&self, node: &IdedExpr) -> Option<&str> {
        let is_in_key = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let (before, after) = self.source.text.split_at_checked(self.source.offset(node))?;
        let start = before.len() - before.chars().rev().take_while(|c| is_in_key(*c)).count();
        let end = before.len() + after.chars().take_while(|c| is_in_key(*c)).count();
        (before.ends_with('-') && before[..start].ends_with('.'))
            .then(|| &self.source.text[start..end])
    }

    /// Checks that a function exists, and that the call has its form and its number of arguments.
    fn check_function(&self, node: &IdedExpr, call: &CallExpr) -> Result<(), ExpressionError> {
        let name = call.func_name.as_str();
        if is_operator(name) {
            return Ok(());
        }
        let message = match FUNCTIONS.iter().find(|function| function.name == name) {
            Some(function) => {
                let is_method = call.target.is_some();
                let arg_count =
                    if is_method { function.method_args } else { function.function_args };
                if arg_count == Some(call.args.len()) {
                    return Ok(());
                }
                format!("{name}() is called differently, as in {}", function.example)
            }
            None => unknown_function_error(name),
        };
        Err(self.source.error(node, message))
    }
}

/// Returns the error for an unknown function, with a hint.
fn unknown_function_error(name: &str) -> String {
    let hint = match name {
        "matches" => "; there are no regular expressions: startsWith(), endsWith() and contains() \
                      compare texts"
            .to_owned(),
        "now" | "timestamp" | "duration" => "; a condition cannot read the time".to_owned(),
        _ => {
            let names = || FUNCTIONS.iter().map(|function| function.name);
            match did_you_mean(name, names()) {
                hint if hint.is_empty() => {
                    format!("; known are {}", enumerate_quoted(names(), "and"))
                }
                hint => hint,
            }
        }
    };
    format!("unknown function {}{hint}", quote(name))
}

/// Returns whether a function in the syntax tree is an operator, or was generated by a macro.
fn is_operator(name: &str) -> bool {
    name.starts_with(['@', '!'])
        || name == operators::NEGATE
        || (name.starts_with('_') && name.contains(|c: char| !c.is_alphanumeric() && c != '_'))
}

/// A variable and a path of literal keys in it: `steps["a"].output.n` has the variable `steps` and
/// the keys `a`, `output` and `n`.
struct KeyPath<'t> {
    variable: &'t str,
    keys: Vec<&'t str>,
    /// Whether the value is read. If not, only its presence is tested, with `has()`.
    needs_value: bool,
}

impl<'t> KeyPath<'t> {
    /// Returns the path that a node reads; `None`: the node is not such a path.
    fn from_node(mut node: &'t IdedExpr) -> Option<KeyPath<'t>> {
        // From the last key to the first.
        let mut keys: Vec<&str> = Vec::new();
        let mut needs_value = true;
        loop {
            match &node.expr {
                Expr::Ident(name) => {
                    keys.reverse();
                    return Some(KeyPath { variable: name, keys, needs_value });
                }
                Expr::Select(select) => {
                    // Only the outermost selection can be a test: `has(a.b).c` is not a path of
                    // keys.
                    if select.test {
                        if !keys.is_empty() {
                            return None;
                        }
                        needs_value = false;
                    }
                    keys.push(&select.field);
                    node = &select.operand;
                }
                Expr::Call(call) if call.func_name == operators::INDEX => {
                    let [operand, index] = call.args.as_slice() else { return None };
                    let Expr::Literal(LiteralValue::String(key)) = &index.expr else {
                        return None;
                    };
                    keys.push(key.inner());
                    node = operand;
                }
                Expr::Call(_)
                | Expr::Comprehension(_)
                | Expr::List(_)
                | Expr::Literal(_)
                | Expr::Map(_)
                | Expr::Struct(_)
                | Expr::Unspecified => return None,
            }
        }
    }
}

/// Renders the function or operator of an evaluation error as it is written in an expression.
pub(super) fn render_function(name: &str) -> String {
    match name {
        operators::INDEX => "an index".to_owned(),
        "_._" => "a key".to_owned(),
        operators::IN => "`in`".to_owned(),
        operators::CONDITIONAL => "`? :`".to_owned(),
        _ if is_operator(name) => format!("`{}`", name.trim_matches('_')),
        _ => format!("{name}()"),
    }
}

/// Renders an operator as it is written in an expression. `name`: its name in the CEL crate's
/// errors.
pub(super) fn render_operator(name: &str) -> String {
    let sign = match name {
        "add" => "+",
        "sub" | "negate" => "-",
        "mul" => "*",
        "div" => "/",
        "rem" => "%",
        other => other,
    };
    format!("`{sign}`")
}
