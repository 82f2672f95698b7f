//! Reads of the journal. Only some run at once, and what they and their responses hold stays within
//! a byte budget. A read waits a moment for its permits, then the request is answered 503. It
//! acquires bytes before it acquires a place among the reads: a read that has a place never waits,
//! so the queue always moves.

use super::problem::Problem;
use crate::api::state::ApiState;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::http::header::{self, HeaderMap};
use actix_web::{HttpResponse, web};
use base::budget::{Permit, ResourceBudget};
use bytes::Bytes;
use engine::JobId;
use futures_util::stream::{self, Stream};
use journal::JournalError;
use journal::{Records, StoredJob};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The largest size of a job's entries, in bytes, that is read without a permit. The limit on
/// concurrent reads bounds these.
const SMALL_JOB_BYTES_MAX: usize = 256 * 1024;

/// What a job takes while it is rebuilt, as a multiple of its entries' size: their text, what is
/// parsed, and the job.
const REBUILT_FACTOR: usize = 3;

/// What a job and the response that shows it take, as a multiple of its entries' size. A response
/// repeats each message once or twice.
const RENDERED_FACTOR: usize = 2 * REBUILT_FACTOR;

/// The size of the chunks in which a response is built, held and sent, in bytes. One chunk is not
/// counted.
const CHUNK_BYTES: usize = 64 * 1024;

/// How many ids are read and sent at once while a list is streamed.
pub(super) const PAGE_ROWS: u32 = 1_000;

/// The most that a row of a page takes, in bytes: as it is read, and as text.
const ROW_BYTES: usize = 512;

pub(super) fn page_bytes(limit: u32) -> usize {
    page_bytes_for(limit, ROW_BYTES)
}

/// Returns the most that a page of `limit` rows takes, if each takes at most `each` bytes.
pub(super) fn page_bytes_for(limit: u32, each: usize) -> usize {
    each * usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Truncates a text to a number of characters, and marks the cut with an ellipsis.
pub(super) fn truncate(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// Reads something small.
pub(super) async fn read_small<T: Send + 'static>(
    api: &Arc<ApiState>,
    query: impl FnOnce(&dyn Records) -> Result<T, JournalError> + Send + 'static,
) -> Result<T, Problem> {
    read_with_permit(api, move |reader| Ok(query(reader)?)).await
}

/// Responds with what `query` writes, which is about `bytes` bytes in total.
pub(super) async fn respond(
    api: &Arc<ApiState>,
    bytes: usize,
    query: impl FnOnce(&dyn Records, &mut BufferedResponse) -> Result<(), Problem> + Send + 'static,
) -> Result<HttpResponse, Problem> {
    Ok(write_response(api, bytes, query).await?.into_response())
}

/// Buffers what `query` writes, which is about `bytes` bytes in total.
pub(super) async fn write_response(
    api: &Arc<ApiState>,
    bytes: usize,
    query: impl FnOnce(&dyn Records, &mut BufferedResponse) -> Result<(), Problem> + Send + 'static,
) -> Result<BufferedResponse, Problem> {
    let permit = acquire(api, &api.budgets.answers, bytes).await?;
    let mut written = BufferedResponse::new(api, permit, 0);
    read_with_permit(api, move |reader| query(reader, &mut written).map(|()| written)).await
}

/// Applies `view` to the job with this id. The caller must hold the returned response, which has
/// the permit, for as long as anything of the job is left.
pub(super) async fn with_job<T: Send + 'static>(
    api: &Arc<ApiState>,
    id: JobId,
    view: impl FnOnce(StoredJob, &mut BufferedResponse) -> Result<T, Problem> + Send + 'static,
) -> Result<(T, BufferedResponse), Problem> {
    let load =
        move |reader: &dyn Records| reader.load_job(id)?.ok_or_else(|| Problem::unknown_job(id));
    with_rebuilt_job(api, id, load, view).await
}

/// Applies `view` to what `load` rebuilds from the record of the job with this id.
pub(super) async fn with_rebuilt_job<J: 'static, T: Send + 'static>(
    api: &Arc<ApiState>,
    id: JobId,
    load: impl Fn(&dyn Records) -> Result<J, Problem> + Clone + Send + 'static,
    view: impl FnOnce(J, &mut BufferedResponse) -> Result<T, Problem> + Send + 'static,
) -> Result<(T, BufferedResponse), Problem> {
    let load_small = load.clone();
    let permit = api.budgets.answers.try_acquire(0).ok_or_else(|| reads_overloaded(api))?;
    let mut written = BufferedResponse::new(api, permit, 0);
    let outcome = read_with_permit(api, move |reader| match reader.rebuild_bytes(id)? {
        None => Err(Problem::unknown_job(id)),
        Some(bytes) if bytes > SMALL_JOB_BYTES_MAX => Ok(SizedRead::Large(bytes, view)),
        Some(_) => Ok(SizedRead::Done(view(load_small(reader)?, &mut written)?, written)),
    });
    let (bytes, view) = match outcome.await? {
        SizedRead::Done(seen, written) => return Ok((seen, written)),
        SizedRead::Large(bytes, view) => (bytes, view),
    };
    let permit = acquire(api, &api.budgets.answers, RENDERED_FACTOR * bytes).await?;
    let mut written = BufferedResponse::new(api, permit, REBUILT_FACTOR * bytes);
    read_with_permit(api, move |reader| Ok((view(load(reader)?, &mut written)?, written))).await
}

enum SizedRead<T, V> {
    Done(T, BufferedResponse),
    /// The job is larger than what is read without a permit.
    Large(usize, V),
}

/// Acquires a permit; waits only a moment for it.
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

fn reads_overloaded(api: &ApiState) -> Problem {
    let http = &api.settings.http;
    Problem::overloaded(format!(
        "too many reads at once: there are {} places (setting http.reads_max) and there is room \
         for {} bytes (setting http.reads_bytes_max)",
        http.reads_max, http.reads_bytes_max
    ))
}

/// Runs a read of something small, with a permit for one of the concurrent reads.
pub(super) async fn read_with_permit<T: Send + 'static>(
    api: &Arc<ApiState>,
    query: impl FnOnce(&dyn Records) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let permit = acquire(api, &api.budgets.reads, 1).await?;
    let reader = api.reader.clone();
    let result = web::block(move || {
        // Held here: a read goes on after its client has disconnected.
        let _place = permit;
        query(&*reader)
    });
    result.await.map_err(|_| Problem::internal("the read was cancelled".to_owned()))?
}

/// Streams a response while it is read: `next` makes one chunk after another, until it returns
/// `None`. Each chunk waits for a permit without a time limit, because the response has begun.
pub(super) fn stream_chunks<S: Send + 'static>(
    api: &Arc<ApiState>,
    state: S,
    next: fn(&mut S) -> Result<Option<Bytes>, JournalError>,
) -> impl Stream<Item = Result<Bytes, actix_web::Error>> + use<S> {
    let api = api.clone();
    stream::unfold(Some(state), move |state| {
        let api = api.clone();
        async move {
            let mut state = state?;
            let permit = api.budgets.reads.acquire(1).await?;
            let step = web::block(move || {
                let piece = next(&mut state);
                drop(permit);
                (state, piece)
            });
            match step.await {
                Ok((state, Ok(Some(piece)))) => Some((Ok(piece), Some(state))),
                // The response has begun: breaking the connection is the only way to report that it
                // is incomplete.
                Ok((_, Err(error))) => Some((Err(Problem::from(error).into()), None)),
                Ok((_, Ok(None))) | Err(_) => None,
            }
        }
    })
}

/// A range of bytes of a response (RFC 9110, section 14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteRange {
    first: usize,
    last: usize,
}

impl ByteRange {
    /// Parses the range that a request asks for. Returns `None`, for the whole response, unless it
    /// is a single range with a beginning.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<ByteRange> {
        let range = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
        let (first, last) = range.split_once('-')?;
        let first = first.parse().ok()?;
        let last = if last.is_empty() { usize::MAX } else { last.parse().ok()? };
        (first <= last).then_some(ByteRange { first, last })
    }
}

/// A JSON response that is buffered in chunks, with the permit for its bytes.
pub(super) struct BufferedResponse {
    api: Arc<ApiState>,
    permit: Permit,
    /// Further permits that are held until all of it is sent.
    _permits: Vec<Permit>,
    /// Bytes that are held besides the response.
    extra_bytes: usize,
    /// The requested range of it.
    range: Option<ByteRange>,
    /// How many bytes were written, of the whole response.
    total: usize,
    chunks: VecDeque<Bytes>,
    chunk: Vec<u8>,
    length: usize,
}

impl BufferedResponse {
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

    /// Buffers a text, and holds these permits until it is sent.
    pub(super) fn from_bytes(
        api: &Arc<ApiState>,
        mut text: Bytes,
        permits: Vec<Permit>,
    ) -> Result<BufferedResponse, Problem> {
        let permit = api.budgets.answers.try_acquire(0).ok_or_else(|| reads_overloaded(api))?;
        let mut written =
            BufferedResponse { _permits: permits, ..BufferedResponse::new(api, permit, 0) };
        written.length = text.len();
        while !text.is_empty() {
            written.chunks.push_back(text.split_to(CHUNK_BYTES.min(text.len())));
        }
        Ok(written)
    }

    /// Buffers only this range of what is written from now on.
    pub(super) fn set_range(&mut self, part: Option<ByteRange>) {
        self.range = part;
    }

    pub(super) fn write_json(&mut self, value: &impl Serialize) -> Result<(), Problem> {
        serde_json::to_writer(&mut *self, value).map_err(|error| {
            let is_over_budget = error.io_error_kind() == Some(io::ErrorKind::OutOfMemory);
            if is_over_budget {
                reads_overloaded(&self.api)
            } else {
                Problem::internal(error.to_string())
            }
        })
    }

    fn finish_chunk(&mut self) {
        if !self.chunk.is_empty() {
            self.chunks.push_back(std::mem::take(&mut self.chunk).into());
        }
    }

    pub(super) fn into_response(self) -> HttpResponse {
        self.into_response_with(mime::APPLICATION_JSON)
    }

    pub(super) fn into_response_with(self, content: mime::Mime) -> HttpResponse {
        let mut response = HttpResponse::Ok();
        if let Some(part) = self.range {
            if part.first >= self.total {
                return HttpResponse::RangeNotSatisfiable()
                    .insert_header((header::CONTENT_RANGE, format!("bytes */{}", self.total)))
                    .finish();
            }
            let last = part.first + self.length - 1;
            response = HttpResponse::PartialContent();
            response.insert_header((
                header::CONTENT_RANGE,
                format!("bytes {}-{last}/{}", part.first, self.total),
            ));
        }
        response.content_type(content);
        response.body(self.into_body())
    }

    /// Converts it to a body that releases its permit as it is sent.
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
        let Some(part) = self.range else { return self.buffer(bytes) };
        // Bytes before the range, or behind it, are counted and dropped.
        let before = part.first.saturating_sub(self.total).min(bytes.len());
        let wanted = part.last.saturating_add(1).saturating_sub(self.total.max(part.first));
        let done = match &bytes[before..] {
            _ if before > 0 => before,
            behind if wanted == 0 => behind.len(),
            inside => self.buffer(&inside[..inside.len().min(wanted)])?,
        };
        self.total += done;
        Ok(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl BufferedResponse {
    fn buffer(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.chunk.len() >= CHUNK_BYTES {
            if !self
                .api
                .budgets
                .answers
                .try_grow(&mut self.permit, self.extra_bytes + self.length + CHUNK_BYTES)
            {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.finish_chunk();
        }
        if self.chunk.capacity() == 0 && self.length > 0 {
            self.chunk.reserve_exact(CHUNK_BYTES);
        }
        let part = &bytes[..bytes.len().min(CHUNK_BYTES - self.chunk.len())];
        self.chunk.extend_from_slice(part);
        self.length += part.len();
        Ok(part.len())
    }
}

/// The body of a large response. It frees chunks as they are sent, and all of them if the client
/// does not fetch them in time.
struct ExpiringBody {
    length: u64,
    remaining: Rc<RefCell<Option<BufferedResponse>>>,
    timer: actix_rt::task::JoinHandle<()>,
}

impl ExpiringBody {
    fn new(written: BufferedResponse) -> ExpiringBody {
        let time = written.api.settings.http.answer_timeout.0;
        let length = u64::try_from(written.length).unwrap_or(u64::MAX);
        let left = Rc::new(RefCell::new(Some(written)));
        let weak = Rc::downgrade(&left);
        let timer = actix_rt::spawn(async move {
            tokio::time::sleep(time).await;
            if let Some(left) = weak.upgrade() {
                left.take();
            }
        });
        ExpiringBody { length, remaining: left, timer }
    }
}

impl Drop for ExpiringBody {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

/// The client did not fetch the response in time.
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
        let mut left = self.remaining.borrow_mut();
        let Some(written) = left.as_mut() else { return Poll::Ready(Some(Err(BodyExpired))) };
        let piece = written.chunks.pop_front();
        if let Some(piece) = &piece {
            written.length -= piece.len();
            written.api.budgets.answers.shrink(&mut written.permit, written.length);
        }
        Poll::Ready(piece.map(Ok))
    }
}
