"""The agent on target hosts: downloads the files in its inbox, puts them in place and reports the results."""
