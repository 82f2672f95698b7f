//! Reads the journal for requests. The number of concurrent reads is bounded, and so are the bytes
//! that reads and their responses hold. A read waits for its permits for a short time; after that
//! the response is a 503. A read acquires the permit for its bytes first, and then a permit to run.
//! So a running read never waits for a permit, and reads cannot deadlock.

use super::problem::Problem;
use super::rebuilt_jobs::{RebuiltJob, RebuiltJobAtEntry};
use crate::api::state::ApiState;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::http::header::{self, HeaderMap};
use actix_web::{HttpResponse, web};
use base::budget::{Permit, ResourceBudget};
use bytes::Bytes;
use engine::JobId;
use futures_util::stream::{self, Stream};
use journal::{JobAtEntry, JournalError, Records};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The largest total size of a job's entries, in bytes, that is read without a permit for bytes.
/// The limit on concurrent reads bounds such reads.
const SMALL_JOB_BYTES_MAX: usize = 256 * 1024;

/// The memory that a job takes while it is rebuilt, as a multiple of its entries' size: the text,
/// the parsed entries, and the job.
const REBUILT_FACTOR: usize = 3;

/// The memory that a job and the response that shows it take, as a multiple of its entries' size. A
/// response repeats each message once or twice.
const RENDERED_FACTOR: usize = 2 * REBUILT_FACTOR;

/// The memory that a response about a cached job takes, as a multiple of the job's size.
const RENDERED_CACHED_FACTOR: usize = 3;

/// The size of the chunks in which a response is built, held and sent, in bytes. A response of
/// one chunk needs no permit for bytes.
const CHUNK_BYTES: usize = 64 * 1024;

/// The number of rows that are read and sent at once while a list is streamed, and the default
/// number of rows of a page.
pub(super) const PAGE_ROWS: u32 = 1_000;

/// The most memory that a short row of a page, such as the id of a job, takes in bytes: as a value,
/// and as text.
const ROW_BYTES: usize = 512;

/// Returns the most memory that a page of `limit` short rows takes, in bytes.
pub(super) fn page_bytes(limit: u32) -> usize {
    page_bytes_for(limit, ROW_BYTES)
}

/// Returns the most memory that a page of `limit` rows of `row_bytes` bytes each takes, in bytes.
pub(super) fn page_bytes_for(limit: u32, row_bytes: usize) -> usize {
    row_bytes * usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Truncates a text to `chars_max` characters. An ellipsis after them marks the cut.
pub(super) fn truncate(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Runs a read that needs no permit for bytes, because its result is small.
pub(super) async fn read_small<T: Send + 'static>(
    api: &Arc<ApiState>,
    query: impl FnOnce(&dyn Records) -> Result<T, JournalError> + Send + 'static,
) -> Result<T, Problem> {
    read_with_permit(api, move |reader| Ok(query(reader)?)).await
}

/// Responds with what `query` writes. `bytes` is an estimate of the memory that this takes.
pub(super) async fn respond(
    api: &Arc<ApiState>,
    bytes: usize,
    query: impl FnOnce(&dyn Records, &mut BufferedResponse) -> Result<(), Problem> + Send + 'static,
) -> Result<HttpResponse, Problem> {
    Ok(write_response(api, bytes, query).await?.into_response())
}

/// Buffers what `query` writes. `bytes` is an estimate of the memory that this takes.
pub(super) async fn write_response(
    api: &Arc<ApiState>,
    bytes: usize,
    query: impl FnOnce(&dyn Records, &mut BufferedResponse) -> Result<(), Problem> + Send + 'static,
) -> Result<BufferedResponse, Problem> {
    let permit = acquire_bytes(api, bytes).await?;
    let mut response = BufferedResponse::new(api, permit, 0);
    read_with_permit(api, move |reader| query(reader, &mut response).map(|()| response)).await
}

/// Returns an empty response that may hold `bytes` bytes besides while it is written.
pub(super) async fn reserve_response(
    api: &Arc<ApiState>,
    bytes: usize,
) -> Result<BufferedResponse, Problem> {
    Ok(BufferedResponse::new(api, acquire_bytes(api, bytes).await?, bytes))
}

/// Applies `view` to the job with this id, which may be cached. The returned response holds the
/// permit for the memory of a job that is not: the caller must keep it for as long as it keeps any
/// part of the job.
pub(super) async fn with_job<T, V>(
    api: &Arc<ApiState>,
    id: JobId,
    view: V,
) -> Result<(T, BufferedResponse), Problem>
where
    T: Send + 'static,
    V: FnOnce(Arc<RebuiltJob>, &mut BufferedResponse) -> Result<T, Problem> + Send + 'static,
{
    let (jobs, cached_jobs) = (api.rebuilt_jobs.clone(), api.rebuilt_jobs.clone());
    let loader = JobLoader {
        find: move |reader: &dyn Records| {
            let job = cached_jobs.find_job(reader, id)?;
            Ok(job.map(|job| (job.bytes * RENDERED_CACHED_FACTOR, job)))
        },
        load_small: move |reader: &dyn Records| {
            let stored = reader.load_job(id)?.ok_or_else(|| Problem::unknown_job(id))?;
            Ok(Arc::new(RebuiltJob::from(stored)))
        },
        load_large: move |reader: &dyn Records| {
            jobs.load_job(reader, id)?.ok_or_else(|| Problem::unknown_job(id))
        },
    };
    with_loaded_job(api, id, loader, view).await
}

/// What a look at one of many jobs found.
pub(super) enum Look<T> {
    Seen(T),
    /// The job does not exist any more.
    Gone,
    /// Its record is damaged. The log says where.
    Unreadable,
}

/// Applies `view` to one of many jobs: what is wrong with it alone is not an error of the request.
pub(super) async fn look_at_job<T: Send + 'static>(
    api: &Arc<ApiState>,
    id: JobId,
    view: impl FnOnce(&RebuiltJob) -> T + Send + 'static,
) -> Result<Look<T>, Problem> {
    match with_job(api, id, move |stored, _| Ok(view(&stored))).await {
        Ok((view, _)) => Ok(Look::Seen(view)),
        Err(problem) if problem.is_not_found() => Ok(Look::Gone),
        Err(problem) if problem.is_internal() => Ok(Look::Unreadable),
        Err(problem) => Err(problem),
    }
}

/// Applies `view` to the job with this id as it was after an entry of its record. It may be cached.
pub(super) async fn with_job_at_entry<T: Send + 'static>(
    api: &Arc<ApiState>,
    id: JobId,
    entry_number: u64,
    view: impl FnOnce(&JobAtEntry, &mut BufferedResponse) -> Result<T, Problem> + Send + 'static,
) -> Result<(T, BufferedResponse), Problem> {
    let (jobs, cached_jobs) = (api.rebuilt_jobs.clone(), api.rebuilt_jobs.clone());
    let loader = JobLoader {
        find: move |reader: &dyn Records| {
            let job = cached_jobs.find_job_at_entry(reader, id, entry_number)?;
            Ok(job.map(|job| (job.bytes * RENDERED_CACHED_FACTOR, job)))
        },
        load_small: move |reader: &dyn Records| {
            let found = reader.load_job_at_entry(id, entry_number)?;
            let found = found.ok_or_else(|| Problem::unknown_job(id))?;
            Ok(Arc::new(RebuiltJobAtEntry::from(found)))
        },
        load_large: move |reader: &dyn Records| {
            let job = jobs.load_job_at_entry(reader, id, entry_number)?;
            job.ok_or_else(|| Problem::unknown_job(id))
        },
    };
    with_loaded_job(api, id, loader, |job, response| view(&job.found, response)).await
}

/// How a job is loaded.
struct JobLoader<F, S, L> {
    /// Returns the job if it needs no rebuilding, with the bytes that a response about it takes.
    find: F,
    /// Rebuilds a job whose record is at most [`SMALL_JOB_BYTES_MAX`] bytes long.
    load_small: S,
    /// Rebuilds any other job.
    load_large: L,
}

/// Applies `view` to the job with this id, as the loader returns it.
async fn with_loaded_job<J: 'static, T: Send + 'static>(
    api: &Arc<ApiState>,
    id: JobId,
    loader: JobLoader<
        impl FnOnce(&dyn Records) -> Result<Option<(usize, J)>, Problem> + Send + 'static,
        impl FnOnce(&dyn Records) -> Result<J, Problem> + Send + 'static,
        impl FnOnce(&dyn Records) -> Result<J, Problem> + Send + 'static,
    >,
    view: impl FnOnce(J, &mut BufferedResponse) -> Result<T, Problem> + Send + 'static,
) -> Result<(T, BufferedResponse), Problem> {
    let JobLoader { find, load_small, load_large } = loader;
    let permit = api.budgets.answers.try_acquire(0).ok_or_else(|| reads_overloaded(api))?;
    let mut response = BufferedResponse::new(api, permit, 0);
    let outcome = read_with_permit(api, move |reader| {
        // A response that finds no bytes waits for them, like that about a job that is rebuilt.
        let found = find(reader)?.filter(|(bytes, _)| response.try_reserve(*bytes));
        let job = match found {
            Some((_, job)) => job,
            None => match reader.rebuild_bytes(id)? {
                None => return Err(Problem::unknown_job(id)),
                Some(bytes) if bytes > SMALL_JOB_BYTES_MAX => {
                    return Ok(SizedRead::TooLarge(bytes, view));
                }
                Some(_) => load_small(reader)?,
            },
        };
        Ok(SizedRead::Finished(view(job, &mut response)?, response))
    });
    let (bytes, view) = match outcome.await? {
        SizedRead::Finished(value, response) => return Ok((value, response)),
        SizedRead::TooLarge(bytes, view) => (bytes, view),
    };
    let permit = acquire_bytes(api, RENDERED_FACTOR * bytes).await?;
    let mut response = BufferedResponse::new(api, permit, REBUILT_FACTOR * bytes);
    let read = read_with_permit(api, move |reader| {
        Ok((view(load_large(reader)?, &mut response)?, response))
    });
    read.await
}

/// The outcome of a first attempt to read a job without a permit for bytes.
enum SizedRead<T, V> {
    /// The job was small: the result of the view, and the response.
    Finished(T, BufferedResponse),
    /// The job needs a permit: the size of its entries in bytes, and the view, unused.
    TooLarge(usize, V),
}

/// Acquires a permit for bytes of reads. If it is not free now, the cache of rebuilt jobs gives up
/// its bytes.
async fn acquire_bytes(api: &ApiState, bytes: usize) -> Result<Permit, Problem> {
    if let Some(permit) = api.budgets.answers.try_acquire(bytes) {
        return Ok(permit);
    }
    api.rebuilt_jobs.clear();
    acquire(api, &api.budgets.answers, bytes).await
}

/// Grows a permit for bytes of reads to `bytes` in total, and returns whether that succeeded. If
/// they are not free now, the cache of rebuilt jobs gives up its bytes.
fn try_grow(api: &ApiState, permit: &mut Permit, bytes: usize) -> bool {
    let answers = &api.budgets.answers;
    answers.try_grow(permit, bytes) || {
        api.rebuilt_jobs.clear();
        answers.try_grow(permit, bytes)
    }
}

/// Acquires a permit. Waits for it for at most the setting `http.reads_wait`.
///
/// # Errors
///
/// Returns a 503 if no permit is free by then.
async fn acquire(
    api: &ApiState,
    budget: &ResourceBudget,
    amount: usize,
) -> Result<Permit, Problem> {
    match tokio::time::timeout(api.settings.http.reads_wait.0, budget.acquire(amount)).await {
        Ok(Some(permit)) => Ok(permit),
        Ok(None) | Err(_) => Err(reads_overloaded(api)),
    }
}

/// Returns the 503 for a read that got no permit.
fn reads_overloaded(api: &ApiState) -> Problem {
    let http = &api.settings.http;
    Problem::overloaded(format!(
        "too many reads at once: there are {} places (setting http.reads_max) and there is room \
         for {} bytes (setting http.reads_bytes_max)",
        http.reads_max, http.reads_bytes_max
    ))
}

/// Runs a read on a blocking thread, with a permit to run: at most `http.reads_max` reads run at
/// once.
pub(super) async fn read_with_permit<T: Send + 'static>(
    api: &Arc<ApiState>,
    query: impl FnOnce(&dyn Records) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let permit = acquire(api, &api.budgets.reads, 1).await?;
    let reader = api.reader.clone();
    let result = web::block(move || {
        // The closure owns the permit, because it runs on even if the client disconnects.
        let _permit = permit;
        query(&*reader)
    });
    result.await.map_err(|_| Problem::internal("the read was cancelled".to_owned()))?
}

/// Streams a response while it is read. `next_chunk` returns one chunk after another, and `None` at
/// the end. Each chunk waits for a permit without a time limit, because the response has begun.
pub(super) fn stream_chunks<S: Send + 'static>(
    api: &Arc<ApiState>,
    state: S,
    next_chunk: fn(&mut S) -> Result<Option<Bytes>, JournalError>,
) -> impl Stream<Item = Result<Bytes, actix_web::Error>> + use<S> {
    let api = api.clone();
    stream::unfold(Some(state), move |state| {
        let api = api.clone();
        async move {
            let mut state = state?;
            let permit = api.budgets.reads.acquire(1).await?;
            let read = web::block(move || {
                let chunk = next_chunk(&mut state);
                drop(permit);
                (state, chunk)
            });
            match read.await {
                Ok((state, Ok(Some(chunk)))) => Some((Ok(chunk), Some(state))),
                // The status is already sent: only closing the connection can report that the
                // response is incomplete.
                Ok((_, Err(error))) => Some((Err(Problem::from(error).into()), None)),
                Ok((_, Ok(None))) | Err(_) => None,
            }
        }
    })
}

/// A range of bytes of a response (RFC 9110, section 14). Both ends are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteRange {
    first: usize,
    last: usize,
}

impl ByteRange {
    /// Parses the header `Range`. Returns `None`, which means the whole response, unless the header
    /// has exactly one range with a first byte.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<ByteRange> {
        let range = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
        let (first, last) = range.split_once('-')?;
        let first = first.parse().ok()?;
        let last = if last.is_empty() { usize::MAX } else { last.parse().ok()? };
        (first <= last).then_some(ByteRange { first, last })
    }
}

/// A response that is buffered in chunks, with the permit for its bytes.
pub(super) struct BufferedResponse {
    api: Arc<ApiState>,
    /// The permit for the bytes of the response, and for `extra_bytes`.
    permit: Permit,
    /// Further permits, which are held until the response is sent.
    _permits: Vec<Permit>,
    /// Bytes that are held besides the response while it is written.
    extra_bytes: usize,
    /// The requested range. `None`: the whole response is buffered.
    range: Option<ByteRange>,
    /// How many bytes of the whole response were written, in the range or outside of it. Counted
    /// only if there is a range.
    total: usize,
    /// The complete chunks.
    chunks: VecDeque<Bytes>,
    /// The chunk that is being written.
    chunk: Vec<u8>,
    /// The number of buffered bytes, in all chunks.
    length: usize,
}

impl BufferedResponse {
    /// Creates an empty response. `permit` covers the `extra_bytes` that are held while it is
    /// written.
    fn new(api: &Arc<ApiState>, permit: Permit, extra_bytes: usize) -> BufferedResponse {
        BufferedResponse {
            api: api.clone(),
            permit,
            _permits: Vec::new(),
            extra_bytes,
            range: None,
            total: 0,
            chunks: VecDeque::new(),
            chunk: Vec::new(),
            length: 0,
        }
    }

    /// Makes a response of these bytes, which `permits` cover. It holds them until it is sent.
    pub(super) fn from_bytes(
        api: &Arc<ApiState>,
        mut bytes: Bytes,
        permits: Vec<Permit>,
    ) -> Result<BufferedResponse, Problem> {
        let permit = api.budgets.answers.try_acquire(0).ok_or_else(|| reads_overloaded(api))?;
        let mut response =
            BufferedResponse { _permits: permits, ..BufferedResponse::new(api, permit, 0) };
        response.length = bytes.len();
        while !bytes.is_empty() {
            response.chunks.push_back(bytes.split_to(CHUNK_BYTES.min(bytes.len())));
        }
        Ok(response)
    }

    /// Sets the range of the response that is buffered. It must be set before anything is written.
    pub(super) fn set_range(&mut self, range: Option<ByteRange>) {
        self.range = range;
    }

    /// Writes a value as JSON. Returns a 503 if the response exceeds its byte budget.
    pub(super) fn write_json(&mut self, value: &impl Serialize) -> Result<(), Problem> {
        serde_json::to_writer(&mut *self, value)
            .map_err(|error| self.to_problem(error.io_error_kind(), &error))
    }

    /// Writes bytes as they are. Returns a 503 if the response exceeds its byte budget.
    pub(super) fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        io::Write::write_all(self, bytes)
            .map_err(|error| self.to_problem(Some(error.kind()), &error))
    }

    /// Converts an error of a write: a 503 if no bytes are free, and otherwise a 500.
    fn to_problem(&self, kind: Option<io::ErrorKind>, error: &dyn Error) -> Problem {
        if kind == Some(io::ErrorKind::OutOfMemory) {
            return reads_overloaded(&self.api);
        }
        Problem::internal(error.to_string())
    }

    /// Moves the current chunk to the complete ones.
    fn finish_chunk(&mut self) {
        if !self.chunk.is_empty() {
            self.chunks.push_back(std::mem::take(&mut self.chunk).into());
        }
    }

    /// Converts the buffer to a JSON response.
    pub(super) fn into_response(self) -> HttpResponse {
        self.into_response_with(mime::APPLICATION_JSON)
    }

    /// Converts the buffer to a response with this content type. If a range was requested, the
    /// status is 206, or 416 if the range begins after the end.
    pub(super) fn into_response_with(self, content_type: mime::Mime) -> HttpResponse {
        let mut response = HttpResponse::Ok();
        if let Some(range) = self.range {
            if range.first >= self.total {
                return HttpResponse::RangeNotSatisfiable()
                    .insert_header((header::CONTENT_RANGE, format!("bytes */{}", self.total)))
                    .finish();
            }
            let last = range.first + self.length - 1;
            response = HttpResponse::PartialContent();
            response.insert_header((
                header::CONTENT_RANGE,
                format!("bytes {}-{last}/{}", range.first, self.total),
            ));
        }
        response.content_type(content_type);
        response.body(self.into_body())
    }

    /// Converts the buffer to a body that releases its permit while it is sent.
    pub(super) fn into_body(mut self) -> BoxBody {
        if self.chunks.is_empty() {
            return BoxBody::new(self.chunk);
        }
        self.finish_chunk();
        self.api.budgets.answers.shrink(&mut self.permit, self.length);
        BoxBody::new(ExpiringBody::new(self))
    }
}

impl io::Write for BufferedResponse {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(range) = self.range else { return self.buffer(bytes) };
        // Bytes outside of the range are counted and discarded. One call handles the bytes before
        // the range, within it, or after it. The caller then calls again with the others.
        let before_range = range.first.saturating_sub(self.total).min(bytes.len());
        let remaining_in_range =
            range.last.saturating_add(1).saturating_sub(self.total.max(range.first));
        let count = if before_range > 0 {
            before_range
        } else if remaining_in_range == 0 {
            bytes.len()
        } else {
            self.buffer(&bytes[..bytes.len().min(remaining_in_range)])?
        };
        self.total += count;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl BufferedResponse {
    /// Grows the permit to `bytes`, and returns whether that succeeded.
    fn try_reserve(&mut self, bytes: usize) -> bool {
        self.api.budgets.answers.try_grow(&mut self.permit, bytes)
    }

    /// Appends bytes to the current chunk, as many as fit. Returns how many. Grows the permit for
    /// each new chunk.
    fn buffer(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.chunk.len() >= CHUNK_BYTES {
            let bytes = self.extra_bytes + self.length + CHUNK_BYTES;
            if !try_grow(&self.api, &mut self.permit, bytes) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.finish_chunk();
        }
        if self.chunk.capacity() == 0 && self.length > 0 {
            self.chunk.reserve_exact(CHUNK_BYTES);
        }
        let fitting = &bytes[..bytes.len().min(CHUNK_BYTES - self.chunk.len())];
        self.chunk.extend_from_slice(fitting);
        self.length += fitting.len();
        Ok(fitting.len())
    }
}

/// The body of a large response. It frees each chunk when it is sent. If the client has not read
/// the response within `http.answer_timeout`, it frees all remaining chunks, and the body fails.
struct ExpiringBody {
    /// The length of the whole body in bytes.
    length: u64,
    /// The chunks that are still to be sent. `None`: the timeout has expired.
    remaining: Rc<RefCell<Option<BufferedResponse>>>,
    timer: actix_rt::task::JoinHandle<()>,
}

impl ExpiringBody {
    /// Makes the body of a response, and starts its timeout.
    fn new(response: BufferedResponse) -> ExpiringBody {
        let timeout = response.api.settings.http.answer_timeout.0;
        let length = u64::try_from(response.length).unwrap_or(u64::MAX);
        let remaining = Rc::new(RefCell::new(Some(response)));
        let weak_remaining = Rc::downgrade(&remaining);
        let timer = actix_rt::spawn(async move {
            tokio::time::sleep(timeout).await;
            if let Some(remaining) = weak_remaining.upgrade() {
                remaining.take();
            }
        });
        ExpiringBody { length, remaining, timer }
    }
}

impl Drop for ExpiringBody {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

/// The client did not read the response in time.
#[derive(Debug, thiserror::Error)]
#[error("the answer was not taken in time (setting http.answer_timeout)")]
struct BodyExpired;

impl MessageBody for ExpiringBody {
    type Error = BodyExpired;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.length)
    }

    fn poll_next(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyExpired>>> {
        let mut remaining = self.remaining.borrow_mut();
        let Some(response) = remaining.as_mut() else { return Poll::Ready(Some(Err(BodyExpired))) };
        let chunk = response.chunks.pop_front();
        if let Some(chunk) = &chunk {
            response.length -= chunk.len();
            response.api.budgets.answers.shrink(&mut response.permit, response.length);
        }
        Poll::Ready(chunk.map(Ok))
    }
}
