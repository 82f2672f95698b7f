//! Describes operations of the API for the OpenAPI document.

use super::parameters::Parameter;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

/// The description of an operation, without its method and path.
pub(in crate::api) struct OperationSpec {
    id: String,
    /// The name of the operation's group in the document.
    tag: &'static str,
    summary: String,
    /// The parameters of the query and of headers. Those of the path follow from the route.
    parameters: Vec<Parameter>,
    /// The request body object of OpenAPI. `None`: the operation has no body.
    body: Option<Value>,
    /// The response objects of OpenAPI, by status.
    responses: Map<String, Value>,
    /// The rules between parameters, in the words of the 400 for requests that break them.
    rules: Vec<String>,
}

/// The description of the body of a reply.
pub(in crate::api) const REPLY_DESCRIPTION: &str =
    "The step's output, or `{\"error\":…}`, or progress";

/// The statuses of problems that every operation may return.
const COMMON_PROBLEM_STATUSES: [u16; 7] = [400, 401, 403, 408, 429, 500, 503];

/// The problems that operations refer to: the status, the name of the response in the document's
/// components, and what the status means.
const PROBLEMS: [(u16, &str, &str); 14] = [
    (400, "Malformed", "The request is malformed, or has a parameter that the call does not know"),
    (401, "Unauthorized", "No token, or not the right one"),
    (
        403,
        "Forbidden",
        "This sender may not ask: another site's page, or a name that is not the manager's",
    ),
    (404, "NotFound", "It does not exist"),
    (405, "MethodNotAllowed", "The path does not take this method"),
    (408, "RequestTimeout", "The request did not arrive in time"),
    (409, "Conflict", "It conflicts with what exists: the detail says how"),
    (410, "Gone", "The lease or the attempt has ended"),
    (413, "TooLarge", "The body is too large"),
    (415, "UnsupportedMediaType", "The body has an encoding that is not supported"),
    (422, "Invalid", "Well-formed, but wrong: the detail says what"),
    (
        429,
        "TooMany",
        "Too many wrong tokens were sent from this address; Retry-After says when to try again",
    ),
    (500, "Broken", "The manager failed"),
    (
        503,
        "Overloaded",
        "The manager cannot do it now; Retry-After says when to try again. Or it stands by: \
         `active` and the header Workflow-Manager-Active name the one that can",
    ),
];

/// Returns the responses with problems for the components of the document, to which operations
/// refer.
pub(super) fn problem_responses() -> Value {
    let responses = PROBLEMS.iter().map(|(status, name, meaning)| {
        let mut response = json!({
            "description": meaning,
            "content": {
                "application/problem+json": {
                    "schema": { "$ref": "#/components/schemas/Problem" },
                },
            },
        });
        if matches!(*status, 429 | 503) {
            response["headers"] = json!({ "Retry-After": { "schema": { "type": "string" } } });
        }
        if *status == 503 {
            response["headers"]["Workflow-Manager-Active"] = json!({
                "description": "The address of the active manager's API, from one that stands by",
                "schema": { "type": "string", "format": "uri" },
            });
        }
        ((*name).to_owned(), response)
    });
    Value::Object(responses.collect())
}

impl OperationSpec {
    /// Describes an operation with the common problems and no other response.
    pub(in crate::api) fn new(id: &str, tag: &'static str, summary: &str) -> OperationSpec {
        let operation = OperationSpec {
            id: id.to_owned(),
            tag,
            summary: summary.to_owned(),
            parameters: Vec::new(),
            body: None,
            responses: Map::new(),
            rules: Vec::new(),
        };
        operation.with_problems(&COMMON_PROBLEM_STATUSES)
    }

    /// Adds parameters of the query or of headers.
    pub(in crate::api) fn with_parameters(mut self, parameters: &[Parameter]) -> OperationSpec {
        self.rules.extend(parameters.iter().filter_map(Parameter::rule));
        self.parameters.extend_from_slice(parameters);
        self
    }

    /// Adds a rule that no schema can express, in the words of the 400 that it causes.
    pub(in crate::api) fn with_rule(mut self, rule: String) -> OperationSpec {
        self.rules.push(rule);
        self
    }

    /// Sets the schema of a JSON body. Adds the problems that a body may cause.
    pub(in crate::api) fn with_body(self, is_required: bool, schema: Value) -> OperationSpec {
        self.with_body_of_type("application/json", is_required, schema)
    }

    /// Takes a body of YAML, which may be empty. Adds the problems that a body may cause.
    pub(in crate::api) fn with_yaml_body(self, description: &str) -> OperationSpec {
        self.with_body_of_type("application/yaml", false, json!({ "description": description }))
    }

    /// Sets the content type and schema of the body. Adds the problems that a body may cause.
    fn with_body_of_type(
        mut self,
        content_type: &str,
        is_required: bool,
        schema: Value,
    ) -> OperationSpec {
        self.body = Some(json!({
            "required": is_required,
            "content": { content_type: { "schema": schema } },
        }));
        self.with_problems(&[413, 415])
    }

    /// Adds a JSON response with this schema.
    pub(in crate::api) fn with_json_response(
        self,
        status: u16,
        meaning: &str,
        schema: Value,
    ) -> OperationSpec {
        self.with_response(status, meaning, "application/json", schema)
    }

    /// Adds a response with this content type and schema.
    pub(in crate::api) fn with_response(
        mut self,
        status: u16,
        meaning: &str,
        content_type: &str,
        schema: Value,
    ) -> OperationSpec {
        let response = self.responses.entry(status.to_string()).or_insert(Value::Null);
        if response.get("content").is_none() {
            *response = json!({ "description": meaning, "content": {} });
        }
        response["content"][content_type] = json!({ "schema": schema });
        self
    }

    /// Adds a response without a body.
    pub(in crate::api) fn with_empty_response(
        mut self,
        status: u16,
        meaning: &str,
    ) -> OperationSpec {
        self.responses.insert(status.to_string(), json!({ "description": meaning }));
        self
    }

    /// Adds the responses with problems of these statuses.
    pub(in crate::api) fn with_problems(mut self, statuses: &[u16]) -> OperationSpec {
        for (status, name, _) in PROBLEMS.iter().filter(|(status, ..)| statuses.contains(status)) {
            let reference = json!({ "$ref": format!("#/components/responses/{name}") });
            self.responses.insert(status.to_string(), reference);
        }
        self
    }

    /// Returns the 400 for requests that break a rule, with an example for each rule. Returns
    /// `None` if there are no rules.
    fn rules_response(&self) -> Option<Value> {
        if self.rules.is_empty() {
            return None;
        }
        let to_example = |(index, rule): (usize, &String)| {
            let problem = json!({
                "type": "about:blank", "title": "Bad Request", "status": 400, "detail": rule,
            });
            (format!("rule{}", index + 1), json!({ "summary": rule, "value": problem }))
        };
        let examples: Map<String, Value> = self.rules.iter().enumerate().map(to_example).collect();
        Some(json!({
            "description": format!(
                "The request is malformed, or has a parameter that the call does not know, or \
                 breaks a rule: {}",
                self.rules.join("; ")
            ),
            "content": {
                "application/problem+json": {
                    "schema": { "$ref": "#/components/schemas/Problem" },
                    "examples": examples,
                },
            },
        }))
    }

    /// Renders the operation object of OpenAPI, with the parameters that the path names.
    pub(super) fn to_openapi(&self, path: &str) -> Value {
        let mut operation = json!({
            "operationId": self.id,
            "tags": [self.tag],
            "summary": self.summary,
            "responses": self.responses,
        });
        if let Some(response) = self.rules_response() {
            operation["responses"]["400"] = response;
        }
        let mut parameters = Parameter::from_path(path);
        parameters.extend_from_slice(&self.parameters);
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into_iter().map(Parameter::to_openapi).collect();
        }
        if let Some(body) = &self.body {
            operation["requestBody"] = body.clone();
        }
        operation
    }
}

/// Returns a schema that matches any of these schemas.
pub(in crate::api) fn any_of(schemas: [Value; 2]) -> Value {
    json!({ "anyOf": schemas })
}

/// Returns a schema that matches any JSON object.
pub(in crate::api) fn any_object_schema() -> Value {
    json!({ "type": "object", "additionalProperties": true })
}

/// Returns the schema of a text.
pub(in crate::api) fn text_schema() -> Value {
    json!({ "type": "string" })
}

/// Returns a reference to the schema of a message, which is any JSON object.
pub(in crate::api) fn message_schema() -> Value {
    json!({ "$ref": "#/components/schemas/Message" })
}

/// Collects the schemas to which the document refers.
#[derive(Default)]
pub(in crate::api) struct Schemas(Vec<(String, RefOr<Schema>)>);

impl Schemas {
    /// Adds the schema of a type, and returns a reference to it.
    pub(in crate::api) fn reference<T: ToSchema>(&mut self) -> Value {
        self.0.push((T::name().into_owned(), T::schema()));
        T::schemas(&mut self.0);
        json!({ "$ref": format!("#/components/schemas/{}", T::name()) })
    }

    /// Returns the schema of a list of a type.
    pub(in crate::api) fn list_of<T: ToSchema>(&mut self) -> Value {
        json!({ "type": "array", "items": self.reference::<T>() })
    }

    /// Renders all schemas for the document's components.
    pub(super) fn into_components(self) -> Value {
        let mut components = serde_json::Map::new();
        for (name, schema) in self.0 {
            let mut schema = serde_json::to_value(schema).expect("a schema has a JSON text");
            remove_null(&mut schema);
            let known = components.entry(name.clone()).or_insert_with(|| schema.clone());
            debug_assert_eq!(*known, schema, "two types have the schema {name}");
        }
        Value::Object(components)
    }
}

/// Removes `null` from a schema, because the API omits keys without a value and never sends `null`.
fn remove_null(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            if let Some(Value::Array(types)) = keys.get_mut("type") {
                types.retain(|name| name != "null");
                if let [single_type] = types.as_slice() {
                    let single_type = single_type.clone();
                    keys.insert("type".to_owned(), single_type);
                }
            }
            if let Some(Value::Array(alternatives)) = keys.get_mut("oneOf") {
                alternatives.retain(|alternative| alternative["type"] != "null");
                if let [Value::Object(single)] = alternatives.as_slice() {
                    let single = single.clone();
                    keys.remove("oneOf");
                    keys.extend(single);
                }
            }
            keys.values_mut().for_each(remove_null);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_null),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
