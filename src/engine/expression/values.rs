//! Converts JSON to CEL values, and renders CEL values in errors. Only the part of the data that an
//! expression needs is built.

use super::cost::Budget;
use super::names::Need;
use super::scope::Scope;
use crate::engine::json::Message;
use crate::engine::words::{json_fault, quoted, shortened};
use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt,
};
use cel::common::value::Val;
use cel::objects::Key;
use cel::{Context, Value};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::HashMap;
use std::fmt;

type Built = Box<dyn Val + 'static>;
type Entries = HashMap<CelMapKey<'static>, Built>;

/// Adds those of `input`, `job` and `steps` that are needed.
pub(super) fn add_variables(
    need: &Need,
    scope: &dyn Scope,
    budget: &Budget,
    context: &mut Context<'_, '_>,
) -> Result<(), String> {
    if let Some(need) = need.of("input") {
        context.add_variable_as_val("input", object(&scope.input(), need, budget)?);
    }
    if let Some(need) = need.of("job") {
        context.add_variable_as_val("job", object(scope.job(), need, budget)?);
    }
    if let Some(need) = need.of("steps") {
        context.add_variable_as_val("steps", steps(scope, need, budget)?);
    }
    Ok(())
}

fn steps(scope: &dyn Scope, need: &Need, budget: &Budget) -> Result<Built, String> {
    let seen = match need.keys() {
        Some(names) => names.filter_map(|name| scope.step(name)).collect(),
        None => scope.steps(),
    };
    let mut entries = Entries::new();
    for step in seen {
        let Some(need) = need.of(step.name) else { continue };
        let mut seen = Entries::new();
        for (key, text) in [("state", step.state), ("status", step.status)] {
            if need.of(key).is_some() {
                budget.take_text(text.len());
                seen.insert(CelMapKey::from(key), Box::new(CelString::from(text.to_owned())));
            }
        }
        if let Some(need) = need.of("output") {
            let none = Message::default();
            seen.insert(
                CelMapKey::from("output"),
                object(step.output.unwrap_or(&none), need, budget)?,
            );
        }
        budget.take_text(step.name.len());
        entries.insert(CelMapKey::from(step.name.to_owned()), Box::new(CelMap::from(seen)));
    }
    Ok(Box::new(CelMap::from(entries)))
}

fn object(message: &Message, need: &Need, budget: &Budget) -> Result<Built, String> {
    let too_large =
        |key: &str| format!("cannot read the value of {}: it is too large", quoted(key));
    let mut entries = Entries::new();
    budget.take_keys(message.len());
    for (key, json) in message.iter() {
        let Some(need) = need.of(key) else { continue };
        if !budget.take_read(json.text()) {
            return Err(too_large(key));
        }
        let mut reader = serde_json::Deserializer::from_str(json.text());
        let value = Builder { need, budget }.deserialize(&mut reader).map_err(|error| {
            format!("cannot read the value of {}: {}", quoted(key), json_fault(&error))
        })?;
        entries.insert(CelMapKey::from(key.to_string()), value);
    }
    Ok(Box::new(CelMap::from(entries)))
}

/// Builds one value.
#[derive(Clone, Copy)]
struct Builder<'n> {
    need: &'n Need,
    budget: &'n Budget,
}

impl Builder<'_> {
    fn pay<E: Error>(self, bytes: usize) -> Result<(), E> {
        self.afford(self.budget.take_text(bytes))
    }

    fn afford<E: Error>(self, is_paid: bool) -> Result<(), E> {
        if is_paid { Ok(()) } else { Err(E::custom("it is too large")) }
    }
}

impl<'de> DeserializeSeed<'de> for Builder<'_> {
    type Value = Built;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Built, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Builder<'_> {
    type Value = Built;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Built, E> {
        self.pay(0)?;
        Ok(Box::new(CelNull))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Built, E> {
        self.pay(0)?;
        Ok(Box::new(CelBool::from(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Built, E> {
        self.pay(0)?;
        Ok(Box::new(CelInt::from(value)))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Built, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => {
                self.pay(0)?;
                Ok(Box::new(CelUInt::from(value)))
            }
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Built, E> {
        self.pay(0)?;
        Ok(Box::new(CelDouble::from(value)))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Built, E> {
        self.pay(value.len())?;
        Ok(Box::new(CelString::from(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Built, A::Error> {
        self.pay(0)?;
        let mut list: Vec<Built> = Vec::new();
        if self.need.is_all() {
            while let Some(item) = items.next_element_seed(self)? {
                list.push(item);
            }
        } else {
            // Reading a key of a list is an error, whatever is in the list.
            while items.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(Box::new(CelList::from(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Built, A::Error> {
        self.pay(0)?;
        let mut entries = Entries::new();
        while let Some(key) = pairs.next_key::<String>()? {
            match self.need.of(&key) {
                Some(need) => {
                    self.afford(self.budget.take_entry(key.len()))?;
                    let value = pairs.next_value_seed(Builder { need, budget: self.budget })?;
                    entries.insert(CelMapKey::from(key), value);
                }
                None => {
                    self.pay(0)?;
                    pairs.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Box::new(CelMap::from(entries)))
    }
}

/// Renders a value and its type for an error, such as `3 (int)`. For `null`, both are the same.
pub(super) fn shown(value: &Value) -> String {
    if matches!(value, Value::Null) {
        return written(value);
    }
    format!("{} ({})", shortened(&written(value)), kind(value))
}

/// Returns the name of a value's type.
pub(super) fn kind(value: &Value) -> String {
    // The crate calls the type `float`, CEL calls it `double`.
    if matches!(value, Value::Float(_)) { "double".to_owned() } else { value.type_of().to_string() }
}

/// How many items of a list or map an error shows.
const SHOWN_ITEMS_MAX: usize = 10;

fn written(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::UInt(value) => value.to_string(),
        Value::Float(value) => format!("{value:?}"),
        Value::String(text) => quoted(text),
        Value::List(items) => {
            let items: Vec<String> = items.iter().take(SHOWN_ITEMS_MAX).map(inner).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let mut keys: Vec<&Key> = map.map.keys().collect();
            keys.sort();
            let entries = keys
                .into_iter()
                .take(SHOWN_ITEMS_MAX)
                .map(|key| format!("{key}: {}", map.map.get(key).map_or_else(String::new, inner)));
            format!("{{{}}}", entries.collect::<Vec<String>>().join(", "))
        }
        Value::Function(..) | Value::Bytes(_) | Value::Opaque(_) | Value::Struct(_) => kind(value),
    }
}

/// Renders a value within another.
fn inner(value: &Value) -> String {
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
        | Value::Struct(_) => written(value),
    }
}
