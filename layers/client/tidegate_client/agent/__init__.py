"""The daemon on target hosts: fetches what its inbox names, puts it in place, says how it went."""
