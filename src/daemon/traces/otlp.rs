//! The Protobuf messages of OTLP, the OpenTelemetry Protocol, with the fields that traces need. The
//! field names and numbers of the messages are those of the protocol
//! (`opentelemetry.proto.collector.trace.v1`, `trace.v1`, `resource.v1` and `common.v1`).

/// The body of an export: `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Request {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

/// The response to an export: `ExportTraceServiceResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

/// The spans that the receiver has rejected: `ExportTracePartialSuccess`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

/// The spans of one resource.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

/// What the spans are about: this process, described by attributes.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

/// The spans of one scope.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<Span>,
}

/// The program that has built the spans: `InstrumentationScope`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

/// A timed operation of a trace.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Span {
    /// The 16 bytes of the trace id.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    /// The 8 bytes of the span id.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    /// The `tracestate` of the W3C trace context.
    #[prost(string, tag = "3")]
    pub(super) trace_state: String,
    /// The 8 bytes of the parent's span id; empty for a root span.
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    #[prost(enumeration = "Kind", tag = "6")]
    pub(super) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(super) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<Status>,
    /// The flags of the W3C trace context, and whether the parent is remote.
    #[prost(fixed32, tag = "16")]
    pub(super) flags: u32,
}

/// The role of a span in a call between processes: `SpanKind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Kind {
    Unspecified = 0,
    Internal = 1,
    Server = 2,
    Client = 3,
    Producer = 4,
    Consumer = 5,
}

/// Something that happened at a time within a span.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Event {
    #[prost(fixed64, tag = "1")]
    pub(super) time_unix_nano: u64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) attributes: Vec<KeyValue>,
}

/// Whether the operation of a span failed, and why.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Status {
    #[prost(string, tag = "2")]
    pub(super) message: String,
    #[prost(enumeration = "StatusCode", tag = "3")]
    pub(super) code: i32,
}

/// The code of a [`Status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(super) enum StatusCode {
    Unset = 0,
    Ok = 1,
    Error = 2,
}

/// An attribute.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    pub(super) value: Option<Value>,
}

/// The types of values that traces use. OTLP defines more.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Value {
    /// `string_value`
    #[prost(string, tag = "1")]
    Text(String),
    /// `int_value`
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// Returns an attribute with a text value.
pub(super) fn text_attribute(key: &str, value: impl Into<String>) -> KeyValue {
    let value = Some(Value::Text(value.into()));
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value }) }
}

/// Returns an attribute with a numeric value.
pub(super) fn number_attribute(key: &str, value: impl Into<i64>) -> KeyValue {
    let value = Some(Value::Number(value.into()));
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value }) }
}
