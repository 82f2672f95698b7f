//! Parses YAML (or JSON, which is YAML) into a tree in which every key and value has its location.
//!
//! The tree is built from the parser's events, without deserialization. So a scalar keeps its text
//! and its type (the unquoted `yes` in `name: yes` is a boolean, not a name), a duplicate key is
//! reported with both locations, and one error does not hide the next. Aliases share their node, so
//! that a "billion laughs" file takes little memory, and the number of expanded nodes is limited.

use super::limits::{NESTING_MAX, TEXT_UNIT_BYTES, VALUES_MAX};
use super::location::{LocatedError, SourceLocation, nesting_error};
use super::scalars::{ScalarKind, ScalarLayout, find_layout, plain_scalar_kind};
use super::syntax_errors::explain;
use engine::text::{quote, shorten};
use serde_yaml::granit_parser::{self, Event, Parser, ScalarStyle, Tag};
use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;

/// A value and its location. A value that comes from an alias or a merge key (`<<`) has the
/// location of the anchored value.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) location: SourceLocation,
    /// The location just after the value.
    pub(super) end: SourceLocation,
    pub(super) layout: ScalarLayout,
    pub(super) value: Value,
    /// The number of nodes in this value, with all aliases expanded. The value itself and keys
    /// count too, and a long text counts as several.
    size: usize,
}

/// The content of a node.
#[derive(Debug)]
pub(super) enum Value {
    Map(Vec<Entry>),
    List(Vec<Rc<Node>>),
    Scalar(ScalarKind, String),
    /// An invalid value that was already reported.
    Invalid,
}

/// One key of a mapping, with its value.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) value: Rc<Node>,
}

/// The text of a key, and its location.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) location: SourceLocation,
    pub(super) text: String,
}

/// Parses a file's text. Returns the tree, and the errors in the text. There is no tree after a
/// syntax error or the start of a second document, if a limit is exceeded, or for an empty file.
pub(super) fn parse(text: &str) -> (Option<Rc<Node>>, Vec<LocatedError>) {
    let mut builder = TreeBuilder::default();
    let mut options = granit_parser::options! {
        emit_unresolved_aliases: true,
        flow_nesting_limit: NESTING_MAX,
        block_nesting_limit: NESTING_MAX,
    };
    options.set_emit_comments(false);
    for event in Parser::new_from_str_with_options(text, options) {
        let result = match event {
            Ok((event, span)) => {
                let event_span = EventSpan {
                    start: span.start.into(),
                    end: span.end.into(),
                    tag_start: span.tag_start.unwrap_or(span.start).into(),
                    is_empty: span.start.index() == span.end.index(),
                };
                builder.handle_event(event, event_span)
            }
            Err(error) => Err(explain(&error, text)),
        };
        if let Err(fatal_error) = result {
            builder.errors.push(fatal_error);
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

/// Builds the tree from the parser's events.
#[derive(Default)]
struct TreeBuilder {
    root: Option<Rc<Node>>,
    document_count: usize,
    /// The lists and mappings around the current event, the innermost last.
    open_nodes: Vec<OpenNode>,
    /// The nodes with an anchor, by the parser's id of the anchor.
    anchors: HashMap<usize, Rc<Node>>,
    errors: Vec<LocatedError>,
}

/// The part of the file that an event of the parser covers.
#[derive(Clone, Copy)]
struct EventSpan {
    start: SourceLocation,
    end: SourceLocation,
    /// Where the tag begins; without a tag, where the value begins.
    tag_start: SourceLocation,
    /// Whether the event has no text in the file.
    is_empty: bool,
}

/// The parser's id of the anchor of a node that has none.
const NO_ANCHOR: usize = 0;

/// A list or mapping that is not complete yet.
struct OpenNode {
    location: SourceLocation,
    /// The parser's id of the anchor, or [`NO_ANCHOR`].
    anchor: usize,
    /// The number of nodes so far; see [`Node`].
    size: usize,
    content: Content,
}

/// The part of an open list or mapping that was parsed so far.
enum Content {
    List(Vec<Rc<Node>>),
    Map {
        entries: Vec<Entry>,
        /// The location of each key, to find duplicates.
        key_locations: HashMap<String, SourceLocation>,
        /// The mappings that merge keys (`<<`) name, in order.
        merge_sources: Vec<Rc<Node>>,
        pending_key: PendingKey,
    },
}

/// The meaning of the next node of an open mapping.
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
    /// Handles one event of the parser. Returns an error if no tree can be built.
    fn handle_event(&mut self, event: Event<'_>, span: EventSpan) -> Result<(), LocatedError> {
        let EventSpan { start, end, tag_start, is_empty } = span;
        match event {
            Event::StreamStart | Event::StreamEnd | Event::DocumentEnd | Event::Anchor(..) => {
                Ok(())
            }
            Event::DocumentStart(..) => self.start_document(start),
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = style == ScalarStyle::Plain;
                // The parser gives `~` for an omitted value.
                let text = if is_plain && is_empty { Cow::Borrowed("") } else { text };
                let layout = find_layout(&text, style, start, end);
                let size = 1 + text.len() / TEXT_UNIT_BYTES;
                let value = self.parse_scalar(text, style, tag.as_deref(), tag_start);
                self.attach(
                    Node { location: start, end, layout, value, size }.into(),
                    anchor,
                    start,
                    is_plain,
                )
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.check_tag(tag, "seq", tag_start);
                self.open(start, anchor, Content::List(Vec::new()))
            }
            Event::MappingStart(_, anchor, tag) => {
                self.check_tag(tag, "map", tag_start);
                let content = Content::Map {
                    entries: Vec::new(),
                    key_locations: HashMap::new(),
                    merge_sources: Vec::new(),
                    pending_key: PendingKey::None,
                };
                self.open(start, anchor, content)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(end),
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => self.attach(node, NO_ANCHOR, start, false),
                // The anchored list or mapping is not complete, so it would contain itself.
                None => self.attach_invalid(
                    start,
                    "this alias is inside the value that it names; a value cannot contain itself",
                ),
            },
            Event::UnresolvedAlias(name) => self.attach_invalid(
                start,
                format!("there is no anchor `&{}` before this alias", shorten(&name)),
            ),
            // Only comments are left, and the options disable them.
            _ => Ok(()),
        }
    }

    /// Counts a document. Returns an error for the second one.
    fn start_document(&mut self, location: SourceLocation) -> Result<(), LocatedError> {
        self.document_count += 1;
        if self.document_count > 1 {
            return Err(LocatedError::new(
                location,
                "a second document (`---`) starts here; a file holds one: put all workflows into \
                 one list",
            ));
        }
        Ok(())
    }

    /// Returns the value of a scalar. The tags `!!str` and `!` make it a string, and any other tag
    /// is reported as an error. Without a tag, its style and characters determine the type.
    fn parse_scalar(
        &mut self,
        text: Cow<'_, str>,
        style: ScalarStyle,
        tag: Option<&Tag>,
        tag_location: SourceLocation,
    ) -> Value {
        let tagged_kind = match tag {
            None => None,
            Some(tag) if tag.is_yaml_core_schema_tag("str") || tag.original() == "!" => {
                Some(ScalarKind::Text)
            }
            Some(tag) => {
                self.errors.push(tag_error(tag, tag_location));
                return Value::Invalid;
            }
        };
        let kind = tagged_kind.unwrap_or_else(|| {
            if style == ScalarStyle::Plain { plain_scalar_kind(&text) } else { ScalarKind::Text }
        });
        Value::Scalar(kind, text.into_owned())
    }

    /// Reports the tag of a list or mapping, unless it is `!` or the `expected` one: `seq` or
    /// `map`.
    fn check_tag(&mut self, tag: Option<Cow<'_, Tag>>, expected: &str, location: SourceLocation) {
        if let Some(tag) = tag
            && !tag.is_yaml_core_schema_tag(expected)
            && tag.original() != "!"
        {
            self.errors.push(tag_error(&tag, location));
        }
    }

    /// Begins a list or mapping.
    fn open(
        &mut self,
        location: SourceLocation,
        anchor: usize,
        content: Content,
    ) -> Result<(), LocatedError> {
        if self.open_nodes.len() >= NESTING_MAX {
            return Err(nesting_error(location));
        }
        self.open_nodes.push(OpenNode { location, anchor, size: 1, content });
        Ok(())
    }

    /// Completes the innermost list or mapping, and attaches it to its parent.
    fn close(&mut self, end: SourceLocation) -> Result<(), LocatedError> {
        let Some(open_node) = self.open_nodes.pop() else { return Ok(()) };
        let value = match open_node.content {
            Content::List(items) => Value::List(items),
            Content::Map { mut entries, mut key_locations, merge_sources, .. } => {
                // Keys of the mapping itself override merged ones, and an earlier merge overrides a
                // later one.
                for entry in merge_sources.iter().flat_map(|source| entries_of(source)) {
                    if !key_locations.contains_key(&entry.key.text) {
                        key_locations.insert(entry.key.text.clone(), entry.key.location);
                        entries.push(entry.clone());
                    }
                }
                Value::Map(entries)
            }
        };
        self.attach(
            Node {
                location: open_node.location,
                end,
                layout: ScalarLayout::Other,
                value,
                size: open_node.size,
            }
            .into(),
            open_node.anchor,
            open_node.location,
            false,
        )
    }

    /// Reports an error, and attaches an invalid value.
    fn attach_invalid(
        &mut self,
        location: SourceLocation,
        message: impl Into<String>,
    ) -> Result<(), LocatedError> {
        self.errors.push(LocatedError::new(location, message));
        self.attach(
            Node {
                location,
                end: location,
                layout: ScalarLayout::Other,
                value: Value::Invalid,
                size: 1,
            }
            .into(),
            NO_ANCHOR,
            location,
            false,
        )
    }

    /// Attaches a complete node to its parent.
    ///
    /// - `location`: where the node is used. An alias is used elsewhere than its node is located.
    /// - `is_plain`: whether the node is a scalar without quotes. Only then does the key `<<` merge
    ///   mappings.
    fn attach(
        &mut self,
        node: Rc<Node>,
        anchor: usize,
        location: SourceLocation,
        is_plain: bool,
    ) -> Result<(), LocatedError> {
        if anchor != NO_ANCHOR {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(parent) = self.open_nodes.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        parent.size = parent.size.saturating_add(node.size);
        if parent.size > VALUES_MAX {
            return Err(LocatedError::new(
                location,
                format!(
                    "the file has more than {VALUES_MAX} keys and values up to here, those that \
                     aliases repeat included; split it"
                ),
            ));
        }
        match &mut parent.content {
            Content::List(items) => items.push(node),
            Content::Map { entries, key_locations, merge_sources, pending_key } => {
                match std::mem::replace(pending_key, PendingKey::None) {
                    PendingKey::None => {
                        *pending_key =
                            parse_key(&node, location, is_plain, key_locations, &mut self.errors)
                    }
                    PendingKey::Key(key) => entries.push(Entry { key, value: node }),
                    // The size of the parent counts merged entries too: they are copied into it.
                    PendingKey::Merge => {
                        merge_sources.extend(parse_merge_sources(
                            &node,
                            location,
                            &mut self.errors,
                        ));
                    }
                    PendingKey::Invalid => (),
                }
            }
        }
        Ok(())
    }
}

/// Parses a node as the key of the next value, and reports invalid and duplicate keys.
fn parse_key(
    node: &Node,
    location: SourceLocation,
    is_plain: bool,
    key_locations: &mut HashMap<String, SourceLocation>,
    errors: &mut Vec<LocatedError>,
) -> PendingKey {
    let text = match &node.value {
        Value::Scalar(ScalarKind::Null, text) if text.is_empty() => {
            errors.push(LocatedError::new(location, "a key is missing before this colon"));
            return PendingKey::Invalid;
        }
        Value::Scalar(_, text) => text.clone(),
        Value::Map(_) | Value::List(_) => {
            errors.push(LocatedError::new(
                location,
                "a key must be a word, found a list or a mapping; is a quote or a line break \
                 missing?",
            ));
            return PendingKey::Invalid;
        }
        Value::Invalid => return PendingKey::Invalid,
    };
    if let Some(first) = key_locations.get(&text) {
        errors.push(LocatedError::new(
            location,
            format!(
                "the key {} is given twice in this mapping; the first is at {first}",
                quote(&text)
            ),
        ));
        return PendingKey::Invalid;
    }
    key_locations.insert(text.clone(), location);
    if is_plain && text == "<<" {
        PendingKey::Merge
    } else {
        PendingKey::Key(Key { location, text })
    }
}

/// Returns the mappings that the value of a merge key names. Reports any other value.
fn parse_merge_sources(
    node: &Rc<Node>,
    location: SourceLocation,
    errors: &mut Vec<LocatedError>,
) -> Vec<Rc<Node>> {
    let (sources, is_valid) = match &node.value {
        Value::Map(_) => (vec![node.clone()], true),
        Value::List(items) => (
            items.clone(),
            items.iter().all(|item| matches!(item.value, Value::Map(_) | Value::Invalid)),
        ),
        Value::Invalid => (Vec::new(), true),
        Value::Scalar(..) => (Vec::new(), false),
    };
    if !is_valid {
        errors.push(LocatedError::new(
            location,
            "the merge key `<<` takes the alias of a mapping, or a list of such aliases",
        ));
    }
    sources
}

/// Returns the entries of a mapping; none for another value.
fn entries_of(node: &Node) -> &[Entry] {
    match &node.value {
        Value::Map(entries) => entries,
        Value::List(_) | Value::Scalar(..) | Value::Invalid => &[],
    }
}

/// Returns the error for a tag that has no meaning in a workflow file.
fn tag_error(tag: &Tag, location: SourceLocation) -> LocatedError {
    LocatedError::new(
        location,
        format!(
            "the tag {} has no meaning here; remove it (quotes make a string)",
            quote(&tag.original())
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Renders the tree in a compact notation: `key@line:column=value`.
    fn render(node: &Node) -> String {
        match &node.value {
            Value::Map(entries) => {
                let entries: Vec<String> = entries
                    .iter()
                    .map(|entry| {
                        format!(
                            "{}@{}={}",
                            entry.key.text,
                            entry.key.location,
                            render(&entry.value)
                        )
                    })
                    .collect();
                format!("{{{}}}", entries.join(" "))
            }
            Value::List(items) => format!(
                "[{}]",
                items.iter().map(|item| render(item)).collect::<Vec<String>>().join(" ")
            ),
            Value::Scalar(kind, text) => format!("{kind:?}({text})@{}", node.location),
            Value::Invalid => "broken".to_owned(),
        }
    }

    fn tree(text: &str) -> String {
        let (root, errors) = parse(text);
        assert!(errors.is_empty(), "{errors:?}");
        render(&root.expect("the text has a tree"))
    }

    fn first_error(text: &str) -> String {
        let (_, errors) = parse(text);
        let first = errors.first().expect("the text has an error");
        format!("{} {}", first.location, first.message)
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
            first_error("a: 1\n<<: 5\n"),
            "2:5 the merge key `<<` takes the alias of a mapping, or a list of such aliases"
        );
        assert_eq!(first_error("a: *b"), "1:4 there is no anchor `&b` before this alias");
        assert_eq!(
            first_error("a: &b [ *b ]"),
            "1:9 this alias is inside the value that it names; a value cannot contain itself"
        );
    }

    #[test]
    fn one_error_does_not_hide_the_next() {
        let (root, errors) = parse("a: !x 1\na: 2\nb: *c\n? [ d ]\n: e\n");
        assert_eq!(render(&root.expect("the text has a tree")), "{a@1:1=broken b@3:1=broken}");
        let locations: Vec<String> =
            errors.iter().map(|error| error.location.to_string()).collect();
        assert_eq!(locations, ["1:4", "2:1", "3:4", "4:3"]);
    }
}
