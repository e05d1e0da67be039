//! Control calls over a store, through the gRPC trait.
