//! Tool calls: which function a reply calls, and with which arguments.
//!
//! A mock model calls a tool only where its client insists: `tool_choice` is `required`, or names a function. The
//! arguments are made from the function's JSON schema.

use crate::http::error::ApiError;
use crate::text::Ordered;
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_64;

/// Deepest value that is made.
const MOST_DEPTH: u32 = 8;

/// A call that a reply makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The function.
    pub name: String,
    /// Its arguments, as JSON.
    pub arguments: String,
    /// The client named the function.
    pub named: bool,
}

/// The call that a request insists on, if it does.
///
/// # Errors
/// A choice, or tools, that have no such form, and a function that is not among the tools.
pub fn wanted(tools: Option<&Ordered>, choice: Option<&Value>) -> Result<Option<ToolCall>, ApiError> {
    let wrong = |field: &str, message: String| Err(ApiError::field(field, message));
    let named = match choice {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(choice)) if choice == "none" || choice == "auto" => return Ok(None),
        Some(Value::String(choice)) if choice == "required" => None,
        Some(choice) => match choice.pointer("/function/name").and_then(Value::as_str) {
            Some(name) => Some(name),
            None => {
                let allowed = "allowed are none, auto, required, and {\"type\": \"function\", \"function\": {\"name\": …}}";
                return wrong("tool_choice", format!("tool_choice is {choice}, {allowed}"));
            }
        },
    };
    let tools = tools.and_then(|tools| serde_json::to_value(tools).ok());
    let Some(Value::Array(tools)) = tools.filter(|tools| tools.as_array().is_some_and(|all| !all.is_empty()))
    else {
        return wrong("tools", "tool_choice asks for a call, and there are no tools".into());
    };
    let name = |tool: &Value| tool.pointer("/function/name").and_then(Value::as_str).map(str::to_owned);
    if let Some(at) = tools.iter().position(|tool| name(tool).is_none()) {
        return wrong("tools", format!("tools[{at}] has no function with a name"));
    }
    let tool = match named {
        None => &tools[0],
        Some(named) => match tools.iter().find(|tool| name(tool).as_deref() == Some(named)) {
            Some(tool) => tool,
            None => return wrong("tool_choice", format!("the function {named} is not among the tools")),
        },
    };
    let arguments = match tool.pointer("/function/parameters") {
        Some(schema) => example(schema, 0),
        None => json!({}),
    };
    Ok(Some(ToolCall {
        name: name(tool).unwrap_or_default(),
        arguments: arguments.to_string(),
        named: named.is_some(),
    }))
}

/// A value of a schema, always the same one.
fn example(schema: &Value, depth: u32) -> Value {
    if let Some(first) = schema.get("enum").and_then(Value::as_array).and_then(|all| all.first()) {
        return first.clone();
    }
    if let Some(value) = schema.get("const").or_else(|| schema.get("default")) {
        return value.clone();
    }
    let kind = match schema.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        Some(Value::Array(kinds)) => kinds.iter().find_map(Value::as_str).unwrap_or("string"),
        _ if schema.get("properties").is_some() => "object",
        _ => "string",
    };
    match kind {
        "object" if depth < MOST_DEPTH => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let made = properties.into_iter().flatten();
            Value::Object(made.map(|(key, of)| (key.clone(), example(of, depth + 1))).collect::<Map<_, _>>())
        }
        "object" => json!({}),
        "array" if depth < MOST_DEPTH => match schema.get("items") {
            Some(items) => json!([example(items, depth + 1)]),
            None => json!([]),
        },
        "array" => json!([]),
        "integer" => schema.get("minimum").and_then(Value::as_i64).unwrap_or(1).into(),
        "number" => schema.get("minimum").and_then(Value::as_f64).unwrap_or(1.5).into(),
        "boolean" => true.into(),
        "null" => Value::Null,
        _ => "text".into(),
    }
}

impl ToolCall {
    /// What the call is named in a choice of an answer.
    pub fn id(&self, answer: &str, choice: u32) -> String {
        format!("chatcmpl-tool-{:016x}", xxh3_64(format!("{answer}/{choice}").as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Ordered {
        ordered(json!([
            {"type": "function", "function": {"name": "now"}},
            {"type": "function", "function": {"name": "weather", "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"}, "days": {"type": "integer", "minimum": 2},
                    "unit": {"enum": ["C", "F"]}, "at": {"type": "array", "items": {"type": "number"}},
                },
            }}},
        ]))
    }

    fn ordered(value: Value) -> Ordered {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_call_has_arguments_of_its_schema() {
        let choice = json!({"type": "function", "function": {"name": "weather"}});
        let call = wanted(Some(&tools()), Some(&choice)).unwrap().unwrap();
        assert_eq!((call.name.as_str(), call.named), ("weather", true));
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        assert_eq!(arguments, json!({"city": "text", "days": 2, "unit": "C", "at": [1.5]}));
        let first = wanted(Some(&tools()), Some(&json!("required"))).unwrap().unwrap();
        assert_eq!((first.name.as_str(), first.arguments.as_str()), ("now", "{}"));
    }

    #[test]
    fn who_does_not_insist_gets_no_call() {
        for choice in [None, Some(json!(null)), Some(json!("auto")), Some(json!("none"))] {
            assert_eq!(wanted(Some(&tools()), choice.as_ref()), Ok(None));
        }
    }

    #[test]
    fn calls_that_cannot_be_made_are_refused() {
        let other = json!({"function": {"name": "rain"}});
        for (tools, choice, words) in [
            (None, json!("required"), "there are no tools"),
            (Some(ordered(json!([]))), json!("required"), "there are no tools"),
            (Some(ordered(json!([{"type": "function"}]))), json!("required"), "tools[0]"),
            (Some(tools()), other, "rain is not among the tools"),
            (Some(tools()), json!("maybe"), "tool_choice is \"maybe\""),
        ] {
            let error = wanted(tools.as_ref(), Some(&choice)).unwrap_err();
            assert!(error.message.contains(words), "{}", error.message);
        }
        let mut deep = json!({"type": "string"});
        (0..100).for_each(|_| deep = json!({"type": "array", "items": deep}));
        assert!(example(&deep, 0).to_string().len() < 100);
    }
}
