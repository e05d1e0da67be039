//! Names as the swarm API sees them: what a task is called, and how names are compared.
//!
//! Every object but a task carries its own name. A task usually has none and is called after its
//! service, its place in the service and its ID. Names are compared without regard to case, by
//! lower-casing both sides with [`lower`].

use super::types::Task;

/// The name of a task.
///
/// Its own name if it has one, else `<service>.<slot>.<task id>`, with the node's ID in place of the
/// slot for tasks that have none (those of global services).
pub fn task_name(task: &Task) -> String {
    if let Some(own) = task.annotations.as_ref().filter(|own| !own.name.is_empty()) {
        return own.name.clone();
    }
    let service = task
        .service_annotations
        .as_ref()
        .map_or("", |service| service.name.as_str());
    if task.slot == 0 {
        format!("{service}.{}.{}", task.node_id, task.id)
    } else {
        format!("{service}.{}.{}", task.slot, task.id)
    }
}

/// A name in lower case, character by character.
///
/// Unlike [`str::to_lowercase`] this knows no context (a Greek sigma becomes the same letter
/// everywhere in a word) and never turns one character into two.
pub fn lower(name: &str) -> String {
    name.chars()
        .map(|c| c.to_lowercase().next().unwrap_or(c))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::Annotations;

    fn named(name: &str) -> Option<Annotations> {
        Some(Annotations {
            name: name.to_owned(),
            ..Default::default()
        })
    }

    fn task(own: Option<Annotations>, slot: u64, node_id: &str) -> Task {
        Task {
            id: "taskID".to_owned(),
            annotations: own,
            service_annotations: named("theservice"),
            slot,
            node_id: node_id.to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn task_names() {
        assert_eq!(
            task_name(&task(None, 10, "thenodeID")),
            "theservice.10.taskID"
        );
        assert_eq!(
            task_name(&task(named(""), 0, "thenodeID")),
            "theservice.thenodeID.taskID"
        );
        assert_eq!(task_name(&task(named("thetask"), 10, "")), "thetask");
        assert_eq!(task_name(&Task::default()), "..");
    }

    #[test]
    fn lower_casing_is_per_character() {
        assert_eq!(lower("WebServer-1"), "webserver-1");
        assert_eq!(lower("ΟΔΟΣ"), "οδοσ");
        assert_eq!(lower("İX"), "ix");
    }
}
