//! Parses YAML (or JSON, which is YAML) to a tree in which every key and value has its location.
//!
//! The tree is built from the parser's events, without deserialization. So a scalar keeps its text
//! and whether it was quoted (`name: yes` is not a name), a duplicate key is reported with both
//! locations, and one error does not hide the next. Aliases share their node, so that a YAML bomb
//! takes no memory; the number of expanded nodes is counted and limited.

use super::limits::{NESTING_MAX, VALUES_MAX};
use super::location::{LocatedError, SourceLocation, nesting_error};
use super::syntax_errors::explain;
use engine::text::{quote, shorten};
use serde_yaml::granit_parser::{self, Event, Parser, ScalarStyle, Tag};
use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;

/// A value and its location. For a value behind an alias or a merge key (`<<`), that is the
/// location where it was written.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: SourceLocation,
    /// The location just after the value.
    pub(super) end: SourceLocation,
    pub(super) layout: ScalarLayout,
    pub(super) value: Value,
    /// The number of keys and values in this value, including itself, with all aliases expanded.
    size: usize,
}

#[derive(Debug)]
pub(super) enum Value {
    Map(Vec<Entry>),
    List(Vec<Rc<Node>>),
    Scalar(ScalarKind, String),
    /// An invalid value that was already reported.
    Invalid,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) value: Rc<Node>,
}

#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) at: SourceLocation,
    pub(super) text: String,
}

/// How the characters of a scalar are laid out in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalarLayout {
    /// On one line; the first character is this far after the scalar's location.
    Line(usize),
    /// On several lines that all begin at the column of the scalar's location: a block with `|`.
    Block,
    /// Otherwise: with escapes, or in folded lines; or the value is no scalar.
    Other,
}

/// The type that YAML readers give to a scalar; its text is kept separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalarKind {
    Text,
    /// Also `yes`, `no`, `on`, `off`, which older YAML reads as booleans.
    Boolean,
    Number,
    Null,
}

/// Parses a text. Returns no tree if nothing can be said about the content: after a syntax error,
/// if a limit is exceeded, or for an empty file.
pub(super) fn parse(text: &str) -> (Option<Rc<Node>>, Vec<LocatedError>) {
    let mut builder = TreeBuilder::default();
    let mut options = granit_parser::options! {
        emit_unresolved_aliases: true,
        flow_nesting_limit: NESTING_MAX,
        block_nesting_limit: NESTING_MAX,
    };
    options.set_emit_comments(false);
    for event in Parser::new_from_str_with_options(text, options) {
        let handled = match event {
            Ok((event, span)) => {
                let place = EventLocation {
                    at: span.start.into(),
                    end: span.end.into(),
                    tag: span.tag_start.unwrap_or(span.start).into(),
                    is_empty: span.start.index() == span.end.index(),
                };
                builder.handle_event(event, place)
            }
            Err(error) => Err(explain(&error, text)),
        };
        if let Err(fatal) = handled {
            builder.errors.push(fatal);
            return (None, builder.errors);
        }
    }
    if builder.root.is_none() && builder.errors.is_empty() {
        builder.errors.push(LocatedError::new(
            SourceLocation::START,
            "the file is empty; expected a list of workflows: `workflows: [ .. ]`",
        ));
    }
    (builder.root, builder.errors)
}

#[derive(Default)]
struct TreeBuilder {
    root: Option<Rc<Node>>,
    documents: usize,
    open: Vec<OpenNode>,
    anchors: HashMap<usize, Rc<Node>>,
    errors: Vec<LocatedError>,
}

/// The location of an event of the parser.
#[derive(Clone, Copy)]
struct EventLocation {
    at: SourceLocation,
    end: SourceLocation,
    tag: SourceLocation,
    /// Whether the text of the event is empty.
    is_empty: bool,
}

/// A list or mapping that is not complete yet.
struct OpenNode {
    at: SourceLocation,
    anchor: usize,
    size: usize,
    content: Content,
}

enum Content {
    List(Vec<Rc<Node>>),
    Map {
        entries: Vec<Entry>,
        seen: HashMap<String, SourceLocation>,
        merged: Vec<Rc<Node>>,
        key: PendingKey,
    },
}

enum PendingKey {
    /// The next node is a key.
    None,
    /// The next node is the value of this key.
    Key(Key),
    /// The next node is a mapping, or a list of mappings, whose entries are merged.
    Merge,
    /// The next node belongs to a key that was reported as invalid.
    Invalid,
}

impl TreeBuilder {
    fn handle_event(&mut self, event: Event<'_>, place: EventLocation) -> Result<(), LocatedError> {
        let EventLocation { at, end, tag: tag_at, is_empty: empty } = place;
        match event {
            Event::StreamStart | Event::StreamEnd | Event::DocumentEnd | Event::Anchor(..) => {
                Ok(())
            }
            Event::DocumentStart(..) => self.start_document(at),
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = style == ScalarStyle::Plain;
                // The parser gives `~` for an omitted value.
                let text = if is_plain && empty { Cow::Borrowed("") } else { text };
                let layout = find_layout(&text, style, at, end);
                let value = self.parse_scalar(text, style, tag.as_deref(), tag_at);
                self.attach(Node { at, end, layout, value, size: 1 }.into(), anchor, at, is_plain)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.check_tag(tag, "seq", tag_at);
                self.open(at, anchor, Content::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                self.check_tag(tag, "map", tag_at);
                let content = Content::Map {
                    entries: Vec::new(),
                    seen: HashMap::new(),
                    merged: Vec::new(),
                    key: PendingKey::None,
                };
                self.open(at, anchor, content)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(end),
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => self.attach(node, 0, at, false),
                // The list or mapping of the alias is still open: it would contain itself.
                None => self.attach_invalid(
                    at,
                    "this alias stands within the value that it names; a value cannot contain \
                     itself",
                ),
            },
            Event::UnresolvedAlias(name) => self.attach_invalid(
                at,
                format!("no anchor `&{}` stands before this alias", shorten(&name)),
            ),
            // Comments, if another crate enables them.
            _ => Ok(()),
        }
    }

    fn start_document(&mut self, at: SourceLocation) -> Result<(), LocatedError> {
        self.documents += 1;
        if self.documents > 1 {
            return Err(LocatedError::new(
                at,
                "a second document (`---`) starts here; a file holds one: put all workflows into \
                 one list",
            ));
        }
        Ok(())
    }

    fn parse_scalar(
        &mut self,
        text: Cow<'_, str>,
        style: ScalarStyle,
        tag: Option<&Tag>,
        tag_at: SourceLocation,
    ) -> Value {
        let forced = match tag {
            None => None,
            Some(tag) if tag.is_yaml_core_schema_tag("str") || tag.original() == "!" => {
                Some(ScalarKind::Text)
            }
            Some(tag) => {
                self.errors.push(tag_error(tag, tag_at));
                return Value::Invalid;
            }
        };
        let kind = forced.unwrap_or_else(|| {
            if style == ScalarStyle::Plain { plain_scalar_kind(&text) } else { ScalarKind::Text }
        });
        Value::Scalar(kind, text.into_owned())
    }

    fn check_tag(&mut self, tag: Option<Cow<'_, Tag>>, fitting: &str, at: SourceLocation) {
        if let Some(tag) = tag
            && !tag.is_yaml_core_schema_tag(fitting)
            && tag.original() != "!"
        {
            self.errors.push(tag_error(&tag, at));
        }
    }

    fn open(
        &mut self,
        at: SourceLocation,
        anchor: usize,
        content: Content,
    ) -> Result<(), LocatedError> {
        if self.open.len() >= NESTING_MAX {
            return Err(nesting_error(at));
        }
        self.open.push(OpenNode { at, anchor, size: 1, content });
        Ok(())
    }

    fn close(&mut self, end: SourceLocation) -> Result<(), LocatedError> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let value = match open.content {
            Content::List(items) => Value::List(items),
            Content::Map { mut entries, mut seen, merged, .. } => {
                // Keys of the mapping itself override merged ones, and an earlier merge overrides a
                // later one.
                for entry in merged.iter().flat_map(|source| entries_of(source)) {
                    if !seen.contains_key(&entry.key.text) {
                        seen.insert(entry.key.text.clone(), entry.key.at);
                        entries.push(entry.clone());
                    }
                }
                Value::Map(entries)
            }
        };
        self.attach(
            Node { at: open.at, end, layout: ScalarLayout::Other, value, size: open.size }.into(),
            open.anchor,
            open.at,
            false,
        )
    }

    fn attach_invalid(
        &mut self,
        at: SourceLocation,
        message: impl Into<String>,
    ) -> Result<(), LocatedError> {
        self.errors.push(LocatedError::new(at, message));
        self.attach(
            Node { at, end: at, layout: ScalarLayout::Other, value: Value::Invalid, size: 1 }
                .into(),
            0,
            at,
            false,
        )
    }

    /// Attaches a complete node to its parent. `at` is the location of its use; for an alias that
    /// differs from where it was written.
    fn attach(
        &mut self,
        node: Rc<Node>,
        anchor: usize,
        at: SourceLocation,
        is_plain: bool,
    ) -> Result<(), LocatedError> {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        parent.size = parent.size.saturating_add(node.size);
        if parent.size > VALUES_MAX {
            return Err(LocatedError::new(
                at,
                format!(
                    "the file has more than {VALUES_MAX} keys and values up to here, those that \
                     aliases repeat included; split it"
                ),
            ));
        }
        match &mut parent.content {
            Content::List(items) => items.push(node),
            Content::Map { entries, seen, merged, key } => {
                match std::mem::replace(key, PendingKey::None) {
                    PendingKey::None => {
                        *key = pending_key(&node, at, is_plain, seen, &mut self.errors)
                    }
                    PendingKey::Key(found) => entries.push(Entry { key: found, value: node }),
                    PendingKey::Merge => {
                        let sources = merge_sources(&node, at, &mut self.errors);
                        // Merged entries count twice: at the anchor, and here.
                        merged.extend(sources);
                    }
                    PendingKey::Invalid => (),
                }
            }
        }
        Ok(())
    }
}

fn find_layout(
    text: &str,
    style: ScalarStyle,
    at: SourceLocation,
    end: SourceLocation,
) -> ScalarLayout {
    if style == ScalarStyle::Literal && !text.starts_with(char::is_whitespace) {
        return ScalarLayout::Block;
    }
    let quotes = if style == ScalarStyle::Plain { 0 } else { 1 };
    let one_by_one =
        at.line == end.line && at.column + quotes + text.chars().count() + quotes == end.column;
    if one_by_one { ScalarLayout::Line(quotes) } else { ScalarLayout::Other }
}

fn pending_key(
    node: &Node,
    at: SourceLocation,
    is_plain: bool,
    seen: &mut HashMap<String, SourceLocation>,
    mistakes: &mut Vec<LocatedError>,
) -> PendingKey {
    let text = match &node.value {
        Value::Scalar(ScalarKind::Null, text) if text.is_empty() => {
            mistakes.push(LocatedError::new(at, "a key is missing before this colon"));
            return PendingKey::Invalid;
        }
        Value::Scalar(_, text) => text.clone(),
        Value::Map(_) | Value::List(_) => {
            mistakes.push(LocatedError::new(
                at,
                "a key must be a word, found a list or a mapping; is a quote or a line break \
                 missing?",
            ));
            return PendingKey::Invalid;
        }
        Value::Invalid => return PendingKey::Invalid,
    };
    if let Some(first) = seen.get(&text) {
        mistakes.push(LocatedError::new(
            at,
            format!(
                "the key {} is given twice in this mapping; the first is at {first}",
                quote(&text)
            ),
        ));
        return PendingKey::Invalid;
    }
    seen.insert(text.clone(), at);
    if is_plain && text == "<<" { PendingKey::Merge } else { PendingKey::Key(Key { at, text }) }
}

fn merge_sources(
    node: &Rc<Node>,
    at: SourceLocation,
    mistakes: &mut Vec<LocatedError>,
) -> Vec<Rc<Node>> {
    let (sources, all_maps) = match &node.value {
        Value::Map(_) => (vec![node.clone()], true),
        Value::List(items) => (
            items.clone(),
            items.iter().all(|item| matches!(item.value, Value::Map(_) | Value::Invalid)),
        ),
        Value::Invalid => (Vec::new(), true),
        Value::Scalar(..) => (Vec::new(), false),
    };
    if !all_maps {
        mistakes.push(LocatedError::new(
            at,
            "the merge key `<<` takes the alias of a mapping, or a list of such aliases",
        ));
    }
    sources
}

fn entries_of(node: &Node) -> &[Entry] {
    match &node.value {
        Value::Map(entries) => entries,
        Value::List(_) | Value::Scalar(..) | Value::Invalid => &[],
    }
}

/// Returns the type of a scalar without quotes (YAML 1.2's core schema, and the words that were
/// booleans in YAML 1.1).
fn plain_scalar_kind(text: &str) -> ScalarKind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ScalarKind::Null,
        ".inf" | ".Inf" | ".INF" | "+.inf" | "-.inf" | ".nan" | ".NaN" | ".NAN" => {
            return ScalarKind::Number;
        }
        _ => (),
    }
    if ["true", "false", "yes", "no", "on", "off"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word))
    {
        return ScalarKind::Boolean;
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let number = match digits.as_bytes() {
        [b'0', b'x' | b'o', rest @ ..] => {
            !rest.is_empty() && rest.iter().all(u8::is_ascii_hexdigit)
        }
        [b'0'..=b'9' | b'.', ..] => digits.parse::<f64>().is_ok(),
        _ => false,
    };
    if number { ScalarKind::Number } else { ScalarKind::Text }
}

fn tag_error(tag: &Tag, at: SourceLocation) -> LocatedError {
    LocatedError::new(
        at,
        format!(
            "the tag {} has no meaning here; remove it (quotes make a text)",
            quote(&tag.original())
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renders the tree in a notation of its own: `key@line:column=value`.
    fn render(node: &Node) -> String {
        match &node.value {
            Value::Map(entries) => {
                let entries: Vec<String> = entries
                    .iter()
                    .map(|entry| {
                        format!("{}@{}={}", entry.key.text, entry.key.at, render(&entry.value))
                    })
                    .collect();
                format!("{{{}}}", entries.join(" "))
            }
            Value::List(items) => format!(
                "[{}]",
                items.iter().map(|item| render(item)).collect::<Vec<String>>().join(" ")
            ),
            Value::Scalar(kind, text) => format!("{kind:?}({text})@{}", node.at),
            Value::Invalid => "broken".to_owned(),
        }
    }

    fn tree(text: &str) -> String {
        let (root, mistakes) = parse(text);
        assert!(mistakes.is_empty(), "{mistakes:?}");
        render(&root.expect("a tree"))
    }

    fn first_mistake(text: &str) -> String {
        let (_, mistakes) = parse(text);
        let first = mistakes.first().expect("a mistake");
        format!("{} {}", first.at, first.message)
    }

    #[test]
    fn locations_are_exact_in_every_notation() {
        assert_eq!(
            tree("a: 1\nb:\n  - x\n  - 'y'\n"),
            "{a@1:1=Number(1)@1:4 b@2:1=[Text(x)@3:5 Text(y)@4:5]}"
        );
        assert_eq!(
            tree("\u{feff}ä: { b: [ c, \"1\" ] }\r\nd:\r\n"),
            "{ä@1:1={b@1:6=[Text(c)@1:11 Text(1)@1:14]} d@2:1=Null()@2:2}"
        );
        assert_eq!(
            tree("{\n\t\"a\": [1.50, null]\n}"),
            "{a@2:2=[Number(1.50)@2:8 Null(null)@2:14]}"
        );
    }

    #[test]
    fn a_scalar_without_quotes_has_the_type_that_yaml_readers_give_it() {
        for (text, kind) in [
            ("yes", ScalarKind::Boolean),
            ("Off", ScalarKind::Boolean),
            ("TRUE", ScalarKind::Boolean),
            ("y", ScalarKind::Text),
            ("1", ScalarKind::Number),
            ("-0.5e3", ScalarKind::Number),
            ("0xff", ScalarKind::Number),
            (".inf", ScalarKind::Number),
            ("1.2.3", ScalarKind::Text),
            ("1a", ScalarKind::Text),
            ("infinity", ScalarKind::Text),
            ("-", ScalarKind::Text),
            ("~", ScalarKind::Null),
            ("nullable", ScalarKind::Text),
        ] {
            assert_eq!(plain_scalar_kind(text), kind, "{text}");
        }
        assert_eq!(tree("[ 'yes', !!str 5, ! on ]"), "[Text(yes)@1:3 Text(5)@1:16 Text(on)@1:21]");
    }

    #[test]
    fn aliases_and_merges_keep_the_original_locations() {
        assert_eq!(tree("x: &a [ b ]\ny: *a\n"), "{x@1:1=[Text(b)@1:9] y@2:1=[Text(b)@1:9]}");
        assert_eq!(
            tree("x: &a { k: 1, l: 2 }\ny: &b { l: 3, m: 4 }\nz: { k: 5, <<: [ *a, *b ] }\n"),
            "{x@1:1={k@1:9=Number(1)@1:12 l@1:15=Number(2)@1:18} \
             y@2:1={l@2:9=Number(3)@2:12 m@2:15=Number(4)@2:18} \
             z@3:1={k@3:6=Number(5)@3:9 l@1:15=Number(2)@1:18 m@2:15=Number(4)@2:18}}"
        );
        assert_eq!(tree("{ \"<<\": 1 }"), "{<<@1:3=Number(1)@1:9}");
        assert_eq!(
            first_mistake("a: 1\n<<: 5\n"),
            "2:5 the merge key `<<` takes the alias of a mapping, or a list of such aliases"
        );
        assert_eq!(first_mistake("a: *b"), "1:4 no anchor `&b` stands before this alias");
        assert_eq!(
            first_mistake("a: &b [ *b ]"),
            "1:9 this alias stands within the value that it names; a value cannot contain itself"
        );
    }

    #[test]
    fn one_error_does_not_hide_the_next() {
        let (root, mistakes) = parse("a: !x 1\na: 2\nb: *c\n? [ d ]\n: e\n");
        assert_eq!(render(&root.expect("a tree")), "{a@1:1=broken b@3:1=broken}");
        let locations: Vec<String> =
            mistakes.iter().map(|mistake| mistake.at.to_string()).collect();
        assert_eq!(locations, ["1:4", "2:1", "3:4", "4:3"]);
    }
}
