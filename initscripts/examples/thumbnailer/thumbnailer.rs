//! One object that the event names. For SeBS 210.thumbnailer, which reads <input prefix>/<key>, the key unquoted.
#![no_std]

use sockd_initscript::{boot, input, join, s3, unquote_plus};

boot!(run);

fn run() {
    let event = input();
    let key = unquote_plus(&event.string("object.key"));
    let s3 = s3::open();

    s3::get(s3, 0, &event.string("bucket.bucket"), &join(&event.string("bucket.input"), &key));
    s3.pass_all(0..1);
}
