//! Fields of a JSON text, found by their path without parsing the whole. Nothing recurses or reads past
//! the end; what is not JSON gives None, or what was found before it went wrong.

use crate::text::{hex, put_code, Text};
use alloc::vec::Vec;

/// A JSON text, or a value within one, as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<'a>(pub Option<&'a [u8]>);

impl<'a> Json<'a> {
    /// The value at a path such as "object.key" or "records.0.name"; a "\\" before a dot makes it part of a name.
    pub fn find(self, path: &str) -> Json<'a> {
        let mut value = self.0.map(space).and_then(|rest| rest.get(..skip(rest)?));
        let mut path = path.as_bytes();
        while !path.is_empty() {
            let mut name = Vec::new();
            while let [first, tail @ ..] = path {
                path = tail;
                match (*first, tail) {
                    (b'.', _) => break,
                    (b'\\', [escaped, tail @ ..]) => {
                        name.push(*escaped);
                        path = tail;
                    }
                    (byte, _) => name.push(byte),
                }
            }
            value = value.and_then(|value| member(value, &name));
        }
        Json(value)
    }

    /// The string at a path, decoded; of a number its digits, as they are written.
    pub fn string(self, path: &str) -> Text {
        let value = self.find(path);
        match value.0 {
            Some(number @ [b'-' | b'0'..=b'9', ..]) => Text(Some(number.to_vec())),
            _ => value.text(),
        }
    }

    /// The text of a string without its quotes and escapes; None if it is no string, or a malformed one.
    pub fn text(self) -> Text {
        Text(self.0.and_then(decode))
    }

    /// The integer at a path; `otherwise` where there is none, or one that needs more than 18 digits.
    pub fn int(self, path: &str, otherwise: i64) -> i64 {
        let value = self.find(path).0.unwrap_or(b"");
        let (sign, digits) = match value {
            [b'-', digits @ ..] => (-1, digits),
            digits => (1, digits),
        };
        if digits.is_empty() || value.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
            return otherwise;
        }
        sign * digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
    }

    /// The elements of an array, up to the first malformed one.
    pub fn elements(self) -> Elements<'a> {
        Elements(self.0.unwrap_or(b""))
    }
}

/// The elements of an array, one after the other.
pub struct Elements<'a>(&'a [u8]);

impl<'a> Iterator for Elements<'a> {
    type Item = Json<'a>;

    fn next(&mut self) -> Option<Json<'a>> {
        let [b'[' | b',', rest @ ..] = self.0 else { return None };
        let rest = space(rest);
        let end = skip(rest)?;
        self.0 = space(rest.get(end..)?);
        Some(Json(rest.get(..end)))
    }
}

fn space(mut rest: &[u8]) -> &[u8] {
    while let [b' ' | b'\n' | b'\r' | b'\t', tail @ ..] = rest {
        rest = tail;
    }
    rest
}

/// How long the string is that `rest` begins with, with its quotes.
fn skip_string(rest: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match rest.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// How long the value is that `rest` begins with.
fn skip(rest: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0, 0u32);
    while let Some(&byte) = rest.get(at) {
        match byte {
            b'"' => at += skip_string(rest.get(at..)?)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
                continue;
            }
            b'}' | b']' if depth > 0 => {
                depth -= 1;
                at += 1;
            }
            b'}' | b']' | b',' | b':' | b' ' | b'\n' | b'\r' | b'\t' if depth == 0 => break,
            _ => {
                at += 1;
                continue;
            }
        }
        if depth == 0 {
            break;
        }
    }
    (depth == 0 && at > 0).then_some(at)
}

/// The member of an object, or element of an array, that one part of a path names. Of equal names the last, as Python.
fn member<'a>(value: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if value.first() == Some(&b'[') {
        if name.is_empty() || name.len() > 9 || !name.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let index = name.iter().fold(0, |index, digit| index * 10 + usize::from(digit - b'0'));
        return Json(Some(value)).elements().nth(index)?.0;
    }
    let mut found = None;
    let mut rest = value;
    let mut opened = b'{';
    while let [first, tail @ ..] = rest {
        if *first != opened {
            break;
        }
        opened = b',';
        let tail = space(tail);
        if tail.first() != Some(&b'"') {
            rest = tail;
            break;
        }
        let end = skip_string(tail)?;
        let key = decode(tail.get(..end)?);
        let [b':', tail @ ..] = space(tail.get(end..)?) else { return None };
        let tail = space(tail);
        let end = skip(tail)?;
        if key.as_deref() == Some(name) {
            found = tail.get(..end);
        }
        rest = space(tail.get(end..)?);
    }
    if rest.first() == Some(&b'}') { found } else { None }
}

fn decode(value: &[u8]) -> Option<Vec<u8>> {
    let [b'"', inner @ .., b'"'] = value else { return None };
    let mut plain = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'\\' {
            plain.push(*first);
            continue;
        }
        let [escape, tail @ ..] = tail else { return None };
        rest = tail;
        plain.push(match escape {
            b'"' | b'\\' | b'/' => *escape,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let mut code = unit(rest)?;
                rest = rest.get(4..)?;
                // Above 16 bits a character is written as two escapes, of which the first is one of d800 to dbff.
                if (0xd800..0xdc00).contains(&code) {
                    let [b'\\', b'u', tail @ ..] = rest else { return None };
                    let low = unit(tail)?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
                    code = 0x10000 + ((code - 0xd800) << 10) + low;
                    rest = tail.get(4..)?;
                }
                put_code(&mut plain, code)?;
                continue;
            }
            _ => return None,
        });
    }
    Some(plain)
}

fn unit(rest: &[u8]) -> Option<u32> {
    rest.get(..4)?.iter().try_fold(0, |code, &digit| (hex(digit) < 16).then(|| code << 4 | hex(digit)))
}
