//! Counts of tasks per service.

use super::*;
use TaskState::{Complete, New, Running, Shutdown};
use service_spec::Mode;

fn service(id: &str, mode: Mode, iteration: Option<u64>) -> Service {
    Service {
        id: id.into(),
        spec: Some(ServiceSpec {
            annotations: named(id),
            mode: Some(mode),
            ..Default::default()
        }),
        job_status: iteration.map(|index| JobStatus {
            job_iteration: Some(Version { index }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Tasks of a service: how many, desired state, observed state, iteration of the job.
async fn put_tasks(bed: &Bed, service: &str, tasks: &[(usize, TaskState, TaskState, Option<u64>)]) {
    for (group, (count, desired, state, iteration)) in tasks.iter().enumerate() {
        bed.put((0..*count).map(|n| Task {
            desired_state: *desired as i32,
            job_iteration: iteration.map(|index| Version { index }),
            ..task(&format!("{service}-{group}-{n}"), service, "", *state)
        }))
        .await;
    }
}

// 05-A20
#[tokio::test]
async fn pinned_counts() {
    let bed = Bed::new();
    let replicated = |replicas| Mode::Replicated(ReplicatedService { replicas });
    let global = || Mode::Global(GlobalService {});
    let jobs = |max_concurrent| {
        Mode::ReplicatedJob(ReplicatedJob {
            max_concurrent,
            total_completions: 10,
        })
    };
    bed.put([
        service("full", replicated(3), None),
        service("part", replicated(7), None),
        service("global", global(), None),
        service("global new", global(), None),
        service("over", replicated(2), None),
        service("job", jobs(2), Some(0)),
        service("job again", jobs(2), Some(1)),
        service("global job", Mode::GlobalJob(GlobalJob {}), Some(0)),
    ])
    .await;
    put_tasks(
        &bed,
        "full",
        &[(3, Running, Running, None), (2, Shutdown, Complete, None)],
    )
    .await;
    put_tasks(
        &bed,
        "part",
        &[(4, Running, Running, None), (3, Running, New, None)],
    )
    .await;
    put_tasks(
        &bed,
        "global",
        &[(2, Running, Running, None), (3, Shutdown, Shutdown, None)],
    )
    .await;
    put_tasks(
        &bed,
        "global new",
        &[(4, Running, Running, None), (1, Running, New, None)],
    )
    .await;
    put_tasks(&bed, "over", &[(4, Running, Running, None)]).await;
    put_tasks(
        &bed,
        "job",
        &[
            (2, Complete, Running, Some(0)),
            (4, Complete, Complete, Some(0)),
            (1, Complete, Running, None),
        ],
    )
    .await;
    put_tasks(
        &bed,
        "job again",
        &[
            (1, Complete, Running, Some(1)),
            (3, Complete, Complete, Some(1)),
            (2, Complete, Running, Some(0)),
            (5, Complete, Complete, Some(0)),
        ],
    )
    .await;
    put_tasks(
        &bed,
        "global job",
        &[
            (5, Complete, Running, Some(0)),
            (3, Complete, Complete, Some(0)),
        ],
    )
    .await;
    put_tasks(
        &bed,
        "gone",
        &[(3, Running, Running, None), (1, Running, New, None)],
    )
    .await;

    let expected = [
        ("full", 3, 3, 0),
        ("part", 7, 4, 0),
        ("global", 2, 2, 0),
        ("global new", 5, 4, 0),
        ("over", 2, 4, 0),
        ("job", 2, 2, 4),
        ("job again", 2, 1, 3),
        ("global job", 5, 5, 3),
        ("gone", 0, 3, 0),
        ("nobody knows", 0, 0, 0),
        ("full", 3, 3, 0),
    ];
    let request = ListServiceStatusesRequest {
        services: expected.iter().map(|(id, ..)| (*id).to_owned()).collect(),
    };
    let answer = ok(Control::list_service_statuses(&bed.control, Request::new(request)).await);
    let counts: Vec<_> = answer
        .statuses
        .iter()
        .map(|s| {
            (
                s.service_id.as_str(),
                s.desired_tasks,
                s.running_tasks,
                s.completed_tasks,
            )
        })
        .collect();
    assert_eq!(counts, expected);
    let none = Request::new(ListServiceStatusesRequest::default());
    let none = ok(Control::list_service_statuses(&bed.control, none).await);
    assert!(none.statuses.is_empty());
}
