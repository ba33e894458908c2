"""Answers questions about the chemical elements from a CSV that was deployed with the code, using pandas."""

from pathlib import Path

import pandas

ELEMENTS = pandas.read_csv(Path(__file__).with_name("elements.csv"))


def handler(event, context):
    by_phase = ELEMENTS.groupby("phase")["symbol"].count()
    by_period = ELEMENTS.groupby("period")["weight"].mean().round(3)
    heaviest_gas = ELEMENTS[ELEMENTS.phase == "gas"].sort_values("weight").iloc[-1]
    return {
        "elements": len(ELEMENTS),
        "by_phase": {phase: int(count) for phase, count in by_phase.items()},
        "mean_weight_by_period": {str(period): float(mean) for period, mean in by_period.items()},
        "heaviest_gas": heaviest_gas["name"],
    }
