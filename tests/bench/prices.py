"""AWS list prices, us-east-1, read 2026-11-01. Dollars for one unit of each.

From aws.amazon.com/<service>/pricing: dynamodb, sqs, sns, s3, step-functions, lambda, api-gateway, cloudwatch, ses,
athena, secrets-manager, vpc, privatelink, ec2/on-demand (data transfer within a region). API Gateway does not bill
requests that its authorizer refuses, nor those over a throttle:
docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-pricing.html.
"""

from __future__ import annotations

MILLION = 1_000_000

DYNAMODB_WRITE = 0.625 / MILLION
DYNAMODB_READ = 0.125 / MILLION
SQS_REQUEST = 0.40 / MILLION
SQS_FIFO_REQUEST = 0.50 / MILLION
SNS_PUBLISH = 0.50 / MILLION
S3_PUT = 5.00 / MILLION
S3_GET = 0.40 / MILLION
STEP_FUNCTIONS_TRANSITION = 25.00 / MILLION
LAMBDA_REQUEST = 0.20 / MILLION
LAMBDA_GB_SECOND = 0.0000133334  # arm64
WEBSOCKET_MESSAGE = 1.00 / MILLION
WEBSOCKET_MINUTE = 0.25 / MILLION
HTTP_API_REQUEST = 1.00 / MILLION
EVENTBRIDGE_SCHEDULE = 0.0  # rules on a schedule are free
CLOUDWATCH_ALARM = 0.10
CLOUDWATCH_METRIC = 0.30
CLOUDWATCH_DASHBOARD = 3.00  # the first three of an account are free
LOGS_GB = 0.50
S3_STORED_GB_MONTH = 0.023
DYNAMODB_STORED_GB_MONTH = 0.25
PITR_GB_MONTH = 0.20
SECRET_MONTH = 0.40
SECRET_CALL = 0.05 / 10_000
NAT_HOUR, NAT_GB = 0.045, 0.045
ENDPOINT_HOUR, ENDPOINT_GB = 0.01, 0.01  # an interface endpoint, in each availability zone
ZONE_GB = 0.01  # between availability zones, billed on each side
ATHENA_TB = 5.00
SES_MESSAGE = 0.10 / 1000
EGRESS_GB = 0.09  # to the internet, the first 10 TB of a month
