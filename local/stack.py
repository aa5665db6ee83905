"""Deploys template.yaml to the emulator if something changed."""

from __future__ import annotations

import json
import time

from botocore.exceptions import ClientError

from local import artifacts, template
from local.emulator import client
from local.place import STACK_NAME, Place, sha256_hex
from local.progress import Failure

DEPLOY_SECONDS = 120
HASH_OUTPUT = "LocalHash"
CAPABILITIES = ["CAPABILITY_IAM", "CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]


class Stack:
    """The stack of a local cloud: deploys it, and reads its outputs."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._template = template.load()
        self._artifacts = artifacts.package(self._template)
        self._parameters = self._checked_parameters()
        self._hash = sha256_hex(json.dumps([self._template, self._parameters], sort_keys=True, default=str))
        # Stored in the stack itself: if a power cut destroys the stack's state, this is lost with it.
        self._template["Outputs"][HASH_OUTPUT] = {"Value": self._hash}
        self._cloudformation = client(place, "cloudformation")

    def exists(self) -> bool:
        return self._status() is not None

    def current(self) -> bool:
        done = self._status() in {"CREATE_COMPLETE", "UPDATE_COMPLETE"}
        return done and self.outputs().get(HASH_OUTPUT) == self._hash

    def deploy(self) -> None:
        url = self._send_artifacts()
        arguments = {
            "StackName": STACK_NAME,
            "TemplateURL": url,
            "Parameters": [{"ParameterKey": k, "ParameterValue": v} for k, v in self._parameters.items()],
            "Capabilities": CAPABILITIES,
        }
        status = self._status()
        if status and ("ROLLBACK" in status or "FAILED" in status):
            self._cloudformation.delete_stack(StackName=STACK_NAME)
            self._wait()
            status = None
        try:
            if status is None:
                self._cloudformation.create_stack(**arguments)
            else:
                self._cloudformation.update_stack(**arguments)
        except ClientError as error:
            if "No updates" not in str(error):
                raise Failure(
                    f"The template was refused: {error}", "fix template.yaml; `make lint` checks it"
                ) from error
        if self._wait() not in {"CREATE_COMPLETE", "UPDATE_COMPLETE"}:
            raise Failure("The stack did not deploy:\n" + self._reasons(), "fix template.yaml, then `make run` again")
        self._set_time_to_live()

    def outputs(self) -> dict[str, str]:
        stack = self._cloudformation.describe_stacks(StackName=STACK_NAME)["Stacks"][0]
        return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}

    def _checked_parameters(self) -> dict[str, str]:
        known = self._template["Parameters"]
        if unknown := sorted(set(self.place.params) - set(known)):
            raise Failure(
                f"template.yaml has no parameter {', '.join(unknown)}", f"its parameters are {', '.join(sorted(known))}"
            )
        return {
            # No cache, so that a revoked key is refused at once.
            "KeyCacheSeconds": "0",
            **self.place.params,
            "AdminKeySha256": sha256_hex(self.place.admin_key()),
            "LocalEndpoint": self.place.endpoint,
        }

    def _send_artifacts(self) -> str:
        s3 = client(self.place, "s3")
        s3.create_bucket(Bucket=artifacts.BUCKET)
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=artifacts.BUCKET)
        uploaded = {entry["Key"] for page in pages for entry in page.get("Contents", [])}
        for artifact in self._artifacts:
            if artifact.key not in uploaded:
                s3.put_object(Bucket=artifacts.BUCKET, Key=artifact.key, Body=artifact.body)
        s3.put_object(
            Bucket=artifacts.BUCKET, Key="template.json", Body=json.dumps(self._template, default=str).encode()
        )
        return f"{self.place.endpoint}/{artifacts.BUCKET}/template.json"

    def _status(self) -> str | None:
        try:
            return str(self._cloudformation.describe_stacks(StackName=STACK_NAME)["Stacks"][0]["StackStatus"])
        except ClientError:
            return None

    def _wait(self) -> str | None:
        deadline = time.monotonic() + DEPLOY_SECONDS
        while (status := self._status()) is not None and status.endswith("_IN_PROGRESS"):
            if time.monotonic() > deadline:
                raise Failure(f"The stack is still {status}", f"read {self.place.log_file}")
            time.sleep(0.2)
        return status

    def _reasons(self) -> str:
        events = self._cloudformation.describe_stack_events(StackName=STACK_NAME)["StackEvents"]
        failed = [e for e in events if "FAILED" in e["ResourceStatus"]]
        return "\n".join(f"    {e['LogicalResourceId']}: {e.get('ResourceStatusReason', '')}" for e in failed[:8])

    def _set_time_to_live(self) -> None:
        # MiniStack ignores the template's TimeToLiveSpecification.
        dynamodb, table = client(self.place, "dynamodb"), self.outputs()["TableName"]
        specification = self._template["Resources"]["Table"]["Properties"]["TimeToLiveSpecification"]
        current = dynamodb.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
        if current.get("TimeToLiveStatus") not in {"ENABLED", "ENABLING"}:
            dynamodb.update_time_to_live(TableName=table, TimeToLiveSpecification=specification)
