// docs/asyncapi.yaml is AsyncAPI 3.0, its examples are what its schemas say, and so are messages that went over a real broker.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { Ajv } from "ajv";
import addFormats from "ajv-formats";
import { parse } from "yaml";

const ID = "asyncapi.yaml";
const official = createRequire(import.meta.url)("@asyncapi/specs/schemas/3.0.0-without-$id.json");
const text = readFileSync(new URL("../../docs/asyncapi.yaml", import.meta.url), "utf8");
const document = parse(text, { merge: true, maxAliasCount: -1 });

function validator() {
  const ajv = new Ajv({ strict: false, allErrors: true, validateFormats: true });
  addFormats.default(ajv);
  return ajv;
}

// The schemas in the document refer to each other.
const own = validator().addSchema({ ...document, $id: ID });

function check(pointer, value, what) {
  const validate = own.getSchema(`${ID}#${pointer}`);
  assert.ok(validate, `${pointer} is no schema`);
  assert.ok(validate(value), `${what}: ${own.errorsText(validate.errors)}\n${JSON.stringify(value)}`);
}

function checkMessage(name, { headers, payload, properties }, what) {
  const message = document.components.messages[name];
  assert.ok(message, `there is no message ${name}`);
  const parts = { headers, payload, "x-amqp-properties": properties };
  for (const [part, value] of Object.entries(parts)) {
    if (value !== undefined && message[part]) check(`/components/messages/${name}/${part}`, value, `${what}, ${part}`);
  }
}

test("it is AsyncAPI 3.0", () => {
  const validate = validator().compile(official);
  assert.ok(validate(document), JSON.stringify(validate.errors, null, 1));
  assert.ok(!validate({ ...document, channel: {} }), "a key that AsyncAPI does not have is refused");
});

test("each reference leads somewhere, and each schema and message is used", () => {
  const used = new Set();
  const visit = (value) => {
    if (value === null || typeof value !== "object") return;
    if (typeof value.$ref === "string") {
      let target = document;
      for (const key of value.$ref.slice(2).split("/")) target = target?.[key];
      assert.ok(target, `${value.$ref} leads nowhere`);
      used.add(value.$ref);
    }
    Object.values(value).forEach(visit);
  };
  visit(document);
  for (const kind of ["schemas", "messages"]) {
    for (const name of Object.keys(document.components[kind])) {
      assert.ok(used.has(`#/components/${kind}/${name}`), `${kind}/${name} is not used`);
    }
  }
});

test("its examples are what its schemas say", () => {
  let looked = 0;
  for (const [name, message] of Object.entries(document.components.messages)) {
    assert.ok(message.examples?.length, `${name} has no example`);
    for (const example of message.examples) {
      checkMessage(name, example, `the example of ${name}`);
      looked += 1;
    }
  }
  for (const [name, schema] of Object.entries(document.components.schemas)) {
    for (const example of schema.examples ?? []) {
      check(`/components/schemas/${name}`, example, `the example of ${name}`);
      looked += 1;
    }
  }
  assert.ok(looked > 15, `only ${looked} examples`);
});

test("its schemas refuse what is none", () => {
  const [step] = document.components.messages.step.examples;
  const headers = { ...step.headers, attempt: 0 };
  assert.throws(() => checkMessage("step", { headers }, "attempt 0"), /attempt/);
  assert.throws(() => checkMessage("progress", { payload: { progress: 2 } }, "more than all"), /<= 1/);
  assert.throws(() => checkMessage("error", { payload: { retryable: true } }, "no error"), /error/);
});

// Lines of {"message", "headers", "payload", "properties"}, as tests/asyncapi/record.py writes them.
const recorded = process.env.RECORDED_MESSAGES;
test("messages that went over a real broker are what the schemas say", { skip: recorded ? false : "RECORDED_MESSAGES is not set" }, () => {
  const lines = readFileSync(recorded, "utf8").trim().split("\n").map((line) => JSON.parse(line));
  const kinds = new Set(lines.map((line) => line.message));
  assert.deepEqual([...kinds].sort(), ["answer", "event", "refusal", "step", "unreadable"]);
  for (const line of lines) checkMessage(line.message, line, `a ${line.message} on the wire`);
});
