//! The tree a configuration is read into: plain values, each with the place it was written at.
//!
//! File and overrides meet here, before anything is known of which keys exist.

use crate::error::Place;

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: Place,
}

/// A YAML value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file, each key once.
    Map(Vec<(String, Node)>),
}

impl Node {
    pub(crate) fn new(value: Value, place: Place) -> Node {
        Node { value, place }
    }

    /// The value of a key, when this is a mapping that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            _ => None,
        }
    }

    /// The place of a dotted path, or of the nearest mapping above it that exists.
    pub(crate) fn place_of(&self, path: &str) -> &Place {
        let mut node = self;
        for key in path.split('.') {
            match node.get(key) {
                Some(child) => node = child,
                None => break,
            }
        }
        &node.place
    }

    /// The value behind a dotted path.
    pub(crate) fn find(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, key| node.get(key))
    }

    /// The same value without places. Numbers that JSON cannot hold become texts.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Int(value) => match u64::try_from(*value) {
                Ok(value) => value.into(),
                Err(_) => i64::try_from(*value).map_or_else(|_| (*value as f64).into(), Into::into),
            },
            Value::Float(value) if value.is_finite() => (*value).into(),
            Value::Float(_) => self.shown().into(),
            Value::Text(value) => value.as_str().into(),
            Value::List(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(entries) => entries.iter().map(|(key, node)| (key.clone(), node.to_json())).collect(),
        }
    }

    /// The value as a message shows it, with its article.
    pub(crate) fn shown(&self) -> String {
        match &self.value {
            Value::Null => "null".into(),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) if value.is_nan() => ".nan".into(),
            Value::Float(value) if value.is_infinite() => if *value > 0.0 { ".inf" } else { "-.inf" }.into(),
            Value::Float(value) => format!("{value:?}"),
            Value::Text(value) => format!("\"{}\"", shortened(value)),
            Value::List(items) => match items.len() {
                0 => "an empty list".into(),
                1 => "a list of one".into(),
                n => format!("a list of {n}"),
            },
            Value::Map(entries) if entries.is_empty() => "an empty mapping".into(),
            Value::Map(entries) => {
                let keys: Vec<_> = entries.iter().take(4).map(|(key, _)| key.as_str()).collect();
                let more = if entries.len() > 4 { ", …" } else { "" };
                format!("a mapping ({}{more})", keys.join(", "))
            }
        }
    }
}

fn shortened(text: &str) -> String {
    const SHOWN: usize = 60;
    let one_line = text.replace(['\n', '\r', '\t'], " ");
    match one_line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &one_line[..end]),
        None => one_line,
    }
}

/// `path` with `key` behind it.
pub(crate) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
