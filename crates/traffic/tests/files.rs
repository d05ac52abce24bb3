//! Files that are not as they should be, or not files: encodings, compression, blank lines, pipes.

use flate2::{Compression, write::GzEncoder};
use std::io::Write;
use std::path::Path;
use windtunnel_traffic::{Format, Times, TraceFile, WorkloadSource};

const GOOD: &str = r#"{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0]}"#;

/// The number of requests of a trace, or the error without the file's name.
fn read(path: &Path) -> Result<usize, String> {
    let format = Format::Mooncake { block_size: 512 };
    let times = Times::Recorded { speedup: 1.0 };
    let trace = TraceFile { path: path.to_owned(), format, times, limit: None };
    let all: Result<Vec<_>, _> = WorkloadSource::Trace(trace).open().unwrap().collect();
    all.map(|all| all.len())
        .map_err(|error| error.to_string().replacen(&path.display().to_string(), "file", 1))
}

fn read_bytes(bytes: &[u8]) -> Result<usize, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    read(file.path())
}

fn packed(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let text = format!("\u{feff}{GOOD}\n{GOOD}\n");
    assert_eq!(read_bytes(text.as_bytes()), Ok(2));
    assert_eq!(read_bytes(&packed(text.as_bytes())), Ok(2));
    assert_eq!(read_bytes(format!("\u{feff}\n{GOOD}").as_bytes()), Ok(1));
    let second = read_bytes(format!("{GOOD}\n\u{feff}{GOOD}").as_bytes());
    assert!(second.unwrap_err().starts_with("file, line 2: got "), "at the start only");
}

#[test]
fn what_is_not_utf_8_is_told_so() {
    let wide = |big: bool| -> Vec<u8> {
        let units = "\u{feff}".chars().chain(GOOD.chars()).map(|letter| letter as u16);
        units.flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect()
    };
    let utf_16 =
        "file, line 1: this is UTF-16 or not text; the file must be UTF-8; allowed is one JSON object a line";
    for bytes in [wide(true), wide(false), wide(true)[2..].to_vec(), wide(false)[2..].to_vec()] {
        assert_eq!(read_bytes(&bytes), Err(utf_16.into()));
    }
    let latin_1 = [GOOD.as_bytes(), b"\n{\"request_id\": \"caf\xe9\"}"].concat();
    let expected =
        "file, line 2: not UTF-8 at byte 20; the file must be UTF-8; allowed is one JSON object a line";
    assert_eq!(read_bytes(&latin_1), Err(expected.into()));
}

#[test]
fn gzip_members_are_joined_and_nothing_may_follow_them() {
    let member = packed(format!("{GOOD}\n").as_bytes());
    let twice = [&member[..], &packed(b""), &member].concat();
    assert_eq!(read_bytes(&twice), Ok(2));
    for rest in [&b"x"[..], b"garbage of some length", &[0; 512]] {
        let expected = "file, line 2: cannot be read: bytes that are not gzip follow the compressed data";
        assert_eq!(read_bytes(&[&member, rest].concat()), Err(expected.into()));
    }
    let cut = &member[..member.len() - 1];
    assert_eq!(read_bytes(cut), Err("file, line 2: cannot be read: unexpected end of file".into()));
}

#[test]
fn blank_lines_end() {
    let blank = |lines: usize| packed(format!("{}{GOOD}\n", "\n".repeat(lines)).as_bytes());
    assert_eq!(read_bytes(&blank(65_536)), Ok(1));
    let expected =
        "file, line 65537: more than 65536 blank lines in a row; allowed is one JSON object a line";
    assert_eq!(read_bytes(&blank(65_537)), Err(expected.into()));
    let wide = format!("{}\n", " ".repeat(1 << 20)).repeat(70);
    let expected =
        "file, line 64: more than 67108864 blank bytes in a row; allowed is one JSON object a line";
    assert_eq!(read_bytes(&packed(wide.as_bytes())), Err(expected.into()));
}

#[test]
fn control_characters_are_written_out() {
    let line = "{\"request_id\": \"\\u001b[2J\", \"\u{1b}]0;\u{7f}\u{9b}\u{202e}é\": 1}";
    let error = read_bytes(line.as_bytes()).unwrap_err();
    assert!(!error.contains(char::is_control), "{error:?}");
    let line = "\u{1b}[31m\u{7f}\u{9b}\u{202e}é";
    let expected = r"file, line 1: got \u{1b}[31m\u{7f}\u{9b}\u{202e}é; allowed is one JSON object a line";
    assert_eq!(read_bytes(line.as_bytes()), Err(expected.into()));
    let named = format!("{{\"\u{7f}\": 1, {}", &GOOD[1..]);
    assert!(read_bytes(named.as_bytes()).unwrap_err().starts_with(r"file, line 1: \u{7f}: unknown field"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a\u{1b}[2J\nb");
    std::fs::write(&path, "").unwrap();
    assert!(
        read(&path)
            .unwrap_err()
            .ends_with(r"a\u{1b}[2J\nb: holds no request; allowed is one JSON object a line")
    );
}

#[cfg(unix)]
#[test]
fn a_pipe_is_read_like_a_file() {
    for bytes in [format!("{GOOD}\n{GOOD}\n").into_bytes(), packed(format!("{GOOD}\n{GOOD}\n").as_bytes())] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let path = {
            use std::os::fd::AsRawFd;
            format!("/dev/fd/{}", reader.as_raw_fd())
        };
        let writing = std::thread::spawn(move || {
            for byte in bytes {
                writer.write_all(&[byte]).unwrap();
            }
        });
        assert_eq!(read(Path::new(&path)), Ok(2));
        writing.join().unwrap();
    }
}
