"""The queries of Nexmark in Flink's SQL, and the rows that Flink gives for them.

Source: https://github.com/nexmark/nexmark, ``nexmark-flink/src/main/resources/queries``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace import WatermarkStrategy
from headrace.table import TableEnvironment, udf
from headrace.table.catalog import TemporaryTable
from headrace.table.connectors.contract import TableConnector

DATA = Path(__file__).resolve().parents[0] / "data" / "nexmark"

FILES = "'connector' = 'filesystem', 'path' = '{path}', 'format' = 'parquet'"

EVENTS = """
CREATE TABLE events (
    event_type INT,
    person ROW<id BIGINT, name VARCHAR, emailAddress VARCHAR, creditCard VARCHAR, city VARCHAR, state VARCHAR,
               `dateTime` TIMESTAMP(3), extra VARCHAR>,
    auction ROW<id BIGINT, itemName VARCHAR, description VARCHAR, initialBid BIGINT, reserve BIGINT,
                `dateTime` TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra VARCHAR>,
    bid ROW<auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, url VARCHAR, `dateTime` TIMESTAMP(3),
            extra VARCHAR>,
    `dateTime` AS CASE WHEN event_type = 0 THEN person.`dateTime` WHEN event_type = 1 THEN auction.`dateTime`
                       ELSE bid.`dateTime` END,
    WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND
) WITH ({connector});

CREATE VIEW person AS
SELECT person.id, person.name, person.emailAddress, person.creditCard, person.city, person.state, `dateTime`,
       person.extra FROM events WHERE event_type = 0;

CREATE VIEW auction AS
SELECT auction.id, auction.itemName, auction.description, auction.initialBid, auction.reserve, `dateTime`,
       auction.expires, auction.seller, auction.category, auction.extra FROM events WHERE event_type = 1;

CREATE VIEW bid AS
SELECT bid.auction, bid.bidder, bid.price, bid.channel, bid.url, `dateTime`, bid.extra FROM events WHERE event_type = 2;
"""

_RANKS = """
    count(*) AS total_bids,
    count(*) FILTER (WHERE price < 10000) AS rank1_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (WHERE price >= 1000000) AS rank3_bids
"""
_DISTINCT_RANKS = ",".join(
    f"""
    count(DISTINCT {column}) AS total_{column}s,
    count(DISTINCT {column}) FILTER (WHERE price < 10000) AS rank1_{column}s,
    count(DISTINCT {column}) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_{column}s,
    count(DISTINCT {column}) FILTER (WHERE price >= 1000000) AS rank3_{column}s
    """
    for column in ("bidder", "auction")
)

QUERIES = {
    "q0": "SELECT auction, bidder, price, `dateTime`, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, `dateTime`, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id FROM auction AS A INNER JOIN person AS P ON A.seller = P.id
        WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')
    """,
    "q4": """
        SELECT Q.category, AVG(Q.final) FROM (
            SELECT MAX(B.price) AS final, A.category FROM auction A, bid B
            WHERE A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
            GROUP BY A.id, A.category
        ) Q GROUP BY Q.category
    """,
    "q5": """
        SELECT AuctionBids.auction, AuctionBids.num FROM (
            SELECT auction, count(*) AS num, window_start AS starttime, window_end AS endtime
            FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end
        ) AS AuctionBids JOIN (
            SELECT max(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime FROM (
                SELECT count(*) AS num, window_start AS starttime, window_end AS endtime
                FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
                GROUP BY auction, window_start, window_end
            ) AS CountBids GROUP BY CountBids.starttime, CountBids.endtime
        ) AS MaxBids ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
            AND AuctionBids.num >= MaxBids.maxn
    """,
    "q6": """
        SELECT Q.seller, AVG(Q.price) OVER (
            PARTITION BY Q.seller ORDER BY Q.`dateTime`, Q.id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
        ) FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY id, seller ORDER BY price DESC, `dateTime`) AS rownum FROM (
                SELECT A.id, A.seller, B.price, B.`dateTime` FROM auction AS A, bid AS B
                WHERE A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
            )
        ) AS Q WHERE rownum <= 1
    """,
    "q7": """
        SELECT B.auction, B.price, B.bidder, B.`dateTime`, B.extra FROM bid B JOIN (
            SELECT MAX(price) AS maxprice, window_end AS `dateTime`
            FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
            GROUP BY window_start, window_end
        ) B1 ON B.price = B1.maxprice
        WHERE B.`dateTime` BETWEEN B1.`dateTime` - INTERVAL '10' SECOND AND B1.`dateTime`
    """,
    "q8": """
        SELECT P.id, P.name, P.starttime FROM (
            SELECT id, name, window_start AS starttime, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
            GROUP BY id, name, window_start, window_end
        ) P JOIN (
            SELECT seller, window_start AS starttime, window_end AS endtime
            FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
            GROUP BY seller, window_start, window_end
        ) A ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime
    """,
    "q9": """
        SELECT id, itemName, description, initialBid, reserve, `dateTime`, expires, seller, category, extra, auction,
               price, bid_dateTime
        FROM (
            SELECT A.*, B.auction, B.bidder, B.price, B.`dateTime` AS bid_dateTime, B.extra AS bid_extra,
                   ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime` ASC) AS rownum
            FROM auction A, bid B
            WHERE A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires
        ) WHERE rownum <= 1
    """,
    "q11": """
        SELECT B.bidder, count(*) AS bid_count, SESSION_START(B.`dateTime`, INTERVAL '10' SECOND) AS starttime,
               SESSION_END(B.`dateTime`, INTERVAL '10' SECOND) AS endtime
        FROM bid B GROUP BY B.bidder, SESSION(B.`dateTime`, INTERVAL '10' SECOND)
    """,
    "q14": """
        SELECT auction, bidder, 0.908 * price AS price,
               CASE WHEN HOUR(`dateTime`) >= 8 AND HOUR(`dateTime`) <= 18 THEN 'dayTime'
                    WHEN HOUR(`dateTime`) <= 6 OR HOUR(`dateTime`) >= 20 THEN 'nightTime'
                    ELSE 'otherTime' END AS bidTimeType,
               `dateTime`, extra, count_char(extra, 'c') AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
    """,
    "q15": f"""
        SELECT DATE_FORMAT(`dateTime`, 'yyyy-MM-dd') AS `day`, {_RANKS}, {_DISTINCT_RANKS}
        FROM bid GROUP BY DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')
    """,
    "q16": f"""
        SELECT channel, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd') AS `day`,
               max(DATE_FORMAT(`dateTime`, 'HH:mm')) AS `minute`, {_RANKS}, {_DISTINCT_RANKS}
        FROM bid GROUP BY channel, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')
    """,
    "q17": f"""
        SELECT auction, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd') AS `day`, {_RANKS}, min(price) AS min_price,
               max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
        FROM bid GROUP BY auction, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')
    """,
    "q18": """
        SELECT auction, bidder, `dateTime` FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS rank_number FROM bid
        ) WHERE rank_number <= 1
    """,
    "q19": """
        SELECT auction, price, rank_number FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number FROM bid
        ) WHERE rank_number <= 10
    """,
    "q20": """
        SELECT auction, bidder, price, channel, url, B.`dateTime`, B.extra, itemName, description, initialBid, reserve,
               A.`dateTime`, expires, seller, category, A.extra
        FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id WHERE A.category = 10
    """,
    "q21": r"""
        SELECT auction, bidder, price, channel,
               CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1'
                    WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) = 'baidu' THEN '3'
                    ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
        FROM bid WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL
                       OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')
    """,
    "q22": """
        SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2,
               SPLIT_INDEX(url, '/', 5) AS dir3 FROM bid
    """,
    "q23": """
        SELECT bidder, price, channel, url, B.extra, P.id AS person_id, name, city, itemName, seller, category
        FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder
    """,
}
"""By name; in q6, which Flink does not run, orders tell all rows apart. Elsewhere are those by the clock (q12, q13,
below), and q10, which writes files by folder."""


Q10 = """
    SELECT auction, bidder, price, `dateTime`, extra,
           DATE_FORMAT(`dateTime`, 'yyyy-MM-dd'), DATE_FORMAT(`dateTime`, 'HH:mm')
    FROM bid
"""
"""The rows of q10; the last two columns name the folder of each (``tests/api/table/test_folders.py``)."""

BY_THE_CLOCK = {
    "q12": """
        SELECT B.bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
        FROM TABLE(TUMBLE(TABLE clocked_bid, DESCRIPTOR(p_time), INTERVAL '10' SECOND)) AS B
        GROUP BY B.bidder, window_start, window_end
    """,
    "q13": """
        SELECT B.auction, B.bidder, B.price, B.`dateTime`, S.`value`
        FROM (SELECT *, PROCTIME() AS p_time FROM bid) B
        JOIN side_input FOR SYSTEM_TIME AS OF B.p_time AS S ON mod(B.auction, 10000) = S.key
    """,
}
"""Queries by processing time. What q12 gives depends on the clock."""

SIDE_INPUT = """
CREATE TABLE side_input (key BIGINT, `value` VARCHAR)
WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv');

CREATE VIEW clocked_bid AS SELECT *, PROCTIME() AS p_time FROM bid;
"""


def with_side_input(env: TableEnvironment, path: Path) -> None:
    """Add what the queries by processing time read: a side table of 10,000 rows, and bids with the clock."""
    if not path.exists():
        path.write_text("".join(f"{key},value {key * 7919 % 10_007}\n" for key in range(10_000)), encoding="utf-8")
    env.execute_script(SIDE_INPUT.format(path=path))


def auction_environment(mode: str, parallelism: int = 2, data: Path = DATA, **options: Any) -> TableEnvironment:
    """Return an environment with the events of a folder and their three views."""
    env = TableEnvironment.create(mode=mode, parallelism=parallelism, **options)
    add_events(env, FILES.format(path=data / "events.parquet"))
    return env


def add_events(env: TableEnvironment, connector: str) -> None:
    """Add the events, by the options of the table they come from, their three views, and the function of q14."""
    env.execute_script(EVENTS.format(connector=connector))
    add_count_char(env)


class _Source(TableConnector):
    """The rows of a source as a table, which makes the watermarks where they are read."""

    name = "given source"
    makes_watermarks = True

    def __init__(self, source: Any, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema

    def stream(self, env: Any, schema: pa.Schema, watermarks: WatermarkStrategy | None = None) -> Any:
        return env.from_source(self._source, watermarks or WatermarkStrategy.no_watermarks(), "events", self._schema)


def add_event_stream(env: TableEnvironment, source: Any, schema: pa.Schema) -> None:
    """Add the events of a source, with their time in the column ``dateTime``, their views, and the function of q14.

    Each split has a watermark of its own: after a restore a subtask may have one that is far ahead of another, whose
    rows would all be late for a watermark behind the source.
    """
    table = TemporaryTable(_Source(source, schema), schema, "dateTime", 4_000)
    env._catalogs.add("events", table, is_temporary=True)
    env.execute_script(EVENTS.partition(";")[2])
    add_count_char(env)


def events_with_time(data: Path = DATA) -> pa.Table:
    """Return all events, and beside them their time."""
    events = pq.read_table(data / "events.parquet")
    kinds = [
        pc.struct_field(events[name], "dateTime").cast(pa.timestamp("ms")) for name in ("person", "auction", "bid")
    ]
    return events.append_column("dateTime", pc.coalesce(*kinds))


def add_count_char(env: TableEnvironment) -> None:
    """Add the function of q14."""
    env.create_temporary_function("count_char", udf(_count_of, result_type="BIGINT"))


def _count_of(text: str, letter: str) -> int:
    return text.count(letter)


def as_multiset(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """Return rows to compare: by position of column, times in milliseconds."""
    columns = []
    for column in table.columns:
        kind = column.type
        columns.append(column.cast(pa.timestamp("ms")) if pa.types.is_timestamp(kind) else column)
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


def expected(query: str, data: Path = DATA) -> Counter[tuple[Any, ...]]:
    """Return what a query gives: by Flink, or directly from the events where rows stay what they are."""
    path = data / "expected" / f"{query}.parquet"
    return as_multiset(pq.read_table(path)) if path.exists() else _DIRECT[query](data)


def bids(data: Path = DATA) -> list[dict[str, Any]]:
    """Return all bids."""
    events = pq.read_table(data / "events.parquet", columns=["event_type", "bid"])
    return [row["bid"] for row in events.to_pylist() if row["event_type"] == 2]


def _q0(data: Path) -> Counter[tuple[Any, ...]]:
    return Counter((b["auction"], b["bidder"], b["price"], b["dateTime"], b["extra"]) for b in bids(data))


def _q1(data: Path) -> Counter[tuple[Any, ...]]:
    from decimal import Decimal

    rate = Decimal("0.908")
    return Counter((b["auction"], b["bidder"], rate * b["price"], b["dateTime"], b["extra"]) for b in bids(data))


def _q6(data: Path) -> Counter[tuple[Any, ...]]:
    rows = pq.read_table(data / "events.parquet").to_pylist()
    auctions = {row["auction"]["id"]: row["auction"] for row in rows if row["event_type"] == 1}
    best: dict[int, tuple[Any, ...]] = {}
    for bid in bids(data):
        auction = auctions.get(bid["auction"])
        if auction is not None and auction["dateTime"] <= bid["dateTime"] <= auction["expires"]:
            place = (-bid["price"], bid["dateTime"])
            best[auction["id"]] = min(best.get(auction["id"], place), place)
    sold: dict[int, list[Any]] = {}
    for number, (price, time) in best.items():
        sold.setdefault(auctions[number]["seller"], []).append((time, number, -price))
    found: Counter[tuple[Any, ...]] = Counter()
    for seller, sales in sold.items():
        prices = [price for _, _, price in sorted(sales)]
        for place in range(len(prices)):
            seen = prices[max(0, place - 10) : place + 1]
            found[seller, sum(seen) // len(seen)] += 1
    return found


def _q22(data: Path) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for bid in bids(data):
        parts = bid["url"].split("/")
        found[(bid["auction"], bid["bidder"], bid["price"], bid["channel"], *parts[3:6])] += 1
    return found


def _q23(data: Path) -> Counter[tuple[Any, ...]]:
    rows = pq.read_table(data / "events.parquet").to_pylist()
    persons = {row["person"]["id"]: row["person"] for row in rows if row["event_type"] == 0}
    auctions: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["event_type"] == 1:
            auctions.setdefault(row["auction"]["seller"], []).append(row["auction"])
    found: Counter[tuple[Any, ...]] = Counter()
    for bid in bids(data):
        person = persons.get(bid["bidder"])
        for auction in auctions.get(bid["bidder"], []) if person else []:
            found[
                bid["bidder"], bid["price"], bid["channel"], bid["url"], bid["extra"], person["id"], person["name"],
                person["city"], auction["itemName"], auction["seller"], auction["category"],
            ] += 1  # fmt: skip
    return found


def bids_per_bidder(data: Path = DATA) -> Counter[int]:
    """Return what the windows of q12 come to, whatever the clock says."""
    return Counter(bid["bidder"] for bid in bids(data))


def _q13(data: Path) -> Counter[tuple[Any, ...]]:
    return Counter(
        (b["auction"], b["bidder"], b["price"], b["dateTime"], f"value {b['auction'] % 10_000 * 7919 % 10_007}")
        for b in bids(data)
    )


def _q10(data: Path) -> Counter[tuple[Any, ...]]:
    return Counter(
        (b["auction"], b["bidder"], b["price"], b["dateTime"], b["extra"], f"{b['dateTime']:%Y-%m-%d}",
         f"{b['dateTime']:%H:%M}")
        for b in bids(data)
    )  # fmt: skip


_DIRECT = {"q10": _q10, "q13": _q13, "q0": _q0, "q1": _q1, "q6": _q6, "q22": _q22, "q23": _q23}
