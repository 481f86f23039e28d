"""Compare every whole-network golden case with our model in float32 and float64 and print the differences.

    python benchmarks/peers/parity.py > benchmarks/peers/results/parity.md

A difference is the largest over all logits, over the largest logit. Weights and inputs are made by the formula of
tests/golden/README.md; the wanted logits are the published code's, computed in float64.
"""

import sys
from pathlib import Path
from typing import Any

import timm
import torch

import saccade  # noqa: F401, registers the backbones

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.golden import Case, cases, relative_error

NAMES = {
    **{name: name for name in ("nommer_tiny", "nommer_base", "glnet_stl", "glnet_stl_paramslot", "glnet_4g")},
    "glnet_4g_tklb": "glnet_4g_tl",
    **{name: name for name in ("sot_7", "sot_tiny", "sot_base", "cvt_13", "t2t_vit_14")},
    "sot_tiny_densebn": "sot_tiny",
}


def options(case: Case) -> dict[str, Any]:
    made = case.record["constructor"]
    if case.name.startswith("nommer"):
        return {"img_size": made["input_size"], "window_size": made["win_size"]}
    if case.name.startswith(("sot", "t2t")):
        return {"img_size": made["img_size"], **({"dense_norm": True} if "densebn" in case.name else {})}
    return {}


def main() -> None:
    print(f"torch {torch.__version__}, timm {timm.__version__}, CPU\n")
    print("| network | case | ours | float32 | float64 |\n| --- | --- | --- | --: | --: |")
    for golden, name in NAMES.items():
        for case in cases(golden):
            model = timm.create_model(name, **options(case)).eval()
            model.load_state_dict(case.state_dict())
            with torch.inference_mode():
                single = relative_error(model(case.input()), case.logits)
                double = relative_error(model.double()(case.input().double()), case.logits)
            extra = ", ".join(f"{key}={value}" for key, value in options(case).items())
            print(f"| {golden} | {case.id} | {name}({extra}) | {single:.1e} | {double:.1e} |", flush=True)


if __name__ == "__main__":
    main()
