//! JSON schemas of the engine's types, for the OpenAPI document of the API (feature `openapi`).

use super::definition::DefinitionHash;
use super::id::JobId;
use super::json::{Json, Message};
use super::state::{JobState, StepState};
use std::borrow::Cow;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AdditionalProperties, ObjectBuilder, Schema, SchemaFormat, SchemaType, Type,
};
use utoipa::{PartialSchema, ToSchema};

/// Implements the traits that give a type a name and a schema in the document.
macro_rules! impl_schema {
    ($type:ty, $name:literal, $schema:expr) => {
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl ToSchema for $type {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }
        }
    };
}

impl_schema!(
    JobId,
    "JobId",
    text_schema(SchemaFormat::Custom("uuid".to_owned()), "The id of a job: a UUID")
);
impl_schema!(
    DefinitionHash,
    "DefinitionHash",
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[0-9a-f]{64}$"))
        .description(Some("The SHA-256 of a definition, as 64 hex digits"))
        .build()
);
impl_schema!(
    JobState,
    "JobState",
    enum_schema(JobState::ALL.map(JobState::as_str), "The state of a job")
);
impl_schema!(
    StepState,
    "StepState",
    enum_schema(StepState::ALL.map(StepState::as_str), "The state of a step")
);
impl_schema!(
    Json,
    "Json",
    ObjectBuilder::new()
        .schema_type(SchemaType::AnyValue)
        .description(Some("Any JSON value, as it was sent"))
        .build()
);
impl_schema!(
    Message,
    "Message",
    ObjectBuilder::new()
        .additional_properties(Some(AdditionalProperties::FreeForm(true)))
        .description(Some("A JSON object, as it was sent"))
        .build()
);

/// Creates the schema of a string in a format.
fn text_schema(format: SchemaFormat, description: &str) -> Schema {
    let schema = ObjectBuilder::new().schema_type(Type::String).format(Some(format));
    schema.description(Some(description)).build().into()
}

/// Creates the schema of a string that is one of `values`.
fn enum_schema<const N: usize>(values: [&'static str; N], description: &str) -> Schema {
    let schema = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(values));
    schema.description(Some(description)).build().into()
}
