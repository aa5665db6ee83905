"""Tidegate: a serverless download centre."""

import os

# The functions' own log level in Lambda is INFO, because metrics are log lines and Lambda would drop them at a higher
# level. Powertools would take this variable before POWERTOOLS_LOG_LEVEL, which holds the stack's LogLevel. Lambda's
# runtime has read it by now, so it can go.
os.environ.pop("AWS_LAMBDA_LOG_LEVEL", None)
