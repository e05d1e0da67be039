//! A gRPC channel over the control socket.

use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

/// Where the control socket is unless a flag or `SWARM_SOCKET` says otherwise.
pub const DEFAULT_SOCKET: &str = "/var/run/swarmd.sock";

/// A socket on this machine answers at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to the control socket at `path`. The error says what to check.
pub async fn control_socket(path: &Path) -> anyhow::Result<Channel> {
    // A first plain connect gives the operating system's own reason, which the HTTP stack would hide.
    if let Err(error) = UnixStream::connect(path).await {
        anyhow::bail!(
            "cannot reach the manager at {}: {error}; is swarmd running, and is this its --listen-control-api? (see --socket)",
            path.display()
        );
    }
    let target: PathBuf = path.to_path_buf();
    let channel = Endpoint::from_static("http://localhost")
        .connect_timeout(CONNECT_TIMEOUT)
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let target = target.clone();
            async move { UnixStream::connect(target).await.map(TokioIo::new) }
        }))
        .await?;
    Ok(channel)
}
