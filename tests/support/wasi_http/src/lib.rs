//! A component for wasi:http that does what the path says, for tests of its host.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    Fields, IncomingRequest, Method, OutgoingBody, OutgoingRequest, OutgoingResponse, ResponseOutparam, Scheme,
};

wasip2::http::proxy::export!(Component);

struct Component;

static CALLS: AtomicU32 = AtomicU32::new(0);

impl wasip2::exports::http::incoming_handler::Guest for Component {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let path = request.path_with_query().unwrap_or_default();
        match path.split('?').next().unwrap_or_default() {
            "/stream" => stream(request, out),
            "/fetch" => answer(out, 200, &[&fetched("127.0.0.1:8080", "/count")]),
            "/echo" => answer(out, 201, &[&echo(request)]),
            "/count" => answer(out, 200, &[&(CALLS.fetch_add(1, Ordering::SeqCst) + 1).to_string()]),
            "/pieces" => answer(out, 200, &["one", "two", "three"]),
            "/spin" => loop {
                std::hint::black_box(&path);
            },
            "/sleep" => std::thread::sleep(Duration::from_secs(3600)),
            "/trap" => panic!("a trap on purpose"),
            "/none" => (),
            "/part" => part(out, &path),
            "/memory" => {
                let mut taken = Vec::new();
                while taken.try_reserve_exact(1 << 20).is_ok() {
                    taken.resize(1 << 20, 1u8);
                    std::mem::forget(std::mem::take(&mut taken));
                    CALLS.fetch_add(1, Ordering::SeqCst);
                }
                if path.ends_with("?hold") {
                    std::thread::sleep(Duration::from_millis(500));
                }
                answer(out, 200, &[&CALLS.load(Ordering::SeqCst).to_string()]);
            }
            "/sees" => {
                eprintln!("a line of the log");
                let own = std::fs::metadata("/var/task/fn.wasm").is_ok();
                let host = std::fs::metadata("/etc/passwd").is_ok();
                let written = std::fs::write("/tmp/written", "1").is_ok() && std::fs::write("/var/task/x", "1").is_err();
                let variable = std::env::var("GREETING").unwrap_or_default();
                answer(out, 200, &[&format!("{own} {host} {written} {variable}")]);
            }
            _ => answer(out, 404, &[]),
        }
    }
}

/// The method, a header and the body of a request.
fn echo(request: IncomingRequest) -> String {
    let method = match request.method() {
        Method::Post => "POST",
        _ => "another",
    };
    let own = request.headers().get("x-own").first().map(|value| String::from_utf8_lossy(value).into_owned());
    let mut text = String::new();
    let body = request.consume().expect("it is taken once");
    body.stream().expect("it is taken once").read_to_string(&mut text).expect("the body comes whole");
    format!("{method} {} {text}", own.unwrap_or_default())
}

/// Answer each piece of the body as it comes.
fn stream(request: IncomingRequest, out: ResponseOutparam) {
    let response = OutgoingResponse::new(Fields::new());
    let answer = response.body().expect("it is taken once");
    ResponseOutparam::set(out, Ok(response));
    let mut to = answer.write().expect("it is taken once");
    let body = request.consume().expect("it is taken once");
    let mut from = body.stream().expect("it is taken once");
    let mut piece = [0; 4096];
    loop {
        match Read::read(&mut from, &mut piece).expect("the body comes whole") {
            0 => break,
            length => to.write_all(&piece[..length]).expect("the client is there"),
        }
        to.flush().expect("the client is there");
    }
    drop(to);
    OutgoingBody::finish(answer, None).expect("the body is whole");
}

/// The body of another server's answer, or what went wrong.
fn fetched(authority: &str, path: &str) -> String {
    let request = OutgoingRequest::new(Fields::new());
    request.set_scheme(Some(&Scheme::Http)).expect("a good scheme");
    request.set_authority(Some(authority)).expect("a good authority");
    request.set_path_with_query(Some(path)).expect("a good path");
    let coming = match outgoing_handler::handle(request, None) {
        Ok(coming) => coming,
        Err(code) => return format!("{code:?}"),
    };
    coming.subscribe().block();
    match coming.get().expect("it is there").expect("it is taken once") {
        Ok(response) => {
            let mut text = String::new();
            let body = response.consume().expect("it is taken once");
            body.stream().expect("it is taken once").read_to_string(&mut text).expect("the body comes whole");
            text
        }
        Err(code) => format!("{code:?}"),
    }
}

/// The first piece of an answer, and no end of it.
fn part(out: ResponseOutparam, path: &str) {
    let response = OutgoingResponse::new(Fields::new());
    let body = response.body().expect("it is taken once");
    ResponseOutparam::set(out, Ok(response));
    let stream = body.write().expect("it is taken once");
    stream.blocking_write_and_flush(b"a part").expect("the client is there");
    std::thread::sleep(Duration::from_millis(100));
    match path.ends_with("?spin") {
        true => loop {
            std::hint::black_box(&path);
        },
        false => panic!("a trap in a body"),
    }
}

/// Answer, with a wait between the pieces of the body.
fn answer(out: ResponseOutparam, status: u16, pieces: &[&str]) {
    let headers = Fields::from_list(&[("x-from".to_string(), b"a component".to_vec())]).expect("a good header");
    let response = OutgoingResponse::new(headers);
    response.set_status_code(status).expect("a good status");
    let body = response.body().expect("it is taken once");
    ResponseOutparam::set(out, Ok(response));
    let mut stream = body.write().expect("it is taken once");
    for (number, piece) in pieces.iter().enumerate() {
        if number > 0 {
            std::thread::sleep(Duration::from_millis(300));
        }
        stream.write_all(piece.as_bytes()).expect("the client is there");
        stream.flush().expect("the client is there");
    }
    drop(stream);
    OutgoingBody::finish(body, None).expect("the body is whole");
}
