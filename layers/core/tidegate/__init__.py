"""Tidegate: a serverless download centre."""

import os

# Lambda sets its own log level to INFO, because it drops metrics (log lines too) at any higher one, and Powertools
# prefers this variable to POWERTOOLS_LOG_LEVEL. Lambda's runtime has read it by now: our loggers keep to LogLevel.
os.environ.pop("AWS_LAMBDA_LOG_LEVEL", None)
