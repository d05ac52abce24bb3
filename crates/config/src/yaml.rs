//! From YAML text to a tree: the core schema of YAML 1.2, one document, names as keys, each key once.
//!
//! What makes a text dangerous or two-faced (aliases that multiply, tags, merge keys) is bounded or
//! refused here. Which keys exist is not known.

use crate::error::{Place, Problem};
use crate::tree::{Node, Value};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use std::collections::HashMap;

/// Longest text accepted; configurations are a few kilobytes.
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// Most values, those behind aliases counted each time.
const MAX_NODES: usize = 20_000;
/// Deepest nesting, of a document and of the path of an override.
pub(crate) const MAX_DEPTH: usize = 32;

/// What is said of a text longer than [`MAX_BYTES`].
pub(crate) fn too_long() -> String {
    format!("longer than {MAX_BYTES} bytes, the most that a configuration may have")
}

/// Reads one document. `place` makes the place of a line. An empty text is null.
pub(crate) fn parse(text: &str, place: &dyn Fn(usize) -> Place) -> Result<Node, Problem> {
    if text.len() > MAX_BYTES {
        return Err(Problem { place: place(0), path: String::new(), message: too_long() });
    }
    let mut reader = Reader { place, open: Vec::new(), anchors: HashMap::new(), nodes: 0, root: None };
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        match event {
            Err(error) => return Err(reader.syntax(&error)),
            Ok((Event::DocumentStart(_), span)) => {
                documents += 1;
                if documents > 1 {
                    return Err(reader.problem(span, "a second document begins, allowed is one"));
                }
            }
            Ok((event, span)) => reader.event(event, span)?,
        }
    }
    Ok(reader.root.unwrap_or_else(|| Node::new(Value::Null, place(1))))
}

struct Reader<'a> {
    place: &'a dyn Fn(usize) -> Place,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
}

/// A list or mapping that has begun and not ended.
struct Open {
    anchor: usize,
    node: Node,
    /// In a mapping, the key whose value comes next.
    key: Option<(String, usize)>,
}

impl Reader<'_> {
    fn problem(&self, span: Span, message: impl Into<String>) -> Problem {
        Problem { place: (self.place)(span.start.line()), path: String::new(), message: message.into() }
    }

    fn too_deep(&self, span: Span) -> Problem {
        self.problem(span, format!("nested more than {MAX_DEPTH} deep"))
    }

    fn syntax(&self, error: &ScanError) -> Problem {
        let marker = error.marker();
        let message = format!("not YAML at column {}: {}", marker.col() + 1, error.info());
        Problem { place: (self.place)(marker.line()), path: String::new(), message }
    }

    fn event(&mut self, event: Event, span: Span) -> Result<(), Problem> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                if tag.is_some() {
                    return Err(self.problem(span, "tags (!…) are not supported"));
                }
                let awaits_key = self.open.last().is_some_and(Open::awaits_key);
                if awaits_key {
                    return self.key(&text, style, span);
                }
                let value = if style == ScalarStyle::Plain { plain(&text) } else { Value::Text(text.into()) };
                let node = Node::new(value, (self.place)(span.start.line()));
                self.keep(anchor, &node);
                self.add(node, span)
            }
            Event::SequenceStart(anchor, None) => self.begin(Value::List(Vec::new()), anchor, span),
            Event::MappingStart(anchor, None) => self.begin(Value::Map(Vec::new()), anchor, span),
            Event::SequenceStart(..) | Event::MappingStart(..) => {
                Err(self.problem(span, "tags (!…) are not supported"))
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                None => Ok(()),
                Some(open) => {
                    self.keep(open.anchor, &open.node);
                    self.add(open.node, span)
                }
            },
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                None => Err(self.problem(span, "an alias (*…) stands inside the value it refers to")),
                Some(node) => {
                    let node = node.clone();
                    self.nodes += size(&node);
                    if self.open.len() + depth(&node) > MAX_DEPTH {
                        return Err(self.too_deep(span));
                    }
                    self.add(node, span)
                }
            },
            _ => Ok(()),
        }
    }

    fn begin(&mut self, value: Value, anchor: usize, span: Span) -> Result<(), Problem> {
        if self.open.last().is_some_and(Open::awaits_key) {
            return Err(self.problem(span, "a list or mapping stands as a key, allowed are names"));
        }
        if self.open.len() == MAX_DEPTH {
            return Err(self.too_deep(span));
        }
        // A mapping's place is that of the key it belongs to, where a reader looks for it.
        let line = match self.open.last() {
            Some(Open { key: Some((_, line)), .. }) => *line,
            _ => span.start.line(),
        };
        self.open.push(Open { anchor, node: Node::new(value, (self.place)(line)), key: None });
        Ok(())
    }

    fn key(&mut self, text: &str, style: ScalarStyle, span: Span) -> Result<(), Problem> {
        if style == ScalarStyle::Plain && text == "<<" {
            return Err(self.problem(span, "merge keys (<<) are not supported, repeat the values"));
        }
        if style == ScalarStyle::Plain && !matches!(plain(text), Value::Text(_)) {
            let message = format!(
                "{} stands as a key, allowed are names",
                if text.is_empty() { "nothing" } else { text }
            );
            return Err(self.problem(span, message));
        }
        if let Some(open) = self.open.last_mut() {
            if open.node.get(text).is_some() {
                return Err(self.problem(span, format!("key {text} is given twice in one mapping")));
            }
            open.key = Some((text.to_owned(), span.start.line()));
        }
        Ok(())
    }

    /// A finished value takes its place in what is open, or is the root.
    fn add(&mut self, node: Node, span: Span) -> Result<(), Problem> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(self.problem(span, format!("more than {MAX_NODES} values")));
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(open) => match &mut open.node.value {
                Value::List(items) => items.push(node),
                Value::Map(entries) => match open.key.take() {
                    Some((key, _)) => entries.push((key, node)),
                    None => {
                        return Err(self.problem(span, "an alias (*…) stands as a key, allowed are names"));
                    }
                },
                _ => {}
            },
        }
        Ok(())
    }

    fn keep(&mut self, anchor: usize, node: &Node) {
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
    }
}

impl Open {
    fn awaits_key(&self) -> bool {
        self.key.is_none() && matches!(self.node.value, Value::Map(_))
    }
}

fn size(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Map(entries) => 1 + entries.iter().map(|(_, node)| size(node)).sum::<usize>(),
        _ => 1,
    }
}

/// Lists and mappings inside each other.
fn depth(node: &Node) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Map(entries) => 1 + entries.iter().map(|(_, node)| depth(node)).max().unwrap_or(0),
        _ => 0,
    }
}

/// The value of a scalar without quotes, by YAML 1.2's core schema (chapter 10.3.2).
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Value::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        _ => {}
    }
    let radix = |prefix: &str, radix| {
        let digits = text.strip_prefix(prefix)?;
        // `from_str_radix` would take a sign as well.
        let digits = digits.strip_prefix(|c: char| c.is_ascii_hexdigit()).map(|_| digits)?;
        i128::from_str_radix(digits, radix).ok()
    };
    if let Some(value) = radix("0o", 8).or_else(|| radix("0x", 16)) {
        return Value::Int(value);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let number =
        unsigned.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-'));
    if number && unsigned.bytes().any(|b| b.is_ascii_digit()) {
        if unsigned.bytes().all(|b| b.is_ascii_digit())
            && let Ok(value) = text.parse()
        {
            return Value::Int(value);
        }
        if let Ok(value) = text.parse() {
            return Value::Float(value);
        }
    }
    Value::Text(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(line: usize) -> Place {
        Place::File { file: "f".into(), line }
    }

    fn read(text: &str) -> Result<Node, String> {
        parse(text, &line).map_err(|problem| problem.to_string())
    }

    #[test]
    fn scalars_follow_the_core_schema() {
        let cases = [
            ("", Value::Null),
            ("~", Value::Null),
            ("true", Value::Bool(true)),
            ("yes", Value::Text("yes".into())),
            ("12", Value::Int(12)),
            ("-12", Value::Int(-12)),
            ("+12", Value::Int(12)),
            ("012", Value::Int(12)),
            ("0o17", Value::Int(15)),
            ("0x1F", Value::Int(31)),
            ("0x-1", Value::Text("0x-1".into())),
            ("18446744073709551615", Value::Int(u64::MAX.into())),
            ("1.5", Value::Float(1.5)),
            ("1e3", Value::Float(1000.0)),
            (".5", Value::Float(0.5)),
            ("5.", Value::Float(5.0)),
            ("1.2.3", Value::Text("1.2.3".into())),
            ("-", Value::Text("-".into())),
            (".", Value::Text(".".into())),
            ("e", Value::Text("e".into())),
            ("inf", Value::Text("inf".into())),
            (".inf", Value::Float(f64::INFINITY)),
        ];
        for (text, value) in cases {
            assert_eq!(plain(text), value, "{text}");
        }
    }

    #[test]
    fn values_know_their_lines() {
        let node = read("a:\n  b: 1\n  c:\n  - 2\n  - x\nd: {e: 'f'}\n").unwrap();
        assert_eq!(node.place_of("a"), &line(1));
        assert_eq!(node.place_of("a.b"), &line(2));
        assert_eq!(node.place_of("a.c"), &line(3));
        assert_eq!(node.place_of("a.nothing.here"), &line(1));
        assert_eq!(node.place_of("d.e"), &line(6));
        assert_eq!(node.to_json().to_string(), r#"{"a":{"b":1,"c":[2,"x"]},"d":{"e":"f"}}"#);
    }

    #[test]
    fn anchors_repeat_a_value() {
        let node = read("a: &x {b: 1}\nc: *x\n").unwrap();
        assert_eq!(node.to_json().to_string(), r#"{"a":{"b":1},"c":{"b":1}}"#);
    }

    #[test]
    fn what_is_dangerous_or_two_faced_is_refused() {
        let cases = [
            ("a: 1\nb: 2\na: 3\n", "f, line 3: key a is given twice in one mapping"),
            ("a: {<<: {b: 1}}\n", "f, line 1: merge keys (<<) are not supported, repeat the values"),
            ("a: !!str 1\n", "f, line 1: tags (!…) are not supported"),
            ("1: a\n", "f, line 1: 1 stands as a key, allowed are names"),
            ("[a]: b\n", "f, line 1: a list or mapping stands as a key, allowed are names"),
            ("a: 1\n---\nb: 2\n", "f, line 2: a second document begins, allowed is one"),
            ("a: &x [*x]\n", "f, line 1: an alias (*…) stands inside the value it refers to"),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text).unwrap_err(), expected, "{text}");
        }
        let mut laughs = String::from("a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n");
        for i in 1..12 {
            let previous = format!("*a{}", i - 1);
            laughs += &format!("a{i}: &a{i} [{}]\n", [previous.as_str(); 10].join(", "));
        }
        assert_eq!(read(&laughs).unwrap_err(), "f, line 5: more than 20000 values");
        let mut tower = String::from("a0: &a0 []\n");
        for i in 1..100 {
            tower += &format!("a{i}: &a{i} [*a{}]\n", i - 1);
        }
        assert_eq!(read(&tower).unwrap_err(), "f, line 32: nested more than 32 deep", "by aliases");
        let deep = "[".repeat(100_000);
        assert!(read(&deep).is_err());
        assert!(read(&"a".repeat(2 << 20)).unwrap_err().contains("longer than 1048576 bytes"));
    }

    #[test]
    fn broken_text_never_panics() {
        let text = "a: &x {b: [1, 'c', \"d\"]}\ne: *x\nf: |\n  g\n# h\ni: {j: ~, k: -.5e3}\n? l\n: m\n";
        let bytes = text.as_bytes();
        let mut state = 1u64;
        for _ in 0..20_000 {
            let mut changed = bytes.to_vec();
            for _ in 0..3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (at, from) = ((state >> 33) as usize % bytes.len(), (state >> 40) as usize % bytes.len());
                match state >> 62 {
                    0 => changed[at % bytes.len()] = bytes[from],
                    1 => drop(changed.remove(at % changed.len())),
                    2 => changed.insert(at % changed.len(), bytes[from]),
                    _ => changed.truncate(at.max(4)),
                }
                changed.resize(changed.len().max(bytes.len()), b' ');
            }
            let _ = read(&String::from_utf8_lossy(&changed));
        }
    }
}
