//! Converts the part of the data that an expression needs from JSON to CEL values, and renders CEL
//! values in errors.

use super::cost::CostBudget;
use super::names::RequiredPart;
use super::scope::Scope;
use crate::json::Message;
use crate::text::{explain_json_error, quote, shorten};
use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt,
};
use cel::common::value::Val;
use cel::objects::Key;
use cel::{Context, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::HashMap;
use std::fmt;

type BoxedVal = Box<dyn Val + 'static>;
type MapEntries = HashMap<CelMapKey<'static>, BoxedVal>;

/// Adds the variables `input`, `job` and `steps` to the context, as far as they are required.
///
/// # Errors
///
/// Returns in one sentence which value cannot be read. The budget may also be exhausted without an
/// error: the caller checks it after the evaluation.
pub(super) fn add_variables(
    required: &RequiredPart,
    scope: &dyn Scope,
    budget: &CostBudget,
    context: &mut Context<'_, '_>,
) -> Result<(), String> {
    if let Some(required_input) = required.under("input") {
        context.add_variable_as_val("input", build_object(&scope.input(), required_input, budget)?);
    }
    if let Some(required_job) = required.under("job") {
        context.add_variable_as_val("job", build_object(scope.job(), required_job, budget)?);
    }
    if let Some(required_steps) = required.under("steps") {
        context.add_variable_as_val("steps", build_steps(scope, required_steps, budget)?);
    }
    Ok(())
}

/// Builds the variable `steps`.
fn build_steps(
    scope: &dyn Scope,
    required: &RequiredPart,
    budget: &CostBudget,
) -> Result<BoxedVal, String> {
    let steps = match required.keys() {
        Some(names) => names.filter_map(|name| scope.step(name)).collect(),
        None => scope.steps(),
    };
    let mut entries = MapEntries::new();
    for step in steps {
        let Some(required_step) = required.under(step.name) else { continue };
        let mut step_entries = MapEntries::new();
        for (key, text) in [("state", step.state), ("status", step.status)] {
            if required_step.under(key).is_some() {
                budget.spend_text(text.len());
                step_entries
                    .insert(CelMapKey::from(key), Box::new(CelString::from(text.to_owned())));
            }
        }
        if let Some(required_output) = required_step.under("output") {
            let empty_output = Message::default();
            step_entries.insert(
                CelMapKey::from("output"),
                build_object(step.output.unwrap_or(&empty_output), required_output, budget)?,
            );
        }
        budget.spend_text(step.name.len());
        entries.insert(CelMapKey::from(step.name.to_owned()), Box::new(CelMap::from(step_entries)));
    }
    Ok(Box::new(CelMap::from(entries)))
}

/// Builds a map from the required entries of a message.
fn build_object(
    message: &Message,
    required: &RequiredPart,
    budget: &CostBudget,
) -> Result<BoxedVal, String> {
    let size_error =
        |key: &str| format!("cannot read the value of {}: it is too large", quote(key));
    let mut entries = MapEntries::new();
    budget.spend_keys(message.len());
    for (key, json) in message.iter() {
        let Some(required_value) = required.under(key) else { continue };
        if !budget.spend_read(json.text()) {
            return Err(size_error(key));
        }
        let mut reader = serde_json::Deserializer::from_str(json.text());
        let value = ValueBuilder { required: required_value, budget }
            .deserialize(&mut reader)
            .map_err(|error| {
                format!("cannot read the value of {}: {}", quote(key), explain_json_error(&error))
            })?;
        entries.insert(CelMapKey::from(key.to_string()), value);
    }
    Ok(Box::new(CelMap::from(entries)))
}

/// Builds the required part of one value from JSON, and spends its cost from the budget.
#[derive(Clone, Copy)]
struct ValueBuilder<'a> {
    required: &'a RequiredPart,
    budget: &'a CostBudget,
}

impl ValueBuilder<'_> {
    /// Spends the cost of a value with a text of `bytes`.
    fn spend<E: Error>(self, bytes: usize) -> Result<(), E> {
        self.check_budget(self.budget.spend_text(bytes))
    }

    /// Returns an error if the budget was not sufficient.
    fn check_budget<E: Error>(self, is_sufficient: bool) -> Result<(), E> {
        if is_sufficient { Ok(()) } else { Err(E::custom("it is too large")) }
    }
}

impl<'de> DeserializeSeed<'de> for ValueBuilder<'_> {
    type Value = BoxedVal;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<BoxedVal, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueBuilder<'_> {
    type Value = BoxedVal;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<BoxedVal, E> {
        self.spend(0)?;
        Ok(Box::new(CelNull))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<BoxedVal, E> {
        self.spend(0)?;
        Ok(Box::new(CelBool::from(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<BoxedVal, E> {
        self.spend(0)?;
        Ok(Box::new(CelInt::from(value)))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<BoxedVal, E> {
        match i64::try_from(value) {
            Ok(int) => self.visit_i64(int),
            Err(_) => {
                self.spend(0)?;
                Ok(Box::new(CelUInt::from(value)))
            }
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<BoxedVal, E> {
        self.spend(0)?;
        Ok(Box::new(CelDouble::from(value)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<BoxedVal, E> {
        self.spend(value.len())?;
        Ok(Box::new(CelString::from(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<BoxedVal, A::Error> {
        self.spend(0)?;
        let mut list: Vec<BoxedVal> = Vec::new();
        if self.required.is_all() {
            while let Some(item) = items.next_element_seed(self)? {
                list.push(item);
            }
        } else {
            // The expression tests whether the value exists, or reads a key of it. The latter is an
            // error for a list, whatever its items.
            while items.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(Box::new(CelList::from(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<BoxedVal, A::Error> {
        self.spend(0)?;
        let mut entries = MapEntries::new();
        while let Some(key) = pairs.next_key::<String>()? {
            match self.required.under(&key) {
                Some(required_value) => {
                    self.check_budget(self.budget.spend_entry(key.len()))?;
                    let builder = ValueBuilder { required: required_value, budget: self.budget };
                    let value = pairs.next_value_seed(builder)?;
                    entries.insert(CelMapKey::from(key), value);
                }
                None => {
                    self.spend(0)?;
                    pairs.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Box::new(CelMap::from(entries)))
    }
}

/// Renders a value and its type for an error, such as `3 (int)`; for `null`, only the value.
pub(super) fn render_with_type(value: &Value) -> String {
    if matches!(value, Value::Null) {
        return render_value(value);
    }
    format!("{} ({})", shorten(&render_value(value)), type_name(value))
}

/// Returns the name of a value's type.
pub(super) fn type_name(value: &Value) -> String {
    // The crate calls the type `float`, CEL calls it `double`.
    if matches!(value, Value::Float(_)) { "double".to_owned() } else { value.type_of().to_string() }
}

/// The maximum number of items that an error shows of a list or map.
const RENDERED_ITEMS_MAX: usize = 10;

/// Renders a value for an error. Items beyond [`RENDERED_ITEMS_MAX`] are left out, and lists and
/// maps inside a list or map are abbreviated.
fn render_value(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(int) => int.to_string(),
        Value::UInt(uint) => uint.to_string(),
        // As `Debug`, which keeps the `.0` of whole numbers.
        Value::Float(double) => format!("{double:?}"),
        Value::String(text) => quote(text),
        Value::List(items) => {
            let rendered_items: Vec<String> =
                items.iter().take(RENDERED_ITEMS_MAX).map(render_inner).collect();
            format!("[{}]", rendered_items.join(", "))
        }
        Value::Map(map) => {
            let mut keys: Vec<&Key> = map.map.keys().collect();
            keys.sort();
            let entries = keys.into_iter().take(RENDERED_ITEMS_MAX).map(|key| {
                format!("{key}: {}", map.map.get(key).map_or_else(String::new, render_inner))
            });
            format!("{{{}}}", entries.collect::<Vec<String>>().join(", "))
        }
        Value::Function(..) | Value::Bytes(_) | Value::Opaque(_) | Value::Struct(_) => {
            type_name(value)
        }
    }
}

/// Renders a value inside a list or map.
fn render_inner(value: &Value) -> String {
    match value {
        Value::List(_) => "[..]".to_owned(),
        Value::Map(_) => "{..}".to_owned(),
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::UInt(_)
        | Value::Float(_)
        | Value::String(_)
        | Value::Bytes(_)
        | Value::Function(..)
        | Value::Opaque(_)
        | Value::Struct(_) => render_value(value),
    }
}
