//! An input and the weights, both under way at once. For SeBS 411.image-recognition, which reads the image first.
#![no_std]

use sockd_initscript::{boot, input, join, s3};

boot!(run);

fn run() {
    let event = input();
    let bucket = event.string("bucket.bucket");
    let s3 = s3::open();

    s3::get(s3, 0, &bucket, &join(&event.string("bucket.input"), &event.string("object.input")));
    s3::get(s3, 1, &bucket, &join(&event.string("bucket.model"), &event.string("object.model")));
    s3.pass_all(0..2);
}
