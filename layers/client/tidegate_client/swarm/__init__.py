"""Peer-to-peer delivery: the hosts of one Job fetch pieces from each other, and from S3 those that no peer has."""
