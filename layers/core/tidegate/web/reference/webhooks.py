"""The requests that Tidegate sends to others and the answers that it accepts (OpenAPI `webhooks`).

Imported only when the OpenAPI document is generated. Pages in docs/contracts describe them with example
servers, which run as tests.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
Fields = dict[str, Schema]


def _object(description: str, fields: Fields, required: tuple[str, ...] = (), **more: Any) -> Schema:
    return {"type": "object", "description": description, "properties": fields, "required": list(required), **more}


def _field(kind: str, description: str, **more: Any) -> Schema:
    return {"type": kind, "description": description, **more}


def _ref(name: str, description: str | None = None) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"} | ({"description": description} if description else {})


_ROW = {"type": "object", "description": "keys and values of the cells", "additionalProperties": True}
_ANY_JSON = {"description": "any JSON"}
_RESULT = _field(
    "string", "ok; error: the item is retried; abandon: it is not retried", enum=["ok", "error", "abandon"]
)
_MSG = _field("string", "the reason, for people, if the item did not succeed", maxLength=1000)

SCHEMAS: Fields = {
    "SourcePage": _object(
        "One page of a source. `status` says whether the page is valid, whatever the HTTP status is.",
        {
            "status": _field("integer", "200: the page is valid; any other value: the export fails with msg"),
            "msg": _field("string", "the reason, if status is not 200"),
            "data": _object(
                "The rows, and information about the whole table",
                {
                    "data": {
                        "description": "the rows of this page: a list of objects, or {group: rows}",
                        "oneOf": [
                            {"type": "array", "items": _ROW},
                            {"type": "object", "additionalProperties": {"type": "array", "items": _ROW}},
                        ],
                    },
                    "total": _field(
                        "integer", "total number of rows: a hint for progress; the end is a short or empty page"
                    ),
                    "next": {
                        "type": ["string", "null"],
                        "description": "cursor paging: sent back as ?cursor= for the next page; null on the last page",
                    },
                    "snapshot": _field(
                        "string", "sent back as ?snapshot= with every page, for rows of the same moment"
                    ),
                    "force_continue": _field(
                        "integer", "1: continue although this page is short; 0: this is the last page"
                    ),
                    "template": _ref("Template", "the column headings"),
                    "header": _field("object", "texts above the table", additionalProperties={"type": "string"}),
                    "footer": _field("object", "texts below the table", additionalProperties={"type": "string"}),
                },
                ("data",),
            ),
        },
        ("status", "data"),
    ),
    "Template": {
        "description": "The headings of a table: `{key: title}`, a list of nodes, or `{col: nodes, row: nodes}`.",
        "oneOf": [
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"type": "array", "items": {"oneOf": [{"type": "string"}, _ref("TemplateNode")]}},
            _object(
                "Column headings (`col`) and row headings (`row`); a row heading spans `row_count` rows",
                {
                    "col": {"type": "array", "description": "column headings", "items": _ref("TemplateNode")},
                    "row": {"type": "array", "description": "row headings", "items": _ref("TemplateNode")},
                },
            ),
        ],
    },
    "TemplateNode": _object(
        "A heading. With children it spans them; without, it is a column and `name` is the key of its cells.",
        {
            "title": _field("string", "the text that is shown; default: the name"),
            "name": _field("string", "the key in a row; default: the title"),
            "children": {"type": "array", "description": "the headings below this one", "items": _ref("TemplateNode")},
            "row_count": _field("integer", "rows that a row heading spans", minimum=1, default=1),
            "style": _ref("TemplateStyle", "style of the column"),
        },
        additionalProperties=False,
    ),
    "TemplateStyle": _object(
        "Style of a column",
        {
            "width": _field("number", "in points", exclusiveMinimum=0, maximum=1400),
            "align": _field("string", "alignment of its cells", enum=["left", "center", "right"]),
            "color": _field("string", "colour of the text, such as FF0000 or red"),
            "bg_color": _field("string", "colour of the background, such as FFFF00 or yellow"),
            "bold": _field("boolean", "bold text"),
            "wrap": _field("boolean", "wrap long lines"),
            "type": _field(
                "string",
                "type of its cells; a value of another type stays text",
                enum=[
                    "string",
                    "number",
                    "integer",
                    "decimal",
                    "date",
                    "datetime",
                    "currency",
                    "percent",
                    "boolean",
                    "link",
                ],
            ),
            "format": _field("string", "an Excel number format, such as #,##0.00", maxLength=255),
            "scale": _field("integer", "decimal places of a decimal in Parquet, default 2", minimum=0, maximum=18),
            "total": _field("boolean", "show the exact sum of the column below it"),
            "merge": _field("boolean", "merge equal neighbours down the column, within merged columns to its left"),
            "label": _field("string", "the text that links show in place of their address", maxLength=255),
            "label_key": _field("string", "the key of a row's value that a link shows", maxLength=255),
            "map": {
                "type": "object",
                "description": 'what is written in place of values, such as {"0": "unpaid", "1": "paid"}',
                "maxProperties": 1000,
                "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
            },
            "map_default": {
                "type": ["string", "number", "boolean", "null"],
                "description": "what is written for values that are not in `map`; default: the value itself",
            },
            "mask": {
                "description": "hide values: by kind, or but for some characters at the start and the end",
                "oneOf": [
                    {"type": "string", "enum": ["phone", "id", "card", "email"]},
                    {
                        "type": "object",
                        "properties": {
                            "start": _field("integer", "characters that stay at the start", minimum=0, maximum=64),
                            "end": _field("integer", "characters that stay at the end", minimum=0, maximum=64),
                        },
                        "additionalProperties": False,
                    },
                ],
            },
        },
        additionalProperties=False,
    ),
    "ItemCall": _object(
        "One item for process_url. With items_per_call above 1, `items` has several; index to batch_data are absent.",
        {
            "batch_id": _field("string", "the batch"),
            "index": _field("integer", "index of the item"),
            "attempt": _field("integer", "number of the attempt, from 1; webhook-id is the same for every attempt"),
            "job_data": {
                **_ANY_JSON,
                "description": "the batch's job_data; or the row, if the items are rows of a file",
            },
            "batch_data": {**_ANY_JSON, "description": "the batch's job_data, if the items are rows of a file"},
            "items": {
                "type": "array",
                "description": "several items, each with index, attempt and job_data",
                "items": {"type": "object", "additionalProperties": True},
            },
        },
        ("batch_id",),
    ),
    "ItemResult": _object(
        "The answer of process_url, with HTTP 200. Any other answer is an error, and the item is retried.",
        {
            "result": _RESULT,
            "msg": _MSG,
            "stop": _field(
                "string", "stop: stop the batch after this item; finish: end it as finished", enum=["stop", "finish"]
            ),
            "logs": {
                "type": "array",
                "description": "for GET /v1/batches/{id}/logs: texts or {level, message}; the first twenty are stored",
                "items": _ANY_JSON,
            },
            "results": {
                "type": "array",
                "description": "with `items`: one result for each item, by `index` or in the same order",
                "items": {"type": "object", "additionalProperties": True},
            },
        },
    ),
    "BatchQuestion": _object(
        "The batch that is about to be created or run",
        {
            "batch_id": _field("string", "the batch"),
            "biz_id": _field("string", "the business"),
            "name": _field("string", "name of the batch"),
            "total": _field("integer", "the items are start_index to total - 1"),
            "rate": _field("number", "items per second"),
            "start_index": _field("integer", "index of the first item"),
            "job_data": {**_ANY_JSON, "description": "data of the batch, before it is created"},
        },
        ("batch_id", "biz_id", "name"),
    ),
    "BatchAgreement": _object(
        "Any 2xx answer agrees, with or without a body, unless it has `result: error`",
        {
            "result": _field("string", "ok or error", enum=["ok", "error"]),
            "msg": _field("string", "why the batch is refused"),
        },
    ),
    "Message": _object(
        "The body of a callback, and without timestamp a message of the WebSocket",
        {
            "type": _field("string", "task.completed, task.failed, job.finished, request.finished, batch.finished, …"),
            "timestamp": _field("string", "when it happened, ISO 8601 UTC"),
            "data": _field("object", "the record, as its GET route returns it", additionalProperties=True),
        },
        ("type", "timestamp", "data"),
    ),
}

_SIGNED = [
    ("webhook-id", "the same for every attempt of one message: use it to de-duplicate"),
    (
        "webhook-timestamp",
        "when it was sent, in seconds since 1970; refuse messages that are more than five minutes off",
    ),
    (
        "webhook-signature",
        "v1,<base64 HMAC-SHA256 of id.timestamp.body>; several, separated by spaces: "
        "of the receiver's own secret and of the shared one",
    ),
]
_HEADERS = [
    {"name": name, "in": "header", "required": True, "description": text, "schema": {"type": "string"}}
    for name, text in _SIGNED
]


def _query(name: str, kind: str, text: str, example: Any, *, required: bool = False) -> Schema:
    return {
        "name": name,
        "in": "query",
        "required": required,
        "description": text,
        "schema": {"type": kind},
        "example": example,
    }


def _content(schema: str, example: Any) -> Schema:
    return {"application/json": {"schema": _ref(schema), "example": example}}


# Tidegate sends no key: the receiver checks the signature in the headers.
_NO_KEY: list[Schema] = []


def _post(summary: str, text: str, schema: str, example: Any, answers: Schema) -> Schema:
    return {
        "post": {
            "summary": summary,
            "description": text,
            "security": _NO_KEY,
            "parameters": _HEADERS,
            "requestBody": {"required": True, "content": _content(schema, example)},
            "responses": answers,
        }
    }


PAGE = {
    "status": 200,
    "data": {"data": [{"order": "A-1", "amount": "12.50"}, {"order": "A-2", "amount": "7.00"}], "total": 2},
}
ITEM = {"batch_id": "bat-01JD…", "index": 17, "attempt": 1, "job_data": {"points": 10}}
_ABOUT = {"batch_id": "bat-01JD…", "biz_id": "biz-01JD…", "name": "points", "total": 1000, "rate": 50, "start_index": 0}
_RECEIVED = {"2XX": {"description": "Received, within 10 s. Otherwise it is sent again with back-off, for 24 hours"}}
_AGREED = {
    "2XX": {"description": "Agreed, or refused in the body", "content": _content("BatchAgreement", {"result": "ok"})}
}


def _message(kind: str, data: Schema) -> Schema:
    return {"type": kind, "timestamp": "2026-11-16T06:10:08Z", "data": data}


def _callback(kind: str, text: str, data: Schema) -> Schema:
    return _post(f"{kind}: a callback", text, "Message", _message(kind, data), _RECEIVED)


WEBHOOKS: Fields = {
    "source.page": {
        "get": {
            "summary": "One page of an export's source",
            "description": "Sent to `source_url` with these query parameters added. Pages are requested from 0 until "
            "one is short or empty, or `next` is null. "
            "The secret of the source's origin signs `GET {url}`, the shared one an empty body. "
            "See docs/contracts/source.md.",
            "security": _NO_KEY,
            "parameters": [
                _query("page", "integer", "number of the page, from 0", 0, required=True),
                _query("page_size", "integer", "rows in a page: the export's `step`", 1000, required=True),
                _query("_task_id", "string", "id of the export", "req-01JD…", required=True),
                _query("cursor", "string", "`next` of the previous page, with cursor paging", "after-1000"),
                _query("snapshot", "string", "`snapshot` of the first page, if there was one", "2026-11-16"),
                *_HEADERS,
            ],
            "responses": {"200": {"description": "The page", "content": _content("SourcePage", PAGE)}},
        }
    },
    "batch.item": _post(
        "One item of a batch, or several",
        "Sent to `process_url`. See docs/contracts/batch.md.",
        "ItemCall",
        ITEM,
        {
            "200": {
                "description": "The result",
                "content": _content("ItemResult", {"result": "error", "msg": "no such account"}),
            },
            "202": {"description": "With ack `async`: report the result to POST /v1/batches/{id}/items/{index}/result"},
        },
    ),
    "batch.before_create": _post(
        "May this batch be created?", "Sent to `before_create_url`.", "BatchQuestion", _ABOUT, _AGREED
    ),
    "batch.before_run": _post(
        "May this batch run?",
        "Sent to `before_run_url`. The batch then waits up to 30 minutes for POST /v1/batches/{id}/biz-start.",
        "BatchQuestion",
        _ABOUT,
        _AGREED,
    ),
    "task.completed": _callback(
        "task.completed",
        "Sent to `callback` when the file of an export is ready, or the target of a Task has the file. "
        "See docs/contracts/callback.md.",
        {"task_id": "req-01JD…", "status": "completed", "file_name": "orders.xlsx", "size": 10240},
    ),
    "task.failed": _callback(
        "task.failed",
        "Sent to `callback` when an export or a Task failed, timed out or was cancelled.",
        {"task_id": "req-01JD…", "status": "failed", "failed_reason": "page 3: the source answered status 500"},
    ),
    "request.finished": _callback(
        "request.finished",
        "Sent to `callback` of a large upload when its verification has ended.",
        {"request_id": "req-01JD…", "type": "check", "status": "completed"},
    ),
    "batch.progress": _callback(
        "batch.progress",
        "Sent to `progress_url`.",
        {"batch_id": "bat-01JD…", "status": "running", "progress": {"processed": 500, "total": 1000, "percent": 50}},
    ),
    "batch.finished": _callback(
        "batch.finished",
        "Sent to `process_stop_url` when a batch has ended or was stopped.",
        {"batch_id": "bat-01JD…", "status": "stopped", "stop_reason": "item 17 failed: no such account"},
    ),
}

# The webhooks that go to a URL in the body of an operation (OpenAPI `callbacks`).
CALLBACKS: dict[str, dict[str, tuple[str, str]]] = {
    "POST /v1/task": {
        "page": ("{$request.body#/source_url}", "source.page"),
        "completed": ("{$request.body#/callback}", "task.completed"),
    },
    "POST /v1/task/multiple": {"completed": ("{$request.body#/callback}", "task.completed")},
    "POST /v1/downloads": {"ended": ("{$request.body#/callback}", "task.completed")},
    "POST /v1/downloads/batch": {"ended": ("{$request.body#/callback}", "task.completed")},
    "POST /v1/jobs/{job}/redrive": {"ended": ("{$request.body#/callback}", "task.completed")},
    "POST /v1/files": {"verified": ("{$request.body#/callback}", "request.finished")},
    "POST /v1/biz": {
        "item": ("{$request.body#/process_url}", "batch.item"),
        "beforeCreate": ("{$request.body#/before_create_url}", "batch.before_create"),
        "beforeRun": ("{$request.body#/before_run_url}", "batch.before_run"),
        "stopped": ("{$request.body#/process_stop_url}", "batch.finished"),
    },
    "POST /v1/batches": {"progress": ("{$request.body#/progress_url}", "batch.progress")},
}
