//! The engines on disk: killed processes, and looking at what they leave.

#[path = "store/crash.rs"]
mod crash;
#[path = "store/inspect.rs"]
mod inspect;
#[path = "store/member.rs"]
mod member;
#[path = "store/rotation.rs"]
mod rotation;
