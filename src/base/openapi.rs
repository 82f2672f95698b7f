//! The JSON schema of a time, for the OpenAPI document (feature `openapi`).

use crate::times::Rfc3339Time;
use std::borrow::Cow;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

impl PartialSchema for Rfc3339Time {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("RFC 3339 in UTC, with nanoseconds"))
            .into()
    }
}

impl ToSchema for Rfc3339Time {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Time")
    }
}
