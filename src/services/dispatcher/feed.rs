//! The two ends of a server stream: what a dispatcher task sends, and what the transport reads.
//!
//! A stream always ends with a reason. It is kept beside the queue and not in it, so that a slow
//! reader can neither hold up a task that wants to end nor miss why it ended.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use futures::Stream;
use tokio::sync::mpsc;
use tonic::Status;

use super::refusal::Refusal;

/// Messages that wait for a slow reader. After that the sending task waits, and what happens
/// meanwhile is summed up by the store's own bounded queue.
const QUEUED_MAX: usize = 2;

/// The sending end. Dropping it without a reason tells the reader that the dispatcher stopped.
pub struct Outbox<T> {
    queue: mpsc::Sender<T>,
    reason: Arc<OnceLock<Refusal>>,
}

/// The reading end, which the transport polls.
pub struct Feed<T> {
    queue: mpsc::Receiver<T>,
    reason: Arc<OnceLock<Refusal>>,
    ended: bool,
}

/// A new stream.
pub fn feed<T>() -> (Outbox<T>, Feed<T>) {
    let (sender, receiver) = mpsc::channel(QUEUED_MAX);
    let reason = Arc::new(OnceLock::new());
    let outbox = Outbox {
        queue: sender,
        reason: Arc::clone(&reason),
    };
    let feed = Feed {
        queue: receiver,
        reason,
        ended: false,
    };
    (outbox, feed)
}

impl<T> Outbox<T> {
    /// Sends a message once there is room. Says whether the reader is still there.
    pub async fn send(&self, message: T) -> bool {
        self.queue.send(message).await.is_ok()
    }

    /// Waits until the reader is gone.
    pub async fn closed(&self) {
        self.queue.closed().await;
    }

    /// Ends the stream for a reason.
    pub fn end(self, reason: Refusal) {
        // The outbox is consumed, so there was no reason before.
        let _ = self.reason.set(reason);
    }

    /// Ends the stream for a reason, with a last message if there is room for it.
    pub fn end_with(self, last: T, reason: Refusal) {
        // Without room the reader is so far behind that the message would not help it.
        let _ = self.queue.try_send(last);
        self.end(reason);
    }
}

impl<T> Stream for Feed<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(message) = ready!(self.queue.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(message)));
        }
        self.ended = true;
        let reason = self.reason.get().cloned().unwrap_or(Refusal::Stopped);
        Poll::Ready(Some(Err(reason.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt as _;

    #[tokio::test]
    async fn a_slow_reader_still_learns_the_reason() {
        let (outbox, feed) = feed();
        for message in 0..QUEUED_MAX {
            assert!(outbox.send(message).await);
        }
        outbox.end_with(99, Refusal::SessionInvalid);
        let read: Vec<Result<usize, Status>> = feed.collect().await;
        assert_eq!(read.len(), QUEUED_MAX + 1);
        assert_eq!(
            read[QUEUED_MAX].as_ref().unwrap_err().message(),
            "session invalid"
        );
    }

    #[tokio::test]
    async fn the_sender_notices_that_the_reader_left() {
        let (outbox, feed) = feed::<u8>();
        drop(feed);
        outbox.closed().await;
        assert!(!outbox.send(1).await);
    }

    #[tokio::test]
    async fn a_lost_sender_is_a_stopped_dispatcher() {
        let (outbox, mut feed) = feed::<u8>();
        drop(outbox);
        let status = feed.next().await.unwrap().unwrap_err();
        assert_eq!(status.message(), "dispatcher is stopped");
        assert!(feed.next().await.is_none());
    }
}
