"""Peer-to-peer delivery: the hosts of a Job send each other pieces of the file.

S3 sends the pieces that no host has."""
