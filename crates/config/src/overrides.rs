//! Overrides of single values, `a.b.c=VALUE` with VALUE in YAML, put into the tree of the file before
//! it is checked, so that one set of checks serves both.

use crate::error::{Place, Problem};
use crate::tree::{Node, Value};
use crate::yaml;

/// Sets one value. The last override of a path wins; a mapping replaces, it is not merged.
pub(crate) fn apply(root: &mut Node, text: &str) -> Result<(), Problem> {
    let place = Place::Override(text.into());
    let fail = |message: String| Err(Problem { place: place.clone(), path: String::new(), message });
    let Some((path, value)) = text.split_once('=') else {
        return fail("has no \"=\", allowed is a.b.c=VALUE".into());
    };
    let keys: Vec<&str> = path.split('.').collect();
    if keys.iter().any(|key| key.is_empty() || key.trim() != *key) {
        return fail(format!("\"{path}\" is not a path, allowed are names joined by dots"));
    }
    if keys.len() > yaml::MAX_DEPTH {
        return fail(format!("the path has {} names, allowed are {}", keys.len(), yaml::MAX_DEPTH));
    }
    let value = yaml::parse(value, &|_| place.clone())?;
    set(root, &keys, 0, value, &place)
}

fn set(node: &mut Node, keys: &[&str], depth: usize, value: Node, place: &Place) -> Result<(), Problem> {
    let Some(key) = keys.get(depth) else {
        *node = value;
        return Ok(());
    };
    // What is empty in the file can be filled.
    if node.value == Value::Null {
        *node = Node::new(Value::Map(Vec::new()), place.clone());
    }
    let shown = node.shown();
    let Value::Map(entries) = &mut node.value else {
        let message = match node.value {
            Value::List(_) => format!("is a list; set it as a whole, not its part {key}"),
            _ => format!("is {shown}, which has no part {key}"),
        };
        return Err(Problem { place: place.clone(), path: keys[..depth].join("."), message });
    };
    if let Some((_, child)) = entries.iter_mut().find(|(name, _)| name == key) {
        return set(child, keys, depth + 1, value, place);
    }
    let mut child = Node::new(Value::Null, place.clone());
    set(&mut child, keys, depth + 1, value, place)?;
    entries.push(((*key).to_owned(), child));
    Ok(())
}
