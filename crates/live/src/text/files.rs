//! The files of a model's tokenizer, as Hugging Face lays them out: `tokenizer.json`, and beside it what names its
//! special tokens and its chat template.
//!
//! Which file says what, and which one wins, is as in `transformers` 5 (tokenization_utils_base.py). What the tokenizer
//! itself does is not known here.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A template in a file of its own, which wins over that of `tokenizer_config.json`.
const TEMPLATE: &str = "chat_template.jinja";

/// What the files of a tokenizer say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// Special tokens by their part, such as `eos_token`.
    pub special: BTreeMap<String, String>,
    /// Numbers of the tokens that end a reply, where no file names such a token in words.
    pub eos_ids: Vec<u32>,
    /// Chat templates by name; one without a name is called `default`.
    pub templates: BTreeMap<String, String>,
}

impl TokenizerFiles {
    /// Reads what there is in a folder, or beside a `tokenizer.json`.
    ///
    /// # Errors
    /// There is no `tokenizer.json`, or a file beside it cannot be understood.
    pub fn read(path: &Path) -> Result<TokenizerFiles, String> {
        let (folder, tokenizer) = match path.is_dir() {
            true => (path.to_owned(), path.join("tokenizer.json")),
            false => (path.parent().map(Path::to_owned).unwrap_or_default(), path.to_owned()),
        };
        if !is_there(&tokenizer)? {
            return Err(format!("{}: there is no such file", tokenizer.display()));
        }
        let mut files = TokenizerFiles { tokenizer, ..TokenizerFiles::default() };
        for name in ["special_tokens_map.json", "tokenizer_config.json"] {
            if let Some(config) = json(&folder.join(name))? {
                files.name_special(&config);
            }
        }
        if let Some(config) = json(&folder.join("tokenizer_config.json"))? {
            files.templates = templates(&config["chat_template"])
                .map_err(|wrong| format!("{}: {wrong}", folder.join("tokenizer_config.json").display()))?;
        }
        if let Some(template) = text(&folder.join(TEMPLATE))? {
            files.templates.insert("default".into(), template);
        }
        for name in ["generation_config.json", "config.json"] {
            if files.eos_ids.is_empty()
                && let Some(config) = json(&folder.join(name))?
            {
                files.eos_ids = numbers(&config["eos_token_id"]);
            }
        }
        Ok(files)
    }

    /// Tokens are named by their text, or by an object that has it.
    fn name_special(&mut self, config: &Value) {
        for (part, token) in config.as_object().into_iter().flatten() {
            let text = token.as_str().or_else(|| token["content"].as_str());
            if let Some(text) = text.filter(|_| part.ends_with("_token")) {
                self.special.insert(part.clone(), text.to_owned());
            }
        }
    }
}

/// One template, or several by name.
fn templates(value: &Value) -> Result<BTreeMap<String, String>, String> {
    let named = |entry: &Value| {
        let (name, template) = (entry["name"].as_str()?, entry["template"].as_str()?);
        Some((name.to_owned(), template.to_owned()))
    };
    match value {
        Value::Null => Ok(BTreeMap::new()),
        Value::String(template) => Ok(BTreeMap::from([("default".into(), template.clone())])),
        Value::Array(all) if all.iter().all(|entry| named(entry).is_some()) => {
            Ok(all.iter().filter_map(named).collect())
        }
        _ => Err("chat_template is neither a template nor a list of {\"name\", \"template\"}".into()),
    }
}

/// One number or several.
fn numbers(value: &Value) -> Vec<u32> {
    let number = |value: &Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
    match value {
        Value::Array(all) => all.iter().filter_map(number).collect(),
        one => number(one).into_iter().collect(),
    }
}

/// There is a file. Pipes and devices are none: reading them may wait for ever, and each time they say something else.
fn is_there(path: &Path) -> Result<bool, String> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => Err(format!("{}: is not a regular file", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(format!("{}: cannot be read: {error}", path.display())),
    }
}

/// A file that need not be there.
fn text(path: &Path) -> Result<Option<String>, String> {
    if !is_there(path)? {
        return Ok(None);
    }
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: cannot be read: {error}", path.display())),
    }
}

fn json(path: &Path) -> Result<Option<Value>, String> {
    let Some(text) = text(path)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        folder
    }

    #[test]
    fn a_folder_and_a_file_in_it_say_the_same() {
        let folder = folder(&[
            ("tokenizer.json", "{}"),
            ("special_tokens_map.json", r#"{"eos_token": "</s>", "pad_token": "<pad>"}"#),
            (
                "tokenizer_config.json",
                r#"{"eos_token": {"content": "<end>"}, "add_bos_token": true, "bos_token": null, "chat_template": "A"}"#,
            ),
            ("generation_config.json", r#"{"eos_token_id": [7, 9]}"#),
            ("config.json", r#"{"eos_token_id": 3}"#),
        ]);
        let files = TokenizerFiles::read(folder.path()).unwrap();
        let special: Vec<_> =
            files.special.iter().map(|(part, text)| (part.as_str(), text.as_str())).collect();
        assert_eq!(special, [("eos_token", "<end>"), ("pad_token", "<pad>")]);
        assert_eq!(files.eos_ids, [7, 9]);
        assert_eq!(files.templates["default"], "A");
        assert_eq!(TokenizerFiles::read(&folder.path().join("tokenizer.json")), Ok(files));
    }

    #[test]
    fn templates_have_names_and_one_of_its_own_file_wins() {
        let named = r#"{"chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]}"#;
        let folder = folder(&[("tokenizer.json", "{}"), ("tokenizer_config.json", named), (TEMPLATE, "C")]);
        let files = TokenizerFiles::read(folder.path()).unwrap();
        assert_eq!((&*files.templates["default"], &*files.templates["tool_use"]), ("C", "B"));
    }

    #[test]
    fn what_is_not_there_or_not_right_is_named() {
        let none = folder(&[]);
        assert!(TokenizerFiles::read(none.path()).unwrap_err().ends_with("there is no such file"));
        let device = TokenizerFiles::read(Path::new("/dev/null")).unwrap_err();
        assert_eq!(device, "/dev/null: is not a regular file");
        for (config, words) in
            [("{", "tokenizer_config.json: EOF"), (r#"{"chat_template": 1}"#, "chat_template is neither")]
        {
            let folder = folder(&[("tokenizer.json", "{}"), ("tokenizer_config.json", config)]);
            let error = TokenizerFiles::read(folder.path()).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
