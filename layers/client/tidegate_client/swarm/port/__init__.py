"""The port on which a host serves its peers."""
