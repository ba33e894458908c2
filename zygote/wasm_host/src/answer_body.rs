//! The body of an answer, which ends as one that is whole only if its guest has not failed.
//!
//! wasmtime-wasi-http ends the body of an instance that is gone without an error: the client would take a part for the whole.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::Response;
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;
use wasmtime_wasi_http::Error;

/// Whether a guest has failed. It is said before the instance is gone.
pub type Failed = Arc<AtomicBool>;

struct AnswerBody {
    body: HyperOutgoingBody,
    failed: Failed,
}

/// The same answer, whose body breaks off if the guest fails.
pub fn broken_off_by(failed: Failed, response: Response<HyperOutgoingBody>) -> Response<HyperOutgoingBody> {
    response.map(|body| AnswerBody { body, failed }.boxed_unsync())
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(None) if self.failed.load(Ordering::Relaxed) => Poll::Ready(Some(Err(Error::HttpProtocolError))),
            frame => frame,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
