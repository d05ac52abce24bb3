//! Methods of Python's strings, lists and dicts in templates: those that the library has, what it makes bounded, and those
//! that it lacks (Python 3.12, library reference, "String Methods").

use super::charge::{Charged, take};
use super::template::Ordered;
use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;
use std::fmt::Write;

/// Widest field of `str.format`, and most digits behind a point.
const MOST_WIDTH: usize = 4096;

/// A method of a value that has none of its own.
pub fn call(
    state: &mut State<'_, '_>,
    value: &Ordered,
    method: &str,
    args: &[Ordered],
) -> Result<Ordered, Error> {
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(state, text, method, args)?,
        (None, ValueKind::Seq) if method == "index" => Some(index_in(value, args)?),
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, method, args),
    }
}

fn of_text(
    state: &State<'_, '_>,
    text: &str,
    method: &str,
    args: &[Ordered],
) -> Result<Option<Ordered>, Error> {
    let cased = |character: char| character.is_lowercase() || character.is_uppercase();
    Ok(Some(match method {
        "join" => join(state, text, args)?.into(),
        "format" => {
            check_format(state, text, args)?;
            return Ok(None);
        }
        "ljust" | "rjust" | "center" => padded(state, text, method, args)?.into(),
        "zfill" => {
            let (width,): (i64,) = from_args(args)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", filling(state, text, width, '0')?).into()
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(wrong("an empty separator"));
            }
            let forward = method == "partition";
            let found = if forward { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match found {
                Some((before, behind)) => [before, separator, behind],
                None if forward => [text, "", ""],
                None => ["", "", text],
            };
            parts.map(Ordered::from).to_vec().into()
        }
        "rsplit" => rsplit(text, args)?.into(),
        "index" | "rindex" => {
            let (part,): (&str,) = from_args(args)?;
            let found = if method == "index" { text.find(part) } else { text.rfind(part) };
            let at = found.ok_or_else(|| wrong("substring not found"))?;
            (text[..at].chars().count() as i64).into()
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swapped = text.chars().map(|character| match character.is_uppercase() {
                true => character.to_lowercase().to_string(),
                false => character.to_uppercase().to_string(),
            });
            swapped.collect::<String>().into()
        }
        // The German sharp s is what it differs in from small letters, among letters that are in use.
        "casefold" => {
            let () = from_args(args)?;
            text.to_lowercase().replace('ß', "ss").into()
        }
        "expandtabs" => expanded(state, text, args)?.into(),
        "isdecimal" => {
            let () = from_args(args)?;
            (!text.is_empty() && text.chars().all(|character| character.is_ascii_digit())).into()
        }
        "istitle" => {
            let () = from_args(args)?;
            let mut before = false;
            let titled = text.chars().all(|character| {
                let fits = !cased(character) || character.is_uppercase() != before;
                before = cased(character);
                fits
            });
            (titled && text.chars().any(cased)).into()
        }
        _ => return Ok(None),
    }))
}

fn wrong(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
}

/// So many characters as a text lacks to a width.
fn filling(state: &State<'_, '_>, text: &str, width: i64, with: char) -> Result<String, Error> {
    let lacking = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    take(state, lacking.saturating_mul(with.len_utf8()))?;
    Ok(String::from(with).repeat(lacking))
}

fn padded(state: &State<'_, '_>, text: &str, method: &str, args: &[Ordered]) -> Result<String, Error> {
    let (width, with): (i64, Option<&str>) = from_args(args)?;
    let mut with = with.unwrap_or(" ").chars();
    let (Some(with), None) = (with.next(), with.next()) else {
        return Err(wrong("the fill character must be exactly one character long"));
    };
    let filling = filling(state, text, width, with)?;
    let count = filling.chars().count();
    // What is left over of two halves stands before a text in a field of odd width (CPython's `pad`).
    let before = match method {
        "ljust" => 0,
        "rjust" => count,
        _ => count / 2 + (count & usize::try_from(width).unwrap_or(0) & 1),
    };
    let (before, behind) = filling.split_at(before * with.len_utf8());
    Ok(format!("{before}{text}{behind}"))
}

fn join(state: &State<'_, '_>, between: &str, args: &[Ordered]) -> Result<String, Error> {
    let (values,): (&Ordered,) = from_args(args)?;
    let mut joined = Charged::new(state, String::new());
    for (at, value) in values.try_iter()?.enumerate() {
        let between = if at > 0 { between } else { "" };
        if write!(joined, "{between}{value}").is_err() {
            break;
        }
    }
    joined.finish()
}

/// Whether what a format makes can be paid: widths, and each value in every place where it may stand.
fn check_format(state: &State<'_, '_>, format: &str, args: &[Ordered]) -> Result<(), Error> {
    let mut widths = 0;
    for field in format.split('{').skip(1) {
        let specification = field.split('}').next().unwrap_or("").rsplit_once(':').map_or("", |(_, end)| end);
        for number in specification.split(|character: char| !character.is_ascii_digit()) {
            let width = number.trim_start_matches('0');
            let fits = width.len() <= 4 && width.parse().unwrap_or(0) <= MOST_WIDTH;
            if !fits {
                return Err(wrong(&format!("format: a width of {width}, allowed is at most {MOST_WIDTH}")));
            }
            widths += width.parse().unwrap_or(0);
        }
    }
    let mut length = Charged::new(state, 0_usize);
    for value in args {
        if write!(length, "{value}").is_err() {
            break;
        }
    }
    let fields = format.matches('{').count();
    take(state, fields.saturating_mul(length.finish()?).saturating_add(widths))
}

fn rsplit(text: &str, args: &[Ordered]) -> Result<Vec<Ordered>, Error> {
    let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
    let most =
        most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most.saturating_add(1));
    if separator == Some("") {
        return Err(wrong("an empty separator"));
    }
    let mut parts: Vec<Ordered> = match separator {
        Some(separator) => text.rsplitn(most, separator).map(Ordered::from).collect(),
        None => {
            let (mut parts, mut rest) = (Vec::new(), text.trim_end());
            while !rest.is_empty() {
                let at = rest.rfind(char::is_whitespace).filter(|_| parts.len() + 1 < most);
                let word = at.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
                parts.push(rest[word..].into());
                rest = rest[..at.unwrap_or(0)].trim_end();
            }
            parts
        }
    };
    parts.reverse();
    Ok(parts)
}

fn expanded(state: &State<'_, '_>, text: &str, args: &[Ordered]) -> Result<String, Error> {
    let (width,): (Option<i64>,) = from_args(args)?;
    let width = usize::try_from(width.unwrap_or(8)).unwrap_or(0);
    take(state, text.matches('\t').count().saturating_mul(width))?;
    let (mut expanded, mut column) = (String::new(), 0);
    for character in text.chars() {
        if character == '\t' {
            let spaces = if width == 0 { 0 } else { width - column % width };
            expanded.extend(std::iter::repeat_n(' ', spaces));
            column += spaces;
        } else {
            expanded.push(character);
            column = if matches!(character, '\n' | '\r') { 0 } else { column + 1 };
        }
    }
    Ok(expanded)
}

fn index_in(list: &Ordered, args: &[Ordered]) -> Result<Ordered, Error> {
    let (wanted,): (&Ordered,) = from_args(args)?;
    let at = list.try_iter()?.position(|item| item == *wanted);
    at.map(|at| (at as i64).into()).ok_or_else(|| wrong("the value is not in the list"))
}
