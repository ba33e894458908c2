//! Serving: HTTP/1.1 on one port, each request in an instance of its own.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, Semaphore};
use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime::{bail, Engine, Error, ResourceLimiter, Result, Store, UpdateDeadline};
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::io::TokioIo;
use wasmtime_wasi_http::p2::bindings::http::types::Scheme;
use wasmtime_wasi_http::p2::bindings::ProxyPre;
use wasmtime_wasi_http::p2::body::HyperOutgoingBody;
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use crate::answer_body::broken_off_by;
use crate::clock::{Clock, TICK};
use crate::pool;

/// What a guest sees of the sandbox's files.
const DIRECTORIES: [(&str, FsPerms); 2] = [("/var/task", FsPerms::ReadOnly), ("/tmp", FsPerms::ReadWrite)];

/// What an element of a table takes, at most.
const ELEMENT_BYTES: usize = 16;

/// What an instance may have.
#[derive(Clone)]
struct Limits {
    memory_bytes: usize,
    /// What all instances have of it now.
    taken: Arc<AtomicUsize>,
    time: Duration,
}

/// What one instance has of the memory. Growing fails when the sum would be too much, so that no instance ends the host, and
/// with it the others. What a new instance starts with is mostly untouched, and is refused only if it could never be had.
struct Share {
    limits: Limits,
    own: usize,
}

impl Share {
    fn take(&mut self, more: usize, is_first: bool) -> bool {
        let others = if is_first { self.own } else { self.limits.taken.load(Ordering::Relaxed) };
        let fits = others.saturating_add(more) <= self.limits.memory_bytes;
        if fits {
            self.own += more;
            self.limits.taken.fetch_add(more, Ordering::Relaxed);
        }
        fits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.limits.taken.fetch_sub(self.own, Ordering::Relaxed);
    }
}

impl ResourceLimiter for Share {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> Result<bool> {
        Ok(self.take(desired - current, current == 0))
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> Result<bool> {
        Ok(self.take((desired - current).saturating_mul(ELEMENT_BYTES), current == 0))
    }
}

/// What belongs to one request.
pub struct State {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
    share: Share,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for State {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { ctx: &mut self.http, table: &mut self.table, hooks: Default::default() }
    }
}

/// What serves all requests.
#[derive(Clone)]
struct Host {
    pre: ProxyPre<State>,
    limits: Limits,
    clock: Clock,
    /// For instances: more than those of the pool wait.
    places: Arc<Semaphore>,
}

/// A component with all of its imports found. An error says what it lacks.
pub fn prepared(engine: &Engine, component: &Component) -> Result<ProxyPre<State>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    ProxyPre::new(linker.instantiate_pre(component)?)
}

/// Serve a compiled file until SIGTERM.
pub fn serve(file: &str, options: &[&str]) -> Result<()> {
    let mut limits = Limits { memory_bytes: usize::MAX, taken: Arc::default(), time: Duration::from_secs(3600) };
    for option in options.chunks(2) {
        match option {
            ["--memory-mb", number] => limits.memory_bytes = number.parse::<usize>()? << 20,
            ["--timeout-s", number] => limits.time = Duration::from_secs_f64(number.parse()?),
            _ => bail!("unknown option {option:?}"),
        }
    }
    let (engine, component) = pool::load(file)?;
    let pre = prepared(&engine, &component)?;
    let host = Host { pre, limits, clock: Clock::start(engine), places: Arc::new(Semaphore::new(pool::INSTANCES as usize)) };
    let port: u16 = std::env::var("PORT")?.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let mut ended = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    match accepted {
                        Ok((client, _)) => {
                            tokio::spawn(connection(client, host.clone()));
                        }
                        Err(error) => {
                            eprintln!("accept: {error}"); // no descriptor is left, say: some will be given back
                            tokio::time::sleep(TICK).await;
                        }
                    }
                }
                _ = ended.recv() => return Ok(()),
            }
        }
    })
}

/// All requests of one connection.
async fn connection(client: TcpStream, host: Host) {
    let _ = client.set_nodelay(true);
    let service = hyper::service::service_fn(move |request| {
        let host = host.clone();
        async move { Ok::<_, Infallible>(answer(request, host).await) }
    });
    let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(client), service);
    let _ = served.await; // a client that is gone is no error of the guest's
}

/// The guest's answer, or why there is none: the log has more.
async fn answer(request: Request<Incoming>, host: Host) -> Response<HyperOutgoingBody> {
    match handled(request, host).await {
        Ok(response) => response,
        Err(error) => {
            eprintln!("{error:?}");
            let (status, text) = match error.is::<TimedOut>() {
                true => (StatusCode::GATEWAY_TIMEOUT, "the guest has not answered in time\n"),
                false => (StatusCode::INTERNAL_SERVER_ERROR, "the guest has failed; the log says how\n"),
            };
            let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
            Response::builder().status(status).body(body).expect("a status and a body are a response")
        }
    }
}

#[derive(Debug)]
struct TimedOut(Duration);

impl std::fmt::Display for TimedOut {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "the guest has taken more than {} s", self.0.as_secs_f64())
    }
}

impl std::error::Error for TimedOut {}

/// One request. Its instance goes on after the head of its answer, until it returns or its time is over.
async fn handled(request: Request<Incoming>, host: Host) -> Result<Response<HyperOutgoingBody>> {
    let Host { pre, limits, clock, places } = host;
    let time = limits.time;
    let place = places.acquire_owned().await?;
    let mut store = Store::new(pre.engine(), state(limits)?);
    store.limiter(|state| &mut state.share);
    let end = Instant::now() + time;
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(move |_| match Instant::now() < end {
        true => Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now()))), // after sockets have had their turn
        false => Err(TimedOut(time).into()),
    });
    let (sender, receiver) = oneshot::channel();
    let request = store.data_mut().http().new_incoming_request(Scheme::Http, request)?;
    let out = store.data_mut().http().new_response_outparam(sender)?;
    let (failed, failure) = oneshot::channel::<Error>();
    let has_failed = Arc::new(AtomicBool::new(false));
    let of_body = has_failed.clone();
    let running = clock.run();
    tokio::spawn(async move {
        let run = async {
            let proxy = pre.instantiate_async(&mut store).await?;
            proxy.wasi_http_incoming_handler().call_handle(&mut store, request, out).await
        };
        let ended = tokio::time::timeout(time + 2 * TICK, run).await; // one that computes has ended, with its call stack
        if let Some(error) = match ended {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(Error::from(TimedOut(time))),
        } {
            has_failed.store(true, Ordering::Relaxed);
            if let Err(error) = failed.send(error) {
                eprintln!("{error:?}"); // the head of the answer is out
            }
        }
        drop((store, running, place)); // in this order: a place is free when its instance is gone
    });
    match receiver.await {
        Ok(Ok(response)) => {
            drop(failure);
            Ok(broken_off_by(of_body, response))
        }
        Ok(Err(code)) => Err(code.into()),
        Err(_) => match failure.await {
            Ok(error) => Err(error),
            Err(_) => bail!("the guest has returned without an answer"),
        },
    }
}

fn state(limits: Limits) -> Result<State> {
    let mut wasi = WasiCtx::builder();
    wasi.inherit_stdout().inherit_stderr().inherit_env();
    for (path, permissions) in DIRECTORIES {
        wasi.preopened_dir(path, path, permissions)?;
    }
    Ok(State {
        wasi: wasi.build(),
        http: WasiHttpCtx::new(),
        table: ResourceTable::new(),
        share: Share { limits, own: 0 },
    })
}
