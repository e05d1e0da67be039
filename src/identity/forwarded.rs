//! Metadata by which one manager passes on a request of somebody else to the leader.
//!
//! Keys and values are those of spec 02 section 10.3. The receiving side reads them with [`read`] and
//! must check that the direct caller is a manager. The sending side calls [`prepare`], which replaces
//! whatever the caller wrote under these keys with the truth, even for an anonymous caller: blank
//! values are what keeps such a call from looking like the forwarding manager's own.

use super::connection::Connection;
use crate::api::roles::Role;
use http::{HeaderMap, HeaderName, HeaderValue};
use std::net::SocketAddr;
use tonic::Status;

const CERT: HeaderName = HeaderName::from_static("forwarded_cert");
const CERT_CN: HeaderName = HeaderName::from_static("forwarded_cert_cn");
const CERT_ORG: HeaderName = HeaderName::from_static("forwarded_cert_org");
const CERT_OU: HeaderName = HeaderName::from_static("forwarded_cert_ou");
const REMOTE_ADDR: HeaderName = HeaderName::from_static("remote_addr");
const REDIRECT: HeaderName = HeaderName::from_static("redirect");

const KEYS: [HeaderName; 6] = [CERT, CERT_CN, CERT_ORG, CERT_OU, REMOTE_ADDR, REDIRECT];

/// How the refusal to pass a request on a second time begins.
pub const REDIRECT_REFUSAL: &str = "more than one redirect to leader from:";

/// The original caller, as a forwarding manager describes it. Blank for an anonymous caller.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forwarded {
    pub node_id: String,
    pub organization: String,
    pub units: Vec<String>,
    pub remote_addr: Option<SocketAddr>,
}

/// The description in a request's metadata, or `None` if the request does not say it is forwarded.
pub fn read(headers: &HeaderMap) -> Option<Forwarded> {
    let mut marks = headers.get_all(CERT).iter();
    if marks.next()?.as_bytes() != b"true" || marks.next().is_some() {
        return None;
    }
    let text = |name| {
        let value = headers.get(name)?;
        value.to_str().ok().map(str::to_owned)
    };
    Some(Forwarded {
        node_id: text(CERT_CN).unwrap_or_default(),
        organization: text(CERT_ORG).unwrap_or_default(),
        units: headers
            .get_all(CERT_OU)
            .iter()
            .filter_map(|unit| unit.to_str().ok())
            .map(str::to_owned)
            .collect(),
        remote_addr: text(REMOTE_ADDR).and_then(|address| address.parse().ok()),
    })
}

/// Takes all marks of forwarding out of the metadata of a request that this manager makes itself.
pub fn strip(headers: &mut HeaderMap) {
    for key in KEYS {
        headers.remove(key);
    }
}

/// Makes the metadata of a request fit for the leader.
///
/// A request that a manager has already passed on once is refused; from anyone else, marks of having
/// been passed on are lies and are overwritten.
pub fn prepare(headers: &mut HeaderMap, connection: &Connection) -> Result<(), Status> {
    let subject = connection.subject.as_deref();
    let from_manager = subject.is_some_and(|subject| subject.role == Some(Role::Manager));
    if from_manager && headers.contains_key(REDIRECT) {
        let hops: Vec<&str> = headers
            .get_all(REDIRECT)
            .iter()
            .filter_map(|hop| hop.to_str().ok())
            .collect();
        return Err(Status::resource_exhausted(format!(
            "{REDIRECT_REFUSAL} {}",
            hops.join(" ")
        )));
    }
    let Some(address) = connection.remote_addr else {
        return Err(Status::invalid_argument(
            "remote addr is not found in context",
        ));
    };
    strip(headers);
    let value = |text: &str| {
        HeaderValue::from_str(text).map_err(|_| {
            Status::invalid_argument("the names in the client certificate are not plain text")
        })
    };
    headers.insert(CERT, HeaderValue::from_static("true"));
    headers.insert(CERT_CN, value(subject.map_or("", |s| &s.node_id))?);
    headers.insert(CERT_ORG, value(subject.map_or("", |s| &s.organization))?);
    for unit in subject.map_or(&[][..], |subject| &subject.units) {
        headers.append(CERT_OU, value(unit)?);
    }
    let address = value(&address.to_string())?;
    headers.insert(REMOTE_ADDR, address.clone());
    headers.insert(REDIRECT, address);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::cert::Subject;
    use std::sync::Arc;
    use tokio_util::sync::CancellationToken;

    fn connection(role: Option<Role>) -> Connection {
        let subject = role.map(|role| {
            Arc::new(Subject {
                node_id: "node".into(),
                organization: "cluster".into(),
                role: Some(role),
                units: vec![role.unit().into()],
            })
        });
        Connection {
            remote_addr: Some("192.0.2.7:1234".parse().unwrap()),
            subject,
            ..Connection::local(CancellationToken::new())
        }
    }

    fn lies() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CERT, HeaderValue::from_static("true"));
        headers.insert(CERT_CN, HeaderValue::from_static("somebody"));
        headers.insert(CERT_ORG, HeaderValue::from_static("cluster"));
        headers.append(CERT_OU, HeaderValue::from_static("swarm-manager"));
        headers.append(CERT_OU, HeaderValue::from_static("swarm-worker"));
        headers.insert(REMOTE_ADDR, HeaderValue::from_static("192.0.2.1:1"));
        headers.insert(REDIRECT, HeaderValue::from_static("192.0.2.1:1"));
        headers
    }

    #[test]
    fn lies_are_overwritten_with_the_truth() {
        let mut headers = lies();
        prepare(&mut headers, &connection(Some(Role::Worker))).unwrap();
        let read_back = read(&headers).unwrap();
        assert_eq!(read_back.node_id, "node");
        assert_eq!(read_back.units, ["swarm-worker"]);
        assert_eq!(read_back.remote_addr, "192.0.2.7:1234".parse().ok());
        assert_eq!(headers.get(REDIRECT).unwrap(), "192.0.2.7:1234");

        let mut headers = lies();
        prepare(&mut headers, &connection(None)).unwrap();
        let blank = read(&headers).unwrap();
        assert_eq!((blank.node_id.as_str(), blank.units.len()), ("", 0));
    }

    #[test]
    fn a_second_forward_is_refused() {
        let refused = prepare(&mut lies(), &connection(Some(Role::Manager))).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert_eq!(
            refused.message(),
            "more than one redirect to leader from: 192.0.2.1:1"
        );
        let local = Connection::local(CancellationToken::new());
        let refused = prepare(&mut HeaderMap::new(), &local).unwrap_err();
        assert_eq!(refused.message(), "remote addr is not found in context");
    }

    #[test]
    fn only_one_true_counts() {
        assert_eq!(read(&HeaderMap::new()), None);
        let mut headers = lies();
        headers.append(CERT, HeaderValue::from_static("true"));
        assert_eq!(read(&headers), None);
        headers.insert(CERT, HeaderValue::from_static("TRUE"));
        assert_eq!(read(&headers), None);
    }
}
