//! S3 requests in one line. A request that is made of a field that the event lacks is not sent.

use crate::text::{put_code, put_json, text, Text};
use crate::{Connection, EDQUOT};
use alloc::vec::Vec;
use core::ops::Range;

/// GET of an object as the function's storage read `index`. Answers 0 or -errno.
pub fn get(s3: Connection, index: i64, bucket: &Text, key: &Text) -> i32 {
    s3.send(index, "GetObject", &body(&[("bucket", bucket), ("key", key)]))
}

/// A part of an object: a range as HTTP has it, "bytes=0-99" or "bytes=-500".
pub fn get_range(s3: Connection, index: i64, bucket: &Text, key: &Text, range: &Text) -> i32 {
    s3.send(index, "GetObject", &body(&[("bucket", bucket), ("key", key), ("range", range)]))
}

/// HEAD of an object.
pub fn head(s3: Connection, index: i64, bucket: &Text, key: &Text) -> i32 {
    s3.send(index, "HeadObject", &body(&[("bucket", bucket), ("key", key)]))
}

/// The first page of a list.
pub fn list(s3: Connection, index: i64, bucket: &Text, prefix: &Text) -> i32 {
    s3.send(index, "ListObjectsV2", &body(&[("bucket", bucket), ("prefix", prefix)]))
}

/// A page of a list by all that can be asked for: continuation, delimiter, number of keys and the key to start after; an empty
/// text stands for what is not.
pub fn list_page(s3: Connection, index: i64, bucket: &Text, prefix: &Text, page: [&Text; 4]) -> i32 {
    let [continuation, delimiter, max_keys, start_after] = page;
    let fields = [
        ("bucket", bucket),
        ("prefix", prefix),
        ("continuation", continuation),
        ("delimiter", delimiter),
        ("max_keys", max_keys),
        ("start_after", start_after),
    ];
    s3.send(index, "ListObjectsV2", &body(&fields))
}

/// The rest of a directory, whose LIST was sent as `index`: wait for it, pass it on, and likewise all further pages, as
/// index + 1, ...; then send a GET of each listed key under the numbers behind those. Answers the GETs' numbers; their
/// replies are for the caller to pass on.
pub fn get_listed(s3: Connection, mut index: i64, bucket: &Text, prefix: &Text) -> Range<i64> {
    let mut pages = Vec::new();
    loop {
        let reply = s3.pass(index);
        index += 1;
        let Some(page) = reply.ok().filter(|reply| reply.status == 200).and_then(crate::read) else { break };
        let continuation = xml_next(&mut page.as_slice(), "NextContinuationToken");
        pages.push(page);
        let Some(continuation) = continuation else { break };
        let next = body(&[("bucket", bucket), ("prefix", prefix), ("continuation", &continuation)]);
        if s3.send(index, "ListObjectsV2", &next) != 0 {
            break;
        }
    }
    let mut gets = index..index;
    for page in &pages {
        let mut rest = page.as_slice();
        while let Some(key) = xml_next(&mut rest, "Key") {
            let sent = get(s3, gets.end, bucket, &key);
            gets.end += 1;
            if sent == -EDQUOT {
                return gets;
            }
        }
    }
    gets
}

/// Take the text of the next element of this name off an XML text, entities decoded.
pub fn xml_next(rest: &mut &[u8], name: &str) -> Option<Text> {
    let mut at = 0;
    loop {
        let tail = rest.get(at..)?.strip_prefix(b"<");
        at += 1;
        let Some(inner) = tail.and_then(|tail| tail.strip_prefix(name.as_bytes())?.strip_prefix(b">")) else { continue };
        let end = inner.iter().position(|&byte| byte == b'<')?;
        *rest = inner.get(end..)?;
        return Some(Text(decode(inner.get(..end)?)));
    }
}

fn decode(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(rest.len());
    while let [first, tail @ ..] = rest {
        rest = tail;
        let end = tail.iter().take(10).position(|&byte| byte == b';').filter(|_| *first == b'&');
        let Some(end) = end else {
            plain.push(*first);
            continue;
        };
        rest = tail.get(end + 1..)?;
        put_code(&mut plain, entity(tail.get(..end)?)?)?;
    }
    Some(plain)
}

fn entity(name: &[u8]) -> Option<u32> {
    let (digits, base) = match name {
        b"amp" => return Some(u32::from(b'&')),
        b"lt" => return Some(u32::from(b'<')),
        b"gt" => return Some(u32::from(b'>')),
        b"quot" => return Some(u32::from(b'"')),
        b"apos" => return Some(u32::from(b'\'')),
        [b'#', b'x', digits @ ..] => (digits, 16),
        [b'#', digits @ ..] => (digits, 10),
        _ => return None,
    };
    let add = |code: u32, &digit: &u8| {
        let value = crate::text::hex(digit);
        if value < base { code.checked_mul(base)?.checked_add(value) } else { None }
    };
    digits.iter().try_fold(0, add).filter(|&code| code > 0)
}

fn body(fields: &[(&str, &Text)]) -> Text {
    let mut json = Vec::new();
    for (name, value) in fields {
        let Some(value) = &value.0 else { return Text(None) };
        json.push(if json.is_empty() { b'{' } else { b',' });
        put_json(&mut json, name.as_bytes());
        json.push(b':');
        put_json(&mut json, value);
    }
    json.push(b'}');
    Text(Some(json))
}

/// The connection to the function's S3.
pub fn open() -> Connection {
    Connection::open(&text("s3:"))
}
