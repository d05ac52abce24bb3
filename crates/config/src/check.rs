//! The tree of a configuration against the schema: types, ranges, words, missing and unknown keys.
//!
//! Goes by the JSON Schema made from the document types, so a key is declared once. Says where, which
//! key, what was found and what is allowed. What keys mean together is not known here.

use crate::engine_names;
use crate::error::Problem;
use crate::refused;
use crate::tree::{Node, Value, join};
use serde_json::Value as Json;

/// Everything wrong with the tree that can be seen key by key.
pub(crate) fn check(schema: &Json, root: &Node, excused: &[String]) -> Vec<Problem> {
    let mut check = Check { schema, excused, problems: Vec::new() };
    check.value(schema, root, "");
    check.problems
}

struct Check<'a> {
    schema: &'a Json,
    /// Mappings with a key that was refused before: what they lack is not worth a problem of its own.
    excused: &'a [String],
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn problem(&mut self, node: &Node, path: &str, message: String) {
        self.problems.push(Problem { place: node.place.clone(), path: path.to_owned(), message });
    }

    /// Returns whether the value is one that AISimulate knows and this version refuses.
    fn value(&mut self, schema: &Json, node: &Node, path: &str) -> bool {
        let forms = forms(schema);
        let form = forms.iter().find(|form| form.accepts(&node.value));
        if let Some(why) = refused::value(path, node, form.is_some()) {
            self.problem(node, path, format!("got {}; {why}", node.shown()));
            return true;
        }
        match (form, &node.value) {
            (Some(Form::Mapping(schema)), Value::Map(entries)) => self.mapping(schema, node, entries, path),
            (Some(Form::List(schema)), Value::List(items)) => {
                for (index, item) in items.iter().enumerate() {
                    self.value(&schema["items"], item, &format!("{path}[{index}]"));
                }
            }
            (Some(_), _) => {}
            (None, _) => {
                let hint = hint(node, &forms);
                let message = format!("got {}; allowed is {}{hint}", node.shown(), either(&forms));
                self.problem(node, path, message);
            }
        }
        false
    }

    fn mapping(&mut self, schema: &Json, node: &Node, entries: &[(String, Node)], path: &str) {
        let known = schema["properties"].as_object();
        let known = known.into_iter().flatten();
        // What stands for a key that is missing: a key that was refused, or a misspelt one.
        let mut excused = self.excused.iter().any(|excused| excused == path);
        let mut meant = Vec::new();
        for (key, child) in entries {
            let parent = path;
            let path = join(path, key);
            match known.clone().find(|(name, _)| *name == key) {
                Some((_, schema)) => excused |= self.value(schema, child, &path),
                None => {
                    let names: Vec<&str> = known.clone().map(|(name, _)| name.as_str()).collect();
                    let theirs = engine_names::path_here(key);
                    let here = |name: &&&str| theirs == Some(&join(parent, name));
                    let nearest = match theirs {
                        Some(_) => names.iter().find(here).copied(),
                        None => nearest(key, &names),
                    };
                    meant.extend(nearest);
                    let message = match theirs {
                        Some(home) => format!("unknown key; here it is called {}", nearest.unwrap_or(home)),
                        None => match engine_names::instead(key) {
                            Some(advice) => format!("unknown key; {advice}"),
                            None => self.unknown(key, nearest, &names),
                        },
                    };
                    self.problem(child, &path, message);
                }
            }
        }
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str) {
            if !excused && node.get(key).is_none() && !meant.contains(&key) {
                let path = join(path, key);
                let message = format!("missing; needed is {}", either(&forms(&schema["properties"][key])));
                self.problem(node, &path, message);
            }
        }
    }

    /// About an unknown key: the name that was probably meant, here or elsewhere.
    fn unknown(&self, key: &str, nearest: Option<&str>, siblings: &[&str]) -> String {
        let mut homes = Vec::new();
        homes_of(key, self.schema, "", &mut homes);
        // A key of one role is one of all.
        homes.retain(|home| refused::usual(home) == *home);
        let advice = match (nearest, homes.as_slice()) {
            (Some(name), _) => format!("did you mean {name}? "),
            (None, [home]) => format!("did you mean {home}? "),
            (None, _) => String::new(),
        };
        format!("unknown key; {advice}known here: {}", siblings.join(", "))
    }
}

/// The known name that differs from `key` by few letters.
fn nearest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    let distances = known.iter().map(|name| (strsim::damerau_levenshtein(key, name), *name));
    distances.filter(|(distance, name)| *distance <= 1 + name.len() / 4).min().map(|(_, name)| name)
}

/// Every path below `path` that ends with `key`.
fn homes_of(key: &str, schema: &Json, path: &str, homes: &mut Vec<String>) {
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        let path = join(path, name);
        if name == key {
            homes.push(path.clone());
        }
        homes_of(key, child, &path, homes);
    }
}

/// One form that a value may have.
#[derive(Debug)]
enum Form<'a> {
    Null,
    Boolean,
    Integer { low: i128, high: i128 },
    Number { low: Bound, high: Bound },
    Text { nonempty: bool },
    Word(&'a str),
    List(&'a Json),
    Mapping(&'a Json),
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    None,
    Inclusive(f64),
    Exclusive(f64),
}

/// The forms that a schema allows, choices resolved.
fn forms(schema: &Json) -> Vec<Form<'_>> {
    if let Some(choices) = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Json::as_array) {
        return choices.iter().flat_map(forms).collect();
    }
    if let Some(word) = schema.get("const").and_then(Json::as_str) {
        return vec![Form::Word(word)];
    }
    let types: Vec<&str> = match &schema["type"] {
        Json::String(name) => vec![name],
        Json::Array(names) => names.iter().filter_map(Json::as_str).collect(),
        _ => Vec::new(),
    };
    types.into_iter().map(|name| form(name, schema)).collect()
}

fn form<'a>(name: &str, schema: &'a Json) -> Form<'a> {
    match name {
        "null" => Form::Null,
        "boolean" => Form::Boolean,
        "integer" => {
            let highest: i128 = match schema["format"].as_str() {
                Some("uint32") => u32::MAX.into(),
                _ => u64::MAX.into(),
            };
            let bound = |key: &str| schema[key].as_u64().map(i128::from);
            Form::Integer { low: bound("minimum").unwrap_or(0), high: bound("maximum").unwrap_or(highest) }
        }
        "number" => {
            let bound = |inclusive: &str, exclusive: &str| match schema[inclusive].as_f64() {
                Some(bound) => Bound::Inclusive(bound),
                None => schema[exclusive].as_f64().map_or(Bound::None, Bound::Exclusive),
            };
            Form::Number {
                low: bound("minimum", "exclusiveMinimum"),
                high: bound("maximum", "exclusiveMaximum"),
            }
        }
        "array" => Form::List(schema),
        "object" => Form::Mapping(schema),
        _ => Form::Text { nonempty: schema["minLength"].as_u64().is_some_and(|length| length > 0) },
    }
}

impl Form<'_> {
    fn accepts(&self, value: &Value) -> bool {
        match (self, value) {
            (Form::Null, Value::Null) | (Form::Boolean, Value::Bool(_)) => true,
            (Form::List(_), Value::List(_)) | (Form::Mapping(_), Value::Map(_)) => true,
            (Form::Integer { low, high }, Value::Int(value)) => (low..=high).contains(&value),
            (Form::Number { low, high }, Value::Int(value)) => within(*value as f64, *low, *high),
            (Form::Number { low, high }, Value::Float(value)) => within(*value, *low, *high),
            (Form::Text { nonempty }, Value::Text(text)) => !nonempty || !text.trim().is_empty(),
            (Form::Word(word), Value::Text(text)) => word == text,
            _ => false,
        }
    }
}

fn within(value: f64, low: Bound, high: Bound) -> bool {
    let above = match low {
        Bound::None => true,
        Bound::Inclusive(bound) => value >= bound,
        Bound::Exclusive(bound) => value > bound,
    };
    let below = match high {
        Bound::None => true,
        Bound::Inclusive(bound) => value <= bound,
        Bound::Exclusive(bound) => value < bound,
    };
    value.is_finite() && above && below
}

impl std::fmt::Display for Form<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Form::Null => write!(f, "null"),
            Form::Boolean => write!(f, "true or false"),
            Form::Integer { low, high } if low == high => write!(f, "{low}"),
            Form::Integer { low, high } if *high == i128::from(u64::MAX) => {
                write!(f, "an integer from {low} to 2^64 - 1")
            }
            Form::Integer { low, high } => write!(f, "an integer from {low} to {high}"),
            Form::Number { low, high } => {
                write!(f, "a number")?;
                match low {
                    Bound::None => {}
                    Bound::Inclusive(bound) => write!(f, " of at least {bound}")?,
                    Bound::Exclusive(bound) => write!(f, " above {bound}")?,
                }
                match high {
                    Bound::None => Ok(()),
                    Bound::Inclusive(bound) => write!(f, " and at most {bound}"),
                    Bound::Exclusive(bound) => write!(f, " and below {bound}"),
                }
            }
            Form::Text { nonempty: true } => write!(f, "a text that is not empty"),
            Form::Text { nonempty: false } => write!(f, "a text"),
            Form::Word(word) => write!(f, "{word}"),
            Form::List(schema) if schema["items"]["type"] == "object" => write!(f, "a list of mappings"),
            Form::List(_) => write!(f, "a list of texts"),
            Form::Mapping(schema) => {
                let keys = schema["properties"].as_object().into_iter().flatten();
                let keys: Vec<_> = keys.map(|(name, _)| name.as_str()).collect();
                write!(f, "a mapping with the keys {}", keys.join(", "))
            }
        }
    }
}

/// `a, b or c`. Null, which stands for leaving a key out, is named only when there is nothing else.
fn either(forms: &[Form]) -> String {
    let mut choices: Vec<_> =
        forms.iter().filter(|form| !matches!(form, Form::Null)).map(Form::to_string).collect();
    match (choices.pop(), choices.as_slice()) {
        (None, _) => "null".into(),
        (Some(only), []) => only,
        (Some(last), others) => format!("{} or {last}", others.join(", ")),
    }
}

/// What a person probably meant by a value of the wrong type.
fn hint(node: &Node, forms: &[Form]) -> &'static str {
    let number = forms.iter().any(|form| matches!(form, Form::Integer { .. } | Form::Number { .. }));
    let boolean = forms.iter().any(|form| matches!(form, Form::Boolean));
    let text = forms.iter().any(|form| matches!(form, Form::Text { .. }));
    let mapping = forms.iter().any(|form| matches!(form, Form::Mapping(_)));
    match &node.value {
        Value::Text(written) if number && written.parse::<f64>().is_ok() => " (write it without quotes)",
        Value::Text(written)
            if boolean && matches!(&*written.to_lowercase(), "yes" | "no" | "on" | "off") =>
        {
            " (in YAML 1.2 yes, no, on and off are texts)"
        }
        Value::Int(_) | Value::Float(_) if text => " (write it in quotes)",
        Value::Null if mapping => " (leave the key out, or give {})",
        Value::Map(_) if ["choices", "range", "preset"].iter().any(|key| node.get(key).is_some()) => {
            "; search domains belong to recommend, which is not supported yet"
        }
        _ => "",
    }
}
