"""Tidegate: a serverless download centre."""

import os

# The functions' log level in Lambda is INFO, because metrics are log lines, which Lambda would drop at a higher level.
# Powertools prefers this variable to POWERTOOLS_LOG_LEVEL, which has the stack's LogLevel. Lambda's runtime has read it
# by now, so it can be removed.
os.environ.pop("AWS_LAMBDA_LOG_LEVEL", None)
