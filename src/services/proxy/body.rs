//! Bodies of calls that are passed on: a request kept for repeating, an answer on its way back.

use super::Places;
use crate::raft::rpc::too_large;
use crate::services::server::MESSAGE_BYTES_MAX;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body;

/// KiB of requests kept at a time, 64 MiB.
pub const KEPT_KIB_MAX: usize = 64 * 1024;
/// A message is preceded by a flag and its length.
const PREFIX_BYTES: usize = 5;

/// Reads the one message of a request whole, with a share of the room for kept requests. A message that
/// is too large gets the answer that the service would give.
pub async fn keep(
    mut body: Body,
    room: &Arc<Semaphore>,
) -> Result<(Bytes, Vec<OwnedSemaphorePermit>), Status> {
    let mut kept = BytesMut::new();
    let mut permits = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        let kib = u32::try_from(data.len().div_ceil(1024)).unwrap_or(u32::MAX);
        let permit = room.clone().try_acquire_many_owned(kib).map_err(|_| {
            Status::resource_exhausted("too much is being passed on to the leader; try again")
        })?;
        permits.push(permit);
        kept.extend_from_slice(&data);
        check_size(&kept)?;
    }
    Ok((kept.freeze(), permits))
}

/// Judges the size from the message's prefix, before all of it has come.
fn check_size(kept: &[u8]) -> Result<(), Status> {
    let announced = kept
        .get(1..PREFIX_BYTES)
        .and_then(|length| <[u8; 4]>::try_from(length).ok())
        .map_or(0, |length| u32::from_be_bytes(length) as usize);
    let bytes = announced.max(kept.len().saturating_sub(PREFIX_BYTES));
    if bytes > MESSAGE_BYTES_MAX {
        return Err(too_large(bytes as u64));
    }
    Ok(())
}

/// A body of bytes that are all there.
pub fn whole(bytes: Bytes) -> Body {
    Body::new(Full::new(bytes))
}

/// An answer on its way from the leader to the caller. It ends with a status of its own when the
/// connection to the leader breaks, or when that manager is no longer the leader.
pub struct Relayed {
    inner: Option<Body>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _places: Places,
}

impl Relayed {
    pub fn new(inner: Body, cut: CancellationToken, places: Places) -> Relayed {
        Relayed {
            inner: Some(inner),
            cut: Box::pin(cut.cancelled_owned()),
            _places: places,
        }
    }

    /// Ends the answer with this status.
    fn end(&mut self, status: &Status) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.inner = None;
        let mut trailers = HeaderMap::new();
        let frame = status
            .add_header(&mut trailers)
            .map(|()| Frame::trailers(trailers));
        Poll::Ready(Some(frame))
    }
}

impl HttpBody for Relayed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        match Pin::new(inner).poll_frame(context) {
            Poll::Ready(Some(Err(error))) => self.end(&Status::unavailable(format!(
                "the connection to the leader broke: {}",
                error.message()
            ))),
            Poll::Ready(other) => Poll::Ready(other),
            Poll::Pending => match self.cut.as_mut().poll(context) {
                Poll::Ready(()) => self.end(&Status::unavailable(
                    "the manager that answered does not lead any more",
                )),
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}
