//! What a server answers when it cannot do what it is asked, in the shape of the engine that it stands for.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use windtunnel_engine::Rejection;

/// Whose server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM 0.33.0.
    Vllm,
    /// SGLang 0.5.23.
    Sglang,
    /// TensorRT-LLM.
    Trtllm,
}

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// `type` of the body.
    pub kind: &'static str,
    /// What is wrong, in words.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
}

impl ApiError {
    /// An error of any status; the type follows vLLM's names.
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        let kind = match status {
            StatusCode::BAD_REQUEST => "BadRequestError",
            StatusCode::UNAUTHORIZED => "AuthenticationError",
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::METHOD_NOT_ALLOWED => "Method Not Allowed",
            StatusCode::REQUEST_TIMEOUT => "Request Timeout",
            StatusCode::PAYLOAD_TOO_LARGE => "Request Entity Too Large",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => "Unsupported Media Type",
            StatusCode::UNPROCESSABLE_ENTITY => "UnprocessableEntityError",
            StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
            StatusCode::NOT_IMPLEMENTED => "NotImplementedError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            _ => "InternalServerError",
        };
        ApiError { status, kind, message: message.into(), param: None }
    }

    /// 400, of a field.
    pub fn field(param: &str, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    /// 400: the body does not have the form that it must have.
    pub fn form(message: impl Into<String>) -> ApiError {
        ApiError { kind: "Bad Request", ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    /// 404: another model is served.
    pub fn model(name: &str) -> ApiError {
        let message = format!("The model `{name}` does not exist.");
        ApiError { param: Some("model".into()), ..ApiError::new(StatusCode::NOT_FOUND, message) }
    }

    /// What an engine refused.
    pub fn rejected(reason: Rejection) -> ApiError {
        match reason {
            Rejection::QueueFull { .. } | Rejection::QueuedTokensFull { .. } | Rejection::NoWorker => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason.to_string())
            }
            Rejection::PromptTooLong { .. } | Rejection::PromptExceedsBudget { .. } => {
                ApiError::field("input_tokens", reason.to_string())
            }
            Rejection::NoOutput => ApiError::field("max_tokens", reason.to_string()),
            Rejection::EmptyPrompt | Rejection::LargerThanPool { .. } | Rejection::NoSuchRank { .. } => {
                ApiError::new(StatusCode::BAD_REQUEST, reason.to_string())
            }
        }
    }

    /// 500: the engine died.
    pub fn dead(words: &str) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the engine died: {words}"))
    }

    /// The body. vLLM nests it, the others do not.
    pub fn body(&self, dialect: Dialect) -> Value {
        let code = self.status.as_u16();
        let (message, kind, param) = (&self.message, self.kind, &self.param);
        match dialect {
            Dialect::Vllm => {
                json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
            }
            Dialect::Sglang | Dialect::Trtllm => json!({
                "object": "error", "message": message, "type": kind, "param": param, "code": code
            }),
        }
    }

    /// The whole answer.
    pub fn response(&self, dialect: Dialect) -> Response<Body> {
        json_response(self.status, &self.body(dialect))
    }
}

/// An answer in JSON.
pub fn json_response(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
