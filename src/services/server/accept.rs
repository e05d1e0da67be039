//! The accept loops, and the limits on what strangers can hold open.

use super::Listener;
use super::stream::{Peeked, ServedStream, Transport};
use crate::identity::SecurityConfig;
use crate::identity::connect::keep_alive;
use crate::identity::connection::Connection;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

/// Longest preparation of a connection: TLS, or the first byte on the control socket.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections being prepared at a time; further ones wait in the system's queue.
const HANDSHAKES_MAX: usize = 1024;
/// Of these, from one address; further ones are closed at once.
const HANDSHAKES_PER_ADDRESS_MAX: usize = 256;
/// Open connections with a certificate, and on the control socket.
const MEMBERS_MAX: usize = 65_536;
/// Open connections without one. Joining needs one for a few seconds.
const STRANGERS_MAX: usize = 4096;
/// Prepared connections that tonic has not yet taken.
const PREPARED_MAX: usize = 64;
/// Pause after an accept that failed, for instance for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The first byte of a TLS connection: a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

/// What the preparations of one listener share.
struct Gate {
    security: Arc<SecurityConfig>,
    /// Cuts every connection.
    cut: CancellationToken,
    handshakes: Arc<Semaphore>,
    per_address: Mutex<HashMap<IpAddr, usize>>,
    members: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    prepared: mpsc::Sender<io::Result<ServedStream>>,
}

/// Accepts until `stop` fires; yields connections that are ready to be served. `cut` closes them all.
pub fn incoming(
    listener: Listener,
    security: Arc<SecurityConfig>,
    cut: CancellationToken,
    stop: CancellationToken,
) -> ReceiverStream<io::Result<ServedStream>> {
    let (prepared, receiver) = mpsc::channel(PREPARED_MAX);
    let gate = Arc::new(Gate {
        security,
        cut,
        handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
        per_address: Mutex::default(),
        members: Arc::new(Semaphore::new(MEMBERS_MAX)),
        strangers: Arc::new(Semaphore::new(STRANGERS_MAX)),
        prepared,
    });
    tokio::spawn(async move {
        tokio::select! {
            () = accept_all(&listener, &gate) => {}
            () = stop.cancelled() => {}
            () = gate.prepared.closed() => {}
        }
    });
    ReceiverStream::new(receiver)
}

async fn accept_all(listener: &Listener, gate: &Arc<Gate>) {
    loop {
        let Ok(turn) = gate.handshakes.clone().acquire_owned().await else {
            return;
        };
        let accepted = match listener {
            Listener::Remote(listener) => listener
                .accept()
                .await
                .map(|(stream, address)| gate.spawn_remote(stream, address, turn)),
            Listener::Control(socket) => socket
                .accept()
                .await
                .map(|stream| gate.spawn_control(stream, turn)),
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "accepting a connection failed");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// A share of the preparations that one address may have.
struct Share {
    gate: Arc<Gate>,
    address: IpAddr,
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = self.gate.per_address.lock();
        if let Some(count) = shares.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                shares.remove(&self.address);
            }
        }
    }
}

impl Gate {
    fn share(self: &Arc<Self>, address: IpAddr) -> Option<Share> {
        let mut shares = self.per_address.lock();
        let count = shares.entry(address).or_insert(0);
        if *count >= HANDSHAKES_PER_ADDRESS_MAX {
            return None;
        }
        *count += 1;
        drop(shares);
        Some(Share {
            gate: self.clone(),
            address,
        })
    }

    fn spawn_remote(
        self: &Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        turn: OwnedSemaphorePermit,
    ) {
        let Some(share) = self.share(address.ip()) else {
            tracing::debug!(%address, "too many unfinished connections from this address");
            return;
        };
        let gate = self.clone();
        tokio::spawn(async move {
            let prepared = gate.bounded(gate.prepare_remote(stream, address)).await;
            drop((share, turn));
            gate.hand_over(prepared, &address).await;
        });
    }

    fn spawn_control(self: &Arc<Self>, stream: UnixStream, turn: OwnedSemaphorePermit) {
        let gate = self.clone();
        tokio::spawn(async move {
            let prepared = gate.bounded(gate.prepare_control(stream)).await;
            drop(turn);
            gate.hand_over(prepared, &"the control socket").await;
        });
    }

    async fn bounded(
        &self,
        preparing: impl Future<Output = io::Result<ServedStream>>,
    ) -> io::Result<ServedStream> {
        tokio::select! {
            done = tokio::time::timeout(HANDSHAKE_TIMEOUT, preparing) => {
                done.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
            }
            () = self.cut.cancelled() => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    async fn hand_over(
        &self,
        prepared: io::Result<ServedStream>,
        from: &(dyn std::fmt::Display + Sync),
    ) {
        match prepared {
            // If tonic has stopped taking connections, the stream is closed by dropping it.
            Ok(stream) => drop(self.prepared.send(Ok(stream)).await),
            Err(error) => tracing::debug!(%from, %error, "a connection was not established"),
        }
    }

    async fn prepare_remote(
        &self,
        stream: TcpStream,
        address: SocketAddr,
    ) -> io::Result<ServedStream> {
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let acceptor = TlsAcceptor::from(self.security.server_config());
        let stream = acceptor.accept(stream).await?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or(&[]);
        let connection =
            Connection::remote(address, chain, self.cut.child_token()).map_err(io::Error::other)?;
        let places = if connection.has_certificate() {
            &self.members
        } else {
            &self.strangers
        };
        let place = take_place(places)?;
        let transport = Transport::Tcp(Box::new(stream));
        Ok(ServedStream::new(transport, connection, place))
    }

    async fn prepare_control(&self, mut stream: UnixStream) -> io::Result<ServedStream> {
        let place = take_place(&self.members)?;
        let first = stream.read_u8().await?;
        let stream = Peeked::new(first, stream);
        let transport = if first == TLS_HANDSHAKE {
            let acceptor = TlsAcceptor::from(self.security.server_config());
            Transport::UnixTls(Box::new(acceptor.accept(stream).await?))
        } else {
            Transport::Unix(stream)
        };
        let connection = Connection::local(self.cut.child_token());
        Ok(ServedStream::new(transport, connection, place))
    }
}

fn take_place(places: &Arc<Semaphore>) -> io::Result<OwnedSemaphorePermit> {
    places
        .clone()
        .try_acquire_owned()
        .map_err(|_| io::Error::other("too many open connections"))
}
