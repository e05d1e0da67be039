//! One accepted connection: a TLS or plain stream that can be cut from outside.

use crate::identity::connection::Connection;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

/// A unix stream whose first byte has been looked at.
pub struct Peeked {
    first: Option<u8>,
    inner: UnixStream,
}

impl Peeked {
    pub fn new(first: u8, inner: UnixStream) -> Peeked {
        Peeked {
            first: Some(first),
            inner,
        }
    }
}

/// The kinds of transport that are served.
pub enum Transport {
    Tcp(Box<TlsStream<TcpStream>>),
    UnixTls(Box<TlsStream<Peeked>>),
    Unix(Peeked),
}

/// A connection that tonic serves. Reading or writing fails once it has been cut.
pub struct ServedStream {
    transport: Transport,
    connection: Connection,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Its place among the open connections.
    _place: OwnedSemaphorePermit,
}

impl ServedStream {
    pub fn new(transport: Transport, connection: Connection, place: OwnedSemaphorePermit) -> Self {
        ServedStream {
            transport,
            cut: Box::pin(connection.close.clone().cancelled_owned()),
            connection,
            _place: place,
        }
    }

    fn is_cut(&mut self, context: &mut Context<'_>) -> bool {
        self.cut.as_mut().poll(context).is_ready()
    }
}

impl Connected for ServedStream {
    type ConnectInfo = Connection;

    fn connect_info(&self) -> Connection {
        self.connection.clone()
    }
}

fn cut_error() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was cut")
}

impl AsyncRead for ServedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_cut(context) {
            return Poll::Ready(Err(cut_error()));
        }
        match &mut self.transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::UnixTls(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ServedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_cut(context) {
            return Poll::Ready(Err(cut_error()));
        }
        match &mut self.transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::UnixTls(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_cut(context) {
            return Poll::Ready(Err(cut_error()));
        }
        match &mut self.transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
            Transport::UnixTls(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
            Transport::Unix(stream) => Pin::new(stream).poll_write_vectored(context, buffers),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Tcp(stream) => stream.is_write_vectored(),
            Transport::UnixTls(stream) => stream.is_write_vectored(),
            Transport::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Transport::UnixTls(stream) => Pin::new(stream).poll_flush(context),
            Transport::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::UnixTls(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

impl AsyncRead for Peeked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buffer.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl AsyncWrite for Peeked {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
