"""Decides which piece a host fetches next, and from where. No I/O."""
