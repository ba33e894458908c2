use crate::json::Json;
use crate::s3::xml_next;
use crate::{concat, join, put_json, text, unquote_plus, Text};

fn json(written: &str) -> Json<'_> {
    Json(Some(written.as_bytes()))
}

#[test]
fn fields_are_found_by_path() {
    let event = json(r#" {"a": {"b": "x\u00e9\n\ud83d\ude00"}, "l": [1, {"k.e": "v"}], "a": {"b": "last"}} "#);
    assert_eq!(event.string("a.b"), text("last"));
    assert_eq!(event.string("l.0"), text("1"));
    assert_eq!(event.string("l.1.k\\.e"), text("v"));
    assert_eq!(event.string("l.2"), Text(None));
    assert_eq!(event.int("l.0", -1), 1);
    assert_eq!(json(r#"["x\u00e9\n\ud83d\ude00"]"#).string("0"), text("xé\n😀"));
    assert_eq!(json("[1,[2],\"3\"]").elements().count(), 3);
}

#[test]
fn malformed_text_is_nothing() {
    for written in ["", "{", "[", "\"", "{\"a\"", "{\"a\":", "{\"a\":1", "[\"\\", "[\"\\u12", "[\"\\ud800\"]"] {
        assert_eq!(json(written).string("a"), Text(None), "{written}");
        assert_eq!(json(written).string("0"), Text(None), "{written}");
    }
}

#[test]
fn text_that_lacks_a_part_is_lacking() {
    assert_eq!(concat(&[&text("a"), &Text(None)]), Text(None));
    assert_eq!(join(&text("a"), &Text(None)), Text(None));
    assert_eq!(join(&text("a"), &text("b")), text("a/b"));
    assert_eq!(join(&text("a/"), &text("b")), text("a/b"));
    assert_eq!(join(&text("a"), &text("/b")), text("/b"));
    assert_eq!(join(&text(""), &text("b")), text("b"));
    assert_eq!(unquote_plus(&text("a+b%20c%zz%2")), text("a b c%zz%2"));
}

#[test]
fn json_strings_are_escaped() {
    let mut written = Vec::new();
    put_json(&mut written, "a\"\\\n\u{1f}é".as_bytes());
    assert_eq!(written, r#""a\"\\\u000a\u001fé""#.as_bytes());
}

#[test]
fn elements_are_taken_off_a_list() {
    let mut page: &[u8] = b"<L><Key>a&amp;b&#13;&#x41;</Key><Keys/><Key></Key><Key>&no;</Key><Key>cut";
    assert_eq!(xml_next(&mut page, "Key"), Some(text("a&b\rA")));
    assert_eq!(xml_next(&mut page, "Key"), Some(text("")));
    assert_eq!(xml_next(&mut page, "Key"), Some(Text(None)));
    assert_eq!(xml_next(&mut page, "Key"), None);
}
