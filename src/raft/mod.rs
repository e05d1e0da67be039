//! Consensus: member loop, proposer, membership, conversion between wire and library types, Raft RPCs.
