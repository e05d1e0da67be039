//! Who may call which method: the authorization table of every RPC this program serves.
//!
//! The table is generated from the recorded facts of the wire interface, so it cannot drift from
//! the interface itself. It only states the rule; deciding who a caller is, and what to answer when
//! the rule says no, is the business of the identity room.
//!
//! A method that is not in the table may be called by nobody.

/// What a node's certificate says it is: the organizational unit of its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Runs tasks: `swarm-worker`.
    Worker,
    /// Member of the raft group, or a caller on the local control socket: `swarm-manager`.
    Manager,
}

impl Role {
    /// The organizational unit that stands for the role in a certificate's subject.
    pub const fn unit(self) -> &'static str {
        match self {
            Role::Worker => "swarm-worker",
            Role::Manager => "swarm-manager",
        }
    }

    /// The role an organizational unit stands for, if it is one of a node's.
    pub fn from_unit(unit: &str) -> Option<Role> {
        match unit {
            "swarm-worker" => Some(Role::Worker),
            "swarm-manager" => Some(Role::Manager),
            _ => None,
        }
    }
}

/// The rule for one method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodAuth {
    /// Request path, such as `/docker.swarmkit.v1.Control/GetNode`.
    pub path: &'static str,
    /// Roles that may call the method. Empty for methods that are open to everyone.
    pub roles: &'static [Role],
    /// True if the method may be called without any certificate.
    pub insecure: bool,
    /// Only the leader answers it on the remote port; other managers pass the call on.
    pub leader_remote: bool,
    /// The same on the control socket.
    pub leader_local: bool,
    /// The caller sends a stream of messages.
    pub client_stream: bool,
    /// The answer is a stream of messages.
    pub server_stream: bool,
}

impl MethodAuth {
    /// Whether a caller may use the method; `None` is a caller without a valid certificate.
    pub fn allows(&self, caller: Option<Role>) -> bool {
        self.insecure || caller.is_some_and(|role| self.roles.contains(&role))
    }
}

include!(concat!(env!("OUT_DIR"), "/method_auth.rs"));

/// All rules, ordered by path.
pub fn all() -> &'static [MethodAuth] {
    &METHODS
}

/// The rule for a request path, or `None` for a method we do not know.
pub fn lookup(path: &str) -> Option<&'static MethodAuth> {
    let at = METHODS
        .binary_search_by(|method| method.path.cmp(path))
        .ok()?;
    METHODS.get(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_is_found_and_others_are_not() {
        for method in all() {
            assert_eq!(lookup(method.path), Some(method));
            assert_eq!(method.insecure, method.roles.is_empty(), "{}", method.path);
        }
        assert_eq!(lookup("/docker.swarmkit.v1.Control/NoSuchMethod"), None);
        assert_eq!(lookup(""), None);
    }

    #[test]
    fn workers_and_strangers_stay_outside_of_manager_methods() {
        let control = lookup("/docker.swarmkit.v1.Control/GetNode").unwrap();
        assert!(control.allows(Some(Role::Manager)));
        assert!(!control.allows(Some(Role::Worker)));
        assert!(!control.allows(None));
        let session = lookup("/docker.swarmkit.v1.Dispatcher/Session").unwrap();
        assert!(session.allows(Some(Role::Worker)));
        assert!(!session.allows(None));
        let root = lookup("/docker.swarmkit.v1.CA/GetRootCACertificate").unwrap();
        assert!(root.allows(None));
    }

    #[test]
    fn what_only_the_leader_answers() {
        let count = |of: fn(&MethodAuth) -> bool| all().iter().filter(|method| of(method)).count();
        // Spec 02 section 10.2: CA 2, NodeCA 2, Dispatcher 6, ResourceAllocator 2, LogBroker 2, and
        // RaftMembership 2 on the remote port, Control and Logs on the control socket instead.
        assert_eq!(count(|method| method.leader_remote), 16);
        let control = count(|method| method.path.contains(".Control/"));
        assert_eq!(count(|method| method.leader_local), 14 + control + 1);
        for path in [
            "/docker.swarmkit.v1.Control/ListNodes",
            "/docker.swarmkit.v1.Logs/SubscribeLogs",
        ] {
            let method = lookup(path).unwrap();
            assert!(!method.leader_remote && method.leader_local, "{path}");
        }
        for path in [
            "/docker.swarmkit.v1.Watch/Watch",
            "/docker.swarmkit.v1.Health/Check",
            "/docker.swarmkit.v1.Raft/ProcessRaftMessage",
            "/swarmmanager.v1.Admin/Status",
        ] {
            let method = lookup(path).unwrap();
            assert!(!method.leader_remote && !method.leader_local, "{path}");
        }
        let publish = lookup("/docker.swarmkit.v1.LogBroker/PublishLogs").unwrap();
        assert!(publish.client_stream && !publish.server_stream);
    }

    #[test]
    fn units_and_roles_match() {
        for role in [Role::Worker, Role::Manager] {
            assert_eq!(Role::from_unit(role.unit()), Some(role));
        }
        assert_eq!(Role::from_unit("swarm-ca"), None);
    }
}
