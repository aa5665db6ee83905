"""The example table of the documentation, and realistic rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tidegate.sheets.table import SheetTable, parse_template


def leaf(title: str, name: str, **more: Any) -> dict[str, Any]:
    return {"title": title, "name": name, **more}


def group(title: str, *children: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "children": list(children)}


SEED_TEMPLATE: dict[str, Any] = {
    "col": [
        group(
            "人员",
            leaf("姓名", "name"),
            group(
                "其它",
                leaf("年龄", "age"),
                leaf("性别", "sex"),
                group("爱好", leaf("室内", "love_in"), group("室外", leaf("陆地", "land"), leaf("空中", "air"))),
            ),
        ),
        group("住址", leaf("城市", "city"), group("小区", leaf("区域", "area"), leaf("楼盘", "estate"))),
    ],
    "row": [
        group("云研发", leaf("前端", "front_end", row_count=2), leaf("后端", "back_end", row_count=4)),
        group(
            "线下",
            leaf("OS", "os", row_count=3),
            group("智能设备", leaf("手持终端", "handheld", row_count=2), leaf("大屏", "screen", row_count=3)),
        ),
    ],
}
SEED_TABLE = SheetTable(
    parse_template(SEED_TEMPLATE),
    title="员工信息表",
    summary="本表按部门统计员工的基本信息<br/>数据截至当日零点",
    header={"油站": "钓鱼岛", "日期": "2020-07-24"},
    footer={"负责人": "linvanda", "签名": "        "},
)
_PEOPLE = (
    ("front_end", "张三", 28, "男", "象棋", "篮球", "跳伞", "深圳", "南山", "海岸城"),
    ("front_end", "李四", 31, "女", "阅读", "跑步", "滑翔", "深圳", "福田", "香蜜湖"),
    ("back_end", "王五", 26, "男", "围棋", "足球", "航模", "广州", "天河", "珠江新城"),
    ("back_end", "赵六", 35, "男", "书法", "骑行", "热气球", "广州", "越秀", "东山口"),
    ("back_end", "钱七", 29, "女", "绘画", "登山", "跳伞", "北京", "海淀", "中关村"),
    ("back_end", "孙八", 33, "男", "桌游", "网球", "滑翔", "北京", "朝阳", "望京"),
    ("os", "周九", 41, "男", "阅读", "徒步", "航模", "上海", "浦东", "陆家嘴"),
    ("os", "吴十", 38, "女", "钢琴", "羽毛球", "跳伞", "上海", "徐汇", "衡山路"),
    ("os", "郑一", 27, "男", "象棋", "篮球", "滑翔", "杭州", "西湖", "文三路"),
    ("handheld", "冯二", 30, "女", "烘焙", "瑜伽", "热气球", "杭州", "滨江", "江南大道"),
    ("handheld", "陈三", 36, "男", "摄影", "骑行", "航模", "成都", "武侯", "桐梓林"),
    ("screen", "褚四", 24, "女", "阅读", "跑步", "跳伞", "成都", "锦江", "春熙路"),
    ("screen", "卫五", 45, "男", "围棋", "钓鱼", "滑翔", "武汉", "武昌", "光谷"),
    ("screen", "蒋六", 32, "男", "书法", "足球", "航模", "武汉", "江汉", "江汉路"),
)
_KEYS = ("_row_head_", "name", "age", "sex", "love_in", "land", "air", "city", "area", "estate")


def seed_rows() -> list[dict[str, Any]]:
    return [dict(zip(_KEYS, person, strict=True)) for person in _PEOPLE]


_NAMES = ("张伟", "王芳", "李娜", "欧阳修文", "刘洋", "陈静", "O'Neil & Söhne", "Anna <ops>")
_STREETS = ("深圳市南山区科技园南区", "北京市海淀区中关村大街", "上海市浦东新区世纪大道", "广州市天河区体育西路")
_NOTES = ("正常", "urgent, call first", 'said "ok"', "第一行\n第二行", "-", "", "退款审核中，请联系客服", "delivered")


def mixed_rows(count: int) -> Iterator[dict[str, Any]]:
    """Ten columns: text, Chinese text, integers, decimals (some negative), and cells that need quoting."""
    for n in range(count):
        yield {
            "id": n,
            "order_no": f"SO{20260000 + n}-{n % 9973:04d}",
            "customer": _NAMES[n % 8],
            "address": f"{_STREETS[n % 4]}{n % 911}号",
            "phone": f"1{n * 7919 % 10**10:010d}",
            "quantity": n % 57,
            "amount": round((n * 37 % 100_003) / 7 - 900, 2),
            "rate": (n % 1000) / 8,
            "paid_at": f"2026-{n % 12 + 1:02d}-{n % 28 + 1:02d} {n % 24:02d}:{n % 60:02d}:00",
            "note": _NOTES[n % 8] if n % 5 == 0 else _NOTES[n % 3 * 3 % 8],
        }


def with_nulls(rows: Iterator[dict[str, Any]], share: float = 0.05) -> Iterator[dict[str, Any]]:
    """Yields the rows with some values replaced by None, as in most tables."""
    dice = random.Random(1)
    for row in rows:
        yield {key: None if dice.random() < share else value for key, value in row.items()}
