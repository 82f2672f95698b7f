//! The cases of the test in the order in which they run, each with the rule of the worker protocol
//! that it checks.

use super::super::arguments::TestedBus;
use super::report::{CaseInfo, RequirementLevel};

/// Defines an enum and the constant `ORDER`, which lists its variants in the order of declaration.
macro_rules! ordered_enum {
    ($(#[$enum_attribute:meta])* $visible:vis enum $name:ident {
        $($(#[$variant_attribute:meta])* $variant:ident,)*
    }) => {
        $(#[$enum_attribute])*
        $visible enum $name {
            $($(#[$variant_attribute])* $variant,)*
        }

        const ORDER: &[$name] = &[$($name::$variant,)*];
    };
}

ordered_enum! {
    /// A case of the test: one rule of the protocol. [`Case::info`] describes each.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Case {
        Answers,
        CutBeforeReply,
        CutAfterReply,
        NotJson,
        Array,
        Empty,
        Deep,
        Large,
        Headers,
        NoReplyTo,
        HundredMessages,
        Order,
        Confirms,
        Attempt,
        Persistent,
        ContentType,
        RoundTrip,
        Lease,
        AttemptOver,
        RedeclaresQueue,
        StopsOnSigterm,
    }
}

// Imported, so that the tables below stay readable.
use Case::{
    Answers, Array, Attempt, AttemptOver, Confirms, ContentType, CutAfterReply, CutBeforeReply,
    Deep, Empty, Headers, HundredMessages, Large, Lease, NoReplyTo, NotJson, Order, Persistent,
    RedeclaresQueue, RoundTrip, StopsOnSigterm,
};

// A rule quotes docs/reference/worker-protocol.md; "…" joins two quotations. A test compares them.

const ANSWER_RULE: &str = "For each message: do the work, publish a JSON object to the queue \
                      named in reply_to, with the same correlation_id, then ack";

const ERROR_RULE: &str = "If the work raises an error: publish {\"error\": \"why\"} in the same \
                      way, with the property type set to error, then ack … A message that always \
                      fails this way keeps the broker busy";

const NO_ACK_RULE: &str = "dies before the ack hears nothing: the broker delivers the message to \
                    another worker. If it kills each of them, the same holds";

impl Case {
    /// Returns the cases of a bus, in the order in which they run.
    pub(super) fn for_bus(bus: TestedBus) -> Vec<Case> {
        let is_for_bus = |case: &Case| match case {
            NoReplyTo | Order | Confirms | Attempt | Persistent | ContentType | RedeclaresQueue => {
                bus == TestedBus::Amqp
            }
            Lease | AttemptOver => bus != TestedBus::Amqp,
            // A message over gRPC has fields alone, which the protocol defines.
            Headers => matches!(bus, TestedBus::Amqp | TestedBus::Http),
            Answers | CutBeforeReply | CutAfterReply | NotJson | Array | Empty | Deep | Large
            | HundredMessages | RoundTrip | StopsOnSigterm => true,
        };
        ORDER.iter().copied().filter(is_for_bus).collect()
    }

    /// Returns whether a failure of this case needs no recovery: the case only reads the log, or is
    /// the last one.
    pub(super) fn needs_no_recovery(self) -> bool {
        matches!(
            self,
            Order | Confirms | Attempt | Persistent | ContentType | Lease | StopsOnSigterm
        )
    }

    /// Returns the level, the name and the rule of the case over a bus.
    #[allow(clippy::too_many_lines, reason = "one list of cases")]
    pub(super) fn info(self, bus: TestedBus) -> CaseInfo {
        let (is_amqp, is_http) = (bus == TestedBus::Amqp, bus == TestedBus::Http);
        let (level, name, rule) = match self {
            Answers if is_amqp => (RequirementLevel::Must, "answers a message", ANSWER_RULE),
            Answers => (
                RequirementLevel::Must,
                "answers a message",
                if is_http {
                    "POST {Reply-To} the result … Its body is what it is over AMQP; an empty one \
                     is the output {}"
                } else {
                    "Its body is what it is over AMQP; an empty one is the output {}"
                },
            ),
            CutBeforeReply => (
                RequirementLevel::Must,
                "comes back after a connection that was cut before the reply",
                if is_amqp {
                    "A message may come more than once: after a crash of the worker, of the \
                     manager or of the broker"
                } else if is_http {
                    "Until a worker has that answer, it sends the reply again: no connection, 503 \
                     and every other 5xx mean \"later\""
                } else {
                    "Until a worker has that answer, it sends the reply again"
                },
            ),
            CutAfterReply if is_amqp => (
                RequirementLevel::Must,
                "gives the same result after a connection that was cut between reply and ack",
                "The work must be repeatable",
            ),
            CutAfterReply => (
                RequirementLevel::Must,
                "goes on after a reply whose answer was lost",
                if is_http {
                    "{\"taken\":false,\"reason\":\"duplicate\"} it changed nothing, and it is \
                     useless to send it again"
                } else {
                    "it changed nothing, and it is useless to send it again"
                },
            ),
            NotJson => (RequirementLevel::Must, "bears a message that is not JSON", ERROR_RULE),
            Array => (RequirementLevel::Must, "bears a message that is an array", ERROR_RULE),
            Empty => (RequirementLevel::Must, "bears an empty message", ERROR_RULE),
            Deep => {
                (RequirementLevel::Must, "bears a message that nests 100 levels deep", ERROR_RULE)
            }
            Large => (RequirementLevel::Must, "bears a message of 1 MiB", ERROR_RULE),
            Headers => (RequirementLevel::Must, "bears headers that it does not know", ERROR_RULE),
            NoReplyTo => (RequirementLevel::Must, "bears a message without reply_to", NO_ACK_RULE),
            HundredMessages => {
                (RequirementLevel::Must, "answers each of 100 messages once", ANSWER_RULE)
            }
            Order => (
                RequirementLevel::Must,
                "acknowledges only after the reply",
                "a worker that acks first and dies before it replies has lost the step … \
                 acknowledge after the reply, never before it, and do not consume with automatic \
                 acknowledgement",
            ),
            Confirms => (
                RequirementLevel::Should,
                "acknowledges only after the broker has confirmed the reply",
                "A worker that acknowledges only after the broker's confirm loses no reply with \
                 its connection",
            ),
            Attempt => (
                RequirementLevel::Should,
                "gives the header attempt back",
                "So a worker that returns it never costs a step an attempt that did not fail",
            ),
            Persistent => (
                RequirementLevel::Should,
                "publishes replies as persistent",
                "Publish it as persistent, so that it survives a restart of the broker",
            ),
            ContentType => (
                RequirementLevel::Should,
                "names the type of the content",
                "publish a JSON object … content_type and everything else is ignored",
            ),
            RoundTrip => (
                RequirementLevel::Should,
                "keeps every digit, escapes and the order of keys",
                "the step's output, exactly as it came: every digit, every escape, the order of \
                 the keys",
            ),
            Lease => (
                RequirementLevel::Should,
                "asks for more time, or reports progress, before its lease ends",
                "A worker that works longer extends it before it ends. Progress does so too",
            ),
            AttemptOver => (
                RequirementLevel::Should,
                "stops when its attempt is over",
                if is_http {
                    "the worker learns it when it extends: 410, and reason is cancelled, timed \
                     out or settled"
                } else {
                    "the worker learns it when it extends"
                },
            ),
            RedeclaresQueue => (
                RequirementLevel::Should,
                "declares its queue again after it was deleted",
                "Declare your queue: durable, without arguments",
            ),
            StopsOnSigterm => (
                RequirementLevel::Should,
                "finishes what is in hand on SIGTERM, and ends with exit code 0",
                NO_ACK_RULE,
            ),
        };
        CaseInfo { name, level, rule }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn each_bus_begins_with_an_answer_and_ends_with_sigterm() {
        for &bus in TestedBus::value_variants() {
            let cases = Case::for_bus(bus);
            assert_eq!((cases[0], cases.last()), (Answers, Some(&StopsOnSigterm)));
            assert!(cases.iter().all(|case| !case.info(bus).rule.is_empty()));
        }
        assert_eq!(
            (Case::for_bus(TestedBus::Amqp).len(), Case::for_bus(TestedBus::Http).len()),
            (19, 14)
        );
        #[cfg(feature = "grpc")]
        assert_eq!(Case::for_bus(TestedBus::Grpc).len(), 13);
    }

    /// Returns a text without its Markdown.
    fn strip_markdown(text: &str) -> String {
        let parts: Vec<&str> = text.split("](").collect();
        let skip_url =
            |part: &&str| part.split_once(')').map_or("", |(_, after_url)| after_url).to_owned();
        let without_urls =
            parts[0].to_owned() + &parts[1..].iter().map(skip_url).collect::<String>();
        let plain: String = without_urls.chars().filter(|c| !"`*|[".contains(*c)).collect();
        plain.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_rule_quotes_the_worker_protocol() {
        let protocol = strip_markdown(include_str!("../../../docs/reference/worker-protocol.md"));
        for &bus in TestedBus::value_variants() {
            for case in Case::for_bus(bus) {
                for part in case.info(bus).rule.split(" … ") {
                    assert!(protocol.contains(part), "{case:?} over {bus:?}: {part:?}");
                }
            }
        }
    }
}
