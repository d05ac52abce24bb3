//! The form of what clients send: objects that are objects, and what is wrong with a body in a client's words.
//!
//! Fields of a struct may be read from a list as well, in their order, by the way that `serde` reads structs. No
//! engine takes that, so every object of a body is an [`Object`] here.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// Longest piece of a value that an error repeats, in characters.
const MOST_SHOWN: usize = 80;

/// What is read from an object, and from nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = Object<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// What is wrong with the form of a body: where, what was got, what is allowed.
pub fn words(path: &str, error: &serde_json::Error) -> String {
    let message = error.to_string();
    let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
    let place = if path == "." { String::new() } else { format!("{path}: ") };
    let got = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    if let Some((got, expected)) = got.and_then(|rest| rest.rsplit_once(", expected ")) {
        return format!("{place}got {}, allowed is {}", shown(got), allowed(expected));
    }
    for (beginning, end) in [("missing field `", " is missing"), ("duplicate field `", " is given twice")] {
        if let Some(field) = message.strip_prefix(beginning) {
            return format!("{place}{}{end}", field.trim_end_matches('`'));
        }
    }
    format!("{place}{message}")
}

/// A value as `serde` names it, as JSON has it.
fn shown(got: &str) -> String {
    let value = match got {
        "map" => "an object",
        "sequence" => "a list",
        "unit value" => "null",
        _ => match got.split_once(' ') {
            Some(("string", text)) => text,
            Some(("integer" | "boolean", value)) => value.trim_matches('`'),
            Some(("floating", value)) => value.trim_start_matches("point ").trim_matches('`'),
            _ => got,
        },
    };
    match value.char_indices().nth(MOST_SHOWN) {
        Some((at, _)) => format!("{}…", &value[..at]),
        None => value.to_owned(),
    }
}

/// A type of Rust, in words.
fn allowed(expected: &str) -> String {
    let words = match expected {
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number of 0 or more",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "i64" => "a whole number",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "a text",
        "a sequence" => "a list",
        "a map" => "an object",
        other => other,
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Inner {
        number: Option<u32>,
        #[serde(rename = "flag")]
        _flag: Option<bool>,
    }

    #[derive(Debug, Deserialize)]
    struct Outer {
        inner: Object<Inner>,
        #[serde(default, rename = "all")]
        _all: Vec<Object<Inner>>,
    }

    fn read(text: &str) -> Result<Outer, String> {
        let mut json = serde_json::Deserializer::from_str(text);
        serde_path_to_error::deserialize(&mut json)
            .map_err(|error| words(&error.path().to_string(), error.inner()))
    }

    #[test]
    fn an_object_is_no_list() {
        assert_eq!(read(r#"{"inner": {"number": 3}}"#).unwrap().inner.0.number, Some(3));
        assert_eq!(read(r#"{"inner": [3]}"#).unwrap_err(), "inner: got a list, allowed is an object");
        assert_eq!(
            read(r#"{"inner": {}, "all": [[3]]}"#).unwrap_err(),
            "all[0]: got a list, allowed is an object"
        );
    }

    #[test]
    fn errors_are_in_words() {
        for (body, words) in [
            ("{}", "inner is missing"),
            (r#"{"inner": {}, "inner": {}}"#, "inner is given twice"),
            (
                r#"{"inner": {"number": -1}}"#,
                "inner.number: got -1, allowed is a whole number from 0 to 4294967295",
            ),
            (
                r#"{"inner": {"number": 1.5}}"#,
                "inner.number: got 1.5, allowed is a whole number from 0 to 4294967295",
            ),
            (r#"{"inner": {"flag": "yes"}}"#, "inner.flag: got \"yes\", allowed is true or false"),
            (r#"{"inner": true}"#, "inner: got true, allowed is an object"),
        ] {
            assert_eq!(read(body).unwrap_err(), words, "{body}");
        }
        let long = read(&format!(r#"{{"inner": "{}"}}"#, "é".repeat(500))).unwrap_err();
        assert!(long.chars().count() < 130 && long.ends_with("…, allowed is an object"), "{long}");
    }
}
