//! Strings that may not be there: what is made of a missing field is missing, too, and is then not sent.

use alloc::vec::Vec;

/// UTF-8, or nothing: a field that the event lacks, or malformed text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub Option<Vec<u8>>);

/// A literal.
pub fn text(literal: &str) -> Text {
    Text(Some(literal.as_bytes().to_vec()))
}

/// Strings, one after the other.
pub fn concat(parts: &[&Text]) -> Text {
    let mut all = Vec::new();
    for part in parts {
        match &part.0 {
            Some(bytes) => all.extend_from_slice(bytes),
            None => return Text(None),
        }
    }
    Text(Some(all))
}

/// What os.path.join(a, b) gives: one "/" between them, and b alone if it begins with one.
pub fn join(a: &Text, b: &Text) -> Text {
    match (&a.0, &b.0) {
        (Some(first), Some(second)) if first.is_empty() || second.first() == Some(&b'/') => b.clone(),
        (Some(first), Some(_)) if first.last() == Some(&b'/') => concat(&[a, b]),
        _ => concat(&[a, &text("/"), b]),
    }
}

/// What urllib.parse.unquote_plus gives: "+" is a space, "%41" is "A".
pub fn unquote_plus(quoted: &Text) -> Text {
    let Some(bytes) = &quoted.0 else { return Text(None) };
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes.as_slice();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (*first, tail) {
            (b'%', [high, low, tail @ ..]) if hex(*high) < 16 && hex(*low) < 16 => {
                plain.push((hex(*high) << 4 | hex(*low)) as u8);
                rest = tail;
            }
            (b'+', _) => plain.push(b' '),
            (byte, _) => plain.push(byte),
        }
    }
    Text(Some(plain))
}

/// A string as JSON has it, quoted and escaped, at the end of `out`.
pub fn put_json(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'"');
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0..=31 => {
                out.extend_from_slice(b"\\u00");
                out.push(b'0' + (byte >> 4));
                out.push(if byte & 15 < 10 { b'0' } else { b'a' - 10 } + (byte & 15));
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// A string as JSON has it, by itself.
pub fn quoted(plain: &Text) -> Text {
    Text(plain.0.as_ref().map(|bytes| {
        let mut written = Vec::with_capacity(bytes.len() + 2);
        put_json(&mut written, bytes);
        written
    }))
}

/// The value of a hexadecimal digit; 16 for anything else.
pub(crate) fn hex(digit: u8) -> u32 {
    match digit {
        b'0'..=b'9' => u32::from(digit - b'0'),
        b'a'..=b'f' => u32::from(digit - b'a') + 10,
        b'A'..=b'F' => u32::from(digit - b'A') + 10,
        _ => 16,
    }
}

/// One code point as UTF-8, at the end of `out`.
pub(crate) fn put_code(out: &mut Vec<u8>, code: u32) -> Option<()> {
    let mut buffer = [0; 4];
    out.extend_from_slice(char::from_u32(code)?.encode_utf8(&mut buffer).as_bytes());
    Some(())
}
