//! The answer to a message that is too large.
//!
//! The library refuses it before any service sees it, with a code of its own; callers have always been
//! told ResourceExhausted, so the answer is changed on its way out.

use crate::raft::rpc::size_error;
use http::Response;
use tonic::body::Body;
use tonic::{Code, Status};

/// Gives the refusal of a message that is too large the code and text that callers know.
pub fn known_refusal(response: Response<Body>) -> Response<Body> {
    match Status::from_header_map(response.headers()) {
        Some(status) if status.code() == Code::OutOfRange => size_error(status).into_http(),
        _ => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_refusal_of_a_large_message_is_changed() {
        let answer = |status: Status| {
            let response = known_refusal(status.into_http());
            let status = Status::from_header_map(response.headers()).unwrap();
            (status.code(), status.message().to_owned())
        };
        let found = "Error, decoded message length too large: found 5 bytes, the limit is: 4 bytes";
        assert_eq!(
            answer(Status::out_of_range(found)),
            (
                Code::ResourceExhausted,
                "grpc: received message larger than max (5 vs. 4194304)".to_owned()
            )
        );
        for status in [
            Status::out_of_range("page 7 of 3"),
            Status::not_found("found 5 bytes"),
        ] {
            let unchanged = (status.code(), status.message().to_owned());
            assert_eq!(answer(status), unchanged);
        }
        let success = known_refusal(Response::new(Body::empty()));
        assert!(Status::from_header_map(success.headers()).is_none());
    }
}
