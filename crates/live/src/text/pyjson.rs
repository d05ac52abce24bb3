//! JSON as Python's `json.dumps` writes it, for templates: separators, line breaks, numbers, characters.

use super::charge::Charged;
use super::template::Ordered;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Widest indentation.
const MOST_INDENT: usize = 1024;

/// The filter `tojson` as `transformers` has it: `json.dumps(value, ensure_ascii=False)`, with its options.
pub fn tojson(state: &State<'_, '_>, value: &Ordered, options: Kwargs) -> Result<String, Error> {
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let indent = options.get::<Option<Ordered>>("indent")?.filter(|indent| !indent.is_none());
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    options.assert_all_used()?;
    let indent = indent.map(|indent| indentation(&indent)).transpose()?;
    let [between, behind_key] = match separators.as_deref() {
        None if indent.is_some() => [",", ": "].map(str::to_owned),
        None => [", ", ": "].map(str::to_owned),
        Some([between, behind_key]) => [between.clone(), behind_key.clone()],
        Some(_) => return Err(wrong("separators are not two texts".into())),
    };
    let ordered = if sorted { Some(in_key_order(state, value)?) } else { None };
    let mut written = Charged::new(state, String::new());
    let form = Python { between, behind_key, indent, depth: 0, filled: false };
    let outcome =
        ordered.as_ref().unwrap_or(value).serialize(&mut Serializer::with_formatter(&mut written, form));
    let json = written.finish()?;
    outcome.map_err(|error| wrong(error.to_string()))?;
    Ok(if ascii { escaped(&json) } else { json })
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {message}"))
}

/// A number of spaces, or a text. Python takes a negative number for none.
fn indentation(given: &Ordered) -> Result<String, Error> {
    if let Some(text) = given.as_str() {
        return Ok(text.to_owned());
    }
    match given.as_i64() {
        Some(width) if width <= MOST_INDENT as i64 => Ok(" ".repeat(usize::try_from(width).unwrap_or(0))),
        _ => Err(wrong(format!("indent is {given}, allowed is a text or a number up to {MOST_INDENT}"))),
    }
}

/// The same with all keys in order.
fn in_key_order(state: &State<'_, '_>, value: &Ordered) -> Result<Ordered, Error> {
    state.consume_fuel(1)?;
    let items = value.try_iter().into_iter().flatten();
    match value.kind() {
        ValueKind::Map => {
            let mut sorted = BTreeMap::new();
            for key in items {
                let name = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
                sorted.insert(name, in_key_order(state, &value.get_item(&key)?)?);
            }
            Ok(Ordered::from_pairs(sorted))
        }
        ValueKind::Seq => {
            Ok(items.map(|item| in_key_order(state, &item)).collect::<Result<Vec<_>, _>>()?.into())
        }
        _ => Ok(value.clone()),
    }
}

/// Characters beyond ASCII as `\uXXXX`. They stand in strings only.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            character
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        }
    }
    text
}

/// Python's form.
struct Python {
    between: String,
    behind_key: String,
    /// What stands before a value, for each level, if each has a line of its own.
    indent: Option<String>,
    depth: usize,
    /// The list or object that ends has something in it.
    filled: bool,
}

impl Python {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        (self.depth, self.filled) = (self.depth + 1, false);
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line(writer)?;
        }
        self.filled = true;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.between.as_bytes())?;
        }
        self.line(writer)
    }

    fn line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }
}

impl Formatter for Python {
    /// The shortest digits that give the number again, as Python's `repr` has them; an exponent has two digits at least.
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        let digits = format!("{value:?}");
        match digits.split_once('e') {
            Some((mantissa, exponent)) => {
                let (sign, exponent) =
                    exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
                write!(writer, "{mantissa}e{sign}{exponent:0>2}")
            }
            None => writer.write_all(digits.as_bytes()),
        }
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.behind_key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }
}
