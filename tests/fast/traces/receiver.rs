//! A receiver of OTLP over HTTP: it reads what it is sent with the protocol's own types.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use std::collections::BTreeMap;
use std::time::Duration;
use support::service::{Act, Call, Service, status};
use workflow_manager::settings::{DurationSetting as Time, ServerAddress, Settings};

/// A span, to be compared.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) trace: String,
    /// What is handed on in the trace.
    pub(crate) state: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    /// 1: internal, 3: client, 4: producer.
    pub(crate) kind: i32,
    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) events: Vec<String>,
    /// The message of the status, if that is an error.
    pub(crate) error: Option<String>,
    pub(crate) flags: u32,
}

impl Told {
    fn of(span: &Span) -> Told {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let status = span.status.as_ref().filter(|status| status.code == 2);
        Told {
            trace: hex(&span.trace_id),
            state: span.trace_state.clone(),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            name: span.name.clone(),
            kind: span.kind,
            started: span.start_time_unix_nano,
            ended: span.end_time_unix_nano,
            attributes: attributes(&span.attributes),
            events: span.events.iter().map(|event| event.name.clone()).collect(),
            error: status.map(|status| status.message.clone()),
            flags: span.flags,
        }
    }

    pub(crate) fn get(&self, attribute: &str) -> &str {
        self.attributes.get(attribute).map_or("", String::as_str)
    }
}

fn attributes(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    #[allow(clippy::wildcard_enum_match_arm, reason = "a value of another type is a mistake")]
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let value = |of: &KeyValue| {
        of.value.as_ref().and_then(|any| any.value.as_ref()).map(text).expect("a value")
    };
    attributes.iter().map(|of| (of.key.clone(), value(of))).collect()
}

/// An export, read.
pub(crate) fn read(called: &Call) -> ExportTraceServiceRequest {
    ExportTraceServiceRequest::decode(&*called.body).expect("an export")
}

/// The attributes of the resource of an export.
pub(crate) fn resource(export: &ExportTraceServiceRequest) -> BTreeMap<String, String> {
    attributes(&export.resource_spans[0].resource.as_ref().expect("a resource").attributes)
}

/// The receiver.
#[derive(Clone)]
pub(crate) struct Receiver(pub(crate) Service);

impl Receiver {
    pub(crate) fn start() -> Receiver {
        Receiver::with(|_| status(200))
    }

    pub(crate) fn with(act: impl Fn(&Call) -> Act + Send + Sync + 'static) -> Receiver {
        Receiver(Service::start(act))
    }

    /// Sends the traces of a manager here, soon.
    pub(crate) fn listen(&self, settings: &mut Settings) {
        let traces = &mut settings.traces;
        traces.endpoint = ServerAddress(format!("http://127.0.0.1:{}", self.0.port));
        let soon = Time(Duration::from_millis(20));
        (traces.delay, traces.interval, traces.backoff_min) = (soon, soon, soon);
        traces.backoff_max = Time(Duration::from_millis(200));
    }

    /// The same, as a change of settings.
    pub(crate) fn settings(&self) -> impl FnOnce(&mut Settings) + use<> {
        let receiver = self.clone();
        move |settings| receiver.listen(settings)
    }

    /// All spans that came.
    pub(crate) fn spans(&self) -> Vec<Told> {
        let exports = self.0.calls();
        let exports = exports.iter().map(read);
        let scopes = exports.flat_map(|export| export.resource_spans).flat_map(|of| of.scope_spans);
        scopes.flat_map(|scope| scope.spans).map(|span| Told::of(&span)).collect()
    }

    /// The spans with this name.
    pub(crate) fn named(&self, name: &str) -> Vec<Told> {
        self.spans().into_iter().filter(|span| span.name == name).collect()
    }
}
