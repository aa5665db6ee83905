"""Peer-to-peer delivery: the hosts of a Job send each other pieces of the file, and S3 sends those that no host has."""
