//! The fast way to read a row: one pass over the bytes, for rows of the plain kind that traces are
//! made of. Whatever it is not sure about it leaves to `row`, so it needs no error of its own, and a
//! row that both can read they read alike.

use super::row::Row;

/// Reads a plain row. `false`: this is not one, and the row is in no particular state.
pub(super) fn scan(line: &[u8], row: &mut Row) -> bool {
    row.clear();
    Scan { bytes: line, at: 0 }.object(row).is_some()
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    fn object(&mut self, row: &mut Row) -> Option<()> {
        self.expect(b'{')?;
        loop {
            let name = self.plain_string()?;
            self.expect(b':')?;
            match name {
                b"timestamp" => set(&mut row.timestamp, self.number()?)?,
                b"input_length" => set(&mut row.input_length, self.integer()?)?,
                b"output_length" => set(&mut row.output_length, self.integer()?)?,
                b"hash_ids" if !row.has_ids => {
                    self.integers(&mut row.ids)?;
                    row.has_ids = true;
                }
                b"request_id" => {
                    let name = std::str::from_utf8(self.plain_string()?).ok()?;
                    set(&mut row.name, name.into())?;
                }
                _ => return None,
            }
            match self.token()? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
        }
        self.skip_space();
        (self.at == self.bytes.len()).then_some(())
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    /// The next byte that is not space.
    #[inline]
    fn token(&mut self) -> Option<u8> {
        self.skip_space();
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.token()? == byte).then_some(())
    }

    /// A string of printable ASCII without escapes.
    fn plain_string(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            match *self.bytes.get(self.at)? {
                b'"' => break,
                b'\\' => return None,
                b' '..=b'~' => self.at += 1,
                _ => return None,
            }
        }
        self.at += 1;
        Some(&self.bytes[start..self.at - 1])
    }

    /// A whole number below 10^19. What follows it is for the caller to check: a point or an exponent
    /// is never the byte that may come next.
    #[inline]
    fn integer(&mut self) -> Option<u64> {
        if self.bytes.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
        let short =
            self.bytes.get(self.at..self.at + 8).and_then(|next| short_integer(next.try_into().ok()?));
        if let Some((value, digits)) = short {
            self.at += digits;
            return Some(value);
        }
        self.long_integer()
    }

    /// The same, digit by digit.
    fn long_integer(&mut self) -> Option<u64> {
        self.skip_space();
        let start = self.at;
        let mut value = 0u64;
        while let Some(digit) = self.bytes.get(self.at).map(|b| b.wrapping_sub(b'0'))
            && digit < 10
        {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            self.at += 1;
        }
        let digits = self.at - start;
        let leading_zero = digits > 1 && self.bytes[start] == b'0';
        (digits > 0 && digits < 20 && !leading_zero).then_some(value)
    }

    /// A number of at least 0, with or without a fraction.
    fn number(&mut self) -> Option<f64> {
        self.skip_space();
        let start = self.at;
        let whole = self.integer()?;
        if self.bytes.get(self.at) != Some(&b'.') {
            return Some(whole as f64);
        }
        self.at += 1;
        let fraction = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == fraction {
            return None;
        }
        std::str::from_utf8(&self.bytes[start..self.at]).ok()?.parse().ok()
    }

    fn integers(&mut self, list: &mut Vec<u64>) -> Option<()> {
        self.expect(b'[')?;
        self.skip_space();
        if self.bytes.get(self.at) == Some(&b']') {
            self.at += 1;
            return Some(());
        }
        loop {
            list.push(self.integer()?);
            match self.token()? {
                b',' => {}
                b']' => return Some(()),
                _ => return None,
            }
        }
    }
}

/// A whole number of one to seven digits at the start of eight bytes, and how many they are: all bytes are looked at
/// and put together at once. None if the number is longer, begins with a 0 that is not all of it, or is none.
#[inline]
fn short_integer(bytes: [u8; 8]) -> Option<(u64, usize)> {
    const EACH: u64 = 0x0101_0101_0101_0101;
    // A digit is its value now, and the top bit of everything else can be set by adding 0x76. What a byte carries
    // over comes after the first one that is no digit.
    let values = u64::from_le_bytes(bytes) ^ (EACH * 0x30);
    let others = ((values.wrapping_add(EACH * 0x76)) | values) & (EACH * 0x80);
    let digits = others.trailing_zeros() / 8;
    if digits == 0 || digits == 8 || (digits > 1 && bytes[0] == b'0') {
        return None;
    }
    // The digits at the end, zeros before them; then pairs, fours and all eight.
    let ones = values << (64 - 8 * digits);
    let pairs = (ones.wrapping_mul(10) + (ones >> 8)) & 0x00ff_00ff_00ff_00ff;
    let fours = (pairs.wrapping_mul(100) + (pairs >> 16)) & 0x0000_ffff_0000_ffff;
    let value = (fours.wrapping_mul(10_000) + (fours >> 32)) & 0xffff_ffff;
    Some((value, digits as usize))
}

/// Fills a field that must not have been given before.
fn set<T>(field: &mut Option<T>, value: T) -> Option<()> {
    if field.is_some() {
        return None;
    }
    *field = Some(value);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_integers_are_read_at_once() {
        for value in (0..20_000).chain([99_999, 123_456, 999_999, 1_000_000, 9_999_999]) {
            for end in [",x", "]", "  ", "}:\"", "\u{e9}\u{e9}", ".5"] {
                let mut text = format!("{value}{end}").into_bytes();
                text.resize(12, b'7');
                let digits = value.to_string().len();
                assert_eq!(
                    short_integer(text[..8].try_into().unwrap()),
                    Some((value, digits)),
                    "{value}{end}"
                );
            }
        }
        for none in [b"12345678", b"01,23456", b"-1,23456", b"x1234567", b" 1,23456", b"\xff1234567"] {
            assert_eq!(short_integer(*none), None);
        }
        assert_eq!(short_integer(*b"0,123456"), Some((0, 1)));
    }

    fn fields(row: &Row) -> impl PartialEq + std::fmt::Debug {
        let lengths = (row.input_length, row.output_length);
        (row.timestamp, lengths, row.ids.clone(), row.has_ids, row.priority, row.name.clone())
    }

    #[test]
    fn plain_rows_are_read_as_the_careful_way_reads_them() {
        let plain = [
            r#"{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}"#,
            r#"{"timestamp":27482.25,"input_length":1,"output_length":1,"hash_ids":[46]}"#,
            "  { \"hash_ids\" : [ ] ,\t\"output_length\" : 7 }\r",
            r#"{"request_id":"chat-7","timestamp":0.1,"output_length":3,"hash_ids":[9999999999999999999]}"#,
            r#"{"timestamp":9007199254740993,"output_length":1}"#,
        ];
        for line in plain {
            let (mut fast, mut careful) = (Row::default(), Row::default());
            assert!(scan(line.as_bytes(), &mut fast), "{line}");
            careful.read(line.as_bytes()).unwrap();
            assert_eq!(fields(&fast), fields(&careful), "{line}");
        }
    }

    #[test]
    fn everything_else_is_left_to_the_careful_way() {
        let other = [
            "",
            "{",
            "{}",
            "[1]",
            r#"{"timestamp":1"#,
            r#"{"timestamp":1}x"#,
            r#"{"timestamp":1,}"#,
            r#"{"timestamp":1,"timestamp":1}"#,
            r#"{"hash_ids":[1],"hash_ids":[1]}"#,
            r#"{"timestamp":-1}"#,
            r#"{"timestamp":1.}"#,
            r#"{"timestamp":1e3}"#,
            r#"{"timestamp":01}"#,
            r#"{"timestamp":null}"#,
            r#"{"timestamp":"1"}"#,
            r#"{"time\u0073tamp":1}"#,
            r#"{"input_length":12.0}"#,
            r#"{"hash_ids":[1,]}"#,
            r#"{"hash_ids":[1.0]}"#,
            r#"{"hash_ids":[18446744073709551615]}"#,
            r#"{"hash_ids":[1 2]}"#,
            r#"{"input_tokens":12}"#,
            r#"{"session_id":"a"}"#,
            r#"{"request_id":"é"}"#,
        ];
        for line in other {
            assert!(!scan(line.as_bytes(), &mut Row::default()), "{line}");
        }
    }

    #[test]
    fn whatever_both_can_read_they_read_alike() {
        let row = r#"{"timestamp": 1027.5, "input_length": 758, "output_length": 50, "request_id": "a-b", "hash_ids": [0, 12]}"#;
        let bytes = row.as_bytes();
        let spare = b"{}[]\":,. 0159-eE\\ntu/";
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let (mut read, mut left) = (0, 0);
        for _ in 0..200_000 {
            let mut line = bytes.to_vec();
            for _ in 0..1 + random(3) {
                let at = random(line.len());
                match random(4) {
                    0 => line[at] = spare[random(spare.len())],
                    1 => drop(line.remove(at)),
                    2 => line.insert(at, spare[random(spare.len())]),
                    _ => line[at] = bytes[random(bytes.len())],
                }
            }
            let (mut fast, mut careful) = (Row::default(), Row::default());
            if !scan(&line, &mut fast) {
                left += 1;
                continue;
            }
            read += 1;
            let text = String::from_utf8_lossy(&line);
            match careful.read(&line) {
                Ok(()) => assert_eq!(fields(&fast), fields(&careful), "{text}"),
                // The fast way leaves the range of lengths to the checks that follow.
                Err(_) => {
                    let lengths = [fast.input_length, fast.output_length];
                    let bad =
                        |length: &Option<u64>| length.is_some_and(|n| n == 0 || n > crate::MAX_TOKENS.into());
                    assert!(lengths.iter().any(bad), "{text}");
                }
            }
        }
        assert!(read > 5_000 && left > 5_000, "{read} {left}");
    }
}
