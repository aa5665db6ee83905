"""Hosts of one Job give the file to one another: pieces go from host to host, S3 fills what nobody has."""
