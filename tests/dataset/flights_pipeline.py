"""The flights pipeline, once as a DataSet program and once in pandas: joins with airports, planes and weather, groups,
the ten worst routes of each carrier.

The Spark executor's tests run the same program.
"""

from pathlib import Path

import pandas as pd

from headrace import avg, coalesce, col, count, lit
from headrace import functions as f

SMALL = Path(__file__).resolve().parent.parent / "data" / "flights"


def worst_routes(env, folder=SMALL):
    """Per carrier the ten routes with the highest mean delay of departure, with what planes and weather were like."""
    flights = env.read_parquet(folder / "flights.parquet").filter(col("dep_delay").is_not_null())
    airports = env.read_csv(folder / "airports.csv").select(dest=col("faa"), airport=col("name"), alt=col("alt"))
    planes = env.read_csv(folder / "planes.csv").select("tailnum", "seats")
    weather = env.read_parquet(folder / "weather.parquet").select(
        "origin", "year", "month", "day", "hour", "wind_speed", "visib"
    )
    told = (
        flights.join(weather, how="left").on("origin", "year", "month", "day", "hour").merge()
        .join(planes, how="left").on("tailnum").merge()
        .join(airports, how="left").on("dest").merge()
    )  # fmt: skip
    routes = told.group_by("carrier", "origin", "dest").aggregate(
        flights=count(),
        delay=avg("dep_delay"),
        late=f.max("dep_delay"),
        seats=f.sum("seats"),
        wind=avg("wind_speed"),
        clear=f.min("visib"),
        airport=f.min("airport"),
    )
    named = routes.with_columns(airport=coalesce(col("airport"), lit("unknown")))
    worst = (
        named.group_by("carrier").sort_group("delay", ascending=False).sort_group("origin").sort_group("dest").first(10)
    )
    return worst.sort("carrier", "delay", "origin", "dest", ascending=[True, False, True, True])


def worst_routes_in_pandas(folder=SMALL):
    """The same in pandas; a list of dicts."""
    flights = pd.read_parquet(folder / "flights.parquet").dropna(subset=["dep_delay"])
    weather = pd.read_parquet(folder / "weather.parquet")
    weather = weather[["origin", "year", "month", "day", "hour", "wind_speed", "visib"]]
    planes = pd.read_csv(folder / "planes.csv")[["tailnum", "seats"]]
    airports = pd.read_csv(folder / "airports.csv")[["faa", "name", "alt"]].rename(
        columns={"faa": "dest", "name": "airport"}
    )
    told = flights.merge(weather, how="left", on=["origin", "year", "month", "day", "hour"])
    # pandas joins missing keys with each other, SQL does not; planes has no missing key, so nothing differs.
    told = told.merge(planes, how="left", on="tailnum").merge(airports, how="left", on="dest")
    routes = told.groupby(["carrier", "origin", "dest"], as_index=False).agg(
        flights=("flight", "size"),
        delay=("dep_delay", "mean"),
        late=("dep_delay", "max"),
        seats=("seats", lambda s: s.sum(min_count=1)),
        wind=("wind_speed", "mean"),
        clear=("visib", "min"),
        airport=("airport", "first"),
    )
    routes["airport"] = routes["airport"].fillna("unknown")
    ordered = routes.sort_values(["carrier", "delay", "origin", "dest"], ascending=[True, False, True, True])
    worst = ordered.groupby("carrier").head(10)
    return worst.astype(object).where(worst.notna(), None).to_dict("records")


def assert_same_routes(actual, expected):
    """Equal records in equal order, floats up to rounding."""
    import pytest

    assert len(actual) == len(expected)
    for got, wanted in zip(actual, expected, strict=True):
        assert set(got) == set(wanted)
        for name, value in wanted.items():
            assert got[name] == (pytest.approx(value) if isinstance(value, float) else value), (name, got, wanted)
