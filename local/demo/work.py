"""The steps with work of the queue: a file from a URL, an Excel file from paged rows, a batch."""

from __future__ import annotations

import os

import openpyxl

from local.demo.guide import Guide, expect
from local.demo.outside import outside

OVER = {"completed", "failed", "cancelled", "expired"}
HEADS = {
    "col": [
        {"title": "Order", "children": [{"title": "Number", "name": "id"}, {"title": "City", "name": "city"}]},
        {"title": "Amount", "name": "amount"},
    ]
}


def bring_in(guide: Guide) -> str:
    copy = guide.home / "fetched.bin"
    with outside(guide.callback_secret) as world:
        world.file = os.urandom(2 * 1024 * 1024)
        accepted = guide.client.files.create(
            biz_id=2, app_id=3, file_path="/in/fetched.bin", source_url=world.url + "/file"
        )
        request_id = accepted["request_id"]
        guide.tell(f"{request_id} is in channel {guide.client.requests.get(request_id)['channel']}")
        ended = guide.until(
            lambda: guide.client.requests.get(request_id),
            lambda request: request["status"] in OVER,
            "the end of the request",
        )
        expect(ended["status"] == "completed", f"the request ended {ended}")
        guide.client.files.fetch(accepted["file_id"], copy)
        expect(copy.read_bytes() == world.file, "the stored file differs from the source's")
    return "2 MB fetched from a URL by a queued request, stored once, the same bytes"


def export(guide: Guide) -> str:
    sheet_file = guide.home / "orders.xlsx"
    with outside(guide.callback_secret) as world:
        world.rows = [{"id": n, "city": f"city {n % 7}", "amount": n / 4} for n in range(2500)]
        fields = {"name": "orders", "type": "excel", "source_url": world.url + "/rows", "template": HEADS}
        task_id = guide.client.exports.submit({**fields, "callback": world.url + "/told"})["task_id"]
        ended = guide.until(
            lambda: guide.client.exports.get(task_id), lambda task: task["status"] in OVER, "the end of the export"
        )
        expect(ended["status"] == "completed", f"the export ended {ended}")
        guide.client.exports.fetch(task_id, sheet_file)
        sheet = openpyxl.load_workbook(sheet_file).worksheets[0]
        guide.tell(f"{world.pages} pages pulled; merged heads {', '.join(map(str, sheet.merged_cells.ranges))}")
        expect(sheet.max_row == 2502, f"the sheet has {sheet.max_row} rows, not 2 of heads and 2500 of data")
        callbacks = guide.until(lambda: list(world.callbacks), lambda received: len(received) > 0, "the callback")
    return f"2500 rows as Excel with nested heads; {callbacks[0]['type']} told by a signed callback"


def batch(guide: Guide) -> str:
    with outside(guide.callback_secret) as world:
        business = guide.client.businesses.create("loyalty points", world.url + "/item")
        created = guide.client.batches.create(biz_id=business["biz_id"], name="points", total=90, rate=30)
        guide.client.batches.start(created["batch_id"])
        ended = guide.until(
            lambda: guide.client.batches.get(created["batch_id"]),
            lambda shown: shown["status"] in {"finished", "stopped"},
            "the end of the batch",
        )
        expect(ended["status"] == "finished", f"the batch ended {ended}")
        expect(sorted(world.items) == list(range(90)), f"{len(set(world.items))} of 90 items were processed")
    return f"90 items at 30 a second through a business's own URL, {len(world.items)} calls"
