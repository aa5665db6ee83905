"""The shapes of the API's answers, one module for each resource; import them from here.

Fields are attributes (`export.status`) and items (`export["status"]`). A field that the server leaves out is None; one
that a newer server adds is there as an item. What callers send, and what the agent reads, are plain dicts with a
declared shape.
"""

from tidegate_client.model import Model, Page
from tidegate_client.models.batches import (
    Batch,
    BatchItem,
    BatchProgress,
    BatchRun,
    BatchSchedule,
    Business,
    DryRunItem,
    Json,
)
from tidegate_client.models.distribution import (
    BatchSubmitted,
    Counts,
    Job,
    JobMap,
    JobSwarm,
    JobTarget,
    Redriven,
    Submitted,
    Target,
    Task,
    TaskRef,
    Wave,
)
from tidegate_client.models.exports import Export, ExportProgress, ExportRun, ExportSchedule
from tidegate_client.models.files import File, FileCreated, FileOptions, Link, PartsPlan
from tidegate_client.models.fleet import (
    Agent,
    AgentPeers,
    Enrolled,
    Enrolment,
    LastJob,
    Presence,
    SwarmFigures,
    Transfer,
    TransferResult,
)
from tidegate_client.models.projects import Key, KeyRecord, Project, ProjectDetail, Quotas
from tidegate_client.models.requests import Bulk, LogLine, Problem, Request, Ticket
from tidegate_client.models.subscriptions import (
    Credential,
    Politeness,
    Preview,
    PreviewEntry,
    Selection,
    Subscription,
    SubscriptionChanges,
    SubscriptionOptions,
)

__all__ = [
    "Agent",
    "AgentPeers",
    "Batch",
    "BatchItem",
    "BatchProgress",
    "BatchRun",
    "BatchSchedule",
    "BatchSubmitted",
    "Bulk",
    "Business",
    "Counts",
    "Credential",
    "DryRunItem",
    "Enrolled",
    "Enrolment",
    "Export",
    "ExportProgress",
    "ExportRun",
    "ExportSchedule",
    "File",
    "FileCreated",
    "FileOptions",
    "Job",
    "JobMap",
    "JobSwarm",
    "JobTarget",
    "Json",
    "Key",
    "KeyRecord",
    "LastJob",
    "Link",
    "LogLine",
    "Model",
    "Page",
    "PartsPlan",
    "Politeness",
    "Presence",
    "Preview",
    "PreviewEntry",
    "Problem",
    "Project",
    "ProjectDetail",
    "Quotas",
    "Redriven",
    "Request",
    "Selection",
    "Submitted",
    "Subscription",
    "SubscriptionChanges",
    "SubscriptionOptions",
    "SwarmFigures",
    "Target",
    "Task",
    "TaskRef",
    "Ticket",
    "Transfer",
    "TransferResult",
    "Wave",
]
