"""What a host fetches next, and from where: decisions without sockets or clocks."""
