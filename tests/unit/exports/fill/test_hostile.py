"""Templates that are refused: not workbooks, too large, or dangerous to those who open the result."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Callable

import pytest

from tests.support.exports.fill import cells, filled, sheet_of, tables_of, with_part
from tidegate.errors import BadTable
from tidegate.sheets.fill import Filling, _moved_drawing, _moved_notes, filled_chunks
from tidegate.sheets.fill_refs import STILL, Formulas
from tidegate.sheets.fill_template import MAX_BYTES, FillTemplate

PLAIN = sheet_of({"A1": "{.id}"})
SHEET = "xl/worksheets/sheet1.xml"
RELS = "xl/_rels/workbook.xml.rels"


def _relation(kind: str, target: str, mode: str = "External") -> str:
    start = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    return f'<Relationship Id="x9" Type="{start}/{kind}" Target="{target}" TargetMode="{mode}"/></Relationships>'


def _related(kind: str, target: str) -> bytes:
    """With a part that only its relation names: programs find parts by these, whatever their names are."""
    added = with_part(PLAIN, f"xl/{target}", b"<x/>")
    return with_part(
        added, RELS, lambda text: text.replace("</Relationships>", _relation(kind, target, mode="Internal"))
    )


def _bomb() -> bytes:
    target = io.BytesIO(PLAIN)
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/media/image.bin", b"\0" * 70_000_000)
    return target.getvalue()


def _encrypted() -> bytes:
    data = bytearray(PLAIN)
    # The flag of the first entry in the directory.
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


ENTITIES = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'

HOSTILE = {
    "a text": (b"id,name\n1,a\n", "not an .xlsx file"),
    "an old workbook, or an encrypted one": (b"\xd0\xcf\x11\xe0" + bytes(600), "encrypted or an old .xls"),
    "too large": (PLAIN + bytes(MAX_BYTES), "may have 10000000"),
    "a zip bomb": (_bomb(), "when unpacked"),
    "encrypted entries": (_encrypted(), "encrypted"),
    "half a file": (PLAIN[: len(PLAIN) // 2], "not an .xlsx file"),
    "a zip of something else": (with_part(PLAIN, "[Content_Types].xml", b"<Types/>"), "not an .xlsx file"),
    "macros": (with_part(PLAIN, "xl/vbaProject.bin", b"x"), "macros"),
    "a macro-enabled type": (
        with_part(PLAIN, "[Content_Types].xml", lambda text: text.replace("ml.sheet.main", "ml.macroEnabled.main")),
        "macros",
    ),
    "a link to another workbook": (with_part(PLAIN, "xl/externalLinks/externalLink1.xml", b"<x/>"), "links to other"),
    "a data connection": (with_part(PLAIN, "xl/connections.xml", b"<x/>"), "connections"),
    "an embedded object": (with_part(PLAIN, "xl/embeddings/oleObject1.bin", b"x"), "embedded"),
    "an image that is fetched": (
        with_part(PLAIN, RELS, lambda text: text.replace("</Relationships>", _relation("image", "http://x/y.png"))),
        "outside itself: image",
    ),
    "an image that a drawing fetches": (
        with_part(
            PLAIN,
            "xl/drawings/_rels/drawing1.xml.rels",
            ("<Relationships>" + _relation("image", "file:////host.example/share/y.png")).encode(),
        ),
        "outside itself: image",
    ),
    "macros by another name": (_related("vbaProject", "code.bin"), "macros"),
    "macros in capitals": (with_part(PLAIN, "xl/VBAProject.bin", b"x"), "macros"),
    "a link to another workbook by another name": (_related("externalLink", "links/one.xml"), "links to other"),
    "an embedded object by another name": (_related("oleObject", "media/image1.png"), "embedded"),
    "a data connection by another name": (_related("connections", "c.xml"), "connections"),
    "entities": (with_part(PLAIN, SHEET, lambda text: ENTITIES + text), "document type"),
    "entities in a part that is not read": (
        with_part(PLAIN, "xl/theme/theme1.xml", lambda text: ENTITIES + text.partition("?>")[2]),
        "document type",
    ),
    "broken XML": (with_part(PLAIN, SHEET, lambda text: text[:-9]), "not valid XML"),
    "a prefix that is not declared": (
        with_part(PLAIN, RELS, lambda text: text.replace("<Relationship ", "<x:Relationship ")),
        "cannot be read",
    ),
    "an encoding that nobody knows": (
        with_part(PLAIN, SHEET, lambda text: '<?xml version="1.0" encoding="x"?>' + text.partition("?>")[2]),
        "cannot be read",
    ),
    "no sheet": (with_part(PLAIN, "xl/workbook.xml", b'<workbook xmlns="x"><sheets/></workbook>'), "has no sheet"),
}


@pytest.mark.parametrize("what", list(HOSTILE))
def test_hostile_template_is_refused(what: str) -> None:
    data, reason = HOSTILE[what]

    with pytest.raises(BadTable, match=reason):
        FillTemplate(data)


def test_link_of_a_cell_to_a_page_stays() -> None:
    def linked(sheet: object) -> None:
        sheet["B1"].hyperlink = "https://example.com/"  # type: ignore[index]

    assert b"https://example.com/" in zipfile.ZipFile(
        io.BytesIO(filled(sheet_of({"A1": "{.id}", "B1": "x"}, linked), [{"id": 1}]))
    ).read("xl/worksheets/_rels/sheet1.xml.rels")


def test_values_cannot_break_out_of_their_cell() -> None:
    nasty = "</t></is></c><f>1</f>&{.id}\\{\x00"
    data = filled(PLAIN, [{"id": nasty}])

    assert cells(data) == [["</t></is></c><f>1</f>&{.id}\\{"]]


def test_formulas_with_braces_stay() -> None:
    data = filled(sheet_of({"A1": "{.id}", "A2": '=SUM({1,2})&"{x}"'}), [{"id": 1}, {"id": 2}])

    assert cells(data)[-1] == ['=SUM({1,2})&"{x}"']


def test_comment_signs_in_cdata_and_in_instructions_are_text() -> None:
    template = with_part(
        sheet_of({"A1": "{.id}", "A2": "x"}),
        SHEET,
        lambda text: text.replace("<sheetData>", "<?x <!-- ?><sheetData><!-- {.no} <![CDATA[ -->"),
    )

    assert cells(filled(template, [{"id": "<!--"}])) == [["<!--"], ["x"]]


def _in_sheet(unit: str) -> Callable[[], object]:
    data = with_part(PLAIN, SHEET, lambda text: text.replace("</sheetData>", unit * 30_000 + "</sheetData>"))
    return lambda: filled(data, [{"id": 1}])


def _in_part(name: str, text: str) -> Callable[[], object]:
    data = with_part(PLAIN, name, text.encode())
    return lambda: filled(data, [{"id": 1}])


# Texts that are valid, or that need not be, with many starts for one end.
SLOW: dict[str, Callable[[], object]] = {
    "comments that begin in CDATA": _in_sheet("<row><c t='inlineStr'><is><t><![CDATA[<!--]]></t></is></c></row>"),
    "empty caches of a chart": _in_part("xl/charts/chart1.xml", f"<chart>{'<numCache/>' * 30_000}</chart>"),
    "one attribute with many names of a part": _in_part(
        RELS,
        zipfile.ZipFile(io.BytesIO(PLAIN))
        .read(RELS)
        .decode()
        .replace(
            "</Relationships>", f"<Relationship Type='{'calcChain.xml&quot;' * 30_000}'></Relationship></Relationships>"
        ),
    ),
    "anchors without rows": lambda: _moved_drawing(
        f"<d><twoCellAnchor>{'<from></from>' * 30_000}</twoCellAnchor></d>", STILL, Formulas({}), "Report"
    ),
    "empty anchors": lambda: _moved_drawing("<twoCellAnchor/>" * 30_000, STILL, Formulas({}), "Report"),
    "shapes without end": lambda: _moved_notes("<v:shape " * 30_000, STILL, Formulas({}), "Report"),
    "quotes without end": lambda: Formulas({}).text("'" * 30_000, "Report"),
    "tables without end": lambda: Formulas({}).text("a[" * 30_000, "Report"),
    "nested brackets": lambda: Formulas({}).text("(" * 250 + "A1," * 20_000, "Report"),
    "functions around many cells": lambda: Formulas({}).text("ABS(" * 250 + "A1+" * 150_000, "Report"),
    "many long arguments": lambda: Formulas({}).text("SUM(" + f'A1,"{"x" * 60}",' * 100_000, "Report"),
    "long texts": lambda: FillTemplate(sheet_of({f"A{row}": "{x}" + "a" * 32_000 for row in range(1, 40)})),
}


@pytest.mark.parametrize("what", list(SLOW))
def test_no_template_takes_more_than_linear_time(what: str) -> None:
    began = time.process_time()
    SLOW[what]()

    assert time.process_time() - began < 4


def test_text_longer_than_a_cell_is_refused() -> None:
    template = with_part(PLAIN, SHEET, lambda text: text.replace("{.id}", "{.id}" + "a" * 40_000))

    with pytest.raises(BadTable, match="a cell can have 32767"):
        FillTemplate(template)


def test_formula_of_more_nested_brackets_than_excel_takes_is_refused() -> None:
    with pytest.raises(BadTable, match="brackets in each other"):
        Formulas({}).text("(" * 300 + "A1", "Report")


def _shared(copies: int) -> str:
    first = f"<row r='2'><c r='A2'><f t='shared' si='0'>{'A1+' * 2600}1</f></c></row>"
    return first + "".join(f"<row r='{row}'><c r='A{row}'><f t='shared' si='0'/></c></row>" for row in range(3, copies))


NONSENSE = {
    "row that is no number": "<row r='x'><c><f>A1</f></c></row>",
    "row of thousands of digits": f"<row r='{'9' * 5000}'><c><f>A1</f></c></row>",
    "text of thousands of digits": f"<row r='5'><c r='A5' t='s'><v>{'9' * 5000}</v></c></row>",
    "shared formula of gigabytes": _shared(8000),
    "merged cells without place": "</sheetData><mergeCells><mergeCell/></mergeCells>",
}


@pytest.mark.parametrize("what", list(NONSENSE))
def test_valid_xml_that_says_nonsense_is_refused(what: str) -> None:
    rows, _, tail = NONSENSE[what].partition("</sheetData>")
    data = with_part(PLAIN, SHEET, lambda text: text.replace("</sheetData>", f"{rows}</sheetData>{tail}"))

    with pytest.raises(BadTable):
        list(FillTemplate(data).sketches)


ODD = {
    "style that is no number": ("<row r='5'><c r='A5' s='x' t='inlineStr'><is><t>{a}</t></is></c></row>", ""),
    "merged cell of one cell": ("", "<mergeCells><mergeCell ref='A1'/></mergeCells>"),
    "format for no cells": ("", "<conditionalFormatting><cfRule/></conditionalFormatting>"),
    "break at no row": ("", "<rowBreaks><brk id='&#178;'/></rowBreaks>"),
}


@pytest.mark.parametrize("what", list(ODD))
def test_odd_places_in_a_template_are_left_as_they_are(what: str) -> None:
    row, tail = ODD[what]
    data = with_part(PLAIN, SHEET, lambda text: text.replace("</sheetData>", f"{row}</sheetData>{tail}"))

    assert b"".join(filled_chunks(Filling(FillTemplate(data), {"a": "x"}), tables_of([{"id": 1}, {"id": 2}])))
