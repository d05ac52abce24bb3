//! The fields of a request that mean something here. Others are taken and ignored, as vLLM does
//! (`extra="allow"`), and so are those that steer sampling: what is said is not sampled.

use crate::http::form::Object;
use crate::text::Ordered;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// A request to either endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OpenAiRequest {
    /// The model.
    pub model: Option<String>,
    /// Completions: what is to be completed.
    pub prompt: Option<Prompt>,
    /// Chat: what has been said.
    pub messages: Option<Vec<ChatMessage>>,
    /// Choices for each prompt.
    pub n: Option<u32>,
    /// Most output tokens.
    pub max_tokens: Option<i64>,
    /// The same, newer.
    pub max_completion_tokens: Option<i64>,
    /// Fewest output tokens.
    pub min_tokens: Option<i64>,
    /// The end-of-sequence token does not end it.
    pub ignore_eos: Option<bool>,
    /// Strings that end it.
    pub stop: Option<OneOrMany>,
    /// Tokens that end it.
    pub stop_token_ids: Option<Vec<u32>>,
    /// The stop string is part of the text.
    pub include_stop_str_in_output: Option<bool>,
    /// The same, as SGLang names it.
    pub no_stop_trim: Option<bool>,
    /// Special tokens give no text.
    pub skip_special_tokens: Option<bool>,
    /// Tokens as they come.
    pub stream: Option<bool>,
    /// How.
    pub stream_options: Option<Object<StreamOptions>>,
    /// Completions: how many alternatives; chat: whether.
    pub logprobs: Option<Value>,
    /// Chat: how many alternatives.
    pub top_logprobs: Option<i64>,
    /// vLLM: how many alternatives for each token of the prompt.
    pub prompt_logprobs: Option<i64>,
    /// Completions: the prompt is part of the text; chat: the last message is.
    pub echo: Option<bool>,
    /// Checked, no more.
    pub temperature: Option<f64>,
    /// Checked, no more.
    pub top_p: Option<f64>,
    /// Another seed says other words.
    pub seed: Option<i64>,
    /// For the engine's priority policy.
    pub priority: Option<i32>,
    /// Requests with different salts share no block.
    pub cache_salt: Option<String>,
    /// The tokens stand in the answer, too.
    pub return_token_ids: Option<bool>,
    /// Name of the request.
    pub request_id: Option<String>,
    /// Name of the conversation.
    pub session_id: Option<String>,
    /// Dynamo's extension, of which `annotations` may name a reply of a trace.
    pub nvext: Option<Value>,
    /// Chat: the prompt ends where the assistant begins.
    pub add_generation_prompt: Option<bool>,
    /// Chat: the prompt ends inside the last message.
    pub continue_final_message: Option<bool>,
    /// No more of the prompt than its last tokens.
    pub truncate_prompt_tokens: Option<i64>,
    /// Whether the prompt's KV comes from elsewhere or goes there.
    pub kv_transfer_params: Option<Value>,
    /// TensorRT-LLM: which part of it is asked for.
    pub disaggregated_params: Option<Value>,
    /// TensorRT-LLM, chat: the messages as tokens.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// SGLang: host of the bootstrap server of the worker that computes the prompt; of several prompts, of each.
    pub bootstrap_host: Option<Value>,
    /// SGLang: its port.
    pub bootstrap_port: Option<Value>,
    /// SGLang: the room in which the two workers meet.
    pub bootstrap_room: Option<Value>,
    /// Whether a prompt is framed by special tokens: completions are if not told otherwise, chats are not.
    pub add_special_tokens: Option<bool>,
    /// Chat: refused, as vLLM does unless it is told to trust requests.
    pub chat_template: Option<String>,
    /// Chat: what else the template is told.
    pub chat_template_kwargs: Option<Ordered>,
    /// Chat: what the template may quote.
    pub documents: Option<Ordered>,
    /// Chat: functions that may be called.
    pub tools: Option<Ordered>,
    /// Chat: whether one has to be; the model calls none by itself.
    pub tool_choice: Option<Value>,
    /// Chat: thoughts are part of the answer, unless this is false.
    pub include_reasoning: Option<bool>,
    /// Refused.
    pub use_beam_search: Option<bool>,
    /// Refused.
    pub suffix: Option<String>,
    /// Refused, but for text.
    pub response_format: Option<Map<String, Value>>,
    /// Refused.
    pub structured_outputs: Option<Value>,
}

/// What is to be completed.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "allowed is a text, a list of texts, a list of tokens, or a list of lists of tokens"
)]
pub enum Prompt {
    /// One text.
    Text(String),
    /// One list of tokens.
    Tokens(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of tokens.
    TokenLists(Vec<Vec<u32>>),
}

/// One text or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "allowed is a text or a list of texts")]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl OneOrMany {
    /// As a list.
    pub fn list(&self) -> Vec<String> {
        match self {
            OneOrMany::One(text) => vec![text.clone()],
            OneOrMany::Many(texts) => texts.clone(),
        }
    }
}

/// How a stream looks.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StreamOptions {
    /// The last chunk says how many tokens there were.
    pub include_usage: Option<bool>,
    /// So does every other.
    pub continuous_usage_stats: Option<bool>,
}

/// One message.
#[derive(Clone, Debug)]
pub struct ChatMessage {
    /// What means something here.
    pub fields: MessageFields,
    /// All of it, as it came.
    pub whole: Ordered,
}

/// The fields of a message.
#[derive(Clone, Debug, Deserialize)]
pub struct MessageFields {
    /// Who says it.
    pub role: String,
    /// What: a text, or parts.
    #[serde(default)]
    pub content: Option<Content>,
    /// Calls that the assistant made.
    #[serde(default)]
    pub tool_calls: Option<Vec<Map<String, Value>>>,
}

impl<'de> Deserialize<'de> for ChatMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let whole = Ordered::deserialize(deserializer)?;
        // The value says why in a message of its own, behind its kind.
        let fields = Object::<MessageFields>::deserialize(&whole).map_err(|error| match error.detail() {
            Some(detail) => D::Error::custom(detail),
            None => D::Error::custom(error),
        });
        Ok(ChatMessage { fields: fields?.0, whole })
    }
}

/// A text, or parts.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "content: allowed is a text or a list of parts, each an object")]
pub enum Content {
    /// A text.
    Text(String),
    /// Parts, of which only texts can be read here.
    Parts(Vec<Object<Part>>),
}

/// One part.
#[derive(Clone, Debug, Deserialize)]
pub struct Part {
    /// Its kind.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// Its text.
    #[serde(default)]
    pub text: Option<String>,
}
