//! Reads of the journal. Only some run at once, and what they and their responses hold stays within
//! a byte budget. A read waits a moment for its permits, then the request is answered 503. It
//! acquires bytes before it acquires a place among the reads: a read that has a place never waits,
//! so the queue always moves.

use super::problem::Problem;
use crate::actors::common::Common;
use crate::engine::JobId;
use crate::journal::JournalError;
use crate::journal::{KeptJob, Records};
use crate::room::{Room, Taken};
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::http::header::{self, HeaderMap};
use actix_web::{HttpResponse, web};
use bytes::Bytes;
use futures_util::stream::{self, Stream};
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
const SHOWN_FACTOR: usize = 2 * REBUILT_FACTOR;

/// The size of the chunks in which a response is built, held and sent, in bytes. One chunk is not
/// counted.
const PIECE_BYTES: usize = 64 * 1024;

/// How many ids are read and sent at once while a list is streamed.
pub(super) const PAGE_ROWS: u32 = 1_000;

/// The most that a row of a page takes, in bytes: as it is read, and as text.
const ROW_BYTES: usize = 512;

pub(super) fn row_bytes(limit: u32) -> usize {
    rows_bytes(limit, ROW_BYTES)
}

/// Returns the most that a page of `limit` rows takes, if each takes at most `each` bytes.
pub(super) fn rows_bytes(limit: u32, each: usize) -> usize {
    each * usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Truncates a text to a number of characters, and marks the cut with an ellipsis.
pub(super) fn cut(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// Reads something small.
pub(super) async fn read<T: Send + 'static>(
    common: &Arc<Common>,
    query: impl FnOnce(&dyn Records) -> Result<T, JournalError> + Send + 'static,
) -> Result<T, Problem> {
    placed(common, move |reader| Ok(query(reader)?)).await
}

/// Responds with what `query` writes, which is about `bytes` bytes in total.
pub(super) async fn answer(
    common: &Arc<Common>,
    bytes: usize,
    query: impl FnOnce(&dyn Records, &mut Written) -> Result<(), Problem> + Send + 'static,
) -> Result<HttpResponse, Problem> {
    Ok(written(common, bytes, query).await?.into_response())
}

/// Buffers what `query` writes, which is about `bytes` bytes in total.
pub(super) async fn written(
    common: &Arc<Common>,
    bytes: usize,
    query: impl FnOnce(&dyn Records, &mut Written) -> Result<(), Problem> + Send + 'static,
) -> Result<Written, Problem> {
    let taken = waited(common, &common.rooms.answers, bytes).await?;
    let mut written = Written::new(common, taken, 0);
    placed(common, move |reader| query(reader, &mut written).map(|()| written)).await
}

/// Applies `view` to the job with this id. The caller must hold the returned response, which has
/// the permit, for as long as anything of the job is left.
pub(super) async fn job<T: Send + 'static>(
    common: &Arc<Common>,
    id: JobId,
    view: impl FnOnce(KeptJob, &mut Written) -> Result<T, Problem> + Send + 'static,
) -> Result<(T, Written), Problem> {
    let load = move |reader: &dyn Records| reader.job(id)?.ok_or_else(|| Problem::unknown_job(id));
    rebuilt(common, id, load, view).await
}

/// Applies `view` to what `load` rebuilds from the record of the job with this id.
pub(super) async fn rebuilt<J: 'static, T: Send + 'static>(
    common: &Arc<Common>,
    id: JobId,
    load: impl Fn(&dyn Records) -> Result<J, Problem> + Clone + Send + 'static,
    view: impl FnOnce(J, &mut Written) -> Result<T, Problem> + Send + 'static,
) -> Result<(T, Written), Problem> {
    let first = load.clone();
    let none = common.rooms.answers.take(0).ok_or_else(|| full(common))?;
    let mut written = Written::new(common, none, 0);
    let looked = placed(common, move |reader| match reader.job_bytes(id)? {
        None => Err(Problem::unknown_job(id)),
        Some(bytes) if bytes > SMALL_JOB_BYTES_MAX => Ok(Looked::Large(bytes, view)),
        Some(_) => Ok(Looked::Seen(view(first(reader)?, &mut written)?, written)),
    });
    let (bytes, view) = match looked.await? {
        Looked::Seen(seen, written) => return Ok((seen, written)),
        Looked::Large(bytes, view) => (bytes, view),
    };
    let taken = waited(common, &common.rooms.answers, SHOWN_FACTOR * bytes).await?;
    let mut written = Written::new(common, taken, REBUILT_FACTOR * bytes);
    placed(common, move |reader| Ok((view(load(reader)?, &mut written)?, written))).await
}

enum Looked<T, V> {
    Seen(T, Written),
    /// The job is larger than what is read without a permit.
    Large(usize, V),
}

/// Acquires a permit; waits only a moment for it.
async fn waited(common: &Common, room: &Room, amount: usize) -> Result<Taken, Problem> {
    match tokio::time::timeout(common.settings.http.reads_wait.0, room.wait(amount)).await {
        Ok(Some(taken)) => Ok(taken),
        Ok(None) | Err(_) => Err(full(common)),
    }
}

fn full(common: &Common) -> Problem {
    let http = &common.settings.http;
    Problem::overloaded(format!(
        "too many reads at once: there are {} places (setting http.reads_max) and there is room \
         for {} bytes (setting http.reads_bytes_max)",
        http.reads_max, http.reads_bytes_max
    ))
}

/// Runs a read of something small, with a permit for one of the concurrent reads.
pub(super) async fn placed<T: Send + 'static>(
    common: &Arc<Common>,
    query: impl FnOnce(&dyn Records) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let place = waited(common, &common.rooms.reads, 1).await?;
    let reader = common.reader.clone();
    let result = web::block(move || {
        // Held here: a read goes on after its client has disconnected.
        let _place = place;
        query(&*reader)
    });
    result.await.map_err(|_| Problem::broken("the read was cancelled".to_owned()))?
}

/// Streams a response while it is read: `next` makes one chunk after another, until it returns
/// `None`. Each chunk waits for a permit without a time limit, because the response has begun.
pub(super) fn pieces<S: Send + 'static>(
    common: &Arc<Common>,
    state: S,
    next: fn(&mut S) -> Result<Option<Bytes>, JournalError>,
) -> impl Stream<Item = Result<Bytes, actix_web::Error>> + use<S> {
    let common = common.clone();
    stream::unfold(Some(state), move |state| {
        let common = common.clone();
        async move {
            let mut state = state?;
            let place = common.rooms.reads.wait(1).await?;
            let step = web::block(move || {
                let piece = next(&mut state);
                drop(place);
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
pub(super) struct Part {
    first: usize,
    last: usize,
}

impl Part {
    /// Parses the range that a request asks for. Returns `None`, for the whole response, unless it
    /// is a single range with a beginning.
    pub(super) fn asked_for(headers: &HeaderMap) -> Option<Part> {
        let range = headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
        let (first, last) = range.split_once('-')?;
        let first = first.parse().ok()?;
        let last = if last.is_empty() { usize::MAX } else { last.parse().ok()? };
        (first <= last).then_some(Part { first, last })
    }
}

/// A JSON response that is buffered in chunks, with the permit for its bytes.
pub(super) struct Written {
    common: Arc<Common>,
    taken: Taken,
    /// Further permits that are held until all of it is sent.
    _rooms: Vec<Taken>,
    /// Bytes that are held besides the response.
    besides: usize,
    /// The requested range of it.
    part: Option<Part>,
    /// How many bytes were written, of the whole response.
    whole: usize,
    pieces: VecDeque<Bytes>,
    last: Vec<u8>,
    length: usize,
}

impl Written {
    fn new(common: &Arc<Common>, taken: Taken, besides: usize) -> Written {
        Written {
            common: common.clone(),
            taken,
            _rooms: Vec::new(),
            besides,
            part: None,
            whole: 0,
            pieces: VecDeque::new(),
            last: Vec::new(),
            length: 0,
        }
    }

    /// Buffers a text, and holds these permits until it is sent.
    pub(super) fn of(
        common: &Arc<Common>,
        mut text: Bytes,
        rooms: Vec<Taken>,
    ) -> Result<Written, Problem> {
        let none = common.rooms.answers.take(0).ok_or_else(|| full(common))?;
        let mut written = Written { _rooms: rooms, ..Written::new(common, none, 0) };
        written.length = text.len();
        while !text.is_empty() {
            written.pieces.push_back(text.split_to(PIECE_BYTES.min(text.len())));
        }
        Ok(written)
    }

    /// Buffers only this range of what is written from now on.
    pub(super) fn only(&mut self, part: Option<Part>) {
        self.part = part;
    }

    pub(super) fn json(&mut self, value: &impl Serialize) -> Result<(), Problem> {
        serde_json::to_writer(&mut *self, value).map_err(|error| {
            let has_no_room = error.io_error_kind() == Some(io::ErrorKind::OutOfMemory);
            if has_no_room { full(&self.common) } else { Problem::broken(error.to_string()) }
        })
    }

    fn cut(&mut self) {
        if !self.last.is_empty() {
            self.pieces.push_back(std::mem::take(&mut self.last).into());
        }
    }

    pub(super) fn into_response(self) -> HttpResponse {
        self.into_response_of(mime::APPLICATION_JSON)
    }

    pub(super) fn into_response_of(self, content: mime::Mime) -> HttpResponse {
        let mut answer = HttpResponse::Ok();
        if let Some(part) = self.part {
            if part.first >= self.whole {
                return HttpResponse::RangeNotSatisfiable()
                    .insert_header((header::CONTENT_RANGE, format!("bytes */{}", self.whole)))
                    .finish();
            }
            let last = part.first + self.length - 1;
            answer = HttpResponse::PartialContent();
            answer.insert_header((
                header::CONTENT_RANGE,
                format!("bytes {}-{last}/{}", part.first, self.whole),
            ));
        }
        answer.content_type(content);
        answer.body(self.into_body())
    }

    /// Converts it to a body that releases its permit as it is sent.
    pub(super) fn into_body(mut self) -> BoxBody {
        if self.pieces.is_empty() {
            return BoxBody::new(self.last);
        }
        self.cut();
        self.common.rooms.answers.shrink(&mut self.taken, self.length);
        BoxBody::new(Sending::new(self))
    }
}

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(part) = self.part else { return self.keep(bytes) };
        // Bytes before the range, or behind it, are counted and dropped.
        let before = part.first.saturating_sub(self.whole).min(bytes.len());
        let wanted = part.last.saturating_add(1).saturating_sub(self.whole.max(part.first));
        let done = match &bytes[before..] {
            _ if before > 0 => before,
            behind if wanted == 0 => behind.len(),
            inside => self.keep(&inside[..inside.len().min(wanted)])?,
        };
        self.whole += done;
        Ok(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    fn keep(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.last.len() >= PIECE_BYTES {
            if !self
                .common
                .rooms
                .answers
                .grow(&mut self.taken, self.besides + self.length + PIECE_BYTES)
            {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.cut();
        }
        if self.last.capacity() == 0 && self.length > 0 {
            self.last.reserve_exact(PIECE_BYTES);
        }
        let some = &bytes[..bytes.len().min(PIECE_BYTES - self.last.len())];
        self.last.extend_from_slice(some);
        self.length += some.len();
        Ok(some.len())
    }
}

/// The body of a large response. It frees chunks as they are sent, and all of them if the client
/// does not fetch them in time.
struct Sending {
    length: u64,
    left: Rc<RefCell<Option<Written>>>,
    timer: actix_rt::task::JoinHandle<()>,
}

impl Sending {
    fn new(written: Written) -> Sending {
        let time = written.common.settings.http.answer_timeout.0;
        let length = u64::try_from(written.length).unwrap_or(u64::MAX);
        let left = Rc::new(RefCell::new(Some(written)));
        let held = Rc::downgrade(&left);
        let timer = actix_rt::spawn(async move {
            tokio::time::sleep(time).await;
            if let Some(left) = held.upgrade() {
                left.take();
            }
        });
        Sending { length, left, timer }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.timer.abort();
    }
}

/// The client did not fetch the response in time.
#[derive(Debug, thiserror::Error)]
#[error("the answer was not taken in time (setting http.answer_timeout)")]
struct NotTaken;

impl MessageBody for Sending {
    type Error = NotTaken;

    fn size(&self) -> BodySize {
        BodySize::Sized(self.length)
    }

    fn poll_next(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, NotTaken>>> {
        let mut left = self.left.borrow_mut();
        let Some(written) = left.as_mut() else { return Poll::Ready(Some(Err(NotTaken))) };
        let piece = written.pieces.pop_front();
        if let Some(piece) = &piece {
            written.length -= piece.len();
            written.common.rooms.answers.shrink(&mut written.taken, written.length);
        }
        Poll::Ready(piece.map(Ok))
    }
}
