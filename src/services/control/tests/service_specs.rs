//! What makes a service spec invalid.

use super::*;
use crate::api::generic;
use prost_types::{Any, Duration};
use service_spec::Mode;

const BAD_DURATION: Duration = Duration {
    seconds: 1,
    nanos: -1,
};

fn span(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}

/// Changes a valid spec in one place and says what a client sees of creating it.
async fn created(bed: &Bed, change: fn(&mut ServiceSpec)) -> String {
    let mut spec = web("web");
    change(&mut spec);
    let seen = bed.try_create(spec).await;
    if seen == "OK" {
        let id = bed.all::<Service>()[0].id.clone();
        let request = Request::new(RemoveServiceRequest { service_id: id });
        ok(Control::remove_service(&bed.control, request).await);
    }
    assert!(bed.all::<Service>().is_empty(), "nothing is left behind");
    seen
}

pub(super) type Case = (fn(&mut ServiceSpec), &'static str);

pub(super) async fn check(bed: &Bed, cases: &[Case]) {
    for (at, (change, expected)) in cases.iter().enumerate() {
        let seen = created(bed, *change).await;
        assert!(
            seen.starts_with(expected),
            "case {at}: {seen}\nexpected: {expected}"
        );
    }
}

fn limits(spec: &mut ServiceSpec) -> &mut Resources {
    task_of(spec)
        .resources
        .get_or_insert_default()
        .limits
        .get_or_insert_default()
}

fn reservations(spec: &mut ServiceSpec) -> &mut Resources {
    task_of(spec)
        .resources
        .get_or_insert_default()
        .reservations
        .get_or_insert_default()
}

fn restart(spec: &mut ServiceSpec) -> &mut RestartPolicy {
    task_of(spec).restart.get_or_insert_default()
}

fn health(spec: &mut ServiceSpec) -> &mut HealthConfig {
    container_of(spec).healthcheck.get_or_insert_default()
}

fn update(spec: &mut ServiceSpec) -> &mut UpdateConfig {
    spec.update.get_or_insert_default()
}

fn rollback(spec: &mut ServiceSpec) -> &mut UpdateConfig {
    spec.rollback.get_or_insert_default()
}

fn replicas(spec: &mut ServiceSpec, replicas: u64) {
    spec.mode = Some(Mode::Replicated(ReplicatedService { replicas }));
}

fn replicated_job(spec: &mut ServiceSpec, max_concurrent: u64, total_completions: u64) {
    spec.mode = Some(Mode::ReplicatedJob(ReplicatedJob {
        max_concurrent,
        total_completions,
    }));
}

fn mounts(spec: &mut ServiceSpec, targets: &[&str]) {
    container_of(spec).mounts = targets
        .iter()
        .map(|target| Mount {
            target: (*target).into(),
            ..Default::default()
        })
        .collect();
}

fn constrain(spec: &mut ServiceSpec, constraint: &str) {
    task_of(spec).placement = Some(Placement {
        constraints: strings(&[constraint]),
        ..Default::default()
    });
}

fn generic_runtime(spec: &mut ServiceSpec, kind: &str, payload: Option<(&str, &[u8])>) {
    task_of(spec).runtime = Some(task_spec::Runtime::Generic(GenericRuntimeSpec {
        kind: kind.into(),
        payload: payload.map(|(type_url, value)| Any {
            type_url: type_url.into(),
            value: value.into(),
        }),
    }));
}

#[tokio::test]
async fn a_spec_is_needed() {
    let bed = Bed::new();
    let request = Request::new(CreateServiceRequest { spec: None });
    let result = Control::create_service(&bed.control, request).await;
    assert_eq!(seen(&result), "InvalidArgument: invalid argument");
}

// 05-A3
#[tokio::test]
async fn names() {
    let bed = Bed::new();
    let cases: &[Case] = &[
        (
            |s| s.annotations = None,
            "InvalidArgument: meta: name must be provided",
        ),
        (
            |s| s.annotations = named(""),
            "InvalidArgument: meta: name must be provided",
        ),
        (
            |s| s.annotations = named("_web"),
            "InvalidArgument: name must be valid as a DNS name",
        ),
        (
            |s| s.annotations = named("we.b"),
            "InvalidArgument: name must be valid as a DNS name",
        ),
        (
            |s| s.annotations = named(&"w".repeat(64)),
            "InvalidArgument: name must be 63 char",
        ),
        (|s| s.annotations = named(&"w".repeat(63)), "OK"),
    ];
    check(&bed, cases).await;
}

// 05-A10
#[tokio::test]
async fn resources_and_policies() {
    let bed = Bed::new();
    let cases: &[Case] = &[
        (|_| {}, "OK"),
        (
            |s| limits(s).nano_cpus = 500_000,
            "InvalidArgument: invalid cpu value 0.0005 in the limits",
        ),
        (
            |s| reservations(s).nano_cpus = -1,
            "InvalidArgument: invalid cpu value",
        ),
        (|s| limits(s).nano_cpus = 1_000_000, "OK"),
        (
            |s| limits(s).memory_bytes = 1,
            "InvalidArgument: invalid memory value 1 in the limits",
        ),
        (
            |s| reservations(s).memory_bytes = -1,
            "InvalidArgument: invalid memory value -1 in the res",
        ),
        (|s| reservations(s).memory_bytes = 4 * 1_048_576, "OK"),
        (
            |s| reservations(s).generic = vec![generic::discrete("gpu", 1)],
            "OK",
        ),
        (
            |s| limits(s).generic = vec![generic::named("gpu", "g0")],
            "InvalidArgument: resources: ",
        ),
        (
            |s| reservations(s).generic = vec![generic::named("gpu", "g0")],
            "InvalidArgument: resources: ",
        ),
        (
            |s| restart(s).delay = span(-1),
            "InvalidArgument: TaskSpec: restart-delay cannot be negative",
        ),
        (
            |s| restart(s).window = span(-1),
            "InvalidArgument: TaskSpec: restart-window cannot be neg",
        ),
        (
            |s| restart(s).delay = Some(BAD_DURATION),
            "InvalidArgument: TaskSpec: restart-delay: ",
        ),
        (
            |s| restart(s).condition = 7,
            "InvalidArgument: restart condition: unknown value 7",
        ),
        (|s| restart(s).delay = span(0), "OK"),
        (
            |s| constrain(s, "node.role = manager"),
            "InvalidArgument: constraint expected one operator",
        ),
        (
            |s| constrain(s, "1node==a"),
            "InvalidArgument: key '1node' is invalid",
        ),
        (|s| constrain(s, "node.role == manager"), "OK"),
        (
            |s| update(s).delay = span(-1),
            "InvalidArgument: TaskSpec: update-delay cannot be negative",
        ),
        (
            |s| update(s).monitor = span(-1),
            "InvalidArgument: TaskSpec: update-monitor cannot be neg",
        ),
        (
            |s| update(s).monitor = Some(BAD_DURATION),
            "InvalidArgument: TaskSpec: update-monitor: ",
        ),
        (
            |s| update(s).max_failure_ratio = 1.1,
            "InvalidArgument: TaskSpec: update-maxfailureratio",
        ),
        (
            |s| update(s).max_failure_ratio = -0.1,
            "InvalidArgument: TaskSpec: update-maxfailureratio",
        ),
        (
            |s| update(s).max_failure_ratio = f32::NAN,
            "InvalidArgument: TaskSpec: update-maxfail",
        ),
        (
            |s| update(s).order = 5,
            "InvalidArgument: update order: unknown value 5",
        ),
        (|s| update(s).max_failure_ratio = 1.0, "OK"),
        (
            |s| rollback(s).delay = span(-1),
            "InvalidArgument: TaskSpec: rollback-delay cannot be neg",
        ),
        (
            |s| rollback(s).max_failure_ratio = 2.0,
            "InvalidArgument: TaskSpec: rollback-maxfailure",
        ),
    ];
    check(&bed, cases).await;
}

// 05-A10
#[tokio::test]
async fn modes() {
    let bed = Bed::new();
    let cases: &[Case] = &[
        (
            |s| s.mode = None,
            "InvalidArgument: service mode must be set",
        ),
        (
            |s| replicas(s, -4i64 as u64),
            "InvalidArgument: Number of replicas must be non-negative",
        ),
        (|s| replicas(s, 0), "OK"),
        (
            |s| replicated_job(s, -1i64 as u64, 1),
            "InvalidArgument: Maximum concurrent jobs must",
        ),
        (
            |s| replicated_job(s, 1, -1i64 as u64),
            "InvalidArgument: Total completed jobs must",
        ),
        (|s| replicated_job(s, 1, 1), "OK"),
        (|s| s.mode = Some(Mode::Global(GlobalService {})), "OK"),
        (|s| s.mode = Some(Mode::GlobalJob(GlobalJob {})), "OK"),
    ];
    check(&bed, cases).await;
}

// 05-A19
#[tokio::test]
async fn jobs_have_no_update_config() {
    let bed = Bed::new();
    let refused = "InvalidArgument: job-mode services may not have an update config";
    for mode in [job("job").mode, Some(Mode::GlobalJob(GlobalJob {}))] {
        let spec = ServiceSpec {
            update: Some(UpdateConfig::default()),
            mode,
            ..web("job")
        };
        assert_eq!(bed.try_create(spec).await, refused);
    }
}

// 05-A10
#[tokio::test]
async fn containers() {
    let bed = Bed::new();
    let cases: &[Case] = &[
        (
            |s| s.task = None,
            "InvalidArgument: TaskSpec: missing runtime",
        ),
        (
            |s| task_of(s).runtime = None,
            "InvalidArgument: TaskSpec: missing runtime",
        ),
        (
            |s| container_of(s).image.clear(),
            "InvalidArgument: ContainerSpec: image reference must be",
        ),
        (
            |s| container_of(s).image = "busybox###".into(),
            "InvalidArgument: ContainerSpec: \"busybox###\" is not a valid repository/tag",
        ),
        (|s| container_of(s).image = "host:5000/a/b:1".into(), "OK"),
        (|s| mounts(s, &["/a", "/b"]), "OK"),
        (
            |s| mounts(s, &["/a", "/a"]),
            "InvalidArgument: ContainerSpec: duplicate mount point: /a",
        ),
        (
            |s| mounts(s, &["/{{.Service.Name}}", "/web"]),
            "InvalidArgument: ContainerSpec: duplicate mount point: /web",
        ),
        (
            |s| health(s).interval = span(-1),
            "InvalidArgument: ContainerSpec: Interval in HealthConfig",
        ),
        (
            |s| health(s).timeout = span(-1),
            "InvalidArgument: ContainerSpec: Timeout in HealthConfig",
        ),
        (
            |s| {
                health(s).start_period = Some(Duration {
                    seconds: 0,
                    nanos: 999_999,
                })
            },
            "InvalidArgument: ContainerSpec: StartPeriod in HealthConfig cannot be less than one mill",
        ),
        (
            |s| health(s).start_interval = Some(BAD_DURATION),
            "InvalidArgument: ContainerSpec: StartInt",
        ),
        (
            |s| health(s).retries = -1,
            "InvalidArgument: ContainerSpec: Retries in HealthConfig cannot",
        ),
        (
            |s| {
                health(s).start_period = Some(Duration {
                    seconds: 0,
                    nanos: 1_000_000,
                })
            },
            "OK",
        ),
        (|s| health(s).interval = span(0), "OK"),
        (
            |s| task_of(s).runtime = Some(task_spec::Runtime::Attachment(Default::default())),
            "Unimplemented: RuntimeSpec: ",
        ),
    ];
    check(&bed, cases).await;
}

// 05-A11
#[tokio::test]
async fn generic_runtimes() {
    let bed = Bed::new();
    let cases: &[Case] = &[
        (
            |s| generic_runtime(s, "", Some(("t", b"v"))),
            "InvalidArgument: Generic runtime: invalid name",
        ),
        (
            |s| generic_runtime(s, "c", Some(("t", b"v"))),
            "InvalidArgument: Generic runtime: invalid name",
        ),
        (
            |s| generic_runtime(s, "Container", Some(("t", b"v"))),
            "InvalidArgument: Generic runtime: Cont",
        ),
        (
            |s| generic_runtime(s, "attachment", Some(("t", b"v"))),
            "InvalidArgument: Generic runtime: att",
        ),
        (
            |s| generic_runtime(s, "custom", None),
            "InvalidArgument: Generic runtime is missing payload",
        ),
        (
            |s| generic_runtime(s, "custom", Some(("", b"v"))),
            "InvalidArgument: Generic runtime is missing payload type",
        ),
        (
            |s| generic_runtime(s, "custom", Some(("t", b""))),
            "InvalidArgument: Generic runtime has an empty",
        ),
        (|s| generic_runtime(s, "custom", Some(("t", b"v"))), "OK"),
    ];
    check(&bed, cases).await;
}

// 05-A38
#[tokio::test]
async fn templates() {
    let bed = Bed::new();
    let wrong = "InvalidArgument: ContainerSpec: invalid template: ";
    let cases: &[Case] = &[
        (
            |s| container_of(s).hostname = "{{.Service.Name}}-{{.Task.Slot}}".into(),
            "OK",
        ),
        (
            |s| container_of(s).hostname = "{{.Nothing.here}}".into(),
            wrong,
        ),
        (
            |s| container_of(s).env = strings(&["A={{.Nothing.here}}"]),
            wrong,
        ),
        (
            |s| container_of(s).env = strings(&["{{.Nothing.here}}=a", "{{.NotExpanded}}"]),
            "OK",
        ),
        (|s| mounts(s, &["/{{.Task.Nope}}"]), wrong),
        (
            |s| container_of(s).env = strings(&["A={{printf \"%q\" .Task.Name}}"]),
            "OK",
        ),
        (
            |s| {
                s.annotations = labelled("web", &[("x", "1")]);
                container_of(s).env = strings(&["A={{.Service.Labels.x}}"]);
            },
            "OK",
        ),
        (
            |s| {
                s.annotations = labelled("web", &[("x", "1")]);
                container_of(s).env = strings(&["A={{.Service.Labels.y}}"]);
            },
            wrong,
        ),
    ];
    check(&bed, cases).await;
}

fn endpoint(spec: &mut ServiceSpec, mode: endpoint_spec::ResolutionMode, ports: &[PortConfig]) {
    spec.endpoint = Some(EndpointSpec {
        mode: mode as i32,
        ports: ports.to_vec(),
    });
}

// 05-A15
#[tokio::test]
async fn endpoints() {
    use endpoint_spec::ResolutionMode::{Dnsrr, Vip};
    use port_config::PublishMode::{Host, Ingress};
    let bed = Bed::new();
    bed.put([ingress_network()]).await;
    fn udp(port: PortConfig) -> PortConfig {
        PortConfig {
            protocol: port_config::Protocol::Udp as i32,
            ..port
        }
    }
    let duplicate = "InvalidArgument: EndpointSpec: duplicate published ports provided";
    let cases: &[Case] = &[
        (
            |s| endpoint(s, Dnsrr, &[port(80, Ingress)]),
            "InvalidArgument: EndpointSpec: port published with ingress mode can't be used with dnsrr",
        ),
        (|s| endpoint(s, Dnsrr, &[port(80, Host)]), "OK"),
        (
            |s| endpoint(s, Vip, &[port(80, Ingress), udp(port(80, Ingress))]),
            "OK",
        ),
        (
            |s| endpoint(s, Vip, &[port(80, Ingress), port(80, Ingress)]),
            duplicate,
        ),
        (
            |s| endpoint(s, Vip, &[port(80, Ingress), port(80, Host)]),
            duplicate,
        ),
        (
            |s| endpoint(s, Vip, &[port(0, Ingress), port(0, Ingress)]),
            "OK",
        ),
        (
            |s| endpoint(s, Vip, &[port(65_536, Host)]),
            "InvalidArgument: EndpointSpec: published port 655",
        ),
        (
            |s| {
                endpoint(
                    s,
                    Vip,
                    &[PortConfig {
                        target_port: 70_000,
                        ..port(1, Host)
                    }],
                )
            },
            "InvalidArgument: EndpointSpec: target port 70000 is above 65535",
        ),
        (
            |s| {
                endpoint(
                    s,
                    Vip,
                    &[PortConfig {
                        publish_mode: 4,
                        ..port(1, Host)
                    }],
                )
            },
            "InvalidArgument: publish mode: unknown value 4",
        ),
        (
            |s| {
                endpoint(
                    s,
                    Vip,
                    &[PortConfig {
                        protocol: 4,
                        ..port(1, Host)
                    }],
                )
            },
            "InvalidArgument: port protocol: unknown value 4",
        ),
    ];
    check(&bed, cases).await;
}
