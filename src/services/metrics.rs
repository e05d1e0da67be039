//! The metrics of the process in Prometheus text form, and the small HTTP server that shows them.
//!
//! Everything registers in the default registry, where the raft log registers its own metrics, so that
//! one page shows all of them. No object is read for a page: values come from counters.

use crate::storage::{Store, Table};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use prometheus::{Encoder, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The gauges of one manager (names: spec 04 section 17, spec 03 section 1).
pub struct Metrics {
    registry: Registry,
    /// 1 while this manager leads.
    pub leader: IntGauge,
    /// 1 while this node is a manager.
    pub manager: IntGauge,
    info: IntGaugeVec,
    counts: Vec<(Table, IntGauge)>,
}

/// Those of this process, which may be a manager several times in its life.
static OF_PROCESS: Mutex<Option<Arc<Metrics>>> = Mutex::new(None);

impl Metrics {
    /// The gauges in the default registry, registered at the first call.
    pub fn of_process() -> Result<Arc<Metrics>, prometheus::Error> {
        let mut slot = OF_PROCESS.lock();
        if let Some(metrics) = &*slot {
            return Ok(metrics.clone());
        }
        let metrics = Arc::new(Metrics::register(prometheus::default_registry())?);
        *slot = Some(metrics.clone());
        Ok(metrics)
    }

    /// Registers the gauges; fails when they are registered already or a name is malformed.
    pub fn register(registry: &Registry) -> Result<Metrics, prometheus::Error> {
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let info = IntGaugeVec::new(
            Opts::new("swarm_node_info", "Identity of this node"),
            &["swarm_id", "node_id"],
        )?;
        registry.register(Box::new(info.clone()))?;
        let counted = [
            (
                Table::Service,
                "swarm_manager_services_total",
                "Services in the store",
            ),
            (
                Table::Network,
                "swarm_manager_networks_total",
                "Networks in the store",
            ),
            (
                Table::Secret,
                "swarm_manager_secrets_total",
                "Secrets in the store",
            ),
            (
                Table::Config,
                "swarm_manager_configs_total",
                "Configs in the store",
            ),
        ];
        let mut counts = Vec::with_capacity(counted.len());
        for (table, name, help) in counted {
            counts.push((table, gauge(name, help)?));
        }
        Ok(Metrics {
            registry: registry.clone(),
            leader: gauge(
                "swarm_manager_leader",
                "1 while this manager leads the group",
            )?,
            manager: gauge("swarm_node_manager", "1 while this node is a manager")?,
            info,
            counts,
        })
    }

    /// Shows who this node is.
    pub fn identify(&self, cluster_id: &str, node_id: &str) {
        self.info.with_label_values(&[cluster_id, node_id]).set(1);
    }

    /// One page in text form, with counts as of now.
    pub fn page(&self, store: &Store) -> Result<Vec<u8>, prometheus::Error> {
        for (table, gauge) in &self.counts {
            gauge.set(i64::try_from(store.len(*table)).unwrap_or(i64::MAX));
        }
        let mut page = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut page)?;
        Ok(page)
    }
}

type Shared = Arc<(Arc<Metrics>, Store)>;

/// Serves `/metrics` until `cancel` fires.
pub async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    store: Store,
    cancel: CancellationToken,
) -> std::io::Result<()> {
    let shared: Shared = Arc::new((metrics, store));
    let router = Router::new()
        .route("/metrics", get(answer))
        .with_state(shared);
    axum::serve(listener, router)
        .with_graceful_shutdown(cancel.cancelled_owned())
        .await
}

async fn answer(State(shared): State<Shared>) -> Response {
    match shared.0.page(&shared.1) {
        Ok(page) => {
            let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
            (kind, page).into_response()
        }
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the metrics could not be encoded: {error}\n"),
        )
            .into_response(),
    }
}
