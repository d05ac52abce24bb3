//! A MessagePack writer that takes the shortest form of every value, as msgspec and msgpack-python do, so that
//! what it writes is theirs byte for byte. It writes to memory and cannot fail.

/// A document being written.
#[derive(Debug, Default)]
pub(crate) struct Msgpack(Vec<u8>);

impl Msgpack {
    /// What was written.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn nil(&mut self) {
        self.0.push(0xc0);
    }

    pub(crate) fn uint(&mut self, value: u64) {
        if value < 0x80 {
            self.0.push(value as u8);
        } else if let Ok(value) = u8::try_from(value) {
            self.0.extend([0xcc, value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.head(0xcd, &value.to_be_bytes());
        } else if let Ok(value) = u32::try_from(value) {
            self.head(0xce, &value.to_be_bytes());
        } else {
            self.head(0xcf, &value.to_be_bytes());
        }
    }

    pub(crate) fn int(&mut self, value: i64) {
        if let Ok(value) = u64::try_from(value) {
            self.uint(value);
        } else if value >= -32 {
            self.0.push(value as u8);
        } else if let Ok(value) = i8::try_from(value) {
            self.0.extend([0xd0, value as u8]);
        } else if let Ok(value) = i16::try_from(value) {
            self.head(0xd1, &value.to_be_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.head(0xd2, &value.to_be_bytes());
        } else {
            self.head(0xd3, &value.to_be_bytes());
        }
    }

    pub(crate) fn float(&mut self, value: f64) {
        self.head(0xcb, &value.to_be_bytes());
    }

    pub(crate) fn text(&mut self, value: &str) {
        match value.len() {
            length @ ..32 => self.0.push(0xa0 | length as u8),
            length => self.length(length, Some(0xd9), 0xda, 0xdb),
        }
        self.0.extend_from_slice(value.as_bytes());
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) {
        self.length(value.len(), Some(0xc4), 0xc5, 0xc6);
        self.0.extend_from_slice(value);
    }

    /// The head of an array whose `length` values follow.
    pub(crate) fn array(&mut self, length: usize) {
        match length {
            length @ ..16 => self.0.push(0x90 | length as u8),
            length => self.length(length, None, 0xdc, 0xdd),
        }
    }

    /// The head of a map whose `length` pairs follow.
    pub(crate) fn map(&mut self, length: usize) {
        match length {
            length @ ..16 => self.0.push(0x80 | length as u8),
            length => self.length(length, None, 0xde, 0xdf),
        }
    }

    /// The same in the form that `room` pairs would need.
    pub(crate) fn map_of(&mut self, length: usize, room: usize) {
        match (u16::try_from(length), room) {
            (Ok(length), 16..) => self.head(0xde, &length.to_be_bytes()),
            _ => self.map(length),
        }
    }

    fn length(&mut self, length: usize, one: Option<u8>, two: u8, four: u8) {
        match (one, u8::try_from(length), u16::try_from(length)) {
            (Some(marker), Ok(length), _) => self.0.extend([marker, length]),
            (_, _, Ok(length)) => self.head(two, &length.to_be_bytes()),
            // MessagePack ends at 4 GiB, and so does what is written here.
            _ => self.head(four, &(length as u32).to_be_bytes()),
        }
    }

    fn head(&mut self, marker: u8, value: &[u8]) {
        self.0.push(marker);
        self.0.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Msgpack)) -> Vec<u8> {
        let mut it = Msgpack::default();
        write(&mut it);
        it.into_bytes()
    }

    /// The forms of the MessagePack specification, at the ends of their ranges.
    #[test]
    fn every_value_takes_its_shortest_form() {
        let uint = |value| written(|it| it.uint(value));
        assert_eq!(uint(127), [0x7f]);
        assert_eq!(uint(128), [0xcc, 0x80]);
        assert_eq!(uint(255), [0xcc, 0xff]);
        assert_eq!(uint(256), [0xcd, 1, 0]);
        assert_eq!(uint(65_535), [0xcd, 0xff, 0xff]);
        assert_eq!(uint(65_536), [0xce, 0, 1, 0, 0]);
        assert_eq!(uint(1 << 32), [0xcf, 0, 0, 0, 1, 0, 0, 0, 0]);
        let int = |value| written(|it| it.int(value));
        assert_eq!(int(5), [5]);
        assert_eq!(int(-32), [0xe0]);
        assert_eq!(int(-33), [0xd0, 0xdf]);
        assert_eq!(int(-128), [0xd0, 0x80]);
        assert_eq!(int(-129), [0xd1, 0xff, 0x7f]);
        assert_eq!(int(-32_769), [0xd2, 0xff, 0xff, 0x7f, 0xff]);
        assert_eq!(int(i64::MIN), [0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0]);
        let text = |length| written(|it| it.text(&"x".repeat(length)));
        assert_eq!(text(31)[..2], [0xbf, b'x']);
        assert_eq!(text(32)[..2], [0xd9, 32]);
        assert_eq!(text(256)[..3], [0xda, 1, 0]);
        assert_eq!(text(65_536)[..5], [0xdb, 0, 1, 0, 0]);
        let bytes = |length| written(|it| it.bytes(&vec![0; length]));
        assert_eq!((&bytes(32)[..2], &bytes(256)[..3]), (&[0xc4, 32][..], &[0xc5, 1, 0][..]));
        let array = |length| written(|it| it.array(length));
        assert_eq!(
            (array(15), array(16), array(65_536)),
            (vec![0x9f], vec![0xdc, 0, 16], vec![0xdd, 0, 1, 0, 0])
        );
        let map = |length| written(|it| it.map(length));
        assert_eq!((map(15), map(16)), (vec![0x8f], vec![0xde, 0, 16]));
        let roomy = |room| written(|it| it.map_of(3, room));
        assert_eq!((roomy(15), roomy(16)), (vec![0x83], vec![0xde, 0, 3]));
        assert_eq!(written(|it| it.float(1.5)), [0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]);
    }
}
