//! What an expression names: variables, functions, steps. Unknown names are errors. The known ones
//! determine which part of the data an evaluation needs.

use super::source::{DEPTH_MAX, ExpressionError, Source};
use crate::state::StepState;
use crate::text::{did_you_mean, enumerate_quoted, quote};
use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};
use std::collections::BTreeMap;

/// The variables of an expression.
const VARIABLES: [&str; 3] = ["input", "job", "steps"];

/// The keys of `steps["name"]`.
const STEP_KEYS: [&str; 3] = ["state", "status", "output"];

/// The names of types, for `type(x) == int`.
const TYPES: [&str; 10] =
    ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// A function that an expression may call.
struct Function {
    name: &'static str,
    /// How many arguments it takes as `name(..)`; `None`: it cannot be called like that.
    as_function: Option<usize>,
    /// How many arguments it takes as `x.name(..)`; `None`: it cannot be called like that.
    as_method: Option<usize>,
    example: &'static str,
}

const fn function(
    name: &'static str,
    as_function: Option<usize>,
    as_method: Option<usize>,
    example: &'static str,
) -> Function {
    Function { name, as_function, as_method, example }
}

/// The functions. Those that can be called in neither way are macros, which the parser has
/// replaced: a call of one that is left is wrong.
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

/// Which part of a value is needed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequiredPart {
    /// The whole value.
    All,
    /// Whether the value is there, and these keys if it is a map.
    Keys(BTreeMap<String, RequiredPart>),
}

impl RequiredPart {
    fn presence() -> RequiredPart {
        RequiredPart::Keys(BTreeMap::new())
    }

    /// Returns which part of the value under `key` is needed; `None`: not even whether it is there.
    pub(super) fn under(&self, key: &str) -> Option<&RequiredPart> {
        match self {
            RequiredPart::All => Some(&RequiredPart::All),
            RequiredPart::Keys(keys) => keys.get(key),
        }
    }

    /// Returns the keys that are needed; `None`: every key.
    pub(super) fn keys(&self) -> Option<impl Iterator<Item = &str>> {
        match self {
            RequiredPart::All => None,
            RequiredPart::Keys(keys) => Some(keys.keys().map(String::as_str)),
        }
    }

    pub(super) fn is_all(&self) -> bool {
        *self == RequiredPart::All
    }

    /// Adds the value at the end of `path`: whether it is there, or all of it.
    fn add(&mut self, path: &[&str], all: bool) {
        let RequiredPart::Keys(keys) = self else { return };
        match path {
            [] if all => *self = RequiredPart::All,
            [] => (),
            [first, rest @ ..] => keys
                .entry((*first).to_owned())
                .or_insert_with(RequiredPart::presence)
                .add(rest, all),
        }
    }
}

/// The names that an expression uses.
pub(super) struct Names {
    pub(super) required: RequiredPart,
    pub(super) steps: Vec<String>,
    /// What no step can have, and so cannot have been meant.
    pub(super) mistakes: Vec<ExpressionError>,
}

/// Checks all names and the depth of an expression.
pub(super) fn check(root: &IdedExpr, source: &Source<'_>) -> Result<Names, ExpressionError> {
    if let Some(deep) = find_deeper_than(root, DEPTH_MAX) {
        return Err(source.error(
            deep,
            format!(
                "nests deeper than {DEPTH_MAX} levels; a chain of operators nests one level for \
                 each"
            ),
        ));
    }
    let mut checker = Checker {
        source,
        found: Names {
            required: RequiredPart::presence(),
            steps: Vec::new(),
            mistakes: Vec::new(),
        },
        loop_variables: Vec::new(),
    };
    checker.visit(root)?;
    Ok(checker.found)
}

/// Returns the parts of a node, in the order of the evaluation.
pub(super) fn child_nodes(node: &IdedExpr) -> Vec<&IdedExpr> {
    match &node.expr {
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Comprehension(parts) => vec![
            &parts.iter_range,
            &parts.accu_init,
            &parts.loop_cond,
            &parts.loop_step,
            &parts.result,
        ],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Struct(built) => {
            built.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect()
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => Vec::new(),
    }
}

fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
        EntryExpr::StructField(field) => vec![&field.value],
    }
}

/// Returns a part that lies more than `levels` below `node`.
fn find_deeper_than(node: &IdedExpr, levels: usize) -> Option<&IdedExpr> {
    match levels.checked_sub(1) {
        None => Some(node),
        Some(levels) => {
            child_nodes(node).into_iter().find_map(|part| find_deeper_than(part, levels))
        }
    }
}

struct Checker<'t> {
    source: &'t Source<'t>,
    found: Names,
    /// The variables of the enclosing loops.
    loop_variables: Vec<String>,
}

impl Checker<'_> {
    fn visit(&mut self, node: &IdedExpr) -> Result<(), ExpressionError> {
        if let Some((root, path, all)) = key_path(node)
            && VARIABLES.contains(&root)
            && !self.is_loop_variable(root)
        {
            self.add(root, &path, all);
            if let ("steps", [_, key, rest @ ..]) = (root, path.as_slice())
                && !STEP_KEYS.contains(key)
            {
                let at = rest
                    .iter()
                    .fold(node, |node, _| child_nodes(node).first().copied().unwrap_or(node));
                let hint = did_you_mean(key, STEP_KEYS);
                let message = format!(
                    "a step has no {}, it has {}{hint}",
                    quote(key),
                    enumerate_quoted(STEP_KEYS, "and")
                );
                self.found.mistakes.push(self.source.error(at, message));
            }
            return Ok(());
        }
        match &node.expr {
            Expr::Ident(name) => self.check_variable(node, name),
            Expr::Call(call) => {
                self.check_function(node, call)?;
                self.check_states(call);
                self.visit_parts(node)
            }
            Expr::Comprehension(parts) => {
                self.visit(&parts.iter_range)?;
                // The macro has made the rest of the loop.
                self.loop_variables.extend([parts.iter_var.clone(), parts.accu_var.clone()]);
                self.visit(&parts.loop_step)?;
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
                self.visit_parts(node)
            }
        }
    }

    fn visit_parts(&mut self, node: &IdedExpr) -> Result<(), ExpressionError> {
        child_nodes(node).into_iter().try_for_each(|part| self.visit(part))
    }

    /// Checks that a step's state is only compared with the words that exist.
    fn check_states(&mut self, call: &CallExpr) {
        let [left, right] = call.args.as_slice() else { return };
        let is_state = |node| {
            key_path(node).is_some_and(|(root, path, all)| {
                root == "steps" && all && matches!(path.as_slice(), [_, "state"])
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
                self.found.mistakes.push(self.source.error(operand, message));
            }
        }
    }

    fn is_loop_variable(&self, name: &str) -> bool {
        self.loop_variables.iter().any(|variable| variable == name)
    }

    fn add(&mut self, root: &str, path: &[&str], all: bool) {
        let whole: Vec<&str> = std::iter::once(root).chain(path.iter().copied()).collect();
        self.found.required.add(&whole, all);
        if root == "steps"
            && let Some(step) = path.first()
            && !self.found.steps.iter().any(|known| known == step)
        {
            self.found.steps.push((*step).to_owned());
        }
    }

    fn check_variable(&self, node: &IdedExpr, name: &str) -> Result<(), ExpressionError> {
        if self.is_loop_variable(name) || TYPES.contains(&name) {
            return Ok(());
        }
        let enclosing = self
            .loop_variables
            .iter()
            .map(String::as_str)
            .filter(|variable| !variable.starts_with('@'));
        let hint = match self.dashed_key(node) {
            Some(word) => format!("; a key with `-` goes into brackets: [\"{word}\"]"),
            None => match did_you_mean(name, VARIABLES.into_iter().chain(enclosing)) {
                none if none.is_empty() => {
                    format!(
                        "; known are {}; a text goes into quotes",
                        enumerate_quoted(VARIABLES, "and")
                    )
                }
                guess => guess,
            },
        };
        Err(self.source.error(node, format!("unknown variable {}{hint}", quote(name))))
    }

    /// Returns the word with dashes that ends in a variable, such as `book-split` for `split` in
    /// `steps.book-split`.
    fn dashed_key(&self, node: &IdedExpr) -> Option<&str> {
        let is_in_key = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let (before, behind) = self.source.text.split_at_checked(self.source.offset(node))?;
        let start = before.len() - before.chars().rev().take_while(|c| is_in_key(*c)).count();
        let end = before.len() + behind.chars().take_while(|c| is_in_key(*c)).count();
        (before.ends_with('-') && before[..start].ends_with('.'))
            .then(|| &self.source.text[start..end])
    }

    fn check_function(&self, node: &IdedExpr, call: &CallExpr) -> Result<(), ExpressionError> {
        let name = call.func_name.as_str();
        if is_operator(name) {
            return Ok(());
        }
        let message = match FUNCTIONS.iter().find(|function| function.name == name) {
            Some(function) => {
                let takes =
                    if call.target.is_some() { function.as_method } else { function.as_function };
                if takes == Some(call.args.len()) {
                    return Ok(());
                }
                format!("{name}() is called otherwise, as in {}", function.example)
            }
            None => unknown_function(name),
        };
        Err(self.source.error(node, message))
    }
}

fn unknown_function(name: &str) -> String {
    let why = match name {
        "matches" => "; there are no regular expressions: startsWith(), endsWith() and contains() \
                      compare texts"
            .to_owned(),
        "now" | "timestamp" | "duration" => "; a condition knows no time".to_owned(),
        _ => {
            let names = || FUNCTIONS.iter().map(|function| function.name);
            match did_you_mean(name, names()) {
                none if none.is_empty() => {
                    format!("; known are {}", enumerate_quoted(names(), "and"))
                }
                guess => guess,
            }
        }
    };
    format!("unknown function {}{why}", quote(name))
}

/// Returns whether the call comes from an operator or from a macro.
fn is_operator(name: &str) -> bool {
    name.starts_with(['@', '!'])
        || name == operators::NEGATE
        || (name.starts_with('_') && name.contains(|c: char| !c.is_alphanumeric() && c != '_'))
}

/// Returns a chain of literal keys behind a variable: `steps["a"].output.n` is `steps` and `a`,
/// `output`, `n`. The flag says whether the whole value at its end is read, not just its presence.
fn key_path(node: &IdedExpr) -> Option<(&str, Vec<&str>, bool)> {
    let mut keys = Vec::new();
    let mut all = true;
    let mut node = node;
    loop {
        match &node.expr {
            Expr::Ident(name) => {
                keys.reverse();
                return Some((name, keys, all));
            }
            Expr::Select(select) => {
                // Only the outermost can be a test: `has(a.b).c` is no path of keys.
                if select.test {
                    if !keys.is_empty() {
                        return None;
                    }
                    all = false;
                }
                keys.push(&select.field);
                node = &select.operand;
            }
            Expr::Call(call) if call.func_name == operators::INDEX => {
                let [operand, index] = call.args.as_slice() else { return None };
                let Expr::Literal(LiteralValue::String(key)) = &index.expr else { return None };
                keys.push(key.inner());
                node = operand;
            }
            Expr::Call(_)
            | Expr::Comprehension(_)
            | Expr::List(_)
            | Expr::Literal(_)
            | Expr::Map(_)
            | Expr::Struct(_)
            | Expr::Unspecified => {
                return None;
            }
        }
    }
}

/// Renders a function or operator of an evaluation error as it is written.
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

/// Renders an operator by the name that the crate's errors give it.
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
