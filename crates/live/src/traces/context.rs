//! What a request brings along for its span: the span that it belongs to (W3C Trace Context), and what its client set.

use axum::http::HeaderMap;

/// The span of whoever sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The trace of both.
    pub trace: [u8; 16],
    /// The span itself.
    pub span: [u8; 8],
    /// Its trace is recorded.
    pub sampled: bool,
    /// `tracestate`, to be handed on.
    pub state: String,
}

impl Parent {
    /// What the headers say; nothing if they say nothing or what is none.
    pub fn of(headers: &HeaderMap) -> Option<Parent> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let mut parts = text("traceparent")?.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version: [u8; 1] = bytes(version)?;
        // Version 0 has these four parts, later ones may have more; 255 is none.
        if version[0] == 255 || (version[0] == 0 && parts.next().is_some()) {
            return None;
        }
        let (trace, span, flags) = (bytes(trace)?, bytes(span)?, bytes::<1>(flags)?);
        let named = trace != [0; 16] && span != [0; 8];
        named.then(|| Parent {
            trace,
            span,
            sampled: flags[0] & 1 == 1,
            state: text("tracestate").unwrap_or_default().to_owned(),
        })
    }
}

/// Bytes as lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let well_formed = digits.len() == 2 * N && digits.iter().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate().take(if well_formed { N } else { 0 }) {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    well_formed.then_some(bytes)
}

/// What of a request only its span says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traced {
    /// The span that it belongs to.
    pub parent: Option<Parent>,
    /// `temperature`, if its client set one.
    pub temperature: Option<f64>,
    /// `top_p`, likewise.
    pub top_p: Option<f64>,
    /// The prompt among those of its HTTP request, where the engine counts them in its name.
    pub prompt: Option<u32>,
}

// Numbers of JSON are equal to themselves.
impl Eq for Traced {}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(traceparent: &str) -> Option<Parent> {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", traceparent.parse().unwrap());
        headers.insert("tracestate", "a=b".parse().unwrap());
        Parent::of(&headers)
    }

    /// The example of the specification (w3.org/TR/trace-context, 3.2.3), and what it calls invalid.
    #[test]
    fn a_parent_is_read_as_the_specification_says() {
        let read = parent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        assert_eq!((read.trace[0], read.span[7], read.sampled, &*read.state), (0x4b, 0xb7, true, "a=b"));
        assert!(!parent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00").unwrap().sampled);
        assert!(parent("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x").is_some());
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert_eq!(parent(wrong), None, "{wrong}");
        }
        assert_eq!(Parent::of(&HeaderMap::new()), None);
    }
}
